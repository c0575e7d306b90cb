"""Folders to work in, with a recorded sweep or a search space."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.recording import ERROR, Writer

SPACE = """\
space:
  model.lr: {loguniform: [1e-4, 1e-1]}
  model.hidden: {choice: [32, 64]}
model: tunelight.extras.digits:DigitsClassifier
data: tunelight.extras.digits:DigitsData
metric: val_loss
num_samples: 3
max_epochs: 2
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder; return that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture
def runs(here):
    """Work in an empty folder, in whose tunelight_runs a sweep of three trials is recorded; return that."""
    written = Writer(here / "tunelight_runs", seed=7)
    written.trial(0.9, 0.2, 0.6)
    written.trial(0.5, 0.4, state="STOPPED", why="place 2 of 2 at rung 2; the best goes on")
    written.trial(0.8, state="ERROR", error=ERROR)
    written.record.append("end", reason="finished")
    return written.load().folder


@pytest.fixture
def space(here):
    """Work in a folder that holds a search space; return the file's name."""
    Path("space.yaml").write_text(SPACE)
    return "space.yaml"
