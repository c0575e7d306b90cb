"""The simulator: whole simulations and what they must always be, what they cost, and where curves come from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

import tunelight as tl
from tests.curves import Given, tiny_table
from tests.world import Costs, TableCurves, recorded, simulate, tasks
from tests.world.sources import Table, write_table
from tunelight.messages import Resize
from tunelight.schedulers import ASHA
from tunelight.schedulers.base import GangScheduler

CURVES = tiny_table()


MAKERS: dict[str, Any] = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHA(max_t=27, reduction_factor=3),
    "elastic_asha": lambda: "elastic_asha",
    "elastic_asha of many rungs": lambda: {"name": "elastic_asha", "reduction_factor": 1.5, "cooldown": 0},
    "ray_asha": lambda: AsyncHyperBandScheduler(max_t=27, grace_period=1),
    "resources": lambda: ResourceChangingScheduler(
        AsyncHyperBandScheduler(max_t=27, grace_period=1), DistributeResources(add_bundles=True)
    ),
}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MAKERS)),
    nodes=st.integers(1, 4),
    slots=st.integers(2, 4),
    trials=st.integers(1, 12),
    elastic=st.booleans(),
    failures=st.sampled_from([0, 0, 200.0]),
    seed=st.integers(0, 3),
)
def test_whatever_is_simulated_ends_repeats_itself_and_overfills_nothing(  # noqa: PLR0917 - drawn by hypothesis
    name: str, nodes: int, slots: int, trials: int, elastic: bool, failures: float, seed: int,
):  # fmt: skip
    def run() -> Any:
        return simulate(
            CURVES,
            scheduler=MAKERS[name](),
            num_samples=trials,
            workers=(1, 4) if elastic else 2,
            cluster=f"{nodes}x{slots}" if not elastic or nodes * slots >= 4 else "2x2",
            max_epochs=9,
            seed=seed,
            costs=Costs(noise=0.2, node_failures=failures, node_repair_s=5, resize_s=0.2, save_s=0.1),
            max_failures=-1,
            events=True,
        )

    one, two = run(), run()
    assert one.events == two.events
    assert one.usage == two.usage
    assert len(one.trials) == trials
    assert all(trial.state in ("FINISHED", "STOPPED") for trial in one.trials)
    assert all(trial.ended_s is not None for trial in one.trials)
    assert [event.time for event in one.events] == sorted(event.time for event in one.events)
    assert all(0 <= use.busy <= use.held <= one.slots for use in one.usage)
    assert 0 <= one.idle_share <= 1
    assert one.regret() >= 0


def test_without_costs_a_sweep_takes_what_its_epochs_take_or_its_time_budget():
    free = Costs(reserve_s=0, start_cold_s=0, start_warm_s=0)
    run = simulate(CURVES, scheduler="fifo", num_samples=1, workers=2, cluster="1x2", costs=free)
    curve = CURVES.curve(run.trials[0].config)
    assert run.makespan_s == pytest.approx(27 * curve.seconds / 2)
    assert run.worker_seconds == pytest.approx(27 * curve.seconds)
    assert run.idle_share == pytest.approx(0, abs=1e-9)
    assert run.trials[0].best == pytest.approx(min(curve.metrics["loss"]))
    assert run.regret() == 0
    run = simulate(CURVES, scheduler="fifo", num_samples=30, workers=1, cluster="1x2", time_budget=60)
    assert run.makespan_s == pytest.approx(60)
    assert {trial.state for trial in run.trials} == {"FINISHED", "STOPPED"}


class GrowAt(GangScheduler):
    """Tell every trial to grow at its third report and to shrink at its tenth."""

    resizes = True

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        number = result["training_iteration"]
        if number in (3, 10):
            trial.temporary_state.ray_actor.decide.remote(Resize(8 if number == 3 else 2))
        self.sizes = {**getattr(self, "sizes", {}), number: result["_tunelight/workers"]}
        return self.CONTINUE


def test_a_gang_grows_when_its_new_workers_have_come_and_shrinks_at_once():
    curves = tiny_table(epoch_s=8.0)
    costs = Costs(reserve_s=0, start_cold_s=0, grow_s=5, resize_s=1)
    run = simulate(curves, scheduler=GrowAt(), num_samples=1, workers=(2, 8), cluster="1x8", costs=costs)
    # 3 epochs of 4 s, 2 more until the workers are there, then 5 of 1 s, then 17 of 4 s, and two changes of 1 s
    assert run.makespan_s == pytest.approx((3 + 2) * 4 + 5 * 1 + 17 * 4 + 2)
    assert [use.held for use in run.usage] == [2, 8, 8, 2, 2]
    assert [use.busy for use in run.usage] == [2, 2, 8, 2, 0]


def test_a_lost_node_costs_its_gangs_their_epoch_and_a_new_start_and_no_report_twice():
    costs = Costs(node_failures=30, node_repair_s=20)
    run = simulate(CURVES, scheduler="fifo", num_samples=8, workers=2, cluster="2x2", costs=costs, max_failures=-1,
                   events=True)  # fmt: skip
    assert any(event.what == "error" for event in run.events)
    for trial in run.trials:
        reports = [e.detail[0] for e in run.events if e.what == "result" and e.trial == trial.id]
        assert reports == list(range(1, 28))
    given_up = simulate(CURVES, scheduler="fifo", num_samples=8, workers=2, cluster="2x2", costs=costs, max_failures=0)
    assert "ERROR" in {trial.state for trial in given_up.trials}


@pytest.mark.parametrize(
    "scheduler",
    [
        "fifo",
        {"name": "asha", "grace_period": 1},
        {"name": "elastic_asha", "grace_period": 1, "reduction_factor": 2},
        {"name": "gang_pbt", "perturbation_interval": 1, "max_lead": 1, "hyperparam_mutations": {"x": [0.5, 1.0]}},
        "async_hyperband",
        "hyperband",
        {"name": "medianstopping", "grace_period": 1, "min_samples_required": 1},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Mean of empty slice")  # Ray's own, of its median stopping rule; gone from 2.60 on
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_at_the_first_report_is_divergence_under_every_scheduler(scheduler):
    """Also where the scheduler would stop the trial, or pause it, or have it adopt another."""
    source = Given([0.9, 0.8, 0.7, 0.6], [math.nan] * 4, [1.0, 0.9, 0.8, 0.7])
    run = simulate(source, scheduler=scheduler, num_samples=6, workers=1, cluster="1x2")
    assert [trial.state for trial in run.trials if int(trial.id) % 3 == 1] == ["DIVERGED"] * 2
    assert all(trial.reports == 1 for trial in run.trials if trial.state == "DIVERGED")
    assert {trial.state for trial in run.trials if int(trial.id) % 3 != 1} <= {"FINISHED", "STOPPED"}


# --- repetitions


@pytest.mark.parametrize("scheduler", ["asha", "elastic_asha", "fifo", "hyperband", "median_stopping_rule"])
def test_the_best_are_trained_to_the_end_with_the_other_recorded_seeds(scheduler: str) -> None:
    plain = simulate("digits", scheduler, num_samples=20, seed=1)
    found = simulate("digits", scheduler, num_samples=20, seed=1, repeats={"top": 3, "repeats": 3})
    searched = [trial for trial in found.trials if trial.repeats is None]
    again = [trial for trial in found.trials if trial.repeats is not None]
    assert [(one.id, one.reports, one.best) for one in searched] == [
        (one.id, one.reports, one.best) for one in plain.trials
    ]
    assert len({trial.repeats for trial in again}) == len(found.repeated) == 3
    longest = max(trial.reports for trial in searched)
    assert {trial.reports for trial in again} == {longest}
    assert {trial.state for trial in again} == {"FINISHED"}
    assert found.worker_seconds > plain.worker_seconds
    first = found.repeated[0]
    assert len(set(first.values)) == first.n >= 2
    assert found.chosen is not None
    assert found.chosen.id == first.trial
    assert plain.chosen is not None
    assert plain.chosen.best == plain.best


# --- what an epoch costs


def test_an_epoch_takes_as_long_as_efficiency_and_turns_say():
    costs = Costs(efficiency=0.8)
    assert costs.epoch_s(64, 1, 1, 0.5) == 64
    assert costs.epoch_s(64, 4, 4, 0.5) == pytest.approx(64 / 1.6**2)
    assert Costs().epoch_s(64, 3, 4, 0.5) == pytest.approx(32)  # two turns of four parts, as long as two workers


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


def test_a_recorded_task_is_read_as_it_was_written_cut_or_stretched_to_the_epochs_that_are_asked_for(folder: Path):
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
    config = {"_curve": "0:0"}
    assert recorded("digits", folder=folder, epochs=2).curve(config).metrics["loss"] == [0, 1]
    assert recorded("digits", folder=folder, epochs=8).curve(config).metrics["loss"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert recorded("digits", folder=folder, epoch_s=7.0).curve(config).seconds == 7


def test_a_suggestion_is_looked_up_by_rank_and_by_name_and_may_choose_its_recorded_seed(folder: Path):
    table = recorded("digits", folder=folder)
    assert table.curve({"lr": 0.21, "kind": "b"}).seconds == 2
    assert table.curve({"lr": 50.0}).seconds == 3
    assert table.curve({"kind": "a", "unknown": 4}).seconds == 1
    assert table.curve({"kind": "a", "log_every": 10}).seconds == 1  # which is without effect
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
