"""Schedulers that pause, grow and shrink gangs, live: curves go on as one, and nothing stays reserved."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

import tunelight as tl
from tests.integration.test_growth import groups
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, states, trainer
from tunelight.messages import RESULT_KEY, Resize
from tunelight.schedulers.base import GangScheduler

LR = {"lr": tl.uniform(0.01, 0.1)}


def resize(trial: Any, size: int) -> None:
    trial.temporary_state.ray_actor.decide.remote(Resize(size))


class Script(GangScheduler):
    """Pause trial 1; grow trial 0 to four workers on what that frees, and back; then go on with trial 1; end both."""

    resizes = True

    def __init__(self) -> None:
        super().__init__()
        self.stage = "both"
        self.until = 0

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        number, workers = result["training_iteration"], result[f"{RESULT_KEY}/workers"]
        if trial.trial_id == "00001":
            if self.stage == "both" and number >= 2:
                self.stage = "one"
                return str(TrialScheduler.PAUSE)
            return str(TrialScheduler.STOP if self.stage == "again" and number >= 5 else TrialScheduler.CONTINUE)
        if self.stage == "one" and any(one.status == "PAUSED" for one in tune_controller.get_trials()):
            tune_controller._cleanup_cached_actors(force_all=True)
            resize(trial, 4)
            self.stage = "grow"
        elif self.stage == "grow" and workers == 4:
            self.stage, self.until = "large", number + 2
        elif self.stage == "large" and number >= self.until:
            resize(trial, 2)
            self.stage = "shrink"
        elif self.stage == "shrink" and workers == 2:
            self.stage, self.until = "again", number + 2
        elif self.stage == "again" and number >= self.until:
            return str(TrialScheduler.STOP)
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any, *_: Any) -> Any:
        states = {"PENDING", "PAUSED"} if self.stage == "again" else {"PENDING"}
        return next((trial for trial in tune_controller.get_trials() if trial.status in states), None)


def logged(config: dict[str, Any]) -> None:
    """Train for as long as it takes to grow, with loggers of every kind."""
    import time

    from tunelight.compat.lightning import CSVLogger, TensorBoardLogger

    class Logged(Line):
        def on_train_epoch_start(self) -> None:
            time.sleep(config["pause"])

        def on_train_epoch_end(self) -> None:
            self.log("curve", float(self.current_epoch))

    folder = tl.get_context().trial_dir
    made = trainer(
        config["epochs"],
        tl.TuneReportCheckpointCallback({"loss": "val_loss"}),
        logger=[CSVLogger(folder, "csv"), TensorBoardLogger(folder, "tb")],
        log_every_n_steps=1,
    )
    made.fit(Logged(config["lr"]), datamodule=LineData())


def epochs_in_csv(folder: Path) -> list[int]:
    rows: list[int] = []
    for file in sorted(folder.rglob("metrics.csv")):
        rows += [int(float(row["curve"])) for row in csv.DictReader(file.read_text().splitlines()) if row.get("curve")]
    return rows


def epochs_in_tensorboard(folder: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: list[int] = []
    for logged_to in sorted({file.parent for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(logged_to)).Reload()
        if "curve" in events.Tags()["scalars"]:
            found += [int(event.value) for event in events.Scalars("curve")]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)  # twelve workers import torch, one after the other
def test_a_survivor_grows_and_gives_back_and_the_other_is_paused_meanwhile(ray4: Any, tmp_path: Path) -> None:
    space = {**LR, "epochs": tl.choice([500]), "pause": tl.choice([0.2])}
    results = run(space, logged, tmp_path, workers=(2, 4), scheduler=Script(), name="elastic")
    assert [trial.state for trial in results.trials] == ["STOPPED", "STOPPED"], results.errors
    one = results.trials[0]
    lines = [json.loads(line) for line in (results.folder / "record.jsonl").read_text().splitlines()]
    sizes = [line["workers"] for line in lines if line["kind"] == "report" and line["trial"] == "00000"]
    changes = [sizes[0], *(now for before, now in itertools.pairwise(sizes) if before != now)]
    assert changes == [2, 4, 2]
    said = [line["text"] for line in lines if line["kind"] == "note" and "workers" in line["text"]]
    assert said == ["goes on with 4 workers (2 before)", "goes on with 2 workers (4 before)"]
    assert states(results, "00001") == ["RUNNING", "PAUSED", "RUNNING", "STOPPED"]
    for trial in results.trials:
        count = len(trial.history)
        assert [report["training_iteration"] for report in trial.history] == list(range(1, count + 1))
        assert [report["epoch"] for report in trial.history] == list(range(count))
        for curve in (epochs_in_csv(trial.path), epochs_in_tensorboard(trial.path)):
            assert curve == list(range(len(curve)))  # each epoch once
            assert len(curve) >= count - 1  # the last one was stopped at its validation
    assert not [name for name in groups(ray4) if name.startswith("tunelight")]

    space = {**LR, "epochs": tl.choice([len(one.history)]), "pause": tl.choice([0.0])}
    straight = run(space, logged, tmp_path, 1, workers=(4, 4), name="straight")
    whole = straight.trials[0]
    assert whole.config["lr"] == one.config["lr"]
    assert [report["loss"] for report in one.history] == pytest.approx([report["loss"] for report in whole.history])
