"""A sweep that gets SIGTERM: its trials leave in the midst of an epoch, with a checkpoint, and go on from there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.tune import Callback

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData
from tunelight.errors import PreemptedError
from tunelight.record import read_lines

EPOCHS = 2


class Slow(Line):
    """Each of its 32 steps an epoch takes a while."""

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        time.sleep(0.06)
        loss = super().training_step(batch, number)
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss


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


def sweep(folder: Path, backend: str = "ddp", **more: Any) -> tl.SweepResults:
    """Run a sweep of one trial."""
    space = {"model.lr": tl.loguniform(0.001, 0.1), "data.batch_size": 1}
    return run(
        space, None, folder, 1, model=Slow, data=LineData, max_epochs=EPOCHS, metric="val_loss", backend=backend,
        trainer_args={"accelerator": "cpu"}, **more,
    )  # fmt: skip


def told(results: tl.SweepResults) -> list[dict[str, Any]]:
    """Return what must not depend on whether the trial has left in between."""
    (trial,) = results.trials
    assert trial.state == "FINISHED"
    kept = ("val_loss", "train_loss", "training_iteration", "epoch")
    return [{name: report[name] for name in kept} for report in trial.history]


@pytest.fixture(scope="module")
def undisturbed(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the trial comes to that nothing disturbs; while it comes to its first report it is known to train."""
    results = sweep(tmp_path_factory.mktemp("whole"))
    kinds = [line["kind"] for line in read_lines(results.folder)]
    assert kinds.index("training") < kinds.index("report")
    return told(results)


@pytest.mark.parametrize(
    "backend", ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("horovod", "sharded"))]
)
def test_after_sigterm_a_sweep_ends_with_exit_code_75_and_goes_on_from_the_step_that_it_was_at(
    ray4: Any, tmp_path: Path, undisturbed: list[dict[str, Any]], backend: str
) -> None:
    with pytest.raises(PreemptedError) as caught:
        sweep(tmp_path, backend, callbacks=[Signalled(1.0)])
    assert caught.value.code == 75
    (left,) = caught.value.results.trials
    assert left.state == "INTERRUPTED"
    (found,) = (left.path / "checkpoints").glob("report-000000.step-*.json")
    results = sweep(tmp_path, backend, callbacks=[], resume=True)
    notes = [text for _, text in results.record.trials["00000"].notes]
    assert any(text.startswith("goes on from") and "report 0, step" in text for text in notes), found
    for mine, theirs in zip(told(results), undisturbed, strict=True):
        assert mine == (theirs if backend == "ddp" else pytest.approx(theirs, rel=1e-4))
