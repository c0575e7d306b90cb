"""A live search that ends by its rule: cut off before, resumed after, and resumed without it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.integration.test_resume import Cut


def train(config: dict[str, Any]) -> None:
    """Report a loss that can hardly become better."""
    time.sleep(0.02)
    tl.report({"loss": 0.5 + config["x"] ** 2})


def run(folder: Path, **more: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 30, "workers": 1, "cpus_per_worker": 0.5, "seed": 3, "scheduler": "fifo",
        "storage": folder, "name": "s", "progress": False, "max_concurrent": 2, "stop_when": "no_better:0.3",
        "resume": True,
    }  # fmt: skip
    return tl.run({"x": tl.uniform(0.0, 1.0)}, train, **{**settings, **more})


def test_it_comes_to_the_same_end_after_an_interruption_and_goes_on_without_the_rule(ray4: Any, tmp_path: Path) -> None:
    run(tmp_path, callbacks=[Cut(after=8)])
    found = run(tmp_path)
    why = found.record.over
    assert why is not None
    assert why.startswith("stop_when: after 2")
    assert why in found.summary()
    assert 20 <= len(found) < 25
    assert {trial.state for trial in found} == {"FINISHED"}
    assert found.ended == "finished"

    assert len(run(tmp_path)) == len(found)
    more = tl.resume(tmp_path / "s", train=train, stop_when=None, num_samples=len(found) + 2)
    assert len(more) == len(found) + 2
    assert more.record.over is None
