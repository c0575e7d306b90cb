"""Trials that run out of memory go on with smaller pieces of their batches, and learn the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.kit.training import Line, LineData, trainer
from tunelight.compat.ray import keep_for_job
from tunelight.record import read_record
from tunelight.trial import fitting

KINDS = ["cut", "by hand", "validation"]


def narrow(config: dict[str, Any]) -> None:
    """Train where rank 1 has room for so many samples at a time, from the second epoch on."""

    class Narrow(Line):
        def __init__(self) -> None:
            super().__init__(config["lr"])
            self.net[2] = torch.nn.Identity()  # without dropout, equal to rounding
            self.automatic_optimization = config["kind"] != "by hand"

        def _need(self, rows: int) -> None:
            if tl.get_context().rank == 1 and self.current_epoch >= 1 and rows > config["room"]:
                with Path(tl.get_context().trial_dir, "oom.txt").open("a") as log:
                    print(rows, file=log)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if config["kind"] != "validation":
                self._need(len(batch[0]))
            loss = super().training_step(batch, number)
            self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            if not self.automatic_optimization:
                self.manual_backward(loss)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            if config["kind"] == "validation" and not self.trainer.sanity_checking:
                self._need(len(batch[0]))
            super().validation_step(batch, number)

    report = tl.TuneReportCheckpointCallback({"loss": "val_loss", "train_loss": "train_loss_step"})
    trainer(3, report).fit(Narrow(), datamodule=LineData(7))


def sweep(
    folder: Path,
    name: str,
    configs: list[dict[str, Any]],
    backend: Any = "ddp",
    **more: Any,
) -> tl.SweepResults:
    space = {"lr": tl.uniform(0, 1), "room": tl.choice([2, 99]), "kind": tl.choice(KINDS)}
    return tl.run(
        space, narrow, metric="loss", baselines=configs, num_samples=len(configs), workers=2, backend=backend, seed=3,
        max_concurrent=1, scheduler="fifo", storage=folder, name=name, progress=False,
        **{"failures": tl.FailurePolicy(on_oom="halve_batch"), **more},
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["ddp", "horovod", pytest.param("sharded", marks=pytest.mark.slow)])
def test_a_trial_goes_on_with_smaller_pieces_and_learns_the_same(ray4: Any, tmp_path: Path, backend: str) -> None:
    lrs = (0.05, 0.1)
    wide = sweep(tmp_path, "wide", [{"lr": lr, "room": 99, "kind": "cut"} for lr in lrs], backend)
    configs = [{"lr": lr, "room": 2, "kind": "cut"} for lr in lrs]
    results = sweep(tmp_path, "tight", [*configs, *({**configs[0], "kind": kind} for kind in KINDS[1:])], backend)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 2 + ["OOM"] * 2
    first, second, by_hand, validation = results.trials
    assert [(one.batch_pieces, len(one.history)) for one in (first, second)] == [(4, 3)] * 2
    for trial, plain in zip((first, second), wide.trials, strict=True):
        for key in ("loss", "train_loss"):
            values = [report[key] for report in trial.history]
            assert values == pytest.approx([report[key] for report in plain.history], rel=1e-4)
    assert (first.path / "oom.txt").read_text().split() == ["7", "4"]
    assert not (second.path / "oom.txt").exists()  # it knew from the first one
    for one in (by_hand, validation):
        assert len((one.path / "oom.txt").read_text().split()) == 1
        assert one.batch_pieces == 1
    said = str(read_record(tmp_path / "tight").notes)
    assert "from report 1, with each training batch in 2 pieces" in said
    assert "cuts each training batch into 4 pieces, as a configuration like it had to" in said


def test_a_resumed_sweep_still_knows_the_size_that_fits(ray4: Any, tmp_path: Path) -> None:
    configs = [{"lr": lr, "room": 2, "kind": "cut"} for lr in (0.05, 0.1)]
    (first,) = sweep(tmp_path, "s", configs[:1]).trials
    keep_for_job(fitting._name(tmp_path / "s", first.config), "1")  # as for a new driver
    assert fitting.recall(tmp_path / "s", configs[1]) == 1
    second = sweep(tmp_path, "s", configs, resume=True).trials[1]
    assert (first.batch_pieces, second.batch_pieces) == (4, 4)
    assert not (second.path / "oom.txt").exists()


def test_a_trial_that_runs_out_of_memory_ends_by_default(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path, "ends", [{"lr": 0.05, "room": 2, "kind": "cut"}], failures=0)
    assert [(trial.state, trial.batch_pieces) for trial in results.trials] == [("OOM", 1)]
