"""Training code knows which training of its configuration it is, and which fold is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.kit import tasks
from tests.kit.heads import heads_in
from tunelight.messages import name_of_trial, repetition_in
from tunelight.trial.trainable import make_trainable


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
