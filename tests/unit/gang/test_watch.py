"""Which rank holds the others up, is slow, or has not joined a collective, and when nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.kit.training import QUIET
from tunelight.compat.lightning import pl
from tunelight.gang.watch import Collective, HangWatch, Sign, SlowWatch, find_missing, is_behind_loop, latest
from tunelight.messages import Slow


def heard(watch: HangWatch, *signs: tuple[float, int, Sign]) -> HangWatch:
    for now, rank, sign in signs:
        watch.hear(rank, sign, now)
    return watch


def test_a_gang_does_not_hang_while_one_rank_finishes_batches_or_all_had_to_wait_or_without_a_limit() -> None:
    watch = heard(HangWatch(10), *((float(t), rank, Sign(t + 1, begun=True)) for t in range(40) for rank in (0, 1)))
    assert watch.stuck([0, 1]) is None
    batches = ((0.0, 0, 5), (0.0, 1, 5), (12.0, 0, 6), (12.0, 1, 5))
    watch = heard(HangWatch(10), *((now, rank, Sign(count, begun=True)) for now, rank, count in batches))
    assert watch.stuck([0, 1]) is None
    watch = heard(HangWatch(10), (0.0, 0, Sign(5, begun=True)))
    watch.restart_timer()
    heard(watch, (700.0, 0, Sign(5, begun=True)), (705.0, 0, Sign(5, begun=True)))
    assert watch.stuck([0]) is None
    assert heard(HangWatch(None), (0.0, 0, Sign(5, begun=True)), (9999.0, 0, Sign(5, begun=True))).stuck([0]) is None


@pytest.mark.parametrize(
    ("sign", "times", "stuck"),
    [
        pytest.param(lambda rank: Sign(5 - rank, begun=True), (0, 6, 12), 1, id="the one with fewest batches"),
        pytest.param(lambda rank: Sign(5, waits=rank != 0, begun=True), (0, 12), 0, id="the one that waits for nobody"),
        pytest.param(lambda rank: Sign(0, waits=rank != 1, begun=True), (0, 12), 1, id="also in setup"),
        pytest.param(lambda rank: Sign(0, begun=True), (0, 99), None, id="all compile a first batch"),
        pytest.param(Sign, (0, 99), None, id="code without a Trainer"),
        # Code behind a fit may evaluate or export for hours, whatever batches were counted before.
        pytest.param(lambda rank: Sign(5, waits=rank != 0, begun=rank != 0), (0, 12), None, id="behind the loop"),
    ],
)
def test_of_ranks_that_finish_no_batch_the_one_that_holds_the_others_up_is_stuck(sign, times, stuck) -> None:
    signs = [(float(t), rank, sign(rank)) for t in times for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == stuck


def test_other_ranks_have_as_long_after_the_end_of_rank_0_unless_they_finish_batches() -> None:
    times = [(float(now), rank, Sign()) for now in (0, 100) for rank in (0, 1, 2)]
    watch = heard(HangWatch(10), *times, (109.0, 1, Sign()), (109.0, 2, Sign()))
    assert watch.stuck([1, 2]) is None
    assert heard(watch, (110.0, 1, Sign()), (110.0, 2, Sign(3, begun=True))).stuck([1, 2]) is None
    assert heard(watch, (119.0, 1, Sign()), (119.0, 2, Sign(3, begun=True))).stuck([1, 2]) is None
    assert heard(watch, (120.0, 1, Sign()), (120.0, 2, Sign(3, begun=True))).stuck([1, 2]) == 1
    assert watch.stuck([0, 1, 2]) is None


class Exports(pl.Callback):
    """Notes where this thread is while its hooks run."""

    def __init__(self) -> None:
        self.behind: dict[str, bool] = {}

    def note(self, *_: Any, **__: Any) -> None:
        frame = sys._getframe(1)
        self.behind[frame.f_code.co_name] = is_behind_loop(frame)

    def on_train_batch_end(self, *_: Any) -> None:
        self.note()

    def on_fit_end(self, *_: Any) -> None:
        self.note()

    def teardown(self, *_: Any, **__: Any) -> None:
        self.note()


def test_hooks_at_the_end_of_a_fit_are_behind_its_loop() -> None:
    hooks, net = Exports(), import_module(f"{pl.__name__}.demos.boring_classes").BoringModel()
    net.on_train_end = hooks.note
    pl.Trainer(**QUIET, max_steps=1, callbacks=[hooks]).fit(net)
    assert not hooks.behind.pop("on_train_batch_end")
    assert len(hooks.behind) == 3
    assert all(hooks.behind.values())


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


def test_a_slow_rank_is_found_among_two_or_four_after_three_windows_and_not_before() -> None:
    assert windows(SlowWatch(0.25), lambda _, rank, __: 0.2 + 0.2 * (rank == 1), number=2) == []
    (slow, *_) = windows(SlowWatch(0.25), lambda _, rank, __: 0.2 + 0.2 * (rank == 1))
    assert (slow.rank, slow.seconds, slow.others) == (1, 0.4, 0.2)
    found = windows(SlowWatch(0.25), lambda _, rank, __: (0.2, 0.21, 0.5, 0.19)[rank], ranks=4)
    assert {slow.rank for slow in found} == {2}
    assert found[0].others == 0.2
    assert windows(SlowWatch(0.1), lambda _, rank, __: 0.2 + 0.04 * (rank == 1), number=9, step=0.5)


@pytest.mark.parametrize(
    ("own", "given", "limit"),
    [
        pytest.param(lambda _, rank, index: 9.0 if rank and index % 3 == 0 else 0.2, {}, 0.25, id="single steps"),
        pytest.param(lambda window, rank, _: 0.4 if rank and window % 3 else 0.2, {}, 0.25, id="between others"),
        pytest.param(lambda window, rank, _: 0.9 if rank and window < 2 else 0.2, {}, 0.25, id="at the start"),
        pytest.param(lambda _, rank, __: 0.001 + 0.001 * rank, {"step": 0.1}, 0.25, id="that hardly holds up a step"),
        pytest.param(lambda _, rank, __: 0.2 + rank, {}, None, id="without a limit"),
        pytest.param(lambda _, rank, __: 0.2 + 0.04 * rank, {"step": 0.5}, 0.25, id="by less than the limit"),
        pytest.param(lambda _, rank, __: 0.2 + rank, {"ranks": 1}, 0.25, id="of a rank alone"),
    ],
)
def test_slowness_does_not_count(own: Callable[[int, int, int], float], given: Any, limit: float | None) -> None:
    assert windows(SlowWatch(limit), own, number=9, **given) == []


# --- which rank a hanging gang waits for, from what torch's flight recorders say --------------------------


def entry(number: int, name: str = "all_reduce", at: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": number, "is_p2p": False, "time_created_ns": at,
        "profiling_name": f"nccl:{name}", "input_sizes": [[3, 2]], "state": "started", "retired": False, "frames": [],
    } | more  # fmt: skip


def collective(
    number: int, name: str = "all_reduce", group: str = "0", *, waits: bool = True, sizes: str = "(7,)"
) -> Collective:
    return Collective(group, group == "0", number, name, sizes, "train.py:3 (step)", waits)


def test_the_last_collective_of_each_group_counts_and_only_of_this_trial() -> None:
    frames = [
        {"filename": "/env/torch/distributed/distributed_c10d.py", "line": 3000, "name": "all_reduce"},
        {"filename": "/home/me/train.py", "line": 12, "name": "training_step"},
    ]
    entries = [
        entry(1, at=1),
        entry(2, "broadcast", frames=frames),
        entry(9, is_p2p=True),
        entry(4, process_group=("1", "mine"), state="completed", retired=True),
        entry(8, process_group=("2", "old"), at=1),
    ]
    first, second = latest(entries, 2)
    assert first == Collective("0", True, 2, "broadcast", "(3, 2)", "/home/me/train.py:12 (training_step)", True)
    assert (second.group, second.all_ranks, second.number, second.waits) == ("1", False, 4, False)


IN = "{} of (7,) at train.py:3 (step)"


@pytest.mark.parametrize(
    ("lasts", "rank", "text"),
    [
        (
            {0: [collective(4)], 1: [collective(3, "broadcast", waits=False)], 2: [collective(4)]},
            1,
            f"ranks 0, 2 wait in {IN.format('all_reduce')}, which rank 1 has not joined, whose last collective was "
            + IN.format("broadcast"),
        ),
        ({0: [collective(1)], 1: []}, 1, f"rank 0 waits in {IN.format('all_reduce')}, which rank 1 has not joined"),
        (
            {0: [collective(2)], 1: [collective(2, "broadcast")]},
            1,
            "the ranks wait in collectives that do not fit together: rank 0 in "
            + IN.format("all_reduce")
            + "; rank 1 in "
            + IN.format("broadcast"),
        ),
        ({}, None, ""),
        ({0: [], 1: []}, None, ""),
        ({0: [collective(1, group="mine")], 1: []}, None, ""),  # which need not belong to that group
        ({0: [collective(2)], 1: [collective(2)]}, None, ""),
        ({0: [collective(2, waits=False)], 1: [collective(1, waits=False)]}, None, ""),
    ],
)
def test_the_rank_that_is_behind_or_does_not_fit_is_named_and_where_the_others_wait_if_the_records_tell(
    lasts: Any, rank: int | None, text: str
) -> None:
    found = find_missing(lasts)
    assert (found and (found.rank, found.text)) == (None if rank is None else (rank, text))
