"""Branches on their heads: with which checkpoint one begins, and what it does where that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.recording import written_checkpoint as written
from tests.kit.tasks import trial_spec
from tunelight.checkpoints import adoption
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import TrialError
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
