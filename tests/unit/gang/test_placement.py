"""Which GPU and which interface a rank is told, when its gang changes and its process remembers what it first saw."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.errors import GangError
from tunelight.gang import membership as memberships
from tunelight.gang.gpus import fixed_gpus
from tunelight.gang.membership import Membership
from tunelight.gang.placement import Location
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.messages import Place
from tunelight.resources import Reservation


class Process:
    """A worker's process, with CUDA and NCCL as they are: each settles once what it sees.

    CUDA reads CUDA_VISIBLE_DEVICES when it is first used, and shows one MIG instance at most; NCCL takes the interface
    that it is told when it is first used.
    """

    def __init__(self, own: str, node: str = "a") -> None:
        self.location = Location(node, f"10.0.0.{ord(node)}", 1, node, (own,))
        self.sees: tuple[str, ...] | None = None
        self.listens: str | None = None
        self.place: Any = None
        self.join = self.host = self

    def remote(self, *given: Any) -> Any:
        if not isinstance(given[-1], Place):
            return (29500, 0)
        self.place = place = given[-1]
        if self.sees is None:
            self.sees = place.gpus[:1] if place.gpus[0].startswith("MIG-") else place.gpus
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
    monkeypatch.setattr(memberships, "ray", answered)
    monkeypatch.setattr(memberships, "sweep_seats", lambda: None)
    seats: dict[Process, Seat] = {}

    def let(
        processes: Sequence[Process], *, least: int | None = None, most: int | None = None, **spec: Any
    ) -> Membership:
        made = GangSpec(Reservation(len(processes), gpus_per_worker=1, least=least, most=most), **spec)
        membership = Membership(made, None)
        for one in processes:
            seats.setdefault(one, Seat(made, worker=one, location=one.location))
        membership._meet([seats[one] for one in processes])
        return membership

    return let


def test_a_gang_that_grows_by_a_gpu_of_a_lower_number_trains_on_its_own(meet: Any) -> None:
    old, new = Process("5"), Process("0")
    meet([old])
    meet([old, new])
    assert [one.trains_on for one in (old, new)] == ["5", "0"]


def test_a_gang_that_loses_a_gpu_trains_on_those_that_are_left(meet: Any) -> None:
    ranks = [Process(str(number)) for number in range(4)]
    meet(ranks)
    left = [ranks[0], *ranks[2:]]
    meet(left)
    assert [one.trains_on for one in left] == ["0", "2", "3"]
    meet([*left, instead := Process("1")])
    assert [one.trains_on for one in (*left, instead)] == ["0", "2", "3", "1"]


def test_all_gpus_of_a_nodes_ranks_are_seen_by_those_that_meet_for_the_first_time(meet: Any) -> None:
    ranks = [Process("2"), Process("10")]
    meet(ranks)
    assert [one.sees for one in ranks] == [("2", "10")] * 2
    assert [one.place.gpu for one in ranks] == [0, 1]


def test_a_rank_on_a_mig_instance_sees_no_other(meet: Any) -> None:
    ranks = [Process("MIG-b"), Process("MIG-a")]
    meet(ranks)
    assert [one.trains_on for one in ranks] == ["MIG-b", "MIG-a"]


@pytest.mark.parametrize("spec", [{"least": 1}, {"most": 4}])
def test_a_gang_that_may_come_to_several_nodes_keeps_its_interface_for_nccl(meet: Any, spec: Any) -> None:
    here, there = [Process("0"), Process("1")], [Process("0", "b")]
    meet(here, **spec)
    meet(here + there, **spec)
    assert [one.listens for one in here + there] == [one.place.interface for one in here + there]
    assert "127.0.0.1" not in {one.listens for one in here}


@pytest.mark.parametrize("spec", [{}, {"least": 1, "backend": "horovod"}, {"least": 1, "process_group": "gloo"}])
def test_other_gangs_on_one_node_listen_on_it_alone(meet: Any, spec: Any) -> None:
    ranks = [Process("0"), Process("1")]
    meet(ranks, **spec)
    assert {one.listens for one in ranks} == {"127.0.0.1"}


class Driver:
    """CUDA's driver library, which says 3 of what is asked before anybody has initialised it."""

    def __init__(self, used: bool) -> None:
        self.used = used

    def __call__(self, name: str) -> Driver:
        return self

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 - CUDA's name
        return 0 if self.used else 3


def test_what_a_hook_used_of_cuda_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert fixed_gpus(("5",), Driver(used=False)) == ()
    assert fixed_gpus(("5",), Driver(used=True)) == ("5",)
    assert fixed_gpus((), Driver(used=True)) == ()
    with pytest.raises(GangError, match=r"Ray gave this worker the GPU 0, but .* was '5'"):
        fixed_gpus(("0",), Driver(used=True))


def test_without_a_driver_cuda_is_not_in_use() -> None:
    assert fixed_gpus(("5",)) == ()
