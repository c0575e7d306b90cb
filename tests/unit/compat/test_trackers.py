"""Runs of experiment trackers between two trials, with stand-ins: none of the four libraries is installed here.

tests/integration/test_packages.py asks W&B and MLflow themselves.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.compat import trackers


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what the libraries are told; a run of each is going on, of MLflow two."""
    told: list[Any] = []
    runs = ["nested", "outer"]

    def end_run(status: str) -> None:
        told.append(("mlflow", runs.pop(), status))

    def finish(exit_code: int) -> None:
        told.append(("wandb finishes", exit_code))

    def teardown(exit_code: int) -> None:
        told.append(("wandb's service ends", exit_code))
        sys.exit(exit_code)  # as wandb does by its service's

    experiment = SimpleNamespace(
        add_tag=lambda tag: told.append(("comet", tag)), end=lambda: told.append(("comet", "end"))
    )
    task = SimpleNamespace(
        mark_failed=lambda status_reason: told.append(("clearml", status_reason)),
        close=lambda: told.append(("clearml", "close")),
    )
    libraries: dict[str, Any] = {
        "mlflow": SimpleNamespace(active_run=lambda: runs or None, end_run=end_run),
        "wandb": SimpleNamespace(run=SimpleNamespace(_is_attached=False), finish=finish, teardown=teardown),
        "comet_ml": SimpleNamespace(get_running_experiment=lambda: experiment),
        "clearml": SimpleNamespace(Task=SimpleNamespace(_Task__main_task=task)),
    }
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    return told


def test_runs_end_well_where_the_trial_did(said: list[Any]) -> None:
    assert trackers.end_runs(failed=False, limit_s=20) == ()
    assert said == [
        ("mlflow", "outer", "FINISHED"), ("mlflow", "nested", "FINISHED"), ("wandb finishes", 0),
        ("wandb's service ends", 0), ("comet", "end"), ("clearml", "close"),
    ]  # fmt: skip


def test_runs_of_a_failed_trial_have_failed(said: list[Any]) -> None:
    assert trackers.end_runs(failed=True, limit_s=20) == ()
    assert said == [
        ("mlflow", "outer", "FAILED"), ("mlflow", "nested", "FAILED"), ("wandb finishes", 1),
        ("wandb's service ends", 1), ("comet", "failed"), ("comet", "end"), ("clearml", "the trial failed"),
        ("clearml", "close"),
    ]  # fmt: skip


def test_a_run_that_cannot_be_ended_is_in_the_log_and_costs_no_other(
    said: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    del sys.modules["wandb"].finish
    trackers.end_runs(failed=False, limit_s=20)
    assert "tunelight: ending the run of wandb: AttributeError" in capsys.readouterr().out
    assert said[-1] == ("clearml", "close")


def test_a_run_that_does_not_end_in_time_is_named(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(sys.modules["wandb"], "finish", lambda exit_code: released.wait(60))
    assert trackers.end_runs(failed=False, limit_s=0.1) == ("a run of wandb that had not ended within 0 s",)
    released.set()
    assert ("clearml", "close") in said


class Store:
    """Takes its time to be made, and finds out whether another one is made meanwhile."""

    making = 0
    most = 0

    def __init__(self, seconds: float) -> None:
        Store.making += 1
        Store.most = max(Store.most, Store.making)
        threading.Event().wait(seconds)
        Store.making -= 1


def test_stores_are_made_one_after_another(tmp_path: Path) -> None:
    for _ in range(2):
        trackers.make_stores_in_turns(Store, tmp_path)
    threads = [threading.Thread(target=Store, args=(0.1,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert Store.most == 1
