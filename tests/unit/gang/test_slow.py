"""Which rank is slower than the others, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunelight.gang.placement import Location
from tunelight.gang.slow import SlowRanks, SlowWatch
from tunelight.messages import Slow
from tunelight.policies import FailurePolicy


def windows(
    watch: SlowWatch, own: Callable[[int, int, int], float], ranks: int = 2, number: int = 3, step: float = 1.0
) -> list[Slow]:
    """Let ``number`` windows pass, with 25 steps of each rank; ``own`` is of a window, a rank and a step."""
    found = []
    for window in range(number + 1):  # rank 0's first sign after a window's time ends it
        for rank in range(ranks):
            steps = [(own(window, rank, index), step) for index in range(25)]
            found += watch.hear(rank, steps, ranks, window * 5.0)
    return found


def test_a_slow_rank_is_found_after_three_windows_and_not_before() -> None:
    assert windows(SlowWatch(0.25), lambda _, rank, __: 0.2 + 0.2 * (rank == 1), number=2) == []
    (slow, *_) = windows(SlowWatch(0.25), lambda _, rank, __: 0.2 + 0.2 * (rank == 1))
    assert (slow.rank, slow.seconds, slow.others) == (1, 0.4, 0.2)


def test_ranks_that_differ_by_less_than_the_limit_are_none() -> None:
    own = lambda _, rank, __: 0.2 + 0.04 * (rank == 1)  # noqa: E731
    assert windows(SlowWatch(0.25), own, number=9, step=0.5) == []
    assert windows(SlowWatch(0.1), own, number=9, step=0.5)


def test_single_steps_that_take_long_do_not_count() -> None:
    assert windows(SlowWatch(0.25), lambda _, rank, index: 9.0 if rank and index % 3 == 0 else 0.2, number=9) == []


def test_a_slow_window_between_others_does_not_count() -> None:
    assert windows(SlowWatch(0.25), lambda window, rank, _: 0.4 if rank and window % 3 else 0.2, number=9) == []


def test_a_slow_start_does_not_count() -> None:
    assert windows(SlowWatch(0.25), lambda window, rank, _: 0.9 if rank and window < 2 else 0.2, number=9) == []


def test_of_four_ranks_only_the_slow_one_is_found() -> None:
    found = windows(SlowWatch(0.25), lambda _, rank, __: (0.2, 0.21, 0.5, 0.19)[rank], ranks=4)
    assert {slow.rank for slow in found} == {2}
    assert found[0].others == 0.2


def test_a_difference_that_hardly_holds_up_a_step_does_not_count() -> None:
    assert windows(SlowWatch(0.25), lambda _, rank, __: 0.001 + 0.001 * rank, step=0.1, number=9) == []


def test_few_steps_are_not_compared() -> None:
    watch = SlowWatch(0.25)
    assert not any(watch.hear(rank, [(0.2 + rank, 2.0)], 2, 1.0 + time) for time in range(19) for rank in (0, 1))
    assert watch._began == 1.0


def test_no_limit_and_no_other_rank_is_no_comparison() -> None:
    assert windows(SlowWatch(None), lambda _, rank, __: 0.2 + rank, number=9) == []
    assert windows(SlowWatch(0.25), lambda _, rank, __: 0.2 + rank, ranks=1, number=9) == []


class Twin:
    """A gang whose ranks have places."""

    locations = [Location(f"abcdef{rank}", "10.0.0.1", rank, "node-b") for rank in range(3)]  # noqa: RUF012 - nobody changes it


SLOW = Slow(2, 0.42, 0.21)
NAMED = (
    "rank 2 on node-b#abcdef (10.0.0.1) is slow: its own part of a step takes 0.42 s, and 0.21 s in the median of the "
    "others"
)


def test_a_slow_rank_is_named_once() -> None:
    ranks = SlowRanks()
    assert [ranks.note(SLOW, Twin) for _ in range(3)] == [NAMED, None, None]


@pytest.mark.parametrize(("value", "limit"), [("name", 0.25), ("ignore", None)])
def test_ranks_are_compared_unless_slow_ones_are_ignored(value: Any, limit: float | None) -> None:
    assert FailurePolicy(on_slow=value).limit_of_slow == limit
