"""Where the ranks of a gang meet: which address, which interface, and what is said where they cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from tunelight.errors import GangError
from tunelight.gang.meeting import rendezvous
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.horovod import named
from tunelight.gang.meeting.rendezvous import Rendezvous, StoreChannel, interface_variables
from tunelight.machine.network import interface_name, listening, reach
from tunelight.messages import Place

ELSEWHERE = "203.0.113.7"  # of the range that is kept for documentation


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(kind: Any, address: str) -> SimpleNamespace:
        return SimpleNamespace(family=kind, address=address, netmask=None, broadcast=None, ptp=None)

    found = {
        "lo": [entry(socket.AF_INET, "127.0.0.1"), entry(socket.AF_INET6, "::1")],
        "docker0": [entry(socket.AF_INET, "172.17.0.1")],
        "ib0": [entry(socket.AF_INET, "10.1.0.4"), entry(socket.AF_INET6, "fe80::4%ib0")],
        "tap0": [entry(psutil.AF_LINK, "10.1.0.5")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


@pytest.mark.parametrize(
    ("address", "interface"),
    [("127.0.0.1", "lo"), ("10.1.0.4", "ib0"), ("fe80::4", "ib0"), ("10.1.0.5", None), (ELSEWHERE, None)],
)
def test_the_interface_is_the_one_that_holds_the_nodes_address(two_networks, address, interface):
    assert interface_name(address) == interface


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """A machine and a user without configuration files of NCCL's."""
    files = (str(tmp_path / "etc.conf"), str(tmp_path / "home.conf"))
    monkeypatch.setattr(rendezvous, "_NCCL_FILES", files)
    return [Path(file) for file in files]


def test_gloo_nccl_and_horovod_are_told_the_same_interface(no_files):
    """For NCCL the name alone would be a prefix, which ib01 has as well."""
    assert interface_variables("ib0", {}) == {
        "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0", "HOROVOD_GLOO_IFACE": "ib0",
    }  # fmt: skip


@pytest.mark.parametrize("which", ["the machine's", "the user's", "the one that is named"])
def test_the_interface_in_a_file_of_nccl_stays(no_files, tmp_path, which):
    machine, user = no_files
    file = {"the machine's": machine, "the user's": user}.get(which, tmp_path / "named.conf")
    chosen = {"NCCL_CONF_FILE": str(file)} if which == "the one that is named" else {}
    file.write_text("# of the cluster\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME=ib1\n")
    assert "NCCL_SOCKET_IFNAME" not in interface_variables("eth0", chosen)
    file.write_text("#NCCL_SOCKET_IFNAME=ib1\n")
    assert interface_variables("eth0", chosen)["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_what_the_user_chose_stays():
    told = interface_variables("eth0", {"NCCL_SOCKET_IFNAME": "ib0", "HOME": "/"})
    assert told == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0", "HOROVOD_GLOO_IFACE": "eth0"}


def test_a_node_without_the_address_that_ray_has_says_which_it_has(two_networks):
    with pytest.raises(GangError, match=rf"is {ELSEWHERE} to Ray.*ib0: 10.1.0.4.*--node-ip-address"):
        Rendezvous().host(ELSEWHERE, "gloo", (1, 1))


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp, remote process exited"), True),
        (dist.DistNetworkError("Connection reset by peer"), True),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp: Cuda failure 2 'out of memory'"), False),
        (RuntimeError("NCCL Error 1: unhandled cuda error, out of memory"), False),
        (dist.DistBackendError("NCCL error, unhandled system error: Cannot allocate memory"), False),
        (ValueError("shapes do not fit"), False),
    ],
)
def test_a_rank_that_has_no_memory_left_has_not_lost_a_peer(error, lost):
    one = Rendezvous()
    one.group = rendezvous.group_for("nccl")
    assert one.lost_peer(error) is lost


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listening("127.0.0.1") as one:
        yield one


def test_a_listener_listens_on_one_address_alone(listener):
    host, port = listener.getsockname()
    assert host == "127.0.0.1"
    assert reach("127.0.0.1", port) is None
    assert "refused" in str(reach("127.0.0.2", port))


def test_a_rank_that_cannot_reach_the_first_names_both_and_what_to_do(listener):
    port = listener.getsockname()[1]
    listener.close()
    place = Place(rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1, interface="127.0.0.1")
    with pytest.raises(GangError, match=rf"Rank 1 .* cannot reach rank 0 at 127.0.0.1, port {port}: .*at every port"):
        Rendezvous().join(Meeting("127.0.0.1", port, "gloo"), place)


def test_a_port_that_answers_nothing_is_called_blocked(monkeypatch):
    def silent(*_: object, timeout: float) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    assert "firewall" in str(reach("10.1.0.4", 1))


@pytest.mark.parametrize(
    ("addresses", "alone", "said"),
    [
        (["127.0.0.1"], True, None),
        (["127.0.1.1"], False, "has the address 127.0.1.1, which other nodes cannot reach"),
        ([ELSEWHERE], True, f"has no address of this node ({ELSEWHERE})"),
        ([], True, "has no address (unknown)"),
    ],
)
def test_horovod_is_not_started_where_the_host_name_misleads_it(monkeypatch, addresses, alone, said):
    def lookup(host: str, port: None, **_: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert named("here", alone=alone)[1] == (said and f"The host name 'here' {said}")


def test_messages_are_deleted_once_every_rank_has_received_them():
    """A long trial would leave two a report in rank 0's memory; a rank that lags still receives each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, second = (StoreChannel(store, "1/00000", rank, 2) for rank in (0, 1))
    for number in range(1, 2001):
        first.broadcast(-number, "write")
        first.broadcast(number, "continue")
        if number > 700:
            assert second.receive(-(number - 700), 1) == "write"
            assert second.receive(number - 700, 1) == "continue"
    assert store.num_keys() < 2 * 700 + 500
    second.clear()
    first.clear()
    assert store.num_keys() < 5
