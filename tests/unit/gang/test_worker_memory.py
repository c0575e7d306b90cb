"""A worker's trials, one after another in this process, and what each leaves on a GPU that counts live tensors."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.gang.workers import begin, end_of, worker_of_one
from tunelight.gang.gpu_memory import GpuMemory
from tunelight.session.session import report

GB = 10**9


class Cuda:
    """A GPU of 16 GB, on which each tensor that is alive counts as one gigabyte."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []

    def tensor(self) -> torch.Tensor:
        made = torch.zeros(5003, 1301)  # larger than what other tests leave in this process
        self.alive.append(weakref.ref(made))
        return made

    def memory_allocated(self, device: int) -> int:
        return GB * sum(one() is not None for one in self.alive)

    memory_reserved = memory_allocated

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(total_memory=16 * GB)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def synchronize(self, device: int) -> None: ...

    def empty_cache(self) -> None: ...

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None: ...


def of_user() -> Any:
    return sys.modules["models_of_mine"]


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's, with the GPU."""
    module: Any = ModuleType("models_of_mine")
    module.cuda = Cuda()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    vars(module).clear()


@pytest.fixture
def trial(mine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[str, ...]]]:
    """Return a function that trains a trial, and returns what that left behind."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    worker = worker_of_one(GpuMemory(1, mine.cuda, kind="cpu"), gpu=0)
    serials = itertools.count(1)

    def run(train: Callable[..., object], *, job: bool = False) -> tuple[str, ...]:
        def trains(config: Any) -> None:
            train(config)
            report({"loss": 1.0})

        box = begin(worker, trains, next(serials), tmp_path, job=job)
        worker._thread.join(60)
        assert (end_of(box).error is not None) is (train.__name__ == "fails")
        return tuple(worker._left)

    yield run
    worker.leave()
    gc.unfreeze()


def test_a_trial_that_keeps_nothing_leaves_nothing(trial: Any) -> None:
    def trains(config: Any) -> None:
        mine = of_user()

        model: Any = [mine.cuda.tensor()]
        model.append(model)  # a cycle, like a Trainer and its model

    assert trial(trains) == ()
    assert trial(trains) == ()


def test_nor_does_one_that_fails_while_it_handles_an_error(trial: Any, mine: Any) -> None:
    def fails(config: Any) -> None:
        import sys

        mine = of_user()

        def step() -> None:
            batch = mine.cuda.tensor()
            raise ValueError(batch.shape)

        loss = mine.cuda.tensor()
        try:
            step()
        except ValueError as error:
            sys.last_value = error  # as notebooks and debuggers do
            raise RuntimeError(loss.shape) from error

    assert trial(fails) == ()
    assert mine.cuda.memory_allocated(0) == 0


def test_a_clean_up_that_fails_costs_the_worker_and_not_the_trial(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def trains(config: Any) -> None:
        import warnings

        warnings.filters = tuple(warnings.filters)

    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    (left,) = trial(trains)
    assert left.startswith("a clean-up that failed: TypeError")


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="needs torch 2.9")
def test_precision_that_a_trial_sets_by_torchs_newer_settings_is_put_back(trial: Any) -> None:
    def trains(config: Any) -> None:
        import torch

        assert torch.backends.cuda.matmul.fp32_precision == "none"
        torch.backends.cuda.matmul.fp32_precision = "tf32"

    assert trial(trains) == ()
    assert trial(trains) == ()


def test_threads_that_wait_for_kernels_to_compile_are_no_leak(trial: Any) -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool.cache_clear()

    def trains(config: Any) -> None:
        import threading

        from torch._inductor import config as inductor
        from torch._inductor.async_compile import AsyncCompile

        inductor.compile_threads = 24  # in this thread
        together = threading.Barrier(24)
        list(AsyncCompile.pool().map(lambda _: together.wait(30), range(24)))

    assert trial(trains) == ()
    AsyncCompile.pool().shutdown()
    AsyncCompile.pool.cache_clear()


def test_a_trial_that_keeps_a_model_in_a_global_makes_the_worker_unfit(trial: Any) -> None:
    def trains(config: Any) -> None:
        mine = of_user()

        mine.MODEL = mine.cuda.tensor()

    (left,) = trial(trains)
    assert left.startswith("1.0 GB allocated on its GPU, more than the limit of 800.0 MB")
    assert "float32 of shape (5003, 1301), 26.0 MB" in left


def test_what_a_driver_s_job_keeps_is_left_to_it(trial: Any) -> None:
    def trains(config: Any) -> None:
        of_user().STATES = of_user().cuda.tensor()

    assert trial(trains, job=True) == ()
    assert len(trial(trains)) == 1


def test_an_error_that_is_kept_keeps_no_tensor_of_the_code_that_raised_it(trial: Any) -> None:
    def fails(config: Any) -> None:
        mine = of_user()

        def step() -> None:
            batch = mine.cuda.tensor()
            raise ValueError(batch.shape)

        loss = mine.cuda.tensor()
        try:
            step()
        except ValueError as error:
            mine.SEEN = error
            mine.RAISED = RuntimeError(loss.shape)
            raise mine.RAISED from error

    assert trial(fails) == ()


def test_what_a_trial_holds_until_it_has_been_cleaned_up_goes_before_the_next(trial: Any, mine: Any) -> None:
    mine.STREAMS = []

    def trains(config: Any) -> None:
        of_user().STREAMS.append(weakref.ref(sys.stdout))

    for _ in range(3):
        assert trial(trains) == ()
    assert [one() is not None for one in mine.STREAMS[:2]] == [False, False]


def test_a_global_that_each_trial_replaces_counts_once_although_it_is_a_cycle(trial: Any, mine: Any) -> None:
    """Garbage that an earlier trial made is not seen by the collections of a later one."""
    mine.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=30 * GB)

    def trains(config: Any) -> None:
        mine = of_user()

        model: Any = [mine.cuda.tensor()]
        model.append(model)
        mine.MODEL = model

    for _ in range(4):
        assert trial(trains) == ()
    assert mine.cuda.memory_allocated(0) == GB
