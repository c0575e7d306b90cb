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
from tests.integration.test_resume import Cut
from tests.kit.training import Line, LineData, states, trainer
from tunelight.messages import RESULT_KEY, Resize
from tunelight.schedulers.base import GangScheduler
from tunelight.session.session import get_session

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
    for run in sorted({file.parent for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(run)).Reload()
        if "curve" in events.Tags()["scalars"]:
            found += [int(event.value) for event in events.Scalars("curve")]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)  # twelve workers import torch, one after the other
def test_a_survivor_grows_and_gives_back_and_the_other_is_paused_meanwhile(ray4: Any, tmp_path: Path) -> None:
    space = {**LR, "epochs": tl.choice([500]), "pause": tl.choice([0.2])}
    settings: dict[str, Any] = {"metric": "loss", "seed": 4, "storage": tmp_path, "progress": False}
    results = tl.run(space, logged, num_samples=2, workers=(2, 4), scheduler=Script(), name="elastic", **settings)
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
    straight = tl.run(space, logged, num_samples=1, workers=(4, 4), scheduler="fifo", name="straight", **settings)
    whole = straight.trials[0]
    assert whole.config["lr"] == one.config["lr"]
    assert [report["loss"] for report in one.history] == pytest.approx([report["loss"] for report in whole.history])


def slow_steps(config: dict[str, Any]) -> None:
    """Train with batches that take their time, so that twice the workers are twice as fast on any machine."""
    import time

    class Slow(Line):
        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(config["pause"])
            return super().training_step(batch, index)

    made = trainer(27, tl.TuneReportCheckpointCallback({"loss": "val_loss"}))
    made.fit(Slow(config["lr"]), datamodule=LineData())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_elastic_asha_grows_a_survivor_and_its_metrics_continue_their_curve(ray4: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metric": "loss", "seed": 4, "storage": tmp_path, "progress": False, "max_epochs": 27}
    results = tl.run(
        {**LR, "pause": tl.choice([0.4])}, slow_steps, num_samples=3, workers=(2, 4), name="elastic",
        scheduler={"name": "elastic_asha", "cooldown": 2}, **settings,
    )  # fmt: skip
    assert not results.errors
    lines = [json.loads(line) for line in (results.folder / "record.jsonl").read_text().splitlines()]
    sizes = {
        trial.id: [line["workers"] for line in lines if line["kind"] == "report" and line["trial"] == trial.id]
        for trial in results.trials
    }
    (survivor,) = [trial for trial in results.trials if len(trial.history) == 27]
    assert sizes[survivor.id][0] == 2
    assert sizes[survivor.id][-1] == 4
    assert any("PAUSED" in states(results, trial.id) for trial in results.trials)
    assert [report["epoch"] for report in survivor.history] == list(range(27))
    assert not [name for name in groups(ray4) if name.startswith("tunelight")]

    space = {**LR, "pause": tl.choice([0.0])}
    straight = tl.run(space, slow_steps, num_samples=3, workers=(4, 4), scheduler="fifo", name="straight", **settings)
    whole = next(trial for trial in straight.trials if trial.id == survivor.id)
    assert whole.config["lr"] == survivor.config["lr"]
    losses = [report["loss"] for report in whole.history]
    assert [report["loss"] for report in survivor.history] == pytest.approx(losses, rel=1e-5)


class Halve(GangScheduler):
    """Pause trials at their second report; once all are there, go on with the best one and end the others."""

    def __init__(self, trials: int) -> None:
        super().__init__()
        self.trials = trials
        self.losses: dict[str, float] = {}
        self.known: dict[str, Any] = {}

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self.known[trial.trial_id] = trial

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 2 and trial.trial_id not in self.losses:
            self.losses[trial.trial_id] = result["loss"]
            return str(TrialScheduler.PAUSE)
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any, *_: Any) -> Any:
        waiting = [trial for trial in self.known.values() if trial.status == "PENDING"]
        if waiting or len(self.losses) < self.trials:
            return next(iter(waiting), None)
        best = min(self.losses, key=lambda trial: self.losses[trial])
        for trial in list(self.known.values()):
            if trial.status == "PAUSED" and trial.trial_id != best:
                tune_controller.stop_trial(trial)
        return self.known[best] if self.known[best].status == "PAUSED" else None


def light(config: dict[str, Any]) -> None:
    """Report four times, with checkpoints; note in a file where each start began."""
    context = tl.get_context()
    tl.get_checkpoint_path()  # its state is the number of its report
    get_session().boundary.writer = lambda path: context.rank or Path(path).write_text("weights")
    with Path(context.trial_dir, f"starts-{context.rank}.txt").open("a") as log:
        print(context.number, file=log)
    while context.number < 4:
        tl.report({"loss": config["lr"] / (context.number + 1)})


def halve(tmp_path: Path, name: str, **kwargs: Any) -> tl.SweepResults:
    return tl.run(
        LR, light, metric="loss", num_samples=4, workers=2, scheduler=Halve(4), storage=tmp_path, name=name, seed=5,
        progress=False, resume=True, **kwargs,
    )  # fmt: skip


@pytest.mark.slow
def test_a_sweep_that_is_cut_off_with_paused_trials_goes_on_with_them_paused(ray4: Any, tmp_path: Path) -> None:
    whole = halve(tmp_path, "whole")
    assert sorted(trial.state for trial in whole.trials) == ["FINISHED", "STOPPED", "STOPPED", "STOPPED"]
    cut = halve(tmp_path, "cut", callbacks=[Cut(6)], max_concurrent=None)
    assert "INTERRUPTED" in {trial.state for trial in cut.trials}
    assert any("PAUSED" in states(cut, trial.id) for trial in cut.trials)
    again = halve(tmp_path, "cut")
    assert [(t.id, t.state, t.config) for t in again.trials] == [(t.id, t.state, t.config) for t in whole.trials]
    for trial, straight in zip(again.trials, whole.trials, strict=True):
        assert [r["loss"] for r in trial.history] == [r["loss"] for r in straight.history]
        starts = (trial.path / "starts-0.txt").read_text().split()
        assert starts[0] == "0"
        assert len(trial.history) == 4 or starts.count("2") == 0  # a paused one was not trained again


@pytest.mark.slow
def test_a_paused_trial_whose_checkpoint_is_gone_is_an_error_and_the_sweep_goes_on(ray4: Any, tmp_path: Path) -> None:
    class Losing(Halve):
        def choose_trial_to_run(self, tune_controller: Any, *_: Any) -> Any:
            chosen = super().choose_trial_to_run(tune_controller)
            if chosen is not None and chosen.status == "PAUSED":
                for file in Path(chosen.path, "checkpoints").iterdir():
                    file.unlink()
            return chosen

    results = tl.run(
        LR, light, metric="loss", num_samples=2, workers=2, scheduler=Losing(2), storage=tmp_path, name="s", seed=5,
        progress=False,
    )  # fmt: skip
    assert sorted(trial.state for trial in results.trials) == ["ERROR", "STOPPED"]
    (failed,) = results.errors
    assert "was paused at report 2, but the checkpoint" in str(failed.error)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hyperband", "medianstopping"])
def test_rays_own_schedulers_run_gangs_unchanged(ray4: Any, tmp_path: Path, name: str) -> None:
    options = (
        {"max_t": 9, "reduction_factor": 3} if name == "hyperband" else {"grace_period": 1, "min_samples_required": 2}
    )
    results = tl.run(
        LR, light, metric="loss", num_samples=6, workers=2, scheduler={"name": name, **options}, storage=tmp_path,
        name="s", seed=5, progress=False,
    )  # fmt: skip
    assert not results.errors
    assert {trial.state for trial in results.trials} <= {"FINISHED", "STOPPED"}
    for trial in results.trials:
        assert [report["training_iteration"] for report in trial.history] == list(range(1, len(trial.history) + 1))
