"""A checkpoint that only rank 0's disk has comes to the driver's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_strategies import Small, data, trainer
from tunelight.compat.lightning import pl
from tunelight.extras.standalone import driver as drivers
from tunelight.extras.standalone import transfer

pytestmark = pytest.mark.usefixtures("warm_gangs")


def test_a_checkpoint_on_rank_0_s_disk_alone_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listen = drivers._listen
    moved: list[Path] = []

    def without_the_file(gang: Any, reporter: Any) -> Any:
        """Hide the checkpoints from this disk from the end of the run on, and what rank 0 has read of them after it."""
        if moved:
            handed_in = listen(gang, reporter)
            moved[0].with_suffix(".ckpt").unlink()
            return handed_in
        handed_in = listen(gang, reporter)
        (found,) = tmp_path.glob("*.ckpt")
        moved.append(found.rename(found.with_suffix(".hidden")))
        return handed_in

    missing = transfer.missing

    def until_rank_0_reads(paths: list[str]) -> list[str]:
        lacking = missing(paths)
        if moved and moved[0].exists():
            moved[0].rename(moved[0].with_suffix(".ckpt"))
        return lacking

    monkeypatch.setattr(drivers, "_listen", without_the_file)
    monkeypatch.setattr(transfer, "missing", until_rank_0_reads)
    best = pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    trainer(callbacks=[best], enable_checkpointing=True).fit(Small(), data())
    assert Path(best.best_model_path).exists()
