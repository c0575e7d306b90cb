"""Which rank holds the others up, and when nobody does."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from tunelight.compat.lightning import pl
from tunelight.gang.watch import HangWatch, Sign, is_behind_loop


def heard(watch: HangWatch, *signs: tuple[float, int, Sign]) -> HangWatch:
    for now, rank, sign in signs:
        watch.hear(rank, sign, now)
    return watch


def test_a_gang_that_finishes_batches_does_not_hang() -> None:
    watch = heard(HangWatch(10), *((float(t), rank, Sign(t + 1, begun=True)) for t in range(40) for rank in (0, 1)))
    assert watch.stuck([0, 1]) is None


def test_the_rank_with_fewest_batches_is_stuck() -> None:
    signs = [(t, rank, Sign(5 - rank, begun=True)) for t in (0.0, 6.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 1


def test_of_equals_it_is_the_one_that_waits_for_nobody() -> None:
    signs = [(t, rank, Sign(5, waits=rank != 0, begun=True)) for t in (0.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 0


def test_code_without_a_trainer_is_not_watched() -> None:
    signs = [(t, rank, Sign(rank)) for t in (0.0, 99.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) is None


def test_a_rank_that_others_wait_for_is_stuck_in_setup_too() -> None:
    signs = [(t, rank, Sign(0, waits=rank != 1, begun=True)) for t in (0.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) == 1


def test_a_first_batch_that_all_ranks_compile_is_no_hang() -> None:
    signs = [(t, rank, Sign(0, begun=True)) for t in (0.0, 99.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) is None


def test_one_rank_that_gets_on_is_enough() -> None:
    watch = heard(
        HangWatch(10),
        (0.0, 0, Sign(5, begun=True)),
        (0.0, 1, Sign(5, begun=True)),
        (12.0, 0, Sign(6, begun=True)),
        (12.0, 1, Sign(5, begun=True)),
    )
    assert watch.stuck([0, 1]) is None


def test_time_that_the_ranks_had_to_wait_does_not_count() -> None:
    watch = heard(HangWatch(10), (0.0, 0, Sign(5, begun=True)))
    watch.rest()
    heard(watch, (700.0, 0, Sign(5, begun=True)), (705.0, 0, Sign(5, begun=True)))
    assert watch.stuck([0]) is None


def test_no_limit_is_no_watch() -> None:
    assert heard(HangWatch(None), (0.0, 0, Sign(5, begun=True)), (9999.0, 0, Sign(5, begun=True))).stuck([0]) is None


def test_behind_a_trainer_s_loop_nobody_is_stuck() -> None:
    """Code behind a fit may evaluate or export for hours, whatever batches were counted before."""
    signs = [(t, rank, Sign(5, waits=rank != 0, begun=rank != 0)) for t in (0.0, 12.0) for rank in (0, 1)]
    assert heard(HangWatch(10), *signs).stuck([0, 1]) is None


class Exports(pl.Callback):
    """Notes where this thread is while its hooks run."""

    def __init__(self) -> None:
        self.behind: dict[str, bool] = {}

    def note(self, hook: str) -> None:
        self.behind[hook] = is_behind_loop(sys._getframe())

    def on_train_batch_end(self, *_: Any) -> None:
        self.note("on_train_batch_end")

    def on_train_end(self, *_: Any) -> None:
        self.note("on_train_end")

    def on_fit_end(self, *_: Any) -> None:
        self.note("on_fit_end")

    def teardown(self, *_: Any, **__: Any) -> None:
        self.note("teardown")


def test_hooks_at_the_end_of_a_fit_are_behind_its_loop() -> None:
    class Net(import_module(f"{pl.__name__}.demos.boring_classes").BoringModel):  # type: ignore[misc]
        def on_train_end(self) -> None:
            hooks.note("the module's on_train_end")

    hooks = Exports()
    pl.Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[hooks],
    ).fit(Net())  # fmt: skip
    assert not hooks.behind.pop("on_train_batch_end")
    assert list(hooks.behind) == ["on_train_end", "the module's on_train_end", "on_fit_end", "teardown"]
    assert all(hooks.behind.values())
