"""The gang's collectives by torch.distributed: gloo, or nccl where each rank has a GPU of its own."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist

    from tunelight.gang.rendezvous import Meeting

COLLECTIVE_LIMIT_S = 1800.0
"""How long a collective may take before its ranks give up (torch's own default)."""


class TorchGroup:
    """torch's default process group, on the gang's own store."""

    def __init__(self) -> None:
        self._joined = False

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Do nothing: the gang's store is all that torch needs."""
        return 0

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Build the process group."""
        import torch.distributed as dist  # noqa: PLC0415 - workers import torch, whoever reads this may not

        dist.init_process_group(
            meeting.backend,
            store=dist.PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=meeting.timeout_s or COLLECTIVE_LIMIT_S),
        )
        self._joined = True

    def leave(self) -> None:
        """Destroy the group, which frees peers that wait in it."""
        import torch.distributed as dist  # noqa: PLC0415

        if self._joined and dist.is_initialized():
            with contextlib.suppress(Exception):  # a group that is broken already has nothing to lose
                dist.destroy_process_group()
        self._joined = False

    def close(self) -> None:
        """Do nothing."""

    def tidy(self) -> None:
        """Destroy the groups that a trial made beside the gang's own."""
        import torch.distributed as dist  # noqa: PLC0415
        from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415

        if not (self._joined and dist.is_initialized()):
            return
        for group in [group for group in c10d._world.pg_map if group is not dist.group.WORLD]:
            with contextlib.suppress(Exception):
                dist.destroy_process_group(group)

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error is gloo's or nccl's word for a connection that is gone."""
        return isinstance(error, RuntimeError) and any(
            word in str(error) for word in ("gloo", "Connection closed", "NCCL")
        )
