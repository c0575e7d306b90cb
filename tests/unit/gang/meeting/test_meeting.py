"""Where and by what the ranks of a gang meet, what each is told, and what is said where they cannot."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from tunelight.errors import GangError
from tunelight.extras.horovod.group import named
from tunelight.gang.meeting import rendezvous, torch_group
from tunelight.gang.meeting.group import COLLECTIVE_LIMIT_S, Meeting, gather, try_pairs
from tunelight.gang.meeting.rendezvous import Rendezvous, StoreChannel, interface_variables, torchrun_variables
from tunelight.gang.meeting.torch_group import TorchGroup
from tunelight.machine.network import interface_name, listening
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


def test_gloo_nccl_and_horovod_are_told_the_same_interface_unless_the_user_chose(no_files):
    """For NCCL the name alone would be a prefix, which ib01 has as well."""
    assert interface_variables("ib0", {}) == {
        "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0", "HOROVOD_GLOO_IFACE": "ib0",
    }  # fmt: skip
    told = interface_variables("eth0", {"NCCL_SOCKET_IFNAME": "ib0", "HOME": "/"})
    assert told == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0", "HOROVOD_GLOO_IFACE": "eth0"}


@pytest.mark.parametrize("which", ["the machine's", "the user's", "the one that is named"])
def test_the_interface_in_a_file_of_nccl_stays(no_files, tmp_path, which):
    machine, user = no_files
    file = {"the machine's": machine, "the user's": user}.get(which, tmp_path / "named.conf")
    chosen = {"NCCL_CONF_FILE": str(file)} if which == "the one that is named" else {}
    file.write_text("# of the cluster\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME=ib1\n")
    assert "NCCL_SOCKET_IFNAME" not in interface_variables("eth0", chosen)
    file.write_text("#NCCL_SOCKET_IFNAME=ib1\n")
    assert interface_variables("eth0", chosen)["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_a_node_without_the_address_that_ray_has_says_which_it_has(two_networks):
    with pytest.raises(GangError, match=rf"is {ELSEWHERE} to Ray.*ib0: 10.1.0.4.*--node-ip-address"):
        Rendezvous().host(ELSEWHERE, "gloo", (1, 1))


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp, remote process exited"), True),
        (dist.DistNetworkError("Connection reset by peer"), True),
        (RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc] Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp: Cuda failure 2 'out of memory'"), False),
        (RuntimeError("NCCL Error 1: unhandled cuda error, out of memory"), False),
        (dist.DistBackendError("NCCL error, unhandled system error: Cannot allocate memory"), False),
        (ValueError("shapes do not fit"), False),
    ],
)
def test_a_lost_peer_is_told_from_errors_of_this_rank_as_of_its_memory(error, lost):
    one = Rendezvous()
    one.group = rendezvous.group_for("nccl")
    assert one.lost_peer(error) is lost


def test_a_rank_that_cannot_reach_the_first_names_both_and_what_to_do():
    with listening("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    place = Place(rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1, interface="127.0.0.1")
    with pytest.raises(GangError, match=rf"Rank 1 .* cannot reach rank 0 at 127.0.0.1, port {port}: .*at every port"):
        Rendezvous().join(Meeting("127.0.0.1", port, "gloo"), place)


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


HERE = "127.0.0.1"
NOWHERE = "127.0.0.2"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def places(layout: tuple[int, ...]) -> list[Place]:
    return [
        Place(
            rank=sum(layout[:node]) + local, world_size=sum(layout), local_rank=local, local_world_size=ranks,
            node_rank=node, interface=HERE,
        )
        for node, ranks in enumerate(layout)
        for local in range(ranks)
    ]  # fmt: skip


def errors(threads: ThreadPoolExecutor, of: Callable[[Place], Any], layout: tuple[int, ...]) -> list[str]:
    """Return what every rank raises; nothing where all is well."""
    found = [threads.submit(of, place) for place in places(layout)]
    return [str(error) for one in found if (error := one.exception(timeout=30)) is not None]


def test_ranks_wait_for_one_another_and_who_does_not_come_is_named(threads):
    store = dist.HashStore()
    found = [threads.submit(gather, store, place) for place in places((2, 1))]
    assert [one.result(30) for one in found] == [[HERE] * 3] * 3
    first, *_ = places((1, 2))
    with pytest.raises(GangError, match=r"Waited 0 s for ranks 1, 2 of 3"):
        gather(dist.HashStore(), first, 0.2)


def test_nodes_that_reach_one_another_pass_and_who_cannot_reach_whom_is_said_on_both_sides(threads, monkeypatch):
    first, store = dist.HashStore(), dist.HashStore()
    assert errors(threads, lambda place: try_pairs(first, place, 2, HERE), (2, 1)) == []
    connect = socket.create_connection

    def blocked(place: tuple[str, int], timeout: float) -> socket.socket:
        if place[0] == NOWHERE:
            raise TimeoutError("timed out")
        return connect(place, timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", blocked)
    told = errors(threads, lambda place: try_pairs(store, place, 2, NOWHERE if place.rank else HERE), (1, 1))
    assert len(told) == 2  # both know, and neither waits for the other
    (apart,) = set(told)
    assert "Rank 0" in apart
    assert f"at {NOWHERE}" in apart
    assert "firewall" in apart


@pytest.fixture(params=[None])
def group(request: pytest.FixtureRequest) -> Iterator[TorchGroup]:
    """Return a group whose collectives have this limit."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made, meeting = TorchGroup(), Meeting("127.0.0.1", store.port, "gloo", (1,), timeout_s=request.param)
    made.join(meeting, Place(0, 1, 0, 1, 0, "127.0.0.1"), store)
    yield made
    made.leave()
    made.close()


@pytest.mark.parametrize(("group", "limit_s"), [(30.0, 30.0), (None, COLLECTIVE_LIMIT_S)], indirect=["group"])
def test_a_collective_s_limit_reaches_the_process_group(group: TorchGroup, limit_s: float) -> None:
    world: Any = dist.group.WORLD
    assert world._get_backend(torch.device("cpu")).options._timeout.total_seconds() == limit_s


def test_a_group_is_kept_from_trial_to_trial_and_one_that_the_trial_destroys_is_freed_at_its_end(group) -> None:
    """The reducer of a DDP model would free it with the GIL held, for which gloo's threads may wait."""
    world = weakref.ref(dist.group.WORLD)
    assert group.tidy()
    assert world() is dist.group.WORLD
    dist.destroy_process_group()
    assert world() is not None
    assert not group.tidy()
    assert world() is None


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_group_of_nccl_s_is_left_without_its_peers_and_without_waiting(group, monkeypatch, backend) -> None:
    """NCCL's abort, which this stands for, may wait for the other ranks of its node, or for a GPU."""
    asked, end = threading.Event(), threading.Event()

    def abort() -> None:
        asked.set()
        end.wait(60)
        dist.destroy_process_group()

    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(torch_group, "abort_process_group", abort)
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)
    assert group.settle()
    began = time.monotonic()
    group.leave()
    assert time.monotonic() - began < 10  # an abort that is waited for takes until the limit
    assert asked.wait(10)
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 0.05)
    assert not group.settle()
    end.set()
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)
    assert group.settle()


def test_a_rank_is_told_its_place_and_the_gangs_store_as_by_torchrun_and_accelerate_of_cpus():
    meeting = Meeting("10.1.0.4", 4321, "gloo", layout=(2, 1))
    last = Place(rank=2, world_size=3, local_rank=0, local_world_size=1, node_rank=1, interface="10.1.0.4")
    told = torchrun_variables(meeting, last, {"RANK": "5", "WORLD_SIZE": "8"})  # a driver's own launcher
    assert told == {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.1.0.4", "MASTER_PORT": "4321",
        "TORCHELASTIC_RUN_ID": "tunelight", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip

    def on_cpus(**changes: Any) -> str:
        return torchrun_variables(meeting, dataclasses.replace(last, **changes), {})["ACCELERATE_USE_CPU"]

    assert (on_cpus(gpu=0), on_cpus(world_size=1), on_cpus()) == ("false", "false", "true")
    assert torchrun_variables(meeting, last, {"ACCELERATE_USE_CPU": "0"})["ACCELERATE_USE_CPU"] == "0"
    # Of one rank alone no group is made from outside.
    told = torchrun_variables(meeting, Place(0, 1, 0, 1, 0, "10.1.0.4"), {})
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_PORT"]) == ("0", "1", "4321")
    assert not [name for name in told if name.startswith("TORCHELASTIC")]
