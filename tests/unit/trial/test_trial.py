"""A trial and its kind: branches and repetitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import tunelight as tl
from tests.kit import tasks
from tests.kit.heads import Heads
from tests.kit.recording import written_checkpoint as written
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import TrialError
from tunelight.trial.trainable import make_trainable
from tunelight.trial.trial import Trial


def branch(folder: Path) -> Trial:
    """Return trial 00001, which begins with a checkpoint of trial 00000's report 2."""
    written(folder / "trial_00000", 2)
    checkpoints.copy_from_trial(folder / "trial_00000", folder / "trial_00001", None, 2)
    spec = tasks.trial_spec(b"", reports_to="sweep")
    return Trial(spec, "00001", folder / "trial_00001", {}, root="00000", heard=2)


def test_a_branch_begins_with_its_copy_and_fails_where_that_is_torn_before_it_has_another(tmp_path: Path) -> None:
    trial = branch(tmp_path)
    trial.recover()
    found: Any = trial.resume
    assert (found.number, found.value, found.seconds, trial.number) == (2, None, 9.0, 2)
    assert Path(found.path).parent.parent == tmp_path / "trial_00001"
    Path(found.path).write_text("torn")
    with pytest.raises(TrialError, match=r"is torn or gone\. Branch its parent again"):
        trial.newest(2, None)
    again = Trial(trial.spec, "00001", trial.folder, {}, root="00000", heard=2)
    with pytest.raises(TrialError, match="Branch its parent again"):
        again.recover()


# --- training code knows which training of its configuration it is, and which fold is its own -------------


def where(config: dict[str, Any]) -> None:
    context = tl.get_context()
    tl.report({"loss": 1.0, "repetition": context.repetition, "fold": str(context.fold), "folds": str(context.folds)})


@pytest.mark.parametrize(
    ("repetition", "folds", "fold"), [(0, None, None), (2, None, None), (0, 3, 0), (2, 3, 2), (3, 3, 0)]
)
def test_a_trial_learns_its_repetition_and_fold_and_the_next_on_its_gang_its_own(
    heads: Heads, repetition: int, folds: int | None, fold: int | None
) -> None:
    spec = tasks.trial_spec(cloudpickle.dumps(where), folds=folds)
    heads.passed["00000"] = {"repetition": repetition}
    head = heads.make(make_trainable(spec), {"lr": 0.1})
    result = head.step()
    assert (result["repetition"], result["fold"], result["folds"]) == (repetition, str(fold), str(folds))
    head.step()
    heads.reset(head, {"lr": 0.1}, "00001")
    assert head.step()["repetition"] == 0
