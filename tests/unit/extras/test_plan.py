"""plan(): figures, words and refusals."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError

SPACE: dict[str, Any] = {"lr": tl.loguniform(1e-4, 1e-1)}
TOLD: dict[str, Any] = {"cluster": "4x4", "seconds_per_epoch": 60, "num_samples": 40, "workers": 2, "max_epochs": 9}


def planned(**told: Any) -> tl.Plan:
    return tl.plan(SPACE, **{**TOLD, **told})


def minutes(plan: tl.Plan) -> float:
    assert plan.makespan_h
    return 60 * plan.makespan_h.p50


def test_a_sweep_without_a_scheduler_takes_what_its_epochs_take():
    plan = planned(scheduler="fifo", start_s=0, restart_s=0, price_per_gpu_hour=3)
    assert (plan.at_once, plan.feasible) == (8, True)
    assert plan.worker_hours
    assert plan.cost
    assert plan.rent
    assert minutes(plan) == pytest.approx(5 * 9)
    assert plan.worker_hours.p90 == pytest.approx(40 * 9 * 2 / 60)
    assert plan.cost.p50 == pytest.approx(3 * 40 * 9 * 2 / 60)
    assert plan.rent.p50 == pytest.approx(3 * 16 * 5 * 9 / 60)
    assert plan.stages == [{"epoch": 9, "trials": 40}]


@pytest.mark.parametrize(
    ("told", "simulated"),
    [
        ({"scheduler": {"name": "asha", "reduction_factor": 3}}, 18.1),
        ({"scheduler": "asha"}, 17.1),
        ({"scheduler": "asha", "num_samples": 400}, 109.2),
        ({"scheduler": "asha", "num_samples": 200, "max_epochs": 81}, 152.2),
        ({"scheduler": "asha", "workers": 1, "cluster": "1x4"}, 25.1),
        ({"scheduler": "elastic_asha", "workers": 1, "cluster": "1x4"}, 27.1),
        ({"scheduler": "elastic_asha", "workers": (1, 4), "seconds_per_epoch": 120}, 19.1),
        (
            {"scheduler": "elastic_asha", "workers": (1, 4), "num_samples": 200, "max_epochs": 27, "cluster": "4x8"},
            21.9,
        ),
    ],
)
def test_it_takes_what_tunes_own_controller_took_on_virtual_time_within_15_percent(told, simulated):
    assert minutes(planned(**told)) == pytest.approx(simulated, rel=0.15)


def test_a_plan_is_a_table_for_a_person_and_a_dict_for_a_program():
    state = random.getstate()
    plan = planned(deadline="2h", price_per_gpu_hour=1.0)
    assert random.getstate() == state
    assert plan == planned(deadline="2h", price_per_gpu_hour=1.0)
    text = str(plan)
    for word in ("40 trials of up to 9 epochs", "p50", "worker_hours", "to epoch", "8 at once"):
        assert word in text, text
    again = json.loads(json.dumps(plan.asdict()))
    assert again["makespan_h"]["p50"] <= again["makespan_h"]["p90"]
    assert again["at_once"] == 8


def test_what_the_space_says_holds_unless_it_is_said_again():
    space = tl.SearchSpace(SPACE, workers=4, num_samples=6, max_epochs=3, scheduler="fifo")
    plan = tl.plan(space, cluster=(2, 4), seconds_per_epoch=10, num_samples=5)
    assert (plan.workers, plan.num_samples, plan.max_epochs, plan.scheduler) == (4, 5, 3, "fifo")
    assert plan.at_once == 2
    assert planned(max_concurrent=3).at_once == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seconds_per_epoch": 0}, "seconds_per_epoch must be"),
        ({"price_per_gpu_hour": -1}, "price_per_gpu_hour must be"),
        ({"cluster": "16"}, "cluster must be"),
        ({"cluster": "0x4"}, "cluster must be"),
        ({"deadline": "soon"}, "deadline must be"),
        ({"seconds_per_epoch": float("nan")}, "seconds_per_epoch must be a number"),
        ({"price_per_gpu_hour": float("inf")}, "price_per_gpu_hour must be a number"),
        ({"scheduler": "ashes"}, "no scheduler 'ashes'"),
        ({"metric": "loss"}, "does not depend on 'metric'"),
        ({"max_epochs": None, "scheduler": "fifo"}, "max_epochs="),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], said: str):
    with pytest.raises(SettingsError, match=said):
        planned(**wrong)


def test_the_best_are_planned_again_after_the_search():
    told: dict[str, Any] = {"scheduler": "fifo", "num_samples": 4, "start_s": 0, "restart_s": 0}
    again = planned(**told, repeats={"top": 3, "repeats": 5})
    assert minutes(again) == pytest.approx(minutes(planned(**told)) + 2 * 9)  # 12 more on 8 gangs
    assert again.stages == [{"epoch": 9, "trials": 16}]
    space = tl.SearchSpace(SPACE, repeats=tl.Folds(2, top=1), **{k: TOLD[k] for k in ("num_samples", "max_epochs")})
    assert tl.plan(space, cluster="4x4", seconds_per_epoch=60, scheduler="fifo").stages[0]["trials"] == 41


@pytest.mark.parametrize(("settings", "trials"), [({"num_samples": 40}, 6), ({"num_samples": 4}, 4)])
def test_a_grid_ends_with_its_last_configuration(settings: dict[str, Any], trials: int):
    space = tl.SearchSpace({"a": tl.choice([1, 2, 3]), "b": tl.choice([0, 1])}, searcher="grid", **settings)
    assert tl.plan(space, cluster="1x2", seconds_per_epoch=1, max_epochs=2).num_samples == trials
    axes = tl.SearchSpace({"a": {"grid_search": [1, 2, 3]}}, num_samples=2)
    assert tl.plan(axes, cluster="1x2", seconds_per_epoch=1, max_epochs=2).num_samples == 6


def test_a_time_budget_ends_it_a_deadline_is_met_or_missed_and_a_gang_that_never_fits_is_said_in_words():
    cut = planned(scheduler="fifo", time_budget="10m", repeats=3)
    assert minutes(cut) == pytest.approx(10)
    assert cut.stages == [{"epoch": 9, "trials": 8}]
    assert "time_budget ends it" in cut.verdict
    assert planned(deadline="2h").verdict.startswith("Meets the deadline")
    missed, never = planned(deadline=60), planned(workers=17)
    assert (missed.feasible, never.feasible, never.at_once) == (False, False, 0)
    assert missed.verdict.startswith("Misses the deadline")
    assert never.verdict.startswith("Not feasible")
    assert never.verdict in str(never)
