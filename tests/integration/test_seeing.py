"""What is seen of a sweep that runs for real: who trained on what, loggers, and a report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import tunelight as tl
from tests.kit.training import Line, LineData
from tests.kit.waiting import until
from tunelight.cluster.connect import waits_for
from tunelight.reporting import report
from tunelight.resources import Reservation


def sweep(folder: Path, **more: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "model": Line, "data": LineData, "max_epochs": 3, "metric": "val_loss", "num_samples": 3, "workers": 2,
        "max_concurrent": 1, "seed": 1, "trainer_args": {"accelerator": "cpu"}, "storage": folder, "name": "seen",
        "progress": False,
    }  # fmt: skip
    return tl.run(**{"search_space": {"model.lr": tl.uniform(0.01, 0.1)}, **settings, **more})


def test_the_record_says_who_trained_on_what_and_whether_it_was_warm(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path)
    gangs = [trial.gangs for trial in results.record.trials.values()]
    assert [[gang["warm"] for gang in found] for found in gangs] == [[False], [True], [True]]
    assert len({gang["gang"] for found in gangs for gang in found}) == 1
    assert all(len(gang["nodes"]) == 2 for found in gangs for gang in found)
    assert gangs[0][0]["ready"] > gangs[0][0]["began"]  # two workers start and meet
    assert report(results, tmp_path / "report.html").stat().st_size > 4_000_000


def waits_until_it_is_known_to_train(config: dict[str, Any]) -> None:
    end = time.monotonic() + 30
    while '"training"' not in Path(config["record"]).read_text():
        if time.monotonic() > end:
            raise TimeoutError("the record does not say that this trial trains")
        time.sleep(0.1)
    tl.report({"val_loss": 1.0})


def test_the_record_says_that_a_trial_trains_before_its_first_report(ray4: Any, tmp_path: Path) -> None:
    record = tmp_path / "seen" / "record.jsonl"
    results = sweep(
        tmp_path, model=None, data=None, train=waits_until_it_is_known_to_train, num_samples=1,
        trainer_args=None, search_space={"record": str(record)},
    )  # fmt: skip
    assert results.best.history[0]["val_loss"] == 1.0
    kinds = [json.loads(line)["kind"] for line in record.read_text().splitlines()]
    assert kinds.index("training") < kinds.index("report")


@pytest.mark.slow
def test_a_logger_of_all_trials_has_a_run_for_each_with_its_configuration(ray4: Any, tmp_path: Path) -> None:
    from tunelight.compat.lightning import CSVLogger

    args = {"accelerator": "cpu", "logger": CSVLogger(tmp_path / "logs", name="line"), "log_every_n_steps": 1}
    results = sweep(tmp_path, trainer_args=args)
    runs = sorted((tmp_path / "logs" / "line").iterdir())
    assert [run.name for run in runs] == [f"seen-{trial.id}" for trial in results.trials]
    for run, trial in zip(runs, results.trials, strict=True):
        assert (run / "metrics.csv").exists()
        known = yaml.safe_load((run / "hparams.yaml").read_text())
        assert known["lr"] == pytest.approx(trial.config["model.lr"])


def test_a_trial_whose_resources_others_hold_says_so(ray4: Any) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    reservation = Reservation(2)
    assert not waits_for(reservation)
    groups = [placement_group([{"CPU": 3}])]
    try:
        assert groups[0].wait(30)
        groups.append(placement_group(reservation.bundles))
        until(lambda: waits_for(reservation), 20)
        assert "it needs 2 CPUs, and 1 of 4 are free. Others hold the rest." in waits_for(reservation)
    finally:
        for group in groups:
            remove_placement_group(group)
