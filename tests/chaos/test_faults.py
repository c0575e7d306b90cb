"""Ranks of a sweep's trials are really killed, stopped and held up here, and nodes taken away: it trains the same."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import tunelight as tl
from tests.kit.programs import over
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, note, notes, trainer
from tunelight.record import read_record

EPOCHS = 4
HANG_S = 3.0


class Hit(Line):
    """Rank 1 is hit in the third epoch, once; it notes ``hit`` right before, and rank 0 ``back`` at each batch then."""

    def __init__(self, fault: str) -> None:
        super().__init__(0.05)
        self.fault = fault
        self.me = tl.get_context()
        self.hit = Path(self.me.trial_dir, "hit-1.jsonl")

    def training_step(self, batch: Any, number: int) -> Any:
        if self.fault and self.me.rank == 1 and (self.current_epoch, number) == (2, 1) and not self.hit.exists():
            note("hit")
            if self.fault == "stuck":
                time.sleep(3600)
            os.kill(os.getpid(), signal.SIGKILL if self.fault == "killed" else signal.SIGSTOP)
        return super().training_step(batch, number)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.me.rank == 0 and self.hit.exists():
            note("back", size=self.me.world_size)


def train(config: dict[str, Any]) -> None:
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"})
    trainer(EPOCHS, report).fit(Hit(config["fault"]), datamodule=LineData())


def sweep(storage: Path, name: str, faults: list[str], backend: str) -> Any:
    configs = [{"fault": fault} for fault in faults]
    failures = tl.FailurePolicy(hang_timeout_s=HANG_S)
    return run(
        {"fault": tl.choice(["", *faults])}, train, storage, configs, max_concurrent=1, name=name, failures=failures,
        backend=backend,
    )  # fmt: skip


def losses(results: Any) -> list[list[float]]:
    """Return each trial's reports, which all have to be there, each once."""
    assert [trial.state for trial in results.trials] == ["FINISHED"] * len(results.trials)
    for trial in results.trials:
        assert [report["training_iteration"] for report in trial.history] == list(range(1, len(trial.history) + 1))
    return [[report["loss"] for report in trial.history] for trial in results.trials]


@pytest.mark.parametrize(
    ("backend", "faults"),
    [
        ("ddp", ["killed", "stuck"]),
        pytest.param("ddp", ["stopped"], marks=pytest.mark.slow),
        pytest.param("horovod", ["killed", "stopped"], marks=pytest.mark.slow),
    ],
)
def test_a_rank_is_replaced_and_the_trial_is_the_undisturbed_one(ray4, tmp_path, backend, faults) -> None:
    expected = losses(sweep(tmp_path, "undisturbed", [""] * len(faults), backend))
    results = sweep(tmp_path, "hit", faults, backend)
    for mine, theirs in zip(losses(results), expected, strict=True):
        assert mine == (theirs if backend == "ddp" else pytest.approx(theirs, abs=1e-6))
    if "stuck" in faults:
        said = str(read_record(tmp_path / "hit").notes)
        assert re.search(r"rank 0 waits in all_?reduce of \(\d+,\).*, which rank 1 has not joined", said), said
    for trial, fault in zip(results.trials, faults, strict=True):
        ((hit,),), ((back, *_),) = notes(trial, "hit"), notes(trial, "back")
        there = [one for one in psutil.process_iter() if one.pid == hit["pid"]]
        assert over(there), f"the worker that was {fault} is still there"
        assert back["size"] == 2  # whole again
        assert (
            back["time"] - hit["time"] < (0 if fault == "killed" else 2 * HANG_S) + 20
        )  # a busy machine imports slowly
    assert not list(tmp_path.rglob(".report-*.tmp"))
