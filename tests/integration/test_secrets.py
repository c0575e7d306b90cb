"""Secrets on their way: workers have them, the sweep's folder does not, and a sweep that goes on asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl

SECRET = "hunter2"


def train(config: dict[str, Any]) -> None:
    """Report once, and fail with an address in the error where x is large."""
    tl.report({"loss": config["x"] if os.environ.get("MY_TOKEN") == SECRET else 9.0})
    if config["x"] > 0.9:
        raise ValueError(f"cannot reach postgresql://me:{SECRET}@db.example/studies")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_workers_have_what_the_folder_does_not_hold(ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tl.run(
        {"x": tl.grid_search([0.5, 1.0])},
        train,
        metric="loss",
        num_samples=1,
        scheduler="fifo",
        storage=tmp_path,
        name="s",
        seed=1,
        failures=0,
        runtime_env={"env_vars": {"MY_TOKEN": SECRET}},
        progress=False,
    )
    assert first.best.value == 0.5  # the workers had it
    assert str(first.errors[0]).endswith("cannot reach postgresql://me:***@db.example/studies")
    files = [file for file in first.folder.rglob("*") if file.is_file() and file.name != "log.txt"]
    assert {"sweep.yaml", "record.jsonl"} <= {file.name for file in files}
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    monkeypatch.setenv("MY_TOKEN", SECRET)
    again = tl.resume(first.folder, num_samples=2, progress=False)
    assert [trial.value for trial in again.trials if trial.config["x"] == 0.5] == [0.5, 0.5]
