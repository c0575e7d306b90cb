"""Runs of experiment trackers between two trials, with stand-ins.

tests/integration/test_trackers.py asks W&B and MLflow themselves.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.extras import trackers


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

    libraries: dict[str, Any] = {
        "mlflow": SimpleNamespace(active_run=lambda: runs or None, end_run=end_run),
        "wandb": SimpleNamespace(
            run=SimpleNamespace(_is_attached=False, config={}, summary={}), finish=finish, teardown=teardown
        ),
    }
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    return told


def test_a_run_that_cannot_be_ended_is_in_the_log_and_costs_no_other(said, capsys):
    del sys.modules["wandb"].finish
    trackers.end_runs("finished", limit_s=20)
    assert "tunelight: ending the run of wandb: AttributeError" in capsys.readouterr().out
    assert [what for what, *_ in said] == ["mlflow", "mlflow"]


def test_a_run_that_does_not_end_in_time_is_named(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(sys.modules["wandb"], "finish", lambda exit_code: released.wait(60))
    assert trackers.end_runs("finished", limit_s=0.1) == ("a run of wandb that had not ended within 0 s",)
    released.set()
    assert [what for what, *_ in said] == ["mlflow", "mlflow"]


class Store:
    """Takes its time to be opened, and finds out whether another one is opened meanwhile."""

    opening = 0
    most = 0
    tracking_uri = "sqlite:///runs.db"

    def __init__(self) -> None:
        Store.opening += 1
        Store.most = max(Store.most, Store.opening)
        threading.Event().wait(0.1)
        Store.opening -= 1


def test_stores_are_opened_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_locks", tmp_path)
    monkeypatch.setattr(trackers, "_opened", set())
    make = Store.__init__
    monkeypatch.setattr(Store, "__init__", lambda self: trackers._mlflow_client(make, self))
    threads = [threading.Thread(target=Store) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert Store.most == 1


def test_what_the_user_passes_or_sets_stays_and_other_ranks_have_no_run_unless_they_name_their_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    monkeypatch.setattr(trackers, "_trial", None)  # and so again after the test
    for name in ("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "x")

    def wandb_init(project=None, *, id=None, name=None, tags=None, group=None, mode=None, resume=None, settings=None):  # noqa: A002 - as wandb's
        given = {"id": id, "name": name, "tags": tags, "group": group, "mode": mode, "resume": resume}
        return {key: value for key, value in given.items() if value is not None}

    def init(rank: int = 0, **given: Any) -> Any:
        """Start a trial on a rank, call wandb.init, and return what that is called with."""
        trackers.begin(str(tmp_path / "digits" / "trial_00003"), "00003", {"lr": 0.1}, rank=rank)
        return trackers._wandb_init(wandb_init, "p", **given)

    assert init(rank=1) == {"mode": "disabled"}
    assert init(rank=1, group="ranks") == {"group": "ranks"}
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    given: dict[str, Any] = {"id": "i", "name": "n", "tags": ["t"]}
    assert init(**given, settings={"run_group": "mine"}) == given
