"""A trial's head that passes offers and orders to adopt on: in place, by way of the disk, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import tunelight as tl
from tests.kit import tasks
from tests.kit.heads import Heads
from tunelight.checkpoints import files as checkpoints
from tunelight.messages import RESULT_KEY, Adopt, Adoption
from tunelight.policies import FailurePolicy
from tunelight.session.session import get_session
from tunelight.trial.trainable import GangTrainable, make_trainable

Make = Callable[..., GangTrainable]


def training(config: dict[str, Any]) -> None:
    """Train a number: it grows by the learning rate at each report, and is written with it."""
    context, session = tl.get_context(), get_session()
    resumed = context.resume.path if context.resume else None  # other gangs of this test share the process

    class Number:
        value = float(Path(resumed).read_text()) if resumed else config["start"]

        def give(self) -> float:
            return self.value

        def agree(self, yes: bool) -> bool:
            return yes

        def take(self, state: float, before: Any, config: Any) -> str | None:
            if "odd" in config:
                return "it is odd"
            self.value = state
            return None

    number = Number()
    if config.get("lightning", True):
        session.exchange.training = number

    def save(path: str) -> None:
        Path(path).write_text(str(number.value))

    session.boundary.writer = save
    while context.number < 6:
        number.value += context.config["lr"]
        if context.number == config.get("fails_after") and resumed is None:
            raise ValueError("no")
        context.report({"loss": number.value}, checkpoint=save if config.get("saves", True) else None)


@pytest.fixture
def make(heads: Heads) -> Make:
    def build(name: str, **config: Any) -> GangTrainable:
        retry = FailurePolicy(1, retry_exceptions=True)
        spec = tasks.trial_spec(cloudpickle.dumps(training), metric="loss", reports_to="sweep", failures=retry)
        return heads.make(make_trainable(spec), {"lr": 1.0, "start": 0.0, **config}, name)

    return build


def pair(make: Make, parent: Any = None, **child: Any) -> tuple[Any, Any]:
    """Return the heads of two trials that have made their first reports."""
    both = make("a", **{"start": 100.0, **(parent or {})}), make("b", **child)
    for head in both:
        head.step()
    return both


def adopt(parent: Any, heads: Heads, config: Any = None, **order: Any) -> Adopt:
    """Return the order to adopt what the head of trial a offers, at a rate of 2."""
    offer = None if parent is None else next(iter(parent.offer()))
    return Adopt(offer, {"lr": 2.0, "start": 0.0, **(config or {})}, "a", str(heads.folder("a")), **order)


def test_what_one_offers_another_adopts_in_place(make: Make, heads: Heads) -> None:
    parent, child = pair(make)
    child.decide(adopt(parent, heads, until=2))
    result = child.step()
    assert result["loss"] == 103.0
    assert result[RESULT_KEY]["adopted"] == "memory"
    assert parent.step()["loss"] == 102.0
    assert child.step()[RESULT_KEY]["adopted"] is None


@pytest.mark.parametrize("by_disk", [False, True])
def test_who_is_paused_after_adopting_leaves_what_it_became(make, heads, tmp_path, by_disk) -> None:
    parent, child = pair(make)
    child.decide(adopt(None if by_disk else parent, heads, number=1, until=1))
    child.save_checkpoint(str(tmp_path))
    info: Any = checkpoints.read_pointer(tmp_path)
    assert info.adopted
    assert Path(info.path).read_text() == "101.0"
    assert by_disk or (info.value, info.number) == (None, 1)
    assert Path(info.path).parents[1] == heads.folder("b")


@pytest.mark.parametrize("config", [{"odd": 1}, {"lightning": False}])
def test_what_does_not_fit_comes_by_way_of_the_disk(make: Make, heads: Heads, config: dict[str, Any]) -> None:
    parent, child = make("a", start=100.0), make("b", **config)
    parent.step()
    parent.step()
    child.step()
    child.decide(adopt(parent, heads, config, until=2))
    result = child.step()
    assert (result["loss"], result["training_iteration"]) == (104.0, 2)
    assert result[RESULT_KEY]["adopted"] == "disk"
    assert "starts anew from a checkpoint of a" in result[RESULT_KEY]["notes"][0]


def test_where_nothing_can_be_had_training_goes_on_as_it_was_says_so_and_pauses_as_it_was(make, tmp_path) -> None:
    child: Any = make("b")
    child.step()
    child.decide(Adopt(None, {"lr": 2.0, "start": 0.0}, "a", "nowhere", until=2))
    result = child.step()
    assert result["loss"] == 2.0
    assert result[RESULT_KEY]["adopted"] == "none"
    assert "goes on as it was" in result[RESULT_KEY]["notes"][0]
    child.save_checkpoint(str(tmp_path))
    info: Any = checkpoints.read_pointer(tmp_path)
    assert (Path(info.path).read_text(), info.number) == ("2.0", 2)
    assert child._trial.next_start.config["lr"] == 1.0


def test_an_error_on_the_way_of_a_decision_is_that_of_the_next_step(make, heads, monkeypatch) -> None:
    parent, child = pair(make, odd=1)
    find = checkpoints.find

    def refused(folder: Any, *_: Any, **__: Any) -> Any:
        if Path(folder) == heads.folder("a"):
            return find(folder)
        raise OSError("503 Slow Down")

    monkeypatch.setattr(checkpoints, "copy_from_trial", lambda *_, **__: refused(""))
    monkeypatch.setattr(checkpoints, "find", refused)
    parent.step()
    child.decide(adopt(parent, heads, {"odd": 1}, until=2))
    with pytest.raises(OSError, match="503 Slow Down"):  # on which Tune starts the trial again
        child.step()


@pytest.mark.parametrize("saves", [True, False])
def test_after_a_fault_before_the_next_checkpoint_what_was_adopted_comes_from_the_other_ones_checkpoint(
    make: Make, heads: Heads, saves: bool
) -> None:
    parent, child = pair(make, parent={"saves": saves}, fails_after=1)
    child.decide(adopt(parent, heads, {"fails_after": 1}, number=1, until=2))
    result = child.step()
    assert result["loss"] == (103.0 if saves else 3.0)
    lost = "what it adopted after report 1 is in no checkpoint, and lost"
    assert ("takes what it adopted after report 1 from a checkpoint of a" if saves else lost) in result[RESULT_KEY][
        "notes"
    ]


@pytest.mark.parametrize("restored", [False, True])
def test_a_head_that_dies_after_an_adoption_is_followed_by_one_that_has_it_until_a_checkpoint_does(
    make: Make, heads: Heads, tmp_path: Path, restored: bool
) -> None:
    parent, child = pair(make)
    if restored:
        child.save_checkpoint(str(tmp_path))  # as at an earlier pause: Tune restores a new head from there
    child.decide(adopt(parent, heads, number=1, until=1))
    child._gang.close()
    heads.passed["b"] = {"heard": 1, "adopted": Adoption(1, "a", heads.folder("a").name, 1)}
    parent.step()  # 102, which is not what was offered
    follower = make("b", lr=2.0)
    if restored:
        follower.load_checkpoint(str(tmp_path))
    assert follower.step()["loss"] == 103.0
    heads.passed["b"]["heard"] = 2
    assert make("b", lr=2.0).step()["loss"] == 105.0  # from its own checkpoint


def test_a_head_asks_a_store_again_for_what_it_is_to_restore(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, slept = OSError("503 Slow Down"), list[float]()
    monkeypatch.setattr("ray.tune.Trainable.restore", restore := mock.Mock(side_effect=[refused, refused, "restored"]))
    monkeypatch.setattr("tunelight.trial.trainable.time.sleep", slept.append)
    head = make("a")
    assert head.restore("here") == "restored"
    restore.assert_called_with("here")
    assert slept == [1.0, 2.0]
    restore.side_effect = refused
    with pytest.raises(OSError, match="503 Slow Down"):
        head.restore("here")
    assert sum(slept) == 3.0 + 63.0


def test_a_checkpoint_with_what_was_adopted_once_lacks_what_was_adopted_later(make: Make, heads: Heads) -> None:
    parent, _ = pair(make)
    assert checkpoints.copy_from_trial(heads.folder("a"), heads.folder("b"), 1) is not None
    parent.step()
    parent.step()
    heads.passed["b"] = {"heard": 2, "adopted": Adoption(2, "a", heads.folder("a").name, 2)}
    assert make("b", lr=2.0).step()["loss"] == 104.0  # from 102, of the other trial's second report


def test_a_training_without_a_trainer_offers_nothing_and_one_that_has_not_begun_neither(make: Make) -> None:
    head = make("a", lightning=False)
    assert head.offer() == ()
    head.step()
    assert head.offer() == ()
