"""A sweep's end waits for trials that were stopped and still write their last checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.gang.gang import WRITE_LIMIT_S
from tunelight.trial import settling
from tunelight.trial.settling import SettlingCallback


class Head:
    """The actor of a trial; says when it was asked to settle."""

    def __init__(self) -> None:
        self.settle = self
        self.asked = 0

    def remote(self) -> Head:
        self.asked += 1
        return self


def trial(head: Head | None) -> Any:
    return SimpleNamespace(temporary_state=SimpleNamespace(ray_actor=head))


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what was waited for, time by time; each time one head more has settled."""
    calls: list[Any] = []

    def wait(heads: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        calls.append(heads)
        return heads[:1], heads[1:]

    monkeypatch.setattr(settling, "ray", SimpleNamespace(wait=wait))
    return calls


def test_the_last_stopped_trials_are_waited_for_once(waited: list[Any]) -> None:
    callback, heads = SettlingCallback(lambda: True), [Head(), Head()]
    trials = [trial(head) for head in heads]
    for one in (*trials, trials[0]):  # a head may have had several
        callback.on_trial_complete(1, trials, one)
    callback.on_step_end(1, trials)
    callback.on_step_end(2, trials)
    assert waited == [heads, heads[1:]]
    assert [head.asked for head in heads] == [1, 1]


def test_nothing_waits_while_a_trial_runs_or_is_to_come(waited: list[Any]) -> None:
    callback = SettlingCallback(lambda: False)
    ended = trial(Head())
    callback.on_trial_complete(1, [ended], ended)
    callback.on_step_end(1, [ended])
    assert waited == []


def test_heads_that_have_long_settled_are_forgotten(waited: list[Any]) -> None:
    now = [0.0]
    callback, early, late = SettlingCallback(lambda: True, clock=lambda: now[0]), Head(), Head()
    callback.on_trial_complete(1, [], trial(early))
    now[0] = WRITE_LIMIT_S + 1
    callback.on_trial_complete(1, [], trial(late))
    callback.on_trial_complete(1, [], trial(None))  # it was paused
    callback.on_step_end(1, [trial(late)])
    assert waited == [[late]]


def test_a_signal_ends_the_wait(waited: list[Any]) -> None:
    callback, heads = SettlingCallback(lambda: True, lambda: bool(waited)), [Head(), Head()]
    for head in heads:
        callback.on_trial_complete(1, [], trial(head))
    callback.on_step_end(1, [])
    assert waited == [heads]
