"""Trials leave their workers in the midst of an epoch, with a checkpoint, and go on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback

import tunelight as tl
from tests.integration.leaving import EPOCHS, SPACE, settings
from tunelight.errors import PreemptedError


class Signalled(Callback):
    """Sends this process SIGTERM some seconds after the first trial has begun to train."""

    def __init__(self, after_s: float) -> None:
        self.after_s, self.at = after_s, 0.0

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        begun = any((Path(trial.path or "/nowhere") / "log.txt").exists() for trial in trials)
        if begun and self.at == 0:
            self.at = time.monotonic() + self.after_s
        elif self.at and time.monotonic() > self.at:
            self.at = float("inf")
            os.kill(os.getpid(), signal.SIGTERM)


def told(results: tl.SweepResults) -> list[Any]:
    """Return what must not depend on whether a trial has left in between."""
    kept = ("val_loss", "train_loss", "training_iteration", "epoch")
    return [(trial.state, [{name: report.get(name) for name in kept} for report in trial.history]) for trial in results]


@pytest.fixture(scope="module")
def undisturbed(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what two trials come to that nothing disturbs."""
    return told(tl.run(SPACE, **settings(tmp_path_factory.mktemp("whole"), "s", num_samples=2)))


def starts(results: tl.SweepResults, trial: int) -> list[str]:
    """Return from which checkpoints a trial went on."""
    notes = results.record.trials[f"{trial:05d}"].notes
    return [text for _, text in notes if text.startswith("goes on from")]


@pytest.mark.parametrize("backend", ["ddp", "horovod", "sharded"])
def test_after_sigterm_a_sweep_ends_with_exit_code_75_and_goes_on_from_the_step_that_it_was_at(
    ray4: Any, tmp_path: Path, undisturbed: list[Any], backend: str
) -> None:
    with pytest.raises(PreemptedError) as caught:
        tl.run(SPACE, **settings(tmp_path, "s", backend=backend, callbacks=[Signalled(1.0)]))
    assert caught.value.code == 75
    (left,) = caught.value.results.trials
    assert left.state == "INTERRUPTED"
    (found,) = (left.path / "checkpoints").glob("report-000000.step-*.json")
    results = tl.run(SPACE, **settings(tmp_path, "s", backend=backend, callbacks=[], resume=True))
    assert [trial.state for trial in results] == ["FINISHED"]
    assert any("report 0, step" in text for text in starts(results, 0)), found
    if backend == "ddp":
        assert told(results) == undisturbed[:1]
    else:
        assert [report["training_iteration"] for report in results.trials[0].history] == [1, EPOCHS]
        close = pytest.approx([report["val_loss"] for report in undisturbed[0][1]], rel=1e-4)
        assert [report["val_loss"] for report in results.trials[0].history] == close
