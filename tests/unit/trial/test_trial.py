"""A trial and its kind: branches, repetitions, configurations that take as much memory, and the end of a sweep."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tests.kit import tasks
from tests.kit.heads import heads_in
from tests.kit.recording import written_checkpoint as written
from tests.kit.tasks import trial_spec
from tunelight.checkpoints import adoption
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import TrialError
from tunelight.gang.gang import WRITE_LIMIT_S
from tunelight.messages import name_of_trial, repetition_in
from tunelight.trial import output
from tunelight.trial.fitting import without_floats
from tunelight.trial.output import SettlingCallback
from tunelight.trial.trainable import make_trainable
from tunelight.trial.trial import Trial


def branch(folder: Path, root: str | None = "00000") -> Trial:
    """Return trial 00001, which the driver has told to begin with trial 00000 after report 2, step 7."""
    took = adoption.Adoption(2, "00000", "trial_00000", 2, 7, "b")
    adoption.note_adoption(took, folder / "trial_00001")
    checkpoints.write_acked(2, folder / "trial_00001")
    spec = trial_spec(b"", soft_errors=True, real_checkpoints=False)
    return Trial(spec, "00001", folder / "trial_00001", {}, root=root)


def test_a_branch_begins_with_that_very_checkpoint_of_its_parent_which_is_released_then(tmp_path: Path) -> None:
    for number, between in ((2, 0), (2, 7), (2, 9), (3, 0)):
        info = written(tmp_path / "trial_00000", number, between)
        if (number, between) == (2, 7):
            adoption.pin(info, tmp_path / "trial_00000", "b")
    trial = branch(tmp_path)
    trial.recover()
    found = trial.run.resume
    assert found is not None
    assert (found.number, found.between, found.value, found.seconds) == (2, 7, None, 9.0)
    assert Path(found.path).parent.parent == tmp_path / "trial_00001"
    assert Path(found.path).read_text() == "weights of 2, 7"
    assert trial.run.number == trial.branched_at == 2
    assert adoption.read_adoption(tmp_path / "trial_00001") is None
    assert checkpoints.pinned(tmp_path / "trial_00000") == set()
    again = Trial(trial.spec, "00001", trial.folder, {}, root="00000")
    again.recover()  # of a head that died before the first report: it has its own copy
    assert again.run.resume == found


@pytest.mark.parametrize("between", [0, 9])
def test_a_branch_whose_checkpoint_is_gone_does_not_begin_with_another_or_from_scratch(
    tmp_path: Path, between: int
) -> None:
    written(tmp_path / "trial_00000", 2, between)
    trial = branch(tmp_path)
    trial.recover()
    assert trial.run.resume is None
    assert "Trial 00001 is a branch, and the checkpoint with which it was to begin" in str(trial.unable)


def test_a_branch_whose_copy_is_torn_before_it_has_another_fails_where_it_would_restart(tmp_path: Path) -> None:
    written(tmp_path / "trial_00000", 2, 7)
    trial = branch(tmp_path)
    trial.recover()
    assert trial.run.resume is not None
    Path(trial.run.resume.path).write_text("torn")
    with pytest.raises(TrialError, match=r"is torn or gone\. Branch its parent again"):
        trial.newest(2)
    again = Trial(trial.spec, "00001", trial.folder, {}, root="00000")
    again.recover()
    assert again.unable is not None


def test_a_trial_that_is_no_branch_takes_nothing_from_a_note_for_one_that_was_never_recorded(tmp_path: Path) -> None:
    written(tmp_path / "trial_00000", 2, 7)
    trial = branch(tmp_path, root=None)
    trial.recover()
    assert trial.run.resume is None
    assert trial.unable is None
    assert adoption.read_adoption(tmp_path / "trial_00001") is None


# --- training code knows which training of its configuration it is, and which fold is its own -------------


def where(config: dict[str, Any]) -> None:
    import tunelight as tl

    context = tl.get_context()
    tl.report({"loss": 1.0, "repetition": context.repetition, "fold": str(context.fold), "folds": str(context.folds)})


@pytest.mark.parametrize(
    ("repetition", "folds", "fold"), [(0, None, None), (2, None, None), (0, 3, 0), (2, 3, 2), (3, 3, 0)]
)
def test_a_trial_learns_its_repetition_and_fold_and_the_next_on_its_gang_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repetition: int, folds: int | None, fold: int | None
) -> None:
    spec = tasks.trial_spec(cloudpickle.dumps(where), folds=folds)
    with heads_in(tmp_path, monkeypatch) as heads:
        head = heads.make(make_trainable(spec), {"lr": 0.1}, repetition=repetition)
        result = head.step()
        assert (result["repetition"], result["fold"], result["folds"]) == (repetition, str(fold), str(folds))
        head.step()
        heads.reset(head, {"lr": 0.1}, "00001")
        assert head.step()["repetition"] == 0


@pytest.mark.parametrize("repetition", [0, 1, 12])
def test_a_trial_s_name_holds_its_repetition(repetition: int) -> None:
    assert repetition_in(name_of_trial("00007", repetition)) == repetition


@pytest.mark.parametrize("name", ["train_a_00001", "default", "x_repetition_", "_repetition_y"])
def test_other_programs_names_of_trials_hold_none(name: str) -> None:
    assert repetition_in(name) == 0


# --- which configurations take as much memory as another one ----------------------------------------------


def test_configurations_are_alike_that_differ_in_floats_only() -> None:
    one = {"lr": 0.1, "width": 64, "net": {"dropout": 0.5, "kind": "gru"}, "bias": True, "sizes": [8, 0.5]}
    other = {"net": {"kind": "gru", "dropout": 0.1}, "width": 64, "lr": 1e-4, "sizes": [8, 0.1], "bias": True}
    assert without_floats(one) == without_floats(other)
    for change in ({"width": 128}, {"bias": False}, {"net": {"kind": "lstm", "dropout": 0.5}}):
        assert without_floats({**one, **change}) != without_floats(one)


def test_the_same_configuration_is_alike_in_other_processes_and_from_the_record() -> None:
    live = {"width": np.int64(64), "lr": np.float32(0.1), "sizes": (8, 4), "act": Act(), "on": True, "none": None}
    read = {"width": 64, "sizes": [8, 4], "act": Act(), "on": True, "none": None}
    assert without_floats(live) == without_floats(read)


class Act:
    """An object whose repr holds its address."""


# --- a sweep's end waits for trials that were stopped and still write their last checkpoint ---------------


class Head:
    """The actor of a trial; says when it was asked to settle."""

    def __init__(self) -> None:
        self.settle = self
        self.asked = 0

    def remote(self) -> Head:
        self.asked += 1
        return self


def trial_of(head: Head | None) -> Any:
    return SimpleNamespace(temporary_state=SimpleNamespace(ray_actor=head))


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what was waited for, time by time; each time one head more has settled."""
    calls: list[Any] = []

    def wait(heads: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        calls.append(heads)
        return heads[:1], heads[1:]

    monkeypatch.setattr(output, "ray", SimpleNamespace(wait=wait))
    return calls


def test_the_last_stopped_trials_are_waited_for_once(waited: list[Any]) -> None:
    callback, heads = SettlingCallback(lambda: True), [Head(), Head()]
    trials = [trial_of(head) for head in heads]
    for one in (*trials, trials[0]):  # a head may have had several
        callback.on_trial_complete(1, trials, one)
    callback.on_step_end(1, trials)
    callback.on_step_end(2, trials)
    assert waited == [heads, heads[1:]]
    assert [head.asked for head in heads] == [1, 1]


def test_nothing_waits_while_a_trial_runs_or_is_to_come(waited: list[Any]) -> None:
    callback = SettlingCallback(lambda: False)
    ended = trial_of(Head())
    callback.on_trial_complete(1, [ended], ended)
    callback.on_step_end(1, [ended])
    assert waited == []


def test_heads_that_have_long_settled_are_forgotten(waited: list[Any]) -> None:
    now = [0.0]
    callback, early, late = SettlingCallback(lambda: True, clock=lambda: now[0]), Head(), Head()
    callback.on_trial_complete(1, [], trial_of(early))
    now[0] = WRITE_LIMIT_S + 1
    callback.on_trial_complete(1, [], trial_of(late))
    callback.on_trial_complete(1, [], trial_of(None))  # it was paused
    callback.on_step_end(1, [trial_of(late)])
    assert waited == [[late]]


def test_a_signal_ends_the_wait(waited: list[Any]) -> None:
    callback, heads = SettlingCallback(lambda: True, lambda: bool(waited)), [Head(), Head()]
    for head in heads:
        callback.on_trial_complete(1, [], trial_of(head))
    callback.on_step_end(1, [])
    assert waited == [heads]
