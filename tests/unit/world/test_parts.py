"""The simulator's parts: clock, cluster, costs, and how curves are dealt."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.world import Costs
from tests.world.cluster import Cluster
from tests.world.curves import deal
from tests.world.world import RESOURCE, TASK, Clock
from tunelight.errors import SettingsError

STRATEGIES = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")


# --- time -------------------------------------------------------------------------------------------------


def test_events_happen_in_order_of_time_then_kind_then_age():
    clock, heard = Clock(), list[tuple[float, str]]()

    def hear(name: str) -> Any:
        return lambda: heard.append((clock(), name))

    for delay, kind, name in ((2, TASK, "d"), (1, TASK, "b"), (1, RESOURCE, "a"), (1, TASK, "c"), (-5, TASK, "now")):
        clock.after(delay, hear(name), kind)
    clock.after(0.5, hear("never")).cancel()
    while clock.step():
        pass
    assert heard == [(0, "now"), (1, "a"), (1, "b"), (1, "c"), (2, "d")]


# --- the cluster ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 5),
    slots=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "give", "grow", "fail", "repair"]), st.integers(0, 7), st.integers(0, 3)),
        max_size=40,
    ),
)
def test_no_slot_is_ever_used_twice(nodes: int, slots: int, steps: list[tuple[str, int, int]]):
    cluster, gangs, down = Cluster(nodes, slots), [], set()
    for what, number, kind in steps:
        if what == "take" and (seats := cluster.take([1 + kind % 2] * (1 + number), STRATEGIES[kind])) is not None:
            assert [seat.slots for seat in seats] == [1 + kind % 2] * (1 + number)
            on = [seat.node for seat in seats]
            assert STRATEGIES[kind] != "STRICT_PACK" or len(set(on)) == 1
            assert STRATEGIES[kind] != "STRICT_SPREAD" or len(set(on)) == len(on)
            gangs.append(seats)
        elif what == "grow" and gangs:
            gangs[number % len(gangs)] += cluster.grow(kind, [seat.node for seat in gangs[number % len(gangs)]]) or []
        elif what == "give" and gangs:
            cluster.give(gangs.pop(number % len(gangs)))
        elif what == "fail" and (node := number % nodes) not in down:
            down.add(node)
            cluster.fail(node)
            gangs = [[seat for seat in seats if seat.node != node] for seats in gangs]
        elif what == "repair" and down:
            cluster.repair(down.pop())
        used = [sum(seat.slots for seats in gangs for seat in seats if seat.node == node) for node in range(nodes)]
        assert all(count <= slots for count in used)
        assert cluster.free == sum(slots - used[node] for node in range(nodes) if node not in down)


def test_a_gang_is_packed_on_the_fullest_node_that_has_room_else_on_few():
    cluster = Cluster(3, 4)
    cluster.take([1, 1])
    assert {seat.node for seat in cluster.take([1, 1]) or []} == {0}
    six = [seat.node for seat in cluster.take([1] * 6) or []]
    assert sorted(six.count(node) for node in set(six)) == [2, 4]
    assert cluster.take([1] * 3) is None
    assert cluster.free == 2


def test_free_slots_of_several_nodes_are_no_room_on_one():
    cluster = Cluster(2, 3)
    cluster.take([2, 1], "STRICT_SPREAD")
    assert cluster.free == 3
    assert cluster.take([1, 1, 1], "STRICT_PACK") is None
    assert cluster.take([1, 1], "PACK") is not None


@pytest.mark.parametrize("wrong", ["16", "x8", "0x8", "4x-1", 8, (4,), "two x 3", (2.5, 1)])
def test_a_cluster_that_is_none_is_refused(wrong: Any):
    with pytest.raises(SettingsError, match="cluster"):
        Cluster.of(wrong)


# --- costs ------------------------------------------------------------------------------------------------


def test_an_epoch_takes_as_long_as_efficiency_turns_and_nodes_say():
    costs = Costs(efficiency=0.8, cross_node=1.5)
    assert costs.epoch_s(64, 1, 1, 1, 0.5) == 64
    assert costs.epoch_s(64, 4, 4, 1, 0.5) == pytest.approx(64 / 1.6**2)
    assert costs.epoch_s(64, 4, 4, 2, 0.5) == pytest.approx(1.5 * 64 / 1.6**2)
    assert Costs().epoch_s(64, 3, 4, 1, 0.5) == pytest.approx(32)  # two turns of four parts, as long as two workers


def test_the_noise_of_a_gang_is_that_of_its_slowest_rank():
    costs, draws = Costs(noise=0.3), [(number + 0.5) / 4000 for number in range(4000)]
    mean = [sum(costs.epoch_s(1, n, n, 1, draw) * n for draw in draws) / len(draws) for n in (1, 4, 16)]
    assert mean[0] == pytest.approx(math.exp(0.3**2 / 2), rel=0.01)
    assert mean[0] < mean[1] < mean[2] < 2.2


@pytest.mark.parametrize(
    "wrong", [{"start_cold_s": -1}, {"noise": math.nan}, {"efficiency": 0}, {"efficiency": 1.1}, {"disk_mb_s": 0}]
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, float]):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Costs(**wrong)


@given(size=st.integers(1, 300), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_every_curve_is_dealt_once_before_any_is_dealt_again(size: int, seed: int):
    for deck in range(2):
        assert sorted(deal(deck * size + card, size, seed) for card in range(size)) == list(range(size))
