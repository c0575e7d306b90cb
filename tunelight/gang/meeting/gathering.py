"""Ranks look for one another before their backend does.

What a backend does where a rank is late or a port is blocked is worse: Horovod ends the process after 30 s, and gloo
waits for minutes and names nobody.
"""

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
from tunelight.machine.network import REACH_LIMIT_S, listening, reach, unreachable
from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist

COME_LIMIT_S = 100.0
"""How long ranks wait for one another here: less than the gang's head waits for them."""
_MOST_AT_ONCE = 64
"""Connections that a rank tries at once."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as it is seen by the others: the host it is on, and the address that the gang knows of that."""

    host: str
    address: str


def gather(store: dist.Store, place: Place, limit_s: float = COME_LIMIT_S) -> list[Peer]:
    """Wait for all ranks; return them in their order. Raises: GangError naming those that did not come in time."""
    store.set(f"here/{place.rank}", json.dumps([os.uname().nodename, place.interface]))
    _wait(store, [f"here/{rank}" for rank in range(place.world_size)], limit_s)
    return [Peer(*json.loads(store.get(f"here/{rank}"))) for rank in range(place.world_size)]


def try_pairs(store: dist.Store, place: Place, nodes: int, address: str, limit_s: float = REACH_LIMIT_S) -> None:
    """Look whether every node reaches every other at a free port of ``address``, the one that the backend will use.

    The first rank of each node tries, and all wait for what it found. Raises: GangError naming two that are apart.
    """
    tried = [f"tried/{node}" for node in range(nodes)]
    with _door(store, place, address):
        if place.local_rank == 0:
            doors = [f"door/{node}" for node in range(nodes) if node != place.node_rank]
            _wait(store, doors, COME_LIMIT_S)
            store.set(tried[place.node_rank], _try(place, [json.loads(store.get(door)) for door in doors], limit_s))
        _wait(store, tried, COME_LIMIT_S)
    if said := next(filter(None, (store.get(key).decode() for key in tried)), None):
        raise GangError(said, "exception")


def _try(place: Place, doors: Sequence[tuple[str, str, int]], limit_s: float) -> str:
    """Return what is wrong with the way to others (host, address and port of each); nothing where all is well."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        told = threads.map(lambda door: reach(door[1], door[2], limit_s), doors)
        for (host, address, port), why in zip(doors, told, strict=True):
            if why is not None:
                me = f"Rank {place.rank} on {os.uname().nodename} ({place.interface})"
                return unreachable(me, host, address, port, why)
    return ""


@contextlib.contextmanager
def _door(store: dist.Store, place: Place, address: str) -> Iterator[None]:
    """Listen on ``address`` for the other nodes, as the first rank of this one."""
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
