"""Sweeps under Optuna's samplers: what Optuna and its dashboard find in the study, and what comes after a resume."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
import pytest

import tunelight as tl
from tunelight.digits import DigitsClassifier, DigitsData

SPACE = {"lr": tl.loguniform(1e-3, 1e-1)}


def study_of(results: tl.SweepResults) -> optuna.Study:
    return results.to_study()


def counts(study: optuna.Study) -> dict[str, int]:
    states = [trial.state.name for trial in study.trials]
    return {name: states.count(name) for name in sorted(set(states))}


def counting(config: dict[str, Any]) -> None:
    """Report config's lr over 4 steps; what it reports follows from lr alone."""
    for step in range(1, 5):
        time.sleep(0.3 * (step == 4))  # a sweep that is cut off by one of the reports before ends here
        tl.report({"loss": abs(config["lr"] - 0.01) / step, "latency": 1 / config["lr"]})


def sweep(tmp_path: Path, train: Any = counting, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 6, "seed": 7, "storage": tmp_path, "name": "s", "scheduler": "fifo",
        "progress": False, "max_concurrent": 1, "searcher": {"name": "tpe", "n_startup_trials": 2},
    }  # fmt: skip
    return tl.run(SPACE, train, **(settings | kwargs))


def test_tpe_under_asha_on_gangs_leaves_a_study_with_the_records_counts(ray4: Any, tmp_path: Path) -> None:
    results = tl.run(
        {"model.lr": tl.loguniform(1e-5, 1e-1), "model.hidden": tl.lograndint(4, 65)},
        model=DigitsClassifier, data=DigitsData, metric="val_loss", max_epochs=3, num_samples=8, workers=2,
        scheduler={"name": "asha", "reduction_factor": 2}, searcher={"name": "tpe", "n_startup_trials": 3},
        seed=1, storage=tmp_path, name="digits", progress=False, trainer_args={"accelerator": "cpu"},
        baselines=[{"model.lr": 1e-5, "model.hidden": 4}],
    )  # fmt: skip
    assert not results.errors, results.errors[0].error
    study = study_of(results)
    assert results.num_stopped
    assert counts(study) == {"COMPLETE": results.num_finished, "PRUNED": results.num_stopped}
    for trial, told in zip(results.trials, study.trials, strict=True):
        assert told.user_attrs["trial"] == trial.id
        assert told.params == trial.config
        assert list(told.intermediate_values.values()) == [report["val_loss"] for report in trial.history]
        if trial.state == "FINISHED":
            assert told.value == trial.value


@pytest.mark.slow
def test_several_metrics_have_a_front_and_a_later_sweep_begins_with_what_they_found(ray4: Any, tmp_path: Path) -> None:
    first = sweep(tmp_path, name="first", metric=["loss", "latency"], searcher={"population_size": 4})
    assert isinstance(study_of(first).directions, list)
    front = [trial.id for trial in first.pareto()]
    assert first.best.id in front
    assert front == [trial.user_attrs["trial"] for trial in study_of(first).best_trials]
    assert tl.resume(first.folder).objectives == (("loss", "min"), ("latency", "min"))
    second = sweep(tmp_path, name="second", num_samples=2, warm_start=[first.folder])
    assert len(study_of(second).trials) == 2
    assert "warm start: 6 of 6" in (second.folder / "record.jsonl").read_text()
