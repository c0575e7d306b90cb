"""How the ranks of a gang meet: over a store, and a backend for collectives, both on the gang's interface alone.

Ranks can leave a meeting and meet again in the same processes, after a failed trial for example. Each meeting has a
store of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tunelight.compat.torch import store_on
from tunelight.errors import GangError
from tunelight.gang.meeting.group import CollectiveGroup, Meeting
from tunelight.machine.network import interface_name, listening, no_such_address, reach, unreachable
from tunelight.messages import Place
from tunelight.policies import says_memory_is_out
from tunelight.settings.backends import BackendInfo

if TYPE_CHECKING:
    import torch.distributed as dist

LOOPBACK = "127.0.0.1"
JOIN_LIMIT_S = 120.0
"""How long ranks wait for one another when they meet."""
_AT_ONCE_S = 1.0
"""How long a message that is there may take to be read."""
_CLAIM_LIMIT_S = 1.0
_ACKNOWLEDGED = 64
"""Ranks acknowledge every 64th decision, which costs a small part of what the decisions cost."""
_KEPT_TURNS = 256
"""After so many messages rank 0 deletes those that all ranks have received."""


_OF_NCCL = "NCCL_SOCKET_IFNAME"
_TAKES_AN_INTERFACE = {"GLOO_SOCKET_IFNAME": "", _OF_NCCL: "=", "HOROVOD_GLOO_IFACE": ""}
"""The variables that choose the network interface of gloo, NCCL and Horovod's gloo, and what precedes its name there.

Without "=" NCCL takes each interface whose name begins so: with "eth1" also eth10.
"""
_NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
_ACCELERATE_ON_CPUS = "ACCELERATE_USE_CPU"


def interface_variables(interface: str | None, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that choose each library's interface: the user's choice, else the gang's interface.

    ``chosen`` is the environment before the worker first joined a gang, without what an earlier meeting set: a worker
    whose peers were all on its node may later meet others over the network. A choice in NCCL's configuration files,
    which a variable would overrule, stays as well.
    """
    mine = {} if interface is None else {name: before + interface for name, before in _TAKES_AN_INTERFACE.items()}
    if _OF_NCCL in mine and _in_files_of_nccl(_OF_NCCL, chosen):
        del mine[_OF_NCCL]
    return mine | {name: chosen[name] for name in _TAKES_AN_INTERFACE if name in chosen}


def _in_files_of_nccl(name: str, chosen: Mapping[str, str]) -> bool:
    """Tell whether a configuration file of NCCL's sets a variable: the machine's, or the user's (NCCL_CONF_FILE)."""
    for file in (_NCCL_FILES[0], chosen.get("NCCL_CONF_FILE") or _NCCL_FILES[1]):
        with contextlib.suppress(OSError, UnicodeError, RuntimeError):
            lines = Path(file).expanduser().read_text().splitlines()
            if any(line.startswith(f"{name}=") for line in lines):
                return True
    return False


def torchrun_variables(meeting: Meeting, place: Place, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would tell a process at this place: libraries find rank, size and store by these names.

    Like torchrun's, the store is served already. Accelerate must be told of a gang on CPUs, as ``accelerate launch
    --cpu`` does: it would train each rank alone. ``chosen`` is the user's environment, whose choice for it stays.
    """
    variables: dict[str, object] = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "GROUP_RANK": place.node_rank,
        "GROUP_WORLD_SIZE": len(meeting.layout),
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": meeting.port,
    }
    if place.world_size > 1:
        # By these a process knows that its group is made from outside. A gang of one may well start one of its own.
        variables |= {"TORCHELASTIC_RUN_ID": "tunelight", "TORCHELASTIC_USE_AGENT_STORE": True}
        variables |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}  # torch 2.4 reads the first
    on_cpus = place.gpu is None and place.world_size > 1
    variables[_ACCELERATE_ON_CPUS] = chosen.get(_ACCELERATE_ON_CPUS, str(on_cpus).lower())
    return {name: str(value) for name, value in variables.items()}


def group_for(collectives: str) -> CollectiveGroup:
    """Return this rank's part of a group. Its module is imported here: it may need an optional library."""
    group: CollectiveGroup = BackendInfo.of_collectives(collectives).load_group()()
    return group


class Rendezvous:
    """One rank's side of its gang's meetings. Runs on: worker."""

    def __init__(self) -> None:
        self._server: dist.TCPStore | None = None
        self._control: dist.TCPStore | None = None
        self.group = CollectiveGroup()
        self._last: StoreChannel | None = None
        self._chosen: dict[str, str] | None = None
        self._rank, self._world_size = 0, 1

    def host(self, address: str, backend: str, layout: tuple[int, ...]) -> tuple[int, int]:
        """Open a new store, and the backend's rendezvous, on ``address`` alone; return their ports. Runs on: rank 0."""
        with listening(address) as listener:
            port = int(listener.getsockname()[1])
            self._server = store_on(listener, address, JOIN_LIMIT_S)
        self.group = group_for(backend)
        return port, self.group.host(address, layout)

    def join(self, meeting: Meeting, place: Place) -> None:
        """Meet the other ranks: connect to the store, then to one another by the backend."""
        if self._chosen is None:
            self._chosen = dict(os.environ)
        self._rank, self._world_size = place.rank, place.world_size
        interface = interface_name(place.interface)
        if interface is None and "GLOO_SOCKET_IFNAME" not in self._chosen:
            raise GangError(no_such_address(place.interface), "exception")
        if self._server is None and (why := reach(meeting.host, meeting.port)) is not None:
            me = f"Rank {place.rank} on {os.uname().nodename} ({place.interface})"
            raise GangError(unreachable(me, "rank 0", meeting.host, meeting.port, why), "exception")
        os.environ.update(interface_variables(interface, self._chosen))
        os.environ.update(torchrun_variables(meeting, place, self._chosen))
        store = self._server or self._connect(meeting)
        self._control = self._connect(meeting)
        if self._server is None:
            self.group = group_for(meeting.backend)
        self.group.join(meeting, place, store)

    def _connect(self, meeting: Meeting) -> dist.TCPStore:
        import torch.distributed as dist

        return dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=timedelta(seconds=JOIN_LIMIT_S))

    def close(self) -> bool:
        """Leave, and close the store; return whether this process can meet again."""
        self.group.leave()
        if not self.group.settle():
            return False
        self.group.close()
        self.group = CollectiveGroup()
        self._control = self._server = self._last = None
        return True

    def channel(self, name: str) -> StoreChannel:
        """Return the channel from rank 0 to the other ranks for one trial; the last trial's messages are deleted."""
        if self._control is None:
            raise RuntimeError("the rank has joined no gang")
        if self._last is not None:
            self._last.clear()
        self._last = StoreChannel(self._control, name, self._rank, self._world_size)
        return self._last

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone, which makes it a consequence and no cause."""
        import torch.distributed as dist

        if says_memory_is_out(str(error)):  # NCCL's own allocations fail with the same class of error
            return False
        return isinstance(error, dist.DistError) or self.group.lost_peer(error)


class StoreChannel:
    """Messages from rank 0 over the gang's store; see :class:`tunelight.session.mailbox.RankChannel`."""

    def __init__(self, store: dist.TCPStore, name: str, rank: int = 0, world_size: int = 1) -> None:
        self._store = store
        self._name = name
        self._rank, self._world_size = rank, world_size
        self._keys: dict[str, None] = {}
        self._turns: list[int] = []
        """The numbered turns whose messages are in the store, in the order in which every rank takes them."""
        self._room = _KEPT_TURNS

    def _key(self, turn: int | str) -> str:
        return f"{self._name}/{turn}"

    def clear(self) -> None:
        """Delete the messages, once every rank has ended its trial."""
        for key in [*self._keys, *map(self._key, self._turns)]:
            self._store.delete_key(key)

    def broadcast(self, turn: int | str, message: str) -> None:
        """Send a message for ``turn``; rank 0 deletes messages of turns that all ranks have received."""
        if isinstance(turn, int):
            self._turns.append(turn)
        else:
            self._keys[self._key(turn)] = None
        self._store.set(self._key(turn), message)
        if len(self._turns) >= self._room:
            received = self._received_by_all()
            past = self._turns.index(received) + 1 if received in self._turns else 0
            for old in self._turns[:past]:
                self._store.delete_key(self._key(old))
            self._turns = self._turns[past:]
            self._room = len(self._turns) + _KEPT_TURNS

    def _received_by_all(self) -> int:
        """Return the last decision's turn that every other rank has acknowledged; 0 for none."""
        keys = [self._key(f"received/{rank}") for rank in range(1, self._world_size)]
        if not keys:
            return max(self._turns)
        if not self._store.check(keys):
            return 0
        return min(int(self._store.get(key)) for key in keys)

    def receive(self, turn: int | str, timeout_s: float) -> str | None:
        """Return rank 0's message for ``turn``; None where it has not come within ``timeout_s`` seconds (0: so far)."""
        import torch.distributed as dist

        key = self._key(turn)
        if not timeout_s and not self._store.check([key]):
            return None
        try:
            self._store.wait([key], timedelta(seconds=timeout_s or _AT_ONCE_S))
        except dist.DistStoreError:
            return None
        message = bytes(self._store.get(key)).decode()
        if isinstance(turn, int) and turn > 0 and turn % _ACKNOWLEDGED == 0:
            mine = self._key(f"received/{self._rank}")
            self._keys[mine] = None
            self._store.set(mine, str(turn))
        return message

    def delete(self, turn: str) -> None:
        """Delete this rank's message for ``turn``."""
        self._keys.pop(self._key(turn), None)
        self._store.delete_key(self._key(turn))

    def failed_first(self, rank: int) -> int:
        """Claim to be the first rank to fail; return the first that did (``rank``, if the store is unreachable)."""
        try:
            self._store.set_timeout(timedelta(seconds=_CLAIM_LIMIT_S))
            first = self._store.compare_set(f"{self._name}/failed", "", str(rank))
            return int(bytes(first).decode() or rank)
        except Exception:  # noqa: BLE001 - rank 0 and its store are gone, which the head notices
            return rank
