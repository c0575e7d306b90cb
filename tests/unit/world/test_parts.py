"""The simulator's parts: clock, cluster, costs, and how curves are dealt."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tunelight as tl
from tests.world import Costs, TableCurves, recorded, tasks
from tests.world.cluster import Cluster
from tests.world.curves import deal
from tests.world.sources import Table, read_table, write_table

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


def test_an_epoch_takes_as_long_as_efficiency_and_turns_say():
    costs = Costs(efficiency=0.8)
    assert costs.epoch_s(64, 1, 1, 0.5) == 64
    assert costs.epoch_s(64, 4, 4, 0.5) == pytest.approx(64 / 1.6**2)
    assert Costs().epoch_s(64, 3, 4, 0.5) == pytest.approx(32)  # two turns of four parts, as long as two workers


def test_the_noise_of_a_gang_is_that_of_its_slowest_rank():
    costs, draws = Costs(noise=0.3), [(number + 0.5) / 4000 for number in range(4000)]
    mean = [sum(costs.epoch_s(1, n, n, draw) * n for draw in draws) / len(draws) for n in (1, 4, 16)]
    assert mean[0] == pytest.approx(math.exp(0.3**2 / 2), rel=0.01)
    assert mean[0] < mean[1] < mean[2] < 2.2


@given(size=st.integers(1, 300), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_every_curve_is_dealt_once_before_any_is_dealt_again(size: int, seed: int):
    for deck in range(2):
        assert sorted(deal(deck * size + card, size, seed) for card in range(size)) == list(range(size))


# --- where curves come from: the recorded table


# --- the recorded table -----------------------------------------------------------------------------------


SPACE = {"lr": {"loguniform": [0.01, 1.0]}, "kind": {"choice": ["a", "b", "c"]}, "log_every": {"choice": [1, 10]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two tables of three configurations, two seeds and four epochs."""
    loss = np.arange(24).reshape(3, 2, 4).astype(float)
    loss[2, :, 2:] = np.nan
    configs = [{"lr": 0.1 * (1 + n), "kind": "abc"[n], "log_every": (1, 10, 10)[n]} for n in range(3)]
    metrics = {"loss": loss, "accuracy": -loss}
    made = Table("A test.", {"loss": "min", "accuracy": "max"}, SPACE, ("log_every",), configs, [1, 2, 3], metrics)
    for task in ("digits", "wine"):
        write_table(tmp_path / f"{task}.npz", made)
    return tmp_path


def test_a_recorded_task_is_read_as_it_was_written(folder: Path):
    assert tasks(folder) == ["digits", "wine"]
    table = recorded("digits", folder=folder)
    assert (table.size, table.epochs, table.metric, table.mode) == (3, 4, "loss", "min")
    assert table.space.describe() == tl.SearchSpace(SPACE).describe()
    config = table.config(0, 0)
    curve = table.curve(config)
    number, seed = (int(part) for part in config["_curve"].split(":"))
    assert config["kind"] == "abc"[number]
    assert curve.seconds == number + 1
    assert curve.at(1) == {"loss": 8.0 * number + 4 * seed, "accuracy": -(8.0 * number + 4 * seed)}
    assert recorded("digits", folder=folder, metric="accuracy").mode == "max"


def test_curves_are_cut_or_stretched_to_the_epochs_that_are_asked_for(folder: Path):
    config = {"_curve": "0:0"}
    assert recorded("digits", folder=folder, epochs=2).curve(config).metrics["loss"] == [0, 1]
    assert recorded("digits", folder=folder, epochs=8).curve(config).metrics["loss"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert recorded("digits", folder=folder, epoch_s=7.0).curve(config).seconds == 7


def test_a_suggestion_is_looked_up_by_rank_and_by_name(folder: Path):
    table = recorded("digits", folder=folder)
    assert table.curve({"lr": 0.21, "kind": "b"}).seconds == 2
    assert table.curve({"lr": 50.0}).seconds == 3
    assert table.curve({"kind": "a", "unknown": 4}).seconds == 1
    assert table.curve({"kind": "a", "log_every": 10}).seconds == 1  # which is without effect


def test_a_configuration_may_choose_its_recorded_seed(folder: Path):
    table = recorded("digits", folder=folder)
    first = [table.curve({"lr": 0.1, "_seed": seed}).at(1)["loss"] for seed in range(4)]
    assert first == [0, 4, 0, 4]
    assert table.curve({"_curve": "1:0", "_seed": 3}).at(1)["loss"] == 12


def test_the_truth_is_the_best_value_averaged_over_seeds(folder: Path):
    table = recorded("digits", folder=folder)
    assert [table.truth({"kind": kind}) for kind in "abc"] == [2, 10, 18]
    assert table.truth({"kind": "a", "_seed": 1}) == 2
    assert recorded("digits", folder=folder, metric="accuracy").truth({"kind": "b"}) == -10
    half = [[[1.0, np.nan], [np.nan, np.nan]]]
    assert TableCurves("one", {"loss": half}, [1], [{"lr": 1}]).truth({"lr": 1}) == np.inf
    worst = TableCurves("one", {"loss": half}, [1], [{"lr": 1}], mode="max")
    assert worst.truth({"lr": 1}) == -np.inf


@pytest.mark.parametrize("task", tasks())
def test_a_table_that_comes_along_is_complete(task: str):
    table = read_table(task)
    assert len(table.seconds) == len(table.configs)
    assert (table.seconds > 0).all()
    shapes = {values.shape for values in table.metrics.values()}
    assert len(shapes) == 1
    count, seeds, epochs = shapes.pop()
    assert (count, seeds >= 2, epochs in (27, 54, 81)) == (len(table.configs), True, True)
    assert count >= (260 if epochs == 81 else 400)
    assert len(set(table.space) - set(table.without_effect)) >= 5
    assert set(table.without_effect) <= set(table.space)
    assert all(set(config) == set(table.space) for config in table.configs)
    assert any("choice" in domain for domain in recorded(task).space.describe().values())
    best = np.array([recorded(task).truth({"_curve": f"{number}:0"}) for number in range(count)])
    assert np.isfinite(best).mean() > 0.5
    gone = ~np.isfinite(table.metrics["loss"])
    assert (np.maximum.accumulate(gone, axis=2) == gone).all()  # nothing comes after a divergence
