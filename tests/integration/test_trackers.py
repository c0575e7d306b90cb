"""What W&B and MLflow have of eight trials: two stopped, one failed, one killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.programs import ROOT, python

STATES = ["FINISHED", "STOPPED", "FINISHED", "ERROR", "STOPPED", "FINISHED", "FINISHED", "FINISHED"]
LAST = [4.0, 90.0, 3.0, 4.0, 91.0, 1.0, 0.0, -1.0]
WORDS = {"FINISHED": ("finished", "finished"), "STOPPED": ("finished", "stopped"), "ERROR": ("failed", "failed")}
"""A trial's state -> that of its run of W&B, which has two, and what its summary says."""
STATUS = {"FINISHED": "FINISHED", "STOPPED": "KILLED", "ERROR": "FAILED"}
KILLED = "s-00006"


@pytest.mark.apart
@pytest.mark.timeout(300)
def test_each_trial_has_one_run_with_its_outcome_and_its_last_value(tmp_path: Path) -> None:
    done = python(
        Path(__file__).with_name("tracked.py"), tmp_path, limit_s=280,
        WANDB_MODE="offline", WANDB_SILENT="true", PYTHONPATH=str(ROOT),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    names = [f"s-{number:05}" for number in range(8)]
    assert found["trials"] == {name: [state, last] for name, state, last in zip(names, STATES, LAST, strict=True)}
    assert found["processes"] == 3, "one gang of two, and the one in the place of the killed rank"
    for tracker, runs in found["runs"].items():
        assert {name: run["last"] for name, run in runs.items()} == dict(zip(names, LAST, strict=True)), tracker
        assert all(run["config"] for run in runs.values()), tracker
    wandb, mlflow = found["runs"]["W&B"], found["runs"]["MLflow"]
    assert [(wandb[name]["state"], wandb[name]["told"]) for name in names] == [WORDS[state] for state in STATES]
    assert [mlflow[name]["state"] for name in names] == [STATUS[state] for state in STATES]
    assert {run["group"] for run in (*wandb.values(), *mlflow.values())} == {"s"}
    assert {name: run["parts"] for name, run in wandb.items()} == {name: 1 + (name == KILLED) for name in names}
    assert mlflow[KILLED]["steps"] == [0, 1, 2, 3]
