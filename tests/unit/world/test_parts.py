"""The simulator's parts: clock, cluster, costs, and how curves are dealt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.world import Costs
from tests.world.cluster import Cluster
from tests.world.curves import deal

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
        if what == "take" and (seats := cluster.take([1 + kind % 2] * (1 + number))) is not None:
            assert [seat.slots for seat in seats] == [1 + kind % 2] * (1 + number)
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


@given(size=st.integers(1, 300), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_every_curve_is_dealt_once_before_any_is_dealt_again(size: int, seed: int):
    for deck in range(2):
        assert sorted(deal(deck * size + card, size, seed) for card in range(size)) == list(range(size))
