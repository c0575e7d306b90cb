"""The simulator: whole simulations and what they must always be, what they cost, and where curves come from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

from tests.curves import FREE, Given, tiny_table
from tests.world import Costs, simulate
from tests.world.curves import Table, TableCurves, read_table, recorded, write_table
from tests.world.gangs import STATE, TASK, Clock
from tests.world.run import FirstCome
from tunelight.messages import Resize
from tunelight.schedulers import ASHA
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.wrapper import SweepScheduler

CURVES = tiny_table()
MAKERS: dict[str, Any] = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHA(max_t=27, reduction_factor=3),
    "elastic_asha": lambda: "elastic_asha",
    "elastic_asha of many rungs": lambda: {"name": "elastic_asha", "reduction_factor": 1.5, "cooldown": 0},
    "ray_asha": lambda: AsyncHyperBandScheduler(max_t=27, grace_period=1),
    "hyperband": lambda: HyperBandScheduler(max_t=27),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=3, min_samples_required=3),
    "resources": lambda: ResourceChangingScheduler(
        AsyncHyperBandScheduler(max_t=27, grace_period=1), DistributeResources(add_bundles=True)
    ),
}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MAKERS)),
    slots=st.integers(4, 16),
    trials=st.integers(1, 12),
    elastic=st.booleans(),
    seed=st.integers(0, 3),
)
def test_whatever_is_simulated_ends_repeats_itself_and_overfills_nothing(
    name: str, slots: int, trials: int, elastic: bool, seed: int
):
    def run() -> Any:
        return simulate(
            CURVES,
            scheduler=MAKERS[name](),
            num_samples=trials,
            workers=(1, 4) if elastic else 2,
            slots=slots,
            max_epochs=9,
            seed=seed,
            costs=Costs(noise=0.2, resize_s=0.2, checkpoint_s=0.1),
        )

    one, two = run(), run()
    events, usage = one.world.happened, one.world.usage
    assert (events, usage) == (two.world.happened, two.world.usage)
    assert len(one.trials) == trials
    assert {trial.state for trial in one.trials} <= {"FINISHED", "STOPPED"}
    for trial in one.trials:
        reports = [event.detail[0] for event in events if (event.what, event.trial) == ("report", trial.trial_id)]
        assert reports == list(range(1, trial.reports + 1))
        assert trial.ended_s is not None
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert all(0 <= use.busy <= use.held <= slots for use in usage)
    assert 0 <= one.tail_idle_share <= 1
    assert one.regret() >= 0


def test_who_comes_first_is_chosen_as_rays_controller_would(monkeypatch: pytest.MonkeyPatch):
    def run() -> Any:
        return [simulate(CURVES, MAKERS[name](), slots=6).world.happened for name in ("fifo", "asha", "ray_asha")]

    quick = run()
    monkeypatch.setattr(FirstCome, "choose_trial_to_run", SweepScheduler.choose_trial_to_run)
    assert run() == quick


def test_at_the_same_time_gangs_come_and_go_before_their_tasks_end_as_with_rays_actors():
    clock, heard = Clock(), list[int]()
    for kind in (TASK, STATE):
        clock.after(1, partial(heard.append, kind), kind)
    assert clock.step()
    assert clock.step()
    assert heard == [STATE, TASK] == [0, 1]


def test_a_sweep_takes_what_its_epochs_take_or_its_time_budget():
    found = simulate(Given([3.0, 2.0, 1.0]), "fifo", num_samples=1, workers=4, slots=4, costs=FREE)
    assert [found.makespan_s, found.worker_seconds] == pytest.approx([3 / 4, 3])
    assert found.best == 1.0
    slower = Costs(reserve_s=0, start_cold_s=0, efficiency=0.8)
    assert slower.epoch_s(64, 4, 4, 0.5) == pytest.approx(64 / 1.6**2)
    assert slower.epoch_s(64, 3, 4, 0.5) > 64 / 1.6**2  # two turns of four parts, as long as two workers
    stopped = simulate(CURVES, "fifo", num_samples=30, slots=2, time_budget=60)
    assert stopped.makespan_s == pytest.approx(60)
    assert {trial.state for trial in stopped.trials} == {"FINISHED", "INTERRUPTED"}


def test_a_warm_gang_starts_sooner_and_a_pause_is_written_and_read():
    costs = Costs(reserve_s=10, start_cold_s=4, start_warm_s=1, end_s=0.5, report_s=0.1, checkpoint_s=2)
    two = simulate(Given([3.0, 2.0], [3.0, 2.0]), "fifo", num_samples=2, slots=1, costs=costs)
    # A cold start, 2 epochs and an end; then on the same gang a warm start, 2 epochs and an end.
    assert two.makespan_s == pytest.approx(10 + 4 + 2 + 0.5 + 1 + 2 + 0.5)
    paused = {"name": "elastic_asha", "reduction_factor": 2}
    halved = simulate(Given([3.0, 1.0], [3.0, 2.0]), paused, num_samples=2, slots=1, costs=costs)
    # Each trains one epoch, and is written; the first is read again, and trains its second one.
    assert halved.makespan_s == pytest.approx(10 + 4 + 1 + 2 + 1 + 1 + 2 + 2 + 1 + 1 + 0.5)


class GrowAt(GangScheduler):
    """Tell every trial to grow at its third report and to shrink at its tenth."""

    resizes = True

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        number = result["training_iteration"]
        if number in (3, 10):
            trial.temporary_state.ray_actor.decide.remote(Resize(8 if number == 3 else 2))
        return self.CONTINUE


def test_a_gang_grows_when_its_new_workers_have_come_and_shrinks_at_once():
    costs = Costs(reserve_s=0, start_cold_s=0, grow_s=5, resize_s=1)
    run = simulate(recorded("digits", 8.0), GrowAt(), num_samples=1, max_epochs=27, workers=(2, 8), costs=costs)
    # 3 epochs of 4 s, 2 more until the workers are there, then 5 of 1 s, then 17 of 4 s, and two changes of 1 s
    assert run.makespan_s == pytest.approx((3 + 2) * 4 + 5 * 1 + 17 * 4 + 2)
    assert [use.held for use in run.world.usage] == [2, 8, 8, 2, 2]
    assert [use.busy for use in run.world.usage] == [2, 2, 8, 2, 0]


@pytest.mark.parametrize("scheduler", ["asha", "elastic_asha", "fifo", "hyperband", "median_stopping_rule"])
def test_the_best_are_trained_to_the_end_with_the_other_recorded_seeds_and_the_search_is_as_without(scheduler: str):
    digits = recorded("digits")
    plain = simulate(digits, scheduler, num_samples=20, seed=1)
    found = simulate(digits, scheduler, num_samples=20, seed=1, repeats={"top": 3, "repeats": 3})
    searched, again = found.trials[:20], found.trials[20:]
    assert [(one.reports, one.best) for one in searched] == [(one.reports, one.best) for one in plain.trials]
    assert len(found.repeated) == 3
    assert len(again) >= 6  # another may come to be among the best
    assert {trial.reports for trial in again} == {max(trial.reports for trial in searched)}
    ended = "STOPPED" if scheduler == "hyperband" else "FINISHED"  # it also stops trials at their last epoch
    assert {trial.state for trial in again} == {ended}
    first = found.repeated[0]
    assert len(set(first.values)) == first.n >= 2
    assert found.chosen.trial_id == first.trial
    assert plain.chosen.best == plain.best


def test_a_recorded_task_is_read_as_it_was_written_and_its_truth_is_the_best_value_averaged_over_seeds(tmp_path: Path):
    loss = np.arange(24).reshape(3, 2, 4).astype(float)
    loss[2, 1, :] = np.nan
    configs = [{"lr": 0.1 * (1 + n)} for n in range(3)]
    modes: Any = {"loss": "min", "accuracy": "max"}
    made = Table("A test.", modes, {"lr": {"uniform": [0, 1]}}, configs, [1, 2, 3], {"loss": loss, "accuracy": -loss})
    write_table(tmp_path / "made.npz", made)
    table = read_table("made", tmp_path)
    assert (table.modes, table.space, table.configs) == (made.modes, made.space, made.configs)
    curves = TableCurves(table)
    config = curves.config(0, 0)
    number = int(config["_curve"].split(":")[0])
    assert config["lr"] == configs[number]["lr"]
    assert curves.curve(config).seconds == number + 1
    assert curves.curve({"_curve": "1:0"}).at(1) == {"loss": 8.0, "accuracy": -8.0}
    assert [curves.again({"_curve": "1:1"}, repetition)["_curve"] for repetition in (1, 2)] == ["1:0", "1:1"]
    assert [curves.truth({"_curve": f"{n}:0"}) for n in range(3)] == [2, 10, np.inf]
    assert [TableCurves(table, "accuracy").truth({"_curve": f"{n}:0"}) for n in range(3)] == [-2, -10, -np.inf]
