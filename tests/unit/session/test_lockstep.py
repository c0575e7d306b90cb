"""Lockstep: ranks see what the others do at the same place of their own order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kit.fakes import MemoryControl
from tunelight.errors import TrialStopped
from tunelight.messages import Place
from tunelight.session.session import Lockstep


def ranks(size: int, channel: MemoryControl, aborted: str | None = None, limit_s: float = 60.0) -> list[Lockstep]:
    return [Lockstep(Place(rank, size, rank, size, 0, ""), channel, lambda: aborted, limit_s) for rank in range(size)]


def test_every_rank_learns_what_the_others_do_and_nothing_is_left_but_the_last() -> None:
    channel = MemoryControl()
    both = ranks(2, channel)

    def run(one: Lockstep) -> list[Any]:
        return [one.compare(f"act {number}") for number in range(3)]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, both))
    assert found == [[[f"act {number}"] * 2 for number in range(3)]] * 2
    assert set(channel.words) == {"act/0/0/3", "act/0/1/3"}


def test_a_rank_that_went_on_is_seen_by_one_that_waits() -> None:
    first, second = ranks(2, MemoryControl())
    second.note("the next batch")
    assert first.compare("gather") == ["gather", "the next batch"]


def test_a_rank_that_waits_for_one_whose_acts_differed_hears_of_it() -> None:
    first, second = ranks(2, MemoryControl())
    second.note("the next batch")
    first.compare("gather")
    assert second.compare("the end") == ["gather", "the end"]


def test_a_new_count_does_not_see_the_acts_of_the_last_one() -> None:
    first, second = ranks(2, MemoryControl())
    second.note("the next batch")
    first.compare("gather")
    for one in (first, second):
        one.begin()
    second.note("barrier")
    assert first.compare("barrier") == ["barrier"] * 2


def test_a_rank_that_does_not_come_is_waited_for_within_a_limit() -> None:
    first, _ = ranks(2, MemoryControl(), limit_s=0.01)
    assert first.compare("gather") == ["gather", None]


def test_an_aborted_trial_waits_for_nobody() -> None:
    first, _ = ranks(2, MemoryControl(), aborted="failed")
    with pytest.raises(TrialStopped, match="failed"):
        first.compare("gather")


def test_a_rank_alone_sends_nothing() -> None:
    channel = MemoryControl()
    (alone,) = ranks(1, channel)
    assert alone.compare("gather") == ["gather"]
    assert channel.words == {}
