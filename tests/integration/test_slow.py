"""A rank that is slower than the other, live: it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, trainer


def hampered(config: dict[str, Any]) -> None:
    """Train with checkpoints; the first process that is rank 1 takes its time for each step."""
    import os
    import time

    me = tl.get_context()
    first = Path(me.trial_dir, "first.txt")
    if me.rank == 1 and not first.exists():
        first.write_text(str(os.getpid()))
    sleeps = me.rank == 1 and first.read_text() == str(os.getpid())

    class Hampered(Line):
        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(0.05 if sleeps else 0.0)
            loss = super().training_step(batch, index)
            self.log("train_loss", loss, on_step=True, sync_dist=True)  # both ranks wait in it for the slow one
            return loss

    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"})
    trainer(110, report).fit(Hampered(config["lr"]), datamodule=LineData())


@pytest.mark.apart
@pytest.mark.timeout(180)  # three windows of five seconds
def test_a_slow_rank_is_named_with_its_node_once(ray4: Any, tmp_path: Path) -> None:
    results = run({"lr": tl.uniform(0.01, 0.1)}, hampered, tmp_path, 1)
    assert not results.errors
    notes = [text for _, text in results.record.notes]
    (note,) = [note for note in notes if "is slow" in note]
    assert note.startswith("rank 1 on ")
    assert "in the median of the others" in note
