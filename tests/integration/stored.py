"""A sweep as a program: ``python -m tests.integration.stored STORAGE NUM_SAMPLES MACHINE [KILL | STOP]``.

With the fourth word, its driver gets that signal in the midst of the second trial, once its storage tells of a report
of that. To drivers on a machine of another name its process is none of theirs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ray.tune import Callback

import tunelight as tl
from tests.kit.training import Line, LineData, trainer
from tests.kit.waiting import until
from tunelight import stores
from tunelight.record import lease

EPOCHS = 4


class Signalled(Callback):
    """Sends the driver a signal."""

    def __init__(self, record: Path, number: signal.Signals) -> None:
        self.record, self.number = record, number

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if trial.trial_id.endswith("1") and result["training_iteration"] == 2:
            store = stores.store_of(self.record)
            read = store.read if store else Path.read_bytes
            until(lambda: b'"trial":"00001","training_iteration":1' in read(self.record), 60, 0.1)
            os.kill(os.getpid(), self.number)


def train(config: dict[str, Any]) -> None:
    """Say from where it starts, train and report. Runs on: worker."""
    me = tl.get_context()
    print(f"rank {me.rank} starts after report {me.number}")  # noqa: T201 - its log is read
    Path(me.trial_dir, f"rank-{me.rank}.txt").write_text(str(me.number))
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"})
    trainer(EPOCHS, report).fit(Line(config["lr"]), datamodule=LineData(), ckpt_path=tl.get_checkpoint_path())


def main(storage: str, num_samples: str, machine: str, number: str = "") -> None:
    """Run the sweep, or go on with it."""
    lease.process_table = lambda: machine  # type: ignore[assignment]
    lease.BEAT_S, lease.STALE_S = 0.5, 4.0  # type: ignore[misc]
    record = stores.working(storage) / "s" / "record.jsonl"
    callbacks = [Signalled(record, signal.Signals[f"SIG{number}"])] if number else []
    tl.run(
        {"lr": tl.uniform(0.01, 0.1)}, train, metric="loss", num_samples=int(num_samples), workers=2, seed=1,
        scheduler="fifo", storage=storage, name="s", resume=True, progress=False, max_concurrent=1,
        callbacks=callbacks,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
