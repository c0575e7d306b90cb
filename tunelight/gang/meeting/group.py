"""What a rank needs to know to join its gang, and the interface of a backend for collectives."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tunelight.errors import GangError
from tunelight.machine.network import listening, reach, unreachable
from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist

COLLECTIVE_LIMIT_S = 1800.0
"""How long a collective may take before its ranks give up (torch's own default)."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What ranks need to know to meet.

    ``backend`` is ``gloo``, ``nccl`` or ``horovod``; ``host`` and ``port`` are the store's; ``group_port`` is
    that of the backend's own rendezvous, where it has one. ``layout`` counts the ranks of each node;
    ``timeout_s`` is how long a collective may take (None: the backend's own limit).
    """

    host: str
    port: int
    backend: str
    layout: tuple[int, ...] = ()
    group_port: int = 0
    timeout_s: float | None = None


class CollectiveGroup:
    """One rank's part of a backend for collectives; this one connects nothing. Runs on: worker."""

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Serve the backend's rendezvous on ``address``; return its port, or 0 for none. Runs on: rank 0."""
        return 0

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Meet the other ranks."""

    def leave(self) -> None:
        """Leave the group, or begin to; collectives in which peers wait fail with an error."""

    def settle(self) -> bool:
        """Wait, for some seconds, until a group that was left has ended; tell whether this process can meet again."""
        return True

    def close(self) -> None:
        """Close what ``host`` opened."""

    def tidy(self) -> bool:
        """Destroy the groups that a trial made beside the gang's; return whether the gang's own still stands."""
        return True

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone."""
        return False

    def advice(self, error: BaseException) -> str | None:
        """Return what to do about an error that follows from the group being there already; None for others."""
        return None


# --- Checks before a backend connects: that all ranks have come, and that their nodes can connect to one another ---


GATHER_LIMIT_S = 100.0
"""How long ranks wait for one another here, which is less than the gang's head waits for them."""
_MOST_AT_ONCE = 64
"""How many connections a rank tries at the same time."""


def gather(store: dist.Store, place: Place, limit_s: float = GATHER_LIMIT_S) -> list[str]:
    """Wait for all ranks; return their addresses within the gang. Raises: GangError naming those that are late."""
    store.set(f"here/{place.rank}", place.interface)
    _wait(store, keys := [f"here/{rank}" for rank in range(place.world_size)], limit_s)
    return [store.get(key).decode() for key in keys]


def try_pairs(store: dist.Store, place: Place, nodes: int, address: str) -> None:
    """Check that every node can connect to every other at a free port of ``address``, which the backend will use.

    The first rank of each node tries, and all ranks wait for its result. Raises: GangError naming two nodes that
    cannot connect.
    """
    tried = [f"tried/{node}" for node in range(nodes)]
    with _door(store, place, address):
        if place.local_rank == 0:
            doors = [f"door/{node}" for node in range(nodes) if node != place.node_rank]
            _wait(store, doors, GATHER_LIMIT_S)
            store.set(tried[place.node_rank], _try(place, [json.loads(store.get(door)) for door in doors]))
        _wait(store, tried, GATHER_LIMIT_S)
    if failure := next(filter(None, (store.get(key).decode() for key in tried)), None):
        raise GangError(failure, "exception")


def _try(place: Place, doors: Sequence[tuple[str, str, int]]) -> str:
    """Return why another node (host, address and port) cannot be reached; an empty string where all can."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        reasons = threads.map(lambda door: reach(door[1], door[2]), doors)
        for (host, address, port), why in zip(doors, reasons, strict=True):
            if why is not None:
                me = f"Rank {place.rank} on {os.uname().nodename} ({place.interface})"
                return unreachable(me, host, address, port, why)
    return ""


@contextlib.contextmanager
def _door(store: dist.Store, place: Place, address: str) -> Iterator[None]:
    """Listen on ``address`` for the other nodes, if this is the first rank of its node."""
    if place.local_rank:
        yield
        return
    with listening(address) as listener:
        port = listener.getsockname()[1]
        store.set(f"door/{place.node_rank}", json.dumps([os.uname().nodename, address, port]))
        yield


def _wait(store: dist.Store, keys: list[str], limit_s: float) -> None:
    import torch.distributed as dist  # workers import torch, whoever reads this may not

    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except dist.DistStoreError as error:
        late = [key for key in keys if not store.check([key])]
        what = {"here": "ranks", "door": "nodes", "tried": "nodes"}[keys[0].partition("/")[0]]
        numbers = ", ".join(key.partition("/")[2] for key in late)
        raise GangError(f"Waited {limit_s:.0f} s for {what} {numbers} of {len(keys)} to meet the others.") from error
