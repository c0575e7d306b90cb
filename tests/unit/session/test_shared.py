"""What rank 0 makes once for all ranks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.kit.fakes import MemoryControl
from tunelight.errors import DataError, TrialStopped
from tunelight.session.shared import MadeByRankZero


def ranks(count: int = 2, aborted: str | None = None) -> list[MadeByRankZero]:
    control, given = MemoryControl(), dict[str, Any]()
    return [
        MadeByRankZero(
            control, lead=rank == 0, alone=count == 1, given=given, fetch=given.__getitem__, aborted=lambda: aborted
        )
        for rank in range(count)
    ]


def test_rank_0_makes_and_the_others_fetch():
    lead, other = ranks()
    made = object()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(other.once("x", lambda: "never called")))
    waiting.start()
    assert lead.once("x", lambda: made) is made
    waiting.join(5)
    assert got == [made]


def test_a_second_call_makes_a_second_value():
    lead, other = ranks()
    assert [lead.once("x", lambda n=n: n) for n in range(2)] == [0, 1]  # type: ignore[misc]
    assert [other.once("x", lambda: None) for _ in range(2)] == [0, 1]


def test_what_fails_on_rank_0_is_told_to_the_others():
    lead, other = ranks()

    def fail() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        lead.once("dataset train", fail)
    with pytest.raises(DataError, match="could not open dataset train: ValueError: no such file"):
        other.once("dataset train", fail)


def test_whoever_waits_hears_that_the_trial_was_called_off():
    _, other = ranks(aborted="stopped")
    with pytest.raises(TrialStopped):
        other.once("x", lambda: None)


def test_a_wait_has_a_limit():
    _, other = ranks()
    with pytest.raises(DataError, match="Every rank has to ask for the same"):
        other.once("x", lambda: None, limit_s=0.01)


def test_the_end_undoes_all_even_where_one_thing_fails():
    (alone,) = ranks(1)
    undone: list[str] = []
    alone.at_end(lambda: undone.append("first"))
    alone.at_end(lambda: undone.append(str(1 / 0)))
    alone.at_end(lambda: undone.append("last"))
    alone.end()
    alone.end()
    assert undone == ["last", "first"]
