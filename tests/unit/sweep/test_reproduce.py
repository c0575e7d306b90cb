"""reproduce: what is refused, what is prepared, and how two runs of a trial are compared."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ray.tune.schedulers import TrialScheduler

from tests.kit.recording import ERROR, Writer
from tunelight.errors import ImportPathError, NoResultError, SettingsError, SpaceError
from tunelight.extras.reproduce import _prepare, compare, reproduce
from tunelight.record import read_sweep_file
from tunelight.results import SweepResults
from tunelight.trial.trial import trial_seed


def recorded(folder: Path, *losses: float, **told: Any) -> SweepResults:
    written = Writer(folder, seed=7, **told)
    written.trial(*losses)
    return written.load()


def compared(tmp_path: Path, first: list[float], second: list[float], ignore: tuple[str, ...] = ()) -> Any:
    one, two = recorded(tmp_path / "1", *first), recorded(tmp_path / "2", *second)
    return compare(one, one.trials[0], two, ignore)


def test_metrics_are_compared_to_the_last_bit_unless_ignored_and_the_first_difference_is_named(tmp_path):
    found = compared(tmp_path / "same", [0.1, math.nan, math.inf], [0.1, math.nan, math.inf])
    assert found.same
    assert "all metrics of its 3 reports are the same, bit by bit" in str(found)
    other = math.nextafter(0.2, 1.0)
    found = compared(tmp_path / "a", [0.1, 0.2, 0.3], [0.1, other, 0.4])
    assert not found.same
    assert (found.differences[0].report, found.differences[0].metric) == (2, "loss")
    assert f"report 2: loss was 0.2 and is {other!r}" in str(found)
    assert not compared(tmp_path / "b", [0.0], [-0.0]).same
    assert compared(tmp_path / "c", [0.1], [0.2], ignore=("loss", "acc")).same
    found = compared(tmp_path / "d", [0.1, 0.2], [0.1])
    assert not found.same
    assert "it made 1 of its 2 reports" in str(found)


def test_what_cannot_be_reproduced_is_told(tmp_path):
    with pytest.raises(SettingsError, match=r"no metric 'los'.*Did you mean 'loss'\? It reported: loss, acc, epoch"):
        reproduce(recorded(tmp_path / "1", 0.1), 0, ignore=["los"])
    with pytest.raises(NoResultError, match="made no report"):
        reproduce(recorded(tmp_path / "2"), 0)
    with pytest.raises(SpaceError, match="lr: the record has the choice 'a' as text"):
        reproduce(recorded(tmp_path / "3", 0.5, space_objects={"lr": [["a", None]]}), "best")
    written = Writer(tmp_path / "4")
    trial = written.trial(0.5, 0.4, state="RUNNING")
    taken = {"training_iteration": 1, "parent": "00009", "parent_iteration": 1, "config": {"lr": 0.3}}
    written.record.append("config", trial=trial, **taken)
    written.record.close()
    with pytest.raises(SettingsError, match=r"after report 1 it had the weights of trial 00009"):
        reproduce(written.folder, trial)
    assert [path.name for path in (tmp_path / "4").iterdir()] == ["digits"]


def test_what_else_has_changed_is_noted_and_that_a_run_failed(tmp_path):
    git = {"commit": "a" * 40, "dirty": True}
    told = {
        "versions": {"torch": "2.6"},
        "run": {"git": git},
        "code": {"model": "1"},
        "model": "a:B",
        "workers": [1, 2],
    }
    one = recorded(tmp_path / "1", 0.1, 0.2, **told)
    now = {"versions": {"torch": "2.7"}, "run": {"git": {"commit": "b" * 40}}, "code": {"model": "2"}}
    two = recorded(tmp_path / "2", 0.1, 0.2, **now)
    assert compare(one, one.trials[0], two).notes == [
        "torch was 2.6 and is 2.7",
        "the code of model (a:B) has changed",
        "the repository stood at aaaaaaaaaaaa and stands at bbbbbbbbbbbb",
        "the repository had changes that were in no commit when it ran",
        "its gang was elastic: reports that a smaller one made are the same to rounding only",
    ]
    written = Writer(tmp_path / "3", **told)
    written.trial(0.1, state="ERROR", error=ERROR)
    assert "It ended as ERROR: rank 1 on a: ValueError" in compare(one, one.trials[0], written.load()).notes[0]


class StoppedBeforeRayError(Exception):
    """Ends a run where Ray would start."""


def about_to_run(monkeypatch: pytest.MonkeyPatch, *given: Any, **more: Any) -> Any:
    """Reproduce up to where Ray would start; return what would have run then."""
    tune = mock.Mock(side_effect=StoppedBeforeRayError)
    monkeypatch.setattr("tunelight.sweep.run.connected", lambda _, reservation, *__: nullcontext((reservation, None)))
    monkeypatch.setattr("tunelight.sweep.run._tune", tune)
    with pytest.raises(StoppedBeforeRayError):
        reproduce(*given, progress=False, **more)
    return tune.call_args.args[0]


@pytest.mark.parametrize("space", [{"lr": {"loguniform": [0.01, 1]}}, {"lr": {"grid_search": [1.0, 2.0, 3.0]}}])
def test_what_runs_is_that_trial_alone_with_its_seed_from_its_beginning(tmp_path, monkeypatch, space):
    first = recorded(
        tmp_path / "1", 0.5, 0.4, num_samples=9, workers=2, max_epochs=5, scheduler="asha", searcher="tpe", space=space,
        train=f"{__name__}:recorded", backend="ddp", callbacks=[{"object": "a:B"}], time_budget=5,
    )  # fmt: skip
    made = about_to_run(monkeypatch, first, "best")
    assert made.start.again == {"00000": False}
    trial = made.state.trials["00000"]
    assert (trial.config, trial.number) == ({"lr": 1.0}, 0)
    assert (made.start.created, made.settings.seed, made.settings.workers) == (1, 7, 2)
    assert (made.settings.num_samples, made.settings.searcher, made.settings.time_budget) == (1, "random", None)
    assert trial_seed(made.settings.seed, trial.id) == trial_seed(7, first.best.id)
    assert not made.scheduler.admits()
    assert made.scheduler.initial_decision().until == 2
    stub: Any = SimpleNamespace(trial_id="0")
    assert made.scheduler.on_trial_result(None, stub, {"training_iteration": 2}) == TrialScheduler.STOP
    assert sorted(path.name for path in first.folder.parent.iterdir()) == ["digits"]  # nothing came of it
    prepared = read_sweep_file(_prepare(first, first.trials[0], read_sweep_file(first.folder)))
    assert prepared["reproduces"] == {"sweep": str(first.folder), "trial": "00000"}


def test_code_that_only_a_script_can_define_is_given_again(tmp_path, monkeypatch):
    first = recorded(tmp_path / "1", 0.5, train="__main__:train", space={"lr": {"uniform": [0, 1]}})
    with pytest.raises(ImportPathError, match=r"only the script .*Call tl.reproduce\(results, .00000., train=...\)"):
        reproduce(first, "best")
    assert about_to_run(monkeypatch, first, "best", train=recorded).settings.train is recorded
