"""plan(): figures, words and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunelight as tl
from tests.curves import tiny_table
from tests.unit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.simulation import TableCurves
from tunelight.simulation.curves import SteadyCurves
from tunelight.simulation.plans import duration
from tunelight.simulation.run import fidelity_note

SPACE: dict[str, Any] = {"lr": tl.loguniform(1e-4, 1e-1)}
TOLD: dict[str, Any] = {"cluster": "4x4", "seconds_per_epoch": 60, "num_samples": 40, "workers": 2, "max_epochs": 9}


def planned(**told: Any) -> tl.Plan:
    return tl.plan(SPACE, **{**TOLD, "curves": tiny_table(epochs=9, epoch_s=120.0), **told})


def test_a_sweep_without_a_scheduler_takes_what_its_epochs_take():
    plan = planned(scheduler="fifo", costs=tl.Costs(reserve_s=0, start_cold_s=0, start_warm_s=0), price_per_gpu_hour=3)
    assert (plan.at_once, plan.feasible) == (8, True)
    assert plan.makespan_h
    assert plan.worker_hours
    assert plan.cost
    assert plan.rent
    assert plan.makespan_h.p50 == pytest.approx(5 * 9 / 60)
    assert plan.worker_hours.p90 == pytest.approx(40 * 9 * 2 / 60)
    assert plan.cost.p50 == pytest.approx(3 * 40 * 9 * 2 / 60)
    assert plan.rent.p50 == pytest.approx(3 * 16 * 5 * 9 / 60)
    assert [(stage.epoch, stage.trials, stage.slots) for stage in plan.stages] == [(9, 40, 16)]


def test_the_rungs_of_a_scheduler_that_names_them_are_a_table():
    plan = planned(scheduler={"name": "asha", "reduction_factor": 3})
    assert [stage.epoch for stage in plan.stages] == [1, 3, 9]
    trials = [stage.trials for stage in plan.stages]
    assert trials[0] == 40
    assert trials == sorted(trials, reverse=True)


def test_the_rungs_of_another_are_where_it_was_seen_to_decide():
    plan = planned(scheduler="elastic_asha", workers=(1, 4))
    assert [stage.epoch for stage in plan.stages] == [1, 3, 9]
    assert plan.workers == 1


def test_a_deadline_that_is_met_names_the_cheapest_way_and_one_that_is_not_the_fastest():
    met = planned(deadline="2h", price_per_gpu_hour=1.0)
    assert met.feasible
    best = met.options[0]
    assert best.in_time
    assert best.cost is not None
    assert all(best.cost <= (one.cost or 0) for one in met.options if one.in_time)
    assert f"{best.workers} workers a trial on {best.nodes} nodes" in met.verdict
    missed = planned(deadline=60)
    assert not missed.feasible
    assert missed.options[0].makespan_h == min(one.makespan_h for one in missed.options)
    assert "None of" in missed.verdict


def test_more_workers_are_no_cheaper_where_they_scale_badly():
    assert planned(deadline="20h", price_per_gpu_hour=1.0, costs=tl.Costs(efficiency=0.5)).options[0].workers == 1


def test_early_stops_are_recommended_where_the_order_of_trials_is_known_early_and_not_where_it_turns():
    def curves(*slopes: float) -> TableCurves:
        at = np.arange(1, 10)
        loss = np.array([[number / 40 + slope * at / 9] for number, slope in enumerate(slopes)])
        configs = [{"lr": float(number)} for number in range(40)]
        return TableCurves("made", {"loss": loss}, np.full(40, 60.0), configs, epochs=9)

    told: dict[str, Any] = {"workers": 1, "cluster": "1x4", "scheduler": "fifo"}
    same = planned(**told, curves=curves(*[-0.01] * 40))
    assert [one.scheduler for one in same.schedulers] == ["fifo", "asha", "elastic_asha"]
    (note,) = [note for note in same.notes if "is recommended" in note]
    assert note.startswith(
        "scheduler='elastic_asha' is recommended: on these curves it finds no worse a trial than 'fifo'"
    )
    assert note in " ".join(str(same).split())
    turned = planned(**told, curves=curves(*[-0.1 * number for number in range(40)]))
    assert [one.regret.p50 > 0 for one in turned.schedulers] == [False, True, True]
    assert not [note for note in turned.notes if "is recommended" in note]


@pytest.mark.parametrize(
    ("reports_of_first", "compared_with"),
    [(9, ["fifo", "asha", "elastic_asha"]), (2, [])],  # all others would train the first one on
)
def test_the_curves_may_be_those_of_an_earlier_sweep(
    tmp_path: Path, reports_of_first: int, compared_with: list[str]
) -> None:
    sweep = Sweep(tmp_path)
    for number in range(12):
        trial = sweep.add(lr=float(number))
        sweep.start(trial)
        for at in range(1, 1 + (9 if number else reports_of_first)):
            sweep.report(trial, at, number / 12 + 1 / at)
        sweep.end_by_itself(trial)
    sweep.end()
    told: dict[str, Any] = {"num_samples": 12, "workers": 1, "scheduler": "fifo"}
    plan = planned(**told, curves=tmp_path)
    assert any(f"curves of the sweep {tmp_path.name!r}" in note for note in plan.notes)
    assert [one.scheduler for one in plan.schedulers] == compared_with


def test_schedulers_are_not_compared_on_curves_that_never_cross():
    assert planned(curves=SteadyCurves(9, 60.0)).schedulers == []


def test_a_gang_that_never_fits_is_said_in_words():
    plan = planned(workers=17)
    assert (plan.feasible, plan.at_once) == (False, 0)
    assert plan.verdict.startswith("Not feasible")
    assert "17 slots" in str(plan)


def test_a_plan_is_a_table_for_a_person_and_a_dict_for_a_program():
    plan = planned(deadline="2h", price_per_gpu_hour=1.0)
    text = str(plan)
    for word in ("40 trials of up to 9 epochs", "p50", "worker-hours held", "to epoch", "in time", "live sweeps"):
        assert word in text, text
    assert max(map(len, text.splitlines())) <= 120
    again = json.loads(json.dumps(plan.asdict()))
    assert again["makespan_h"]["p50"] <= again["makespan_h"]["p90"]
    assert again["at_once"] == 8


def test_what_the_space_says_holds_unless_it_is_said_again():
    space = tl.SearchSpace(SPACE, workers=4, num_samples=6, max_epochs=3, scheduler="fifo")
    plan = tl.plan(space, cluster="2x4", seconds_per_epoch=10, num_samples=5)
    assert (plan.workers, plan.num_samples, plan.max_epochs, plan.scheduler) == (4, 5, 3, "fifo")
    assert plan.at_once == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seconds_per_epoch": 0}, "seconds_per_epoch must be"),
        ({"price_per_gpu_hour": -1}, "price_per_gpu_hour must be"),
        ({"cluster": "16"}, "cluster must be"),
        ({"deadline": "soon"}, "deadline must be"),
        ({"seconds_per_epoch": float("nan")}, "seconds_per_epoch must be a number above 0"),
        ({"price_per_gpu_hour": float("inf")}, "price_per_gpu_hour must be a number above 0"),
        ({"scheduler": "ashes"}, "no scheduler 'ashes'"),
        ({"curves": "cifar"}, "no recorded curves of a task 'cifar'"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], said: str):
    with pytest.raises(SettingsError, match=said):
        planned(**wrong)


def test_a_plan_of_two_stages_has_both_and_a_verdict_on_both():
    with pytest.raises(SettingsError, match="Give proxy_seconds_per_epoch="):
        planned(proxy={"model.width": 8})
    both = planned(proxy={"model.width": 8, "top": 2, "workers": 1}, proxy_seconds_per_epoch=2.0, deadline="100h")
    assert both.first is not None
    assert (both.num_samples, both.first.workers) == (2, 1)
    assert both.first.num_samples > 2
    assert both.makespan_h is not None
    assert both.first.makespan_h is not None
    assert both.feasible
    assert both.verdict.startswith("All stages: Meets the deadline of 100 h")
    text = str(both)
    assert text.index("Stage 1, cheap trials:") < text.index("Stage 2, the best in full: 2 trials") < text.index("All")
    late = planned(proxy={"model.width": 8, "top": 2}, proxy_seconds_per_epoch=2.0, deadline=1)
    assert not late.feasible


def test_the_best_are_planned_again_after_the_search():
    told: dict[str, Any] = {"scheduler": "fifo", "num_samples": 4, "seeds": 1}
    once = planned(**told)
    again = planned(**told, repeats={"top": 3, "repeats": 5}, deadline="100h")
    assert again.first == replace(once, stage="the search")
    assert (again.num_samples, again.scheduler, again.feasible) == (12, "fifo", True)
    assert again.makespan_h
    assert once.makespan_h
    assert f"All stages: Meets the deadline of 100 h: about {duration(again.makespan_h.p50 + once.makespan_h.p50)}" in (
        again.verdict
    )
    three = planned(**told, proxy={"model.width": 8, "top": 2}, proxy_seconds_per_epoch=2.0, repeats=2)
    assert re.findall(r"Stage \d, [^:,]*", str(three)) == [
        "Stage 1, cheap trials", "Stage 2, the best in full", "Stage 3, the best again",
    ]  # fmt: skip
    space = tl.SearchSpace(SPACE, repeats=tl.Folds(2, top=1), **{k: TOLD[k] for k in ("num_samples", "max_epochs")})
    assert tl.plan(space, cluster="4x4", seconds_per_epoch=60, seeds=1).num_samples == 1


def test_a_time_budget_ends_what_is_planned():
    told: dict[str, Any] = {"scheduler": "fifo", "seeds": 1}
    cut, whole = planned(**told, time_budget="10m"), planned(**told)
    assert cut.makespan_h
    assert whole.makespan_h
    assert cut.makespan_h.p90 <= 0.25 < whole.makespan_h.p50
    assert any("time_budget ends it after 10 min" in note for note in cut.notes)
    cut = planned(**told, time_budget="10m", repeats=3)
    assert cut.first is None
    assert any("time_budget ends the sweep before the best again" in note for note in cut.notes)


@pytest.mark.parametrize(("settings", "trials"), [({"num_samples": 40}, 6), ({"num_samples": 4}, 4)])
def test_a_grid_ends_with_its_last_configuration(settings: dict[str, Any], trials: int):
    space = tl.SearchSpace({"a": tl.choice([1, 2, 3]), "b": tl.choice([0, 1])}, searcher="grid", **settings)
    assert tl.plan(space, cluster="1x2", seconds_per_epoch=1, max_epochs=2, seeds=1).num_samples == trials
    axes = tl.SearchSpace({"a": {"grid_search": [1, 2, 3]}}, num_samples=2)
    assert tl.plan(axes, cluster="1x2", seconds_per_epoch=1, max_epochs=2, seeds=1).num_samples == 6


def test_epochs_that_nobody_names_are_asked_for():
    with pytest.raises(SettingsError, match="max_epochs="):
        tl.plan(SPACE, cluster="1x2", seconds_per_epoch=1, scheduler="fifo")


def test_the_error_of_simulated_figures_is_quoted_once_it_is_known(tmp_path: Path):
    assert fidelity_note(tmp_path / "none.json").startswith("not calibrated")
    found = {"sweeps": 6, "where": "2 cores", "largest_error": 0.092, "median_error": 0.04}
    (tmp_path / "fidelity.json").write_text(json.dumps(found))
    assert "6 live sweeps (2 cores) were met within 9 %" in fidelity_note(tmp_path / "fidelity.json")
