"""Sweeps under Optuna's samplers: what Optuna and its dashboard find in the study, and what comes after a resume."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray

import tunelight as tl
from tunelight.digits import DigitsClassifier, DigitsData

SPACE = {"lr": tl.loguniform(1e-3, 1e-1)}
PORT_S = 30.0


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


class Look(ray.tune.Callback):  # type: ignore[misc,unused-ignore]
    """Writes the study, and asks a dashboard's server for its trials, when the third trial makes its second report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: list[str] = []

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if trial.trial_id != "00002" or result["training_iteration"] != 2 or self.seen:
            return
        journal = self._folder.parent / "study.journal"
        tl.SweepResults.load(self._folder).to_study(journal)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        code = "import sys; from optuna_dashboard._cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, str(journal), "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + PORT_S
            while self.seen != ["Complete", "Complete", "Running"]:
                assert time.monotonic() < end, f"the dashboard shows {self.seen}"
                time.sleep(0.3)
                self.seen = self._ask(port)
        finally:
            server.kill()
            server.wait()

    def _ask(self, port: int) -> list[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies/0", timeout=5) as answer:
                return sorted(trial["state"] for trial in json.load(answer)["trials"])
        except OSError:
            return []


@pytest.mark.slow
def test_optunas_dashboard_shows_the_study_of_a_running_sweep(ray4: Any, tmp_path: Path) -> None:
    look = Look(tmp_path / "s")
    results = sweep(tmp_path, callbacks=[look], num_samples=4)
    assert look.seen == ["Complete", "Complete", "Running"]
    assert counts(study_of(results)) == {"COMPLETE": 4}


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
