"""Collectives by Horovod, which can be initialised again in the same processes.

Ranks find one another through Horovod's HTTP rendezvous, which rank 0 serves on the gang's interface alone (Horovod's
launcher would bind all interfaces).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from tunelight.errors import GangError
from tunelight.gang.meeting.group import CollectiveGroup, Meeting, gather, try_pairs
from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist


LEAVE_LIMIT_S = 30.0
"""How long Horovod may take to shut down: a stopped peer delays it until gloo times out."""


class HorovodGroup(CollectiveGroup):
    """Horovod's global process set."""

    def __init__(self) -> None:
        self._server: Any = None
        self._joined = False
        self._stuck = False

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Serve Horovod's rendezvous on ``address`` alone; return its port."""
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        self._server = RendezvousHTTPServer((address, 0), RendezvousHandler, verbose=0)
        self._server.daemon_threads = True
        nodes = ",".join(f"{host_of_node(node)}:{ranks}" for node, ranks in enumerate(layout))
        self._server.init(get_host_assignments(parse_hosts(nodes), sum(layout)))
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="horovod-rendezvous", daemon=True
        ).start()
        return int(self._server.server_address[1])

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Initialise Horovod as this rank."""
        import horovod.torch as hvd  # installed for Horovod's gangs only
        import torch.distributed as dist  # only workers import torch

        os.environ.update(environment(meeting, place))
        # Horovod ends the process of a rank that waits 30 s for one that still imports.
        alone = len(set(gather(dist.PrefixStore("gather", store), place))) == 1
        address, why = named(socket.gethostname(), alone=alone)
        if why is not None:
            raise GangError(f"{why} on {os.uname().nodename} ({place.interface}). {_NAME_IT}", "exception")
        if not alone:
            try_pairs(dist.PrefixStore("pairs", store), place, len(meeting.layout), address)
        hvd.init()
        self._joined = True

    def leave(self) -> None:
        """Shut Horovod down; collectives in which peers wait fail with an error."""
        import horovod.torch as hvd

        if self._joined:
            leaving = threading.Thread(target=hvd.shutdown, name="horovod-shutdown", daemon=True)
            leaving.start()
            leaving.join(LEAVE_LIMIT_S)
            self._stuck = leaving.is_alive()
        self._joined = False

    def settle(self) -> bool:
        """Tell whether Horovod has shut down."""
        return not self._stuck

    def close(self) -> None:
        """End the rendezvous."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def tidy(self) -> bool:
        """Destroy the process groups of torch that a trial made; return False if there were any.

        The gang's store keeps what they wrote, which would mislead a later one: the ranks need a new store.
        """
        import torch.distributed as dist

        if not dist.is_initialized():
            return True
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        return False

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error is Horovod's for a peer that has left or died."""
        return type(error).__name__ == "HorovodInternalError"


_NAME_IT = (
    "Horovod 0.28 opens its connections at the address of the host name, whichever interface it is told. Add a line "
    "with the node's address and its name to /etc/hosts there, or use backend='ddp', which needs no name."
)


def named(host: str, *, alone: bool) -> tuple[str, str | None]:
    """Return the address that Horovod will use for a host name, and why it cannot work (None where it can).

    Horovod uses the first address of the name that can be bound to. Without one it crashes; with a loopback address,
    as Debian's installer writes into /etc/hosts, ranks on other nodes wait in vain. ``alone``: all ranks are at one
    address.
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return "", f"The host name {host!r} has no address ({error})"
    for kind, _, _, _, place in entries:
        address = str(place[0])
        try:
            with socket.socket(kind, socket.SOCK_STREAM) as probe:
                probe.bind(place)
        except OSError:
            continue
        if alone or not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address, None
        return address, f"The host name {host!r} has the address {address}, which other nodes cannot reach"
    others = ", ".join(sorted({str(entry[4][0]) for entry in entries}))
    return "", f"The host name {host!r} has no address of this node ({others})"


def host_of_node(node: int) -> str:
    """Return the name of a node among Horovod's hosts."""
    return f"node{node}"


def environment(meeting: Meeting, place: Place) -> dict[str, str]:
    """Return the environment variables by which Horovod knows this rank and finds the others.

    Across nodes, ranks of one local rank are numbered by node; the last nodes may have fewer ranks.
    """
    crossing = [node for node, ranks in enumerate(meeting.layout) if ranks > place.local_rank]
    variables = {
        "RANK": place.rank,
        "SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_world_size,
        "CROSS_RANK": crossing.index(place.node_rank),
        "CROSS_SIZE": len(crossing),
        "HOSTNAME": host_of_node(place.node_rank),
        "GLOO_RENDEZVOUS_ADDR": meeting.host,
        "GLOO_RENDEZVOUS_PORT": meeting.group_port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{name}": str(value) for name, value in variables.items()}
