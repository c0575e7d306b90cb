"""Collectives by torch.distributed: gloo, or NCCL where each rank has a GPU of its own."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tunelight.compat.torch import abort_process_group
from tunelight.gang.meeting.group import COLLECTIVE_LIMIT_S, CollectiveGroup, Meeting, try_pairs
from tunelight.messages import Place

_ABORT_LIMIT_S: Final = 10.0
"""How long NCCL may take to end its connections: those to a rank of the same node wait for that rank to end its own."""
_ADVICE = {
    "initialize the default process group twice": (
        "A gang's process group is initialised before the train function starts: call "
        "torch.distributed.init_process_group() only if torch.distributed.is_initialized() is False."
    ),
    "does not match the world size": (
        "The gang is there already: give a Trainer strategy=tunelight.RayStrategy() and no devices, and Fabric as many "
        "devices and nodes as the gang has (tunelight.get_context())."
    ),
}
"""What to do about errors of torch and Lightning, by words in them."""


class TorchGroup(CollectiveGroup):
    """torch's default process group, on the gang's store."""

    def __init__(self) -> None:
        self._joined = False
        self._ours: Any = None
        """The gang's group, kept until the end of the trial that destroys it.

        Where a DDP model's reducer has the last reference, torch waits for gloo's threads without giving the GIL up,
        which they may need to free a tensor: a deadlock. A reference of Python's frees the group without the GIL.
        """
        self._aborting: threading.Thread | None = None

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Build the process group."""
        if (nodes := len(meeting.layout)) > 1:
            try_pairs(dist.PrefixStore("pairs", store), place, nodes, place.interface)
        dist.init_process_group(
            meeting.backend,
            store=dist.PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=meeting.timeout_s or COLLECTIVE_LIMIT_S),
        )
        self._joined, self._ours = True, dist.group.WORLD

    def leave(self) -> None:
        """Destroy the group. Peers that wait in it are free once ``tidy`` has let go of it, and so has the trial.

        NCCL's is aborted in a thread, which ``settle`` waits for: it would wait for its peers, and an abort may do so
        too. Those that wait in it themselves go on waiting.
        """
        if self._joined and dist.is_initialized():
            if "nccl" in dist.get_backend():  # or "cpu:gloo,cuda:nccl"
                self._aborting = threading.Thread(target=_end, args=(abort_process_group,), name="NCCL", daemon=True)
                self._aborting.start()
            else:
                _end(dist.destroy_process_group)
        self._joined = False

    def settle(self) -> bool:
        """Wait until NCCL has ended its connections; tell whether the process can make another group."""
        if self._aborting is not None:
            self._aborting.join(_ABORT_LIMIT_S)
            if self._aborting.is_alive():
                return False
            self._aborting = None
        return self._joined or not dist.is_initialized()

    def close(self) -> None:
        """Let go of the group."""
        self._ours = None

    def tidy(self) -> bool:
        """Destroy the process groups that a trial made beside the gang's; return whether the gang's own still stands.

        Accelerate and scripts written for torchrun end by destroying the default group.
        """
        if not (self._joined and dist.is_initialized()):
            self._ours = None
            return not self._joined
        groups = [group for group in c10d._world.pg_map if group is not dist.group.WORLD]
        for group in groups:
            with contextlib.suppress(Exception):
                dist.destroy_process_group(group)
        if groups:
            _forget_meshes()
        if self._ours is not dist.group.WORLD:
            self._ours = None
        return self._ours is not None

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error is gloo's or NCCL's for a lost connection."""
        return isinstance(error, RuntimeError) and any(
            word in str(error) for word in ("gloo", "Connection closed", "NCCL")
        )

    def advice(self, error: BaseException) -> str | None:
        """Return what to do about a second ``init_process_group``, or Lightning's view of the size; None for others."""
        known = (advice for words, advice in _ADVICE.items() if words in str(error))
        return next(known, None) if isinstance(error, ValueError) else None


def _end(destroy: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the group may be broken already
        destroy()
    _forget_meshes()


def _forget_meshes() -> None:
    """Remove destroyed groups from device meshes.

    Gloo closes a group's connections, which frees peers that wait in it, once nothing refers to the group any more;
    but caches of torch's DTensor keep meshes, and so their groups, for the life of the process.
    """
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return
    for mesh in gc.get_objects():
        if issubclass(type(mesh), module.DeviceMesh):  # isinstance would ask a proxy what it stands for
            vars(mesh).get("_pg_registry", {}).clear()
