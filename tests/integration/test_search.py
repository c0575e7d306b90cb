"""A sweep under an Optuna sampler: what Optuna finds in the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData


def counts(study: optuna.Study) -> dict[str, int]:
    states = [trial.state.name for trial in study.trials]
    return {name: states.count(name) for name in sorted(set(states))}


def test_tpe_under_asha_on_gangs_leaves_a_study_with_the_records_counts(ray4: Any, tmp_path: Path) -> None:
    results = tl.run(
        {"model.lr": tl.loguniform(1e-5, 1e-1), "model.hidden": tl.lograndint(4, 65)},
        model=DigitsClassifier, data=DigitsData, metric="val_loss", max_epochs=3, num_samples=8, workers=2,
        scheduler={"name": "asha", "reduction_factor": 2}, searcher={"name": "tpe", "n_startup_trials": 3},
        seed=1, storage=tmp_path, name="digits", progress=False, trainer_args={"accelerator": "cpu"},
        baselines=[{"model.lr": 1e-5, "model.hidden": 4}],
    )  # fmt: skip
    assert not results.errors, results.errors[0].error
    study = results.to_study()
    assert results.counts["STOPPED"]
    assert counts(study) == {"COMPLETE": results.counts["FINISHED"], "PRUNED": results.counts["STOPPED"]}
    for trial, told in zip(results.trials, study.trials, strict=True):
        assert told.user_attrs["trial"] == trial.id
        assert told.params == trial.config
        assert list(told.intermediate_values.values()) == [report["val_loss"] for report in trial.history]
        if trial.state == "FINISHED":
            assert told.value == trial.value
