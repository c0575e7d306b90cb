"""Where each rank is: its GPU and interface, also when its gang changes and its process remembers what it first saw."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tunelight.errors import GangError, ResourceError
from tunelight.extras.horovod.group import environment
from tunelight.extras.standalone.driver import _first_bundle
from tunelight.gang import gang as gangs
from tunelight.gang.gang import Gang
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.placement import Location, arrange, check_usable, cuda_devices, fixed_gpus, layout
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.gang.worker import GangWorker
from tunelight.messages import Place
from tunelight.resources import Reservation, check_fits


class Process:
    """A worker's process, with CUDA and NCCL as they are: each settles once what it sees.

    CUDA reads CUDA_VISIBLE_DEVICES when it is first used, and shows one MIG instance at most, and then nothing else;
    NCCL takes the interface that it is told when it is first used.
    """

    def __init__(self, own: str, node: str = "a") -> None:
        self.location = Location(node, f"10.0.0.{ord(node)}", 1, node, (own,))
        self.sees: tuple[str, ...] | None = None
        self.listens: str | None = None
        self.place: Any = None
        self.meets_by: set[str] = set()
        self.join = self.host = self

    def remote(self, *given: Any) -> Any:
        self.meets_by.add(given[0].backend if isinstance(given[0], Meeting) else given[1])
        if not isinstance(given[-1], Place):
            return (29500, 0)
        self.place = place = given[-1]
        if self.sees is None:
            self.sees = tuple(gpu for gpu in place.gpus if gpu.startswith("MIG-"))[:1] or place.gpus
        self.listens = self.listens or place.interface
        return None

    @property
    def trains_on(self) -> str:
        assert self.sees is not None
        index: int = self.place.gpu
        return self.sees[index]


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the processes of a gang meet, again and again."""
    context = SimpleNamespace(get_node_id=lambda: "a")
    answered = SimpleNamespace(
        get_runtime_context=lambda: context,
        wait=lambda calls, **_: (calls, []),
        get=lambda calls: calls,
    )
    monkeypatch.setattr(gangs, "ray", answered)
    monkeypatch.setattr(gangs, "sweep_seats", lambda: None)
    seats: dict[Process, Seat] = {}

    def let(processes: Sequence[Process], *, least: int | None = None, most: int | None = None, **spec: Any) -> Gang:
        made = GangSpec(Reservation(len(processes), gpus_per_worker=1, least=least, most=most), **spec)
        membership = Gang(made, None)
        for one in processes:
            seats.setdefault(one, Seat(made, worker=one, location=one.location))
        membership._meet([seats[one] for one in processes])
        return membership

    return let


MEETINGS = {
    "a GPU of a lower number joins": ["a:5", "a:5 b:0"],
    "the ends of a node leave": ["a:0 b:1 c:2 d:3", "b:1 c:2"],
    "a GPU leaves, and another takes its place": ["a:0 b:1 c:2 d:3", "a:0 c:2 d:3", "a:0 c:2 d:3 e:1"],
    "a lost process is replaced on its GPU": ["a:0 b:1", "c:0 b:1", "c:0 d:1"],
    "all but one are replaced on other GPUs": ["a:2 b:3", "b:3 c:0 d:1"],
    "it shrinks, and grows by processes that it has not met": ["a:0 b:1 c:2 d:3", "a:0", "a:0 e:1 f:2 g:3"],
    "numbers have more than one digit": ["a:9 b:10 c:11", "b:10 c:11 d:2"],
    "Ray's own process was shown 7 and 3": ["a:7 b:3", "b:3", "b:3 c:7"],
    "two ranks share a GPU": ["a:0 b:0", "a:0 c:0"],
    "two ranks share each of two GPUs": ["a:1 b:0 c:1 d:0", "c:1 d:0", "c:1 d:0 e:0 f:1"],
    "GPUs have names": ["a:GPU-5e b:GPU-1f", "b:GPU-1f", "c:GPU-07 b:GPU-1f"],
    "each rank has an instance of a divided GPU": ["a:MIG-b b:MIG-a", "b:MIG-a c:MIG-c", "c:MIG-c"],
    "two ranks share an instance": ["a:MIG-b b:MIG-b", "b:MIG-b"],
    "one GPU of two is divided": ["a:MIG-b b:GPU-a", "b:GPU-a c:GPU-z d:MIG-b"],
}
"""The processes at one meeting after another, each with its GPU. A process keeps its letter, and what it saw first."""


@pytest.mark.parametrize("meetings", MEETINGS.values(), ids=MEETINGS)
def test_each_rank_trains_on_the_gpu_that_ray_gave_it(meet: Any, meetings: Sequence[str]) -> None:
    processes: dict[str, Process] = {}
    for meeting in meetings:
        pairs = [pair.split(":") for pair in meeting.split()]
        there = [processes.setdefault(letter, Process(gpu)) for letter, gpu in pairs]
        meet(there)
        assert [process.trains_on for process in there] == [gpu for _, gpu in pairs]


@pytest.mark.parametrize(
    ("gpus", "spec", "collectives"),
    [
        ("0 1", {}, "nccl"),
        ("MIG-a MIG-b", {}, "gloo"),
        ("MIG-a MIG-b GPU-c", {}, "gloo"),
        ("MIG-a GPU-b", {}, "nccl"),
        ("MIG-a", {}, "nccl"),
        ("MIG-a MIG-b@b", {}, "nccl"),
        ("MIG-a MIG-b", {"process_group": "nccl"}, "nccl"),
        ("0 1", {"process_group": "gloo"}, "gloo"),
        ("MIG-a MIG-b", {"backend": "sharded"}, "nccl"),
        ("MIG-a MIG-b", {"backend": "horovod"}, "horovod"),
    ],
)
def test_ranks_on_instances_of_a_nodes_gpus_meet_by_gloo_unless_told_otherwise(meet, gpus, spec, collectives) -> None:
    """NCCL takes two instances of a GPU for the same GPU twice."""
    ranks = [Process(*gpu.split("@")) for gpu in gpus.split()]
    meet(ranks, **spec)
    assert {name for rank in ranks for name in rank.meets_by} == {collectives}


def test_ranks_of_a_new_gang_see_all_gpus_of_their_node_and_have_the_local_rank_of_theirs(meet: Any) -> None:
    """Libraries take LOCAL_RANK for the index of the GPU."""
    ranks = [Process("3"), Process("0", "b"), Process("1"), Process("2")]
    meet(ranks)
    assert [(one.place.local_rank, one.place.gpu) for one in ranks] == [(2, 2), (0, 0), (0, 0), (1, 1)]
    ranks = [Process("2"), Process("10")]
    meet(ranks)
    assert [one.sees for one in ranks] == [("2", "10")] * 2
    assert [one.place.gpu for one in ranks] == [0, 1]


@pytest.mark.parametrize(
    ("spec", "alone"),
    [({"least": 1}, False), ({"most": 4}, False),
     ({}, True), ({"least": 1, "backend": "horovod"}, True), ({"least": 1, "process_group": "gloo"}, True)],
)  # fmt: skip
def test_gangs_on_one_node_listen_on_it_alone_unless_nccl_may_need_others(meet: Any, spec: Any, alone: bool) -> None:
    here, there = [Process("0"), Process("1")], [Process("0", "b")]
    meet(here, **spec)
    assert [one.listens == "127.0.0.1" for one in here] == [alone] * 2
    if not alone:
        meet(here + there, **spec)
        assert [one.listens for one in here + there] == [one.place.interface for one in here + there]


def test_how_many_gpus_cuda_shows_is_known_once_it_is_in_use() -> None:
    unused = mock.Mock(return_value=3)  # CUDA's driver has not been initialised

    def used(count: Any) -> int:
        count._obj.value = 2
        return 0

    libraries: list[Any] = [mock.Mock(return_value=mock.Mock(cuDeviceGetCount=ask)) for ask in (unused, used)]
    assert [*map(cuda_devices, libraries), cuda_devices()] == [None, 2, None]  # at last without a driver


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_what_a_hook_used_of_cuda_is_kept(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "5")
    assert fixed_gpus(("5",), None, variable) == ()
    assert fixed_gpus(("5",), 1, variable) == ("5",)
    assert fixed_gpus((), 1, variable) == ()
    with pytest.raises(GangError, match=rf"Ray gave this worker the GPU 0, but .* {variable} was '5'"):
        fixed_gpus(("0",), 1, variable)
    monkeypatch.delenv(variable)  # as with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1: the hook saw all
    assert fixed_gpus(("2",), 4, variable) == ("0", "1", "2", "3")
    with pytest.raises(GangError, match=rf"the GPU GPU-5e, but .* {variable} was not set"):
        fixed_gpus(("GPU-5e",), 4, variable)


CUDA = SimpleNamespace(__version__="2.13.0+cu130", cuda="13.0", hip=None)
ROCM = SimpleNamespace(__version__="2.13.0+rocm7", cuda=None, hip="7.0")
CPUS = SimpleNamespace(__version__="2.13.0+cpu", cuda=None, hip=None)


@pytest.mark.parametrize(("build", "variable"), [(CUDA, "CUDA_VISIBLE_DEVICES"), (ROCM, "HIP_VISIBLE_DEVICES")])
@pytest.mark.parametrize(("order", "then"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")])
def test_a_worker_shows_torch_its_place_s_gpus(build, variable, order, then, monkeypatch) -> None:
    """A user's own CUDA_DEVICE_ORDER stays, for the numbers that Ray was started with count in it."""
    environ = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(torch, "version", build)
    worker: Any = object.__new__(GangWorker)
    worker._rendezvous = SimpleNamespace(join=lambda meeting, place: None)
    worker._clean = SimpleNamespace(remember_environment=lambda: None)
    worker.join(SimpleNamespace(timeout_s=None), Place(1, 2, 1, 2, 0, "127.0.0.1", ("3", "5"), 1))
    assert environ == {variable: "3,5", "CUDA_DEVICE_ORDER": then, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_torch_has_to_be_built_for_the_gpu_that_a_worker_has_and_a_worker_to_have_one_of_its_own() -> None:
    for build in (CUDA, ROCM):
        check_usable(("0",), 0.5, build)
        check_usable(("0",), 1, build)
    check_usable((), 0, CPUS)
    with pytest.raises(GangError, match=r"the GPU 0, but torch 2\.13\.0\+cpu on .* without CUDA and ROCm"):
        check_usable(("0",), 1, CPUS)
    # Where only its own environment hides GPUs, Ray names all that are listed to each worker: they would share one.
    with pytest.raises(GangError, match=r"1 GPU, and says that it is one of 2, 3, because CUDA_VISIBLE_DEVICES is set"):
        check_usable(("2", "3"), 1, CUDA)


def test_ranks_of_a_node_are_neighbours_and_horovod_is_told_where_each_is() -> None:
    """Workers of two nodes that came in turns; the first rank is the first of the first node."""
    placed = [place for _, place in arrange([Location(node, f"10.0.0.{node}", 1, node, ()) for node in "121"])]
    seen = [(place.rank, place.node_rank, place.local_rank, place.local_world_size) for place in placed]
    assert seen == [(0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 1)]
    assert layout(placed) == (2, 1)
    meeting = Meeting("10.0.0.1", 5, "horovod", layout(placed), 6)
    told = [environment(meeting, place) for place in placed]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [tuple(int(one[f"HOROVOD_{name}"]) for name in names) for one in told] == [
        (0, 3, 0, 2, 0, 2),
        (1, 3, 1, 2, 0, 1),
        (2, 3, 0, 1, 1, 2),
    ]
    assert {one["HOROVOD_GLOO_RENDEZVOUS_PORT"] for one in told} == {"6"}


def test_ranks_on_cpus_or_parts_of_gpus_meet_by_gloo() -> None:
    kinds = [GangSpec(Reservation(2, gpus_per_worker=share)) for share in (0, 0.5, 1)]
    assert [spec.collectives for spec in kinds] == ["gloo", "gloo", "nccl"]


def test_workers_find_their_bundles_in_a_trial_s_reservation_or_are_refused() -> None:
    whole, half = {"CPU": 1.0}, {"CPU": 0.5}
    assert _first_bundle([whole, whole], Reservation(2), "RayStrategy") == 0
    assert _first_bundle([half, whole, whole], Reservation(2), "RayStrategy") == 1
    for bundles in ([whole], [whole, half]):
        with pytest.raises(ResourceError, match=r"get_tune_resources\(num_workers=2"):
            _first_bundle(bundles, Reservation(2), "RayStrategy")
    check_fits(Reservation(2), [{"CPU": 4}])
    with pytest.raises(ResourceError, match="a node for each worker"):
        check_fits(Reservation(2), [{"CPU": 4}], spread=True)
