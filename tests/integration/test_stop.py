"""A stop ends a trial at its report, on every rank, and nothing of it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData
from tunelight.messages import Continue
from tunelight.record import read_lines
from tunelight.schedulers.base import GangScheduler
from tunelight.session.session import get_session


class StopAtTwo(FIFOScheduler):
    """Stops every trial at its second report."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(TrialScheduler.STOP if result["training_iteration"] >= 2 else TrialScheduler.CONTINUE)


def watched(config: dict[str, Any]) -> None:
    """Train with min_epochs, and write down what happens on each rank."""
    from tunelight.compat.lightning import Callback, CSVLogger, pl

    context = tl.get_context()
    log = Path(context.trial_dir, f"rank-{context.rank}.txt")

    def say(word: str) -> None:
        with log.open("a") as file:
            print(word, file=file)

    class Watch(Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            say("epoch")

        def on_train_end(self, *_: Any) -> None:
            say("train end")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            say(f"exception {type(exception).__name__}")

        def teardown(self, *_: Any, **__: Any) -> None:
            say("teardown")

    class Logger(CSVLogger):
        def finalize(self, status: str) -> None:
            say(f"logger {status}")
            super().finalize(status)

    callbacks = [Watch(), tl.TuneReportCallback({"loss": "val_loss"})]
    trainer = pl.Trainer(
        max_epochs=9, min_epochs=5, strategy=tl.RayStrategy(), accelerator="cpu", callbacks=callbacks,
        logger=Logger(context.trial_dir), enable_checkpointing=False,
    )  # fmt: skip
    try:
        trainer.fit(Line(), datamodule=LineData(num_workers=1))
    except Exception:  # noqa: BLE001 - as careless training code does; a stop passes through it
        say("swallowed")
    say("after fit")


def test_a_stop_passes_all_that_lightning_would_go_on_for(ray4: Any, tmp_path: Path) -> None:
    scheduler: Any = StopAtTwo
    results = run({"x": tl.uniform(0, 1)}, watched, tmp_path, 1, scheduler=scheduler())
    (trial,) = results.trials
    assert trial.state == "STOPPED"
    assert len(trial.history) == 2
    for rank in range(2):
        said = (trial.path / f"rank-{rank}.txt").read_text().splitlines()
        assert said.count("epoch") == 2  # min_epochs=5 did not keep any rank going
        assert "exception TrialStopped" not in said  # a stop is no failure
        assert said.index("train end") < said.index("teardown")
        assert "after fit" not in said
        assert "swallowed" not in said
        assert [line for line in said if line.startswith("logger")] == ["logger success"]


class PauseAtTen(GangScheduler):
    """Pauses each trial at its tenth report, though the trial need not wait at any."""

    pauses = True

    def initial_decision(self) -> Continue:
        return Continue(until=None)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(TrialScheduler.PAUSE if result["training_iteration"] == 10 else TrialScheduler.CONTINUE)


def brisk(config: dict[str, Any]) -> None:
    """Report 30 times within half a second or so, with checkpoints."""
    context = tl.get_context()
    tl.get_checkpoint_path()  # its state is the number of its report
    get_session().boundary.writer = lambda path: context.rank or Path(path).write_text("weights")
    while context.number < 30:
        time.sleep(0.01)
        tl.report({"loss": 1.0 / (context.number + 1)})


def test_a_pause_among_reports_that_came_together_loses_none_and_repeats_none(ray4: Any, tmp_path: Path) -> None:
    results = run({"x": tl.uniform(0, 1)}, brisk, tmp_path, 1, scheduler=PauseAtTen())
    (trial,) = results.trials
    assert trial.state == "FINISHED"
    assert "PAUSED" in {line.get("state") for line in read_lines(results.folder)}
    assert [report["training_iteration"] for report in trial.history] == list(range(1, 31))


def test_a_time_budget_ends_the_sweep_and_keeps_what_was_reported(ray4: Any, tmp_path: Path) -> None:
    def slow(config: dict[str, Any]) -> None:
        import time

        for number in range(1000):
            time.sleep(0.1)
            tl.report({"loss": 1 / (number + 1)})

    results = tl.run(
        {"x": tl.uniform(0, 1)}, slow, metric="loss", num_samples=2, workers=1, scheduler="fifo", time_budget=6,
        storage=tmp_path, name="s", progress=False,
    )  # fmt: skip
    assert results.counts["INTERRUPTED"] == 2
    assert results.best.history
