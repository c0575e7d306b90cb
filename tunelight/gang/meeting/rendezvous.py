"""How the ranks of a gang meet: a store on the gang's interface, and beside it a backend for collectives.

A meeting can be left and held again in the same processes (after a failed trial, say): each one is on a
fresh store. Nothing listens beyond the gang's own interface.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from tunelight.errors import GangError
from tunelight.machine.network import interface_name, listening, no_such_address, reach, unreachable
from tunelight.messages import Place
from tunelight.settings.backends import BackendInfo

if TYPE_CHECKING:
    import torch.distributed as dist

LOOPBACK = "127.0.0.1"
JOIN_LIMIT_S = 120.0
"""How long ranks wait for one another when they meet."""
_CLAIM_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and as what a rank joins.

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


_TAKES_AN_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
"""Variables by which gloo, NCCL and Horovod's gloo are told which interface they are to use."""


def interface_variables(interface: str | None, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return which interface each library is to use: the gang's own, or the user's choice.

    ``chosen`` is the environment before the worker first joined a gang. A worker that was alone with its peers on one
    node may later meet others on the network, so that nothing of an earlier meeting may stay.
    """
    mine = {} if interface is None else dict.fromkeys(_TAKES_AN_INTERFACE, interface)
    return mine | {name: chosen[name] for name in _TAKES_AN_INTERFACE if name in chosen}


class Group(Protocol):
    """What a backend does for the ranks of a gang. Runs on: worker."""

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Open what the ranks need to find one another on ``address``; return its port, or 0. Runs on: rank 0."""

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Meet the other ranks."""

    def leave(self) -> None:
        """Leave the group. Peers that wait in a collective of it are freed, with an error."""

    def close(self) -> None:
        """Drop what ``host`` opened."""

    def tidy(self) -> None:
        """Drop what a trial made beside the gang's own group."""

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone."""


def group_for(collectives: str) -> Group:
    """Return one rank's side of a group: its module is imported here, for it may need an optional library."""
    group: Group = BackendInfo.of_collectives(collectives).load_group()()
    return group


class Rendezvous:
    """One rank's side of its gang's meetings. Runs on: worker."""

    def __init__(self) -> None:
        self._server: dist.TCPStore | None = None
        self._control: dist.TCPStore | None = None
        self._group: Group | None = None
        self._last: StoreControl | None = None
        self._chosen: dict[str, str] | None = None

    def host(self, address: str, backend: str, layout: tuple[int, ...]) -> tuple[int, int]:
        """Open a fresh store, and what the backend needs, on ``address`` alone; return the ports. Runs on: rank 0."""
        import torch.distributed as dist  # workers import torch, whoever reads this may not

        with listening(address) as listener:
            port = int(listener.getsockname()[1])
            self._server = dist.TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=JOIN_LIMIT_S),
                master_listen_fd=listener.detach(),
            )
        self._group = group_for(backend)
        return port, self._group.host(address, layout)

    def join(self, meeting: Meeting, place: Place) -> None:
        """Meet the other ranks: connect to the store, then to one another by the backend's own way."""
        if self._chosen is None:
            self._chosen = dict(os.environ)
        interface = interface_name(place.interface)
        if interface is None and _TAKES_AN_INTERFACE[0] not in self._chosen:
            raise GangError(no_such_address(place.interface), "exception")
        os.environ.update(interface_variables(interface, self._chosen))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = meeting.host, str(meeting.port)
        if self._server is None and (why := reach(meeting.host, meeting.port)) is not None:
            me = f"Rank {place.rank} on {os.uname().nodename} ({place.interface})"
            raise GangError(unreachable(me, "rank 0", meeting.host, meeting.port, why), "exception")
        store = self._server or self._connect(meeting)
        self._control = self._connect(meeting)
        if self._group is None:
            self._group = group_for(meeting.backend)
        self._group.join(meeting, place, store)

    def _connect(self, meeting: Meeting) -> dist.TCPStore:
        import torch.distributed as dist

        return dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=timedelta(seconds=JOIN_LIMIT_S))

    def leave(self) -> None:
        """Leave the group. Peers that wait in a collective of it are freed, with an error."""
        if self._group is not None:
            self._group.leave()

    def close(self) -> None:
        """Leave, and drop the store."""
        self.leave()
        if self._group is not None:
            self._group.close()
        self._control = self._server = self._last = self._group = None

    def control(self, name: str) -> StoreControl:
        """Return the channel for rank 0's word in one trial; what the last one left in the store goes."""
        if self._control is None:
            raise RuntimeError("the rank has joined no gang")
        if self._last is not None:
            self._last.clear()
        self._last = StoreControl(self._control, name)
        return self._last

    def tidy(self) -> None:
        """Drop what a trial made beside the gang's own group."""
        if self._group is not None:
            self._group.tidy()

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone: never the cause while there is another."""
        import torch.distributed as dist

        return isinstance(error, dist.DistError) or (self._group is not None and self._group.lost_peer(error))


class StoreControl:
    """Rank 0's word over the gang's store; see :class:`tunelight.session.session.Control`."""

    def __init__(self, store: dist.TCPStore, name: str) -> None:
        self._store = store
        self._name = name
        self._said: list[str] = []

    def _key(self, turn: int | str) -> str:
        return f"{self._name}/{turn}"

    def clear(self) -> None:
        """Delete the words said; every rank has ended its trial by now."""
        for key in self._said:
            self._store.delete_key(key)

    def say(self, turn: int | str, word: str) -> None:
        """Publish rank 0's word for ``turn``."""
        self._said.append(self._key(turn))
        self._store.set(self._key(turn), word)

    def hear(self, turn: int | str, timeout_s: float) -> str | None:
        """Return rank 0's word for ``turn``, or None when it has not come within ``timeout_s``."""
        import torch.distributed as dist

        key = self._key(turn)
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except dist.DistStoreError:
            return None
        return bytes(self._store.get(key)).decode()

    def failed_first(self, rank: int) -> int:
        """Claim to be the rank that failed first; return the one that was. An unreachable store: ``rank``."""
        try:
            self._store.set_timeout(timedelta(seconds=_CLAIM_LIMIT_S))
            word = self._store.compare_set(f"{self._name}/failed", "", str(rank))
            return int(bytes(word).decode() or rank)
        except Exception:  # noqa: BLE001 - rank 0 is gone with its store; the head will see that
            return rank
