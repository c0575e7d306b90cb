"""GangTrainable under a scheduler that pauses, grows and shrinks gangs, against a fake gang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.heads import Heads
from tests.unit.trial.test_trainable import Make, background, folder, heads, make, saving, three
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError
from tunelight.messages import RESULT_KEY, Resize, Stop
from tunelight.resources import reserve
from tunelight.trial.trainable import GangTrainable

__all__ = ["folder", "heads", "make"]


@pytest.fixture
def resized(make: Make) -> Any:
    """Make a trial of 2 to 8 workers that starts with 2."""

    def build(train: Any, **spec: Any) -> GangTrainable:
        spec |= {"soft_errors": True, "real_checkpoints": False}
        return make(train, reservation=reserve(workers=(2, 8)).starting(2), start=2, **spec)

    return build


def grown(one: GangTrainable, size: int = 4) -> Any:
    """Tell its gang that it has grown."""
    gang: Any = one._gang
    gang.size = size
    return gang


def save(one: GangTrainable, folder: Path) -> Path:
    target = folder / "checkpoint_000000"
    target.mkdir()
    one.save_checkpoint(str(target))
    return target


def test_a_trial_starts_with_its_starting_size(resized: Any) -> None:
    one = resized(three)
    one.step()
    assert one._gang.wanted == 2


@pytest.mark.parametrize(("asked", "possible"), [(4, 4), (1, 2), (99, 8)])
def test_a_gang_is_asked_for_a_size_that_it_can_have(resized: Any, asked: int, possible: int) -> None:
    one = resized(three)
    one.step()
    one.decide(Resize(asked))
    assert one._gang.wanted == possible


def test_a_gang_that_is_not_elastic_is_not_resized(make: Make) -> None:
    one = make(three)
    one.step()
    one.decide(Resize(4))
    gang: Any = one._gang
    assert gang.wanted is None


def test_the_next_trial_starts_at_the_starting_size_again(resized: Any, heads: Heads) -> None:
    one = resized(three)
    one.step()
    one.decide(Resize(8))
    heads.reset(one, {})
    assert one._gang.wanted == 2
    one.step()
    assert one._gang.wanted == 2


def test_what_a_gang_has_grown_by_is_given_back_when_its_trial_ends(resized: Any) -> None:
    one = resized(three)
    one.step()
    one.decide(Resize(4))
    grown(one)
    while not one.step().get("done"):
        pass
    assert one._gang.wanted == 2


def test_a_stop_ends_a_grown_trial_at_once_for_others_want_what_it_holds(resized: Any) -> None:
    one = resized(three)
    one.step()
    one.decide(Resize(4))
    gang = grown(one)
    one.decide(Stop("asha"))
    assert not gang.running
    assert gang.wanted == 2
    assert one.step()["done"]


def test_a_trial_that_is_paused_ends_and_gives_back_and_could_go_on(resized: Any, folder: Path) -> None:
    one = resized(saving)
    one.step()
    one.decide(Resize(4))
    gang = grown(one)
    pointer = save(one, folder)
    found = checkpoints.read_pointer(pointer)
    assert found is not None
    assert found.number == 1
    assert not gang.running
    assert gang.wanted == 2
    again = one.step()
    assert again["training_iteration"] == 2
    assert again["resumed"].endswith("report-000001.ckpt")


def test_a_paused_trial_whose_checkpoint_is_gone_fails_alone_and_keeps_the_gang(
    resized: Any, heads: Heads, folder: Path
) -> None:
    one = resized(background)
    one.step()
    pointer = save(one, folder)
    heads.reset(one, {})
    for left in (folder / checkpoints.FOLDER).iterdir():
        left.unlink()
    heads.restore(one, pointer)
    last = one.step()
    assert last["done"]
    assert last["training_iteration"] == 1
    assert last[RESULT_KEY]["error"]["type_name"] == "CheckpointError"
    assert "00000 was paused at report 1, but the checkpoint" in last[RESULT_KEY]["error"]["message"]
    heads.reset(one, {})
    assert one.step()[RESULT_KEY]["gang"]["warm"]


def test_plain_tune_is_told_of_a_lost_checkpoint_by_an_exception(make: Make, heads: Heads, folder: Path) -> None:
    one = make(background, real_checkpoints=False)
    one.step()
    pointer = save(one, folder)
    heads.reset(one, {})
    for left in (folder / checkpoints.FOLDER).iterdir():
        left.unlink()
    with pytest.raises(CheckpointError, match="torn or gone"):
        heads.restore(one, pointer)
