"""Which rank holds the others up, and when nobody does."""

from __future__ import annotations

from tunelight.gang.watch import HangWatch, Sign


def heard(watch: HangWatch, *signs: tuple[float, int, Sign]) -> HangWatch:
    for now, rank, sign in signs:
        watch.hear(rank, sign, now)
    return watch


def test_a_gang_that_finishes_batches_does_not_hang() -> None:
    watch = heard(HangWatch(10), *((float(t), rank, Sign(t + 1)) for t in range(40) for rank in (0, 1)))
    assert watch.stuck([0, 1]) is None


def test_the_rank_with_fewest_batches_is_stuck() -> None:
    signs = [(t, rank, Sign(5 - rank)) for t in (0.0, 6.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 1


def test_of_equals_it_is_the_one_that_waits_for_nobody() -> None:
    signs = [(t, rank, Sign(5, waits=rank != 0)) for t in (0.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 0


def test_what_counts_no_batches_is_not_watched() -> None:
    signs = [(t, rank, Sign(rank)) for t in (0.0, 99.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) is None


def test_a_rank_that_others_wait_for_is_stuck_in_setup_too() -> None:
    signs = [(t, rank, Sign(0, waits=rank != 1, begun=True)) for t in (0.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 1


def test_a_first_batch_that_all_ranks_compile_is_no_hang() -> None:
    signs = [(t, rank, Sign(0, begun=True)) for t in (0.0, 99.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) is None


def test_one_rank_that_gets_on_is_enough() -> None:
    watch = heard(HangWatch(10), (0.0, 0, Sign(5)), (0.0, 1, Sign(5)), (12.0, 0, Sign(6)), (12.0, 1, Sign(5)))
    assert watch.stuck([0, 1]) is None


def test_time_that_the_ranks_had_to_wait_does_not_count() -> None:
    watch = heard(HangWatch(10), (0.0, 0, Sign(5)))
    watch.rest()
    heard(watch, (700.0, 0, Sign(5)), (705.0, 0, Sign(5)))
    assert watch.stuck([0]) is None


def test_no_limit_is_no_watch() -> None:
    assert heard(HangWatch(None), (0.0, 0, Sign(5)), (9999.0, 0, Sign(5))).stuck([0]) is None
