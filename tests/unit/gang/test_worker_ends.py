"""How a rank's trial ends when its connections to the other ranks do not."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import tunelight as tl
from tests.unit.gang.workers import begin, end_of, worker_of_one
from tunelight.compat.lightning import pl
from tunelight.gang.gpu_memory import GpuMemory
from tunelight.gang.meeting import torch_group


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    one = worker_of_one(GpuMemory())
    yield one
    one.leave()


@pytest.fixture
def abort_until(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], threading.Event]:
    """Return a function that makes the group NCCL's, whose abort is waited for so long; it lasts until an event."""

    def until(limit_s: float) -> threading.Event:
        event = threading.Event()

        def abort() -> None:
            assert event.wait(60)
            dist.destroy_process_group()

        monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
        monkeypatch.setattr(torch_group, "abort_process_group", abort)
        monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", limit_s)
        return event

    return until


def test_the_error_of_a_rank_is_told_before_nccl_has_ended_its_connections(
    worker: Any, tmp_path: Path, abort_until: Callable[[float], threading.Event]
) -> None:
    """They may end only once the head, by this error, has ended the other ranks of the node."""
    told = abort_until(60)

    def train(config: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    error = end_of(begin(worker, train, 1, tmp_path), 20).error  # not after the limit
    assert error is not None
    assert error.message == "CUDA out of memory"
    assert not error.secondary
    told.set()
    assert worker.leave() == ()


def test_a_trial_begins_with_its_own_rank_and_train_objects_may_have_any_attribute(worker: Any, tmp_path: Path) -> None:
    import torchmetrics
    from lightning_utilities.core.rank_zero import rank_zero_only

    for one in (rank_zero_only, torchmetrics.utilities.prints.rank_zero_only):
        vars(one)["rank"] = 1  # of an earlier trial

    class Train:
        restored = train = False

        def __call__(self, config: Any) -> None:
            from lightning_utilities.core import rank_zero

            assert [vars(one.rank_zero_only)["rank"] for one in (rank_zero, torchmetrics.utilities.prints)] == [0, 0]
            tl.report({"loss": 1.0})

    assert end_of(begin(worker, Train(), 1, tmp_path)).error is None


def test_a_worker_whose_connections_do_not_end_is_not_used_again(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abort_until: Callable[[float], threading.Event]
) -> None:
    end = abort_until(0.05)

    def train(config: Any) -> None:
        raise ValueError("shapes do not fit")

    assert end_of(begin(worker, train, 1, tmp_path)).error is not None
    try:
        assert worker.leave() == ("connections to other ranks that did not end",)
    finally:
        end.set()
        monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)


@pytest.mark.parametrize("strategy", ["auto", "the gang's"])
def test_a_keyboard_interrupt_in_training_code_is_the_trial_s_error(worker: Any, tmp_path: Path, strategy: str) -> None:
    class Enough(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise KeyboardInterrupt("enough")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            print("heard of", type(exception).__name__)  # noqa: T201 - read in the trial's log

    def train(config: Any) -> None:
        pl.Trainer(
            accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            callbacks=[Enough()], strategy="auto" if strategy == "auto" else tl.RayStrategy(),
        ).fit(import_module(f"{pl.__name__}.demos.boring_classes").BoringModel())  # fmt: skip

    error = end_of(begin(worker, train, 1, tmp_path)).error
    assert error is not None
    assert (error.type_name, error.message) == ("KeyboardInterrupt", "enough")
    assert "heard of KeyboardInterrupt" in (tmp_path / "t" / "log.txt").read_text()


def test_a_log_file_that_a_trial_opens_is_closed_at_its_end(worker: Any, tmp_path: Path) -> None:
    def train(config: Any) -> None:
        logger = logging.getLogger("tests.named")
        logger.addHandler(logging.FileHandler("mine.log"))
        logger.warning("trained")
        logging.getLogger().addHandler(logging.FileHandler("root.log"))

    for serial in (1, 2):
        end_of(begin(worker, train, serial, tmp_path))
        worker._thread.join()
        assert worker._left == ()
        assert logging.getLogger("tests.named").handlers == []
        files = (one for one in logging.getLogger().handlers if isinstance(one, logging.FileHandler))
        assert "root.log" not in {Path(one.baseFilename).name for one in files}
    assert (tmp_path / "mine.log").read_text() == "trained\ntrained\n"


@pytest.mark.parametrize("said", ["context has already been set", "'Net' is already registered in MODELS"])
def test_an_error_of_a_call_that_works_once_in_a_process_says_that_workers_are_reused(
    worker: Any, tmp_path: Path, said: str
) -> None:
    def train(config: Any) -> None:
        raise RuntimeError(said)

    first = end_of(begin(worker, train, 1, tmp_path)).error
    worker._reused = True  # as ``start`` notes of a worker that has had the task
    second = end_of(begin(worker, train, 2, tmp_path)).error
    assert first is not None
    assert second is not None
    assert first.message == said
    assert "reuse_gangs=False gives each trial new ones" in second.message
