"""What trials leave on a GPU: real tensors of this process, and a ``torch.cuda`` that counts as it is told."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tunelight.gang.gpu_memory import GpuMemory

GB = 10**9
DROP = SimpleNamespace  # a call without effect


class Cuda:
    """A GPU of 16 GB: what is allocated on it, and what the process asked of it."""

    def __init__(self, total: int = 16 * GB, *, used: bool = True) -> None:
        self.total, self.used, self.allocated = total, used, 0
        self.graphs = 0
        """What CUDA graphs hold for their next replay."""
        self.asked: list[Any] = []
        self.broken = ""
        self.fraction = 1.0

    def is_initialized(self) -> bool:
        return self.used

    def is_available(self) -> bool:
        return True

    def memory_allocated(self, device: int) -> int:
        self.asked.append(("memory", device))
        self.used = True
        return self.allocated

    def memory_reserved(self, device: int) -> int:
        return self.memory_allocated(device) + self.graphs

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(total_memory=self.total)

    def synchronize(self, device: int) -> None:
        if self.broken:
            raise RuntimeError(f"CUDA error: {self.broken}\nFor debugging consider ...")

    def empty_cache(self) -> None:
        self.synchronize(0)
        self.asked.append("empty")

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self.asked.append(("fraction", fraction, device))
        self.used, self.fraction = True, fraction

    def get_per_process_memory_fraction(self, device: int) -> float:
        return self.fraction


def memory(cuda: Cuda, share: float = 1) -> GpuMemory:
    return GpuMemory(share, cuda, kind="cpu")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: Any = ModuleType("models_of_mine")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    yield made
    vars(made).clear()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(1237, 1021)


def test_what_is_left_above_the_limit_is_named_with_its_shape(module: Any) -> None:
    cuda = Cuda()
    watched = memory(cuda)
    cuda.allocated = 1  # so that tensors of other tests count as there before
    watched.begin(0)
    module.CACHE = {"train": [torch.zeros(1801, 1709)]}
    module.MODEL = Net()
    cuda.allocated = 2 * GB
    (text,) = watched.left(DROP)
    assert text.startswith("2.0 GB allocated on its GPU, more than the limit of 800.0 MB (the largest tensors: ")
    assert "float32 of shape (1801, 1709), 12.3 MB;" in text
    assert "shape (1021, 1237), 5.1 MB" in text


@pytest.mark.parametrize(
    ("total", "left", "unfit"), [(16, 0.7, False), (16, 0.9, True), (6, 0.5, False), (6, 0.6, True)]
)
def test_the_limit_is_a_twentieth_of_the_gpu_or_512_mb(total: int, left: float, unfit: bool) -> None:
    cuda = Cuda(total * GB)
    watched = memory(cuda)
    watched.begin(0)
    cuda.allocated = int(left * GB)
    assert bool(watched.left(DROP)) is unfit


def test_on_half_a_gpu_a_twentieth_of_that_half_may_be_left() -> None:
    cuda = Cuda(80 * GB)
    watched = memory(cuda, 0.5)
    watched.begin(0)
    cuda.allocated = 3 * GB
    assert "the limit of 2.0 GB" in watched.left(DROP)[0]


def test_what_was_there_before_the_first_trial_does_not_count(module: Any) -> None:
    cuda = Cuda()
    module.ON_PURPOSE = torch.zeros(3001, 1009)
    cuda.allocated = 10 * GB
    watched = memory(cuda)
    watched.begin(0)
    cuda.allocated = int(10.5 * GB)
    assert watched.left(DROP) == ()
    module.LEAK = torch.zeros(401, 1009)
    cuda.allocated = 11 * GB
    (text,) = watched.left(DROP)
    assert "shape (401, 1009)" in text
    assert "shape (3001, 1009)" not in text


def test_graphs_that_hold_much_memory_are_dropped_and_leave_the_worker_as_it_is() -> None:
    cuda = Cuda()
    dropped: list[int] = []

    def drop() -> None:
        dropped.append(cuda.graphs)
        cuda.graphs = 0

    watched = memory(cuda)
    for held in (GB // 2, 2 * GB):
        watched.begin(0)
        cuda.graphs = held
        assert watched.left(drop) == ()
    assert dropped == [2 * GB]


def test_small_leaks_add_up() -> None:
    cuda = Cuda()
    watched = memory(cuda)
    fit = []
    for _ in range(6):
        watched.begin(0)
        cuda.allocated += 16 * GB // 100
        fit.append(not watched.left(DROP))
    assert fit == [True] * 5 + [False]


def test_garbage_of_earlier_trials_and_what_is_kept_on_purpose_goes_before_the_worker_does() -> None:
    cuda = Cuda()

    class Freed:
        def __del__(self) -> None:
            cuda.allocated -= GB

    watched = memory(cuda)
    watched.begin(0)
    cycle: Any = Freed()
    cycle.itself = cycle
    gc.freeze()  # as at the start of the next trial, whose collections do not see it
    del cycle
    cuda.allocated = 3 * GB

    def drop() -> None:
        cuda.allocated -= 2 * GB

    try:
        assert watched.left(drop) == ()
    finally:
        gc.unfreeze()
    assert cuda.allocated == 0


def test_without_a_leak_nothing_is_searched_or_dropped() -> None:
    cuda = Cuda()
    watched = memory(cuda)
    watched.begin(0)
    cuda.asked.clear()
    assert watched.left(lambda: pytest.fail("dropped")) == ()
    assert cuda.asked == ["empty", ("memory", 0)]


@pytest.mark.parametrize("drop", [DROP, None])
def test_an_error_that_cuda_does_not_get_over_makes_the_worker_unfit(drop: Any) -> None:
    cuda = Cuda()
    gpu = memory(cuda)
    gpu.begin(0)
    assert gpu.left(drop) == ()
    cuda.broken = "device-side assert triggered"
    assert gpu.left(drop) == (
        "an error of CUDA, which ends only with the process: CUDA error: device-side assert triggered",
    )


def test_what_a_driver_s_job_keeps_for_the_driver_is_not_looked_at() -> None:
    cuda = Cuda()
    watched = memory(cuda)
    watched.begin(0)
    cuda.allocated = 10 * GB
    assert watched.left(None) == ()
    assert cuda.asked[-1] == "empty"


@pytest.mark.parametrize(("share", "device"), [(1.0, 0), (1.0, None), (0.5, None), (0.0, None)])
def test_a_process_that_does_not_use_cuda_is_left_alone(share: float, device: int | None) -> None:
    cuda = Cuda(used=False)
    watched = memory(cuda, share)
    watched.begin(device)
    assert watched.left(DROP) == ()
    assert not cuda.used
    assert cuda.asked == []


def test_cuda_that_a_trial_uses_first_counts_from_nothing() -> None:
    cuda = Cuda(used=False)
    watched = memory(cuda)
    watched.begin(0)
    cuda.used, cuda.allocated = True, 2 * GB
    assert "2.0 GB" in watched.left(DROP)[0]


def test_each_trial_has_its_worker_s_part_of_the_gpu_whatever_an_earlier_one_set() -> None:
    cuda = Cuda(used=False)
    watched = memory(cuda, 0.5)
    for _ in range(2):
        watched.begin(3)
        cuda.set_per_process_memory_fraction(0.1, 3)  # the training code
        watched.left(DROP)
    set_by = [asked for asked in cuda.asked if asked[0] == "fraction"]
    assert set_by == [("fraction", 0.5, 3), ("fraction", 0.1, 3)] * 2


def test_a_limit_that_training_code_sets_on_a_gpu_of_its_own_ends_with_its_trial() -> None:
    cuda = Cuda(used=False)
    watched = memory(cuda)
    watched.begin(0)
    assert cuda.asked == []
    cuda.set_per_process_memory_fraction(0.1, 0)
    watched.left(DROP)
    watched.begin(0)
    assert cuda.asked[-1] == ("fraction", 1.0, 0)


@pytest.mark.parametrize(("share", "allowed"), [(1.0, 0.3), (0.2, 0.2)])
def test_a_limit_that_the_hook_has_set_stays_where_it_is_the_smaller_one(share: float, allowed: float) -> None:
    cuda = Cuda()
    cuda.set_per_process_memory_fraction(0.3, 0)  # init_hook, on a GPU that other programs use
    watched = memory(cuda, share)
    for _ in range(2):
        watched.begin(0)
        assert cuda.fraction == allowed
        cuda.set_per_process_memory_fraction(0.1, 0)  # the training code
        watched.left(DROP)


def test_a_part_of_a_gpu_without_cuda_is_no_error() -> None:
    """A build of torch for CPUs beside a Ray that counts GPUs."""
    watched = GpuMemory(0.5, torch.cuda)
    if not torch.cuda.is_available():
        watched.begin(0)
    assert watched.left(DROP) == ()
