"""What kind of failure an error is, when training has gone astray, and what is tried again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tunelight.messages import WorkerError
from tunelight.policies import Divergence, FailurePolicy, classify


def error(type_name: str, message: str = "") -> WorkerError:
    return WorkerError(0, "n", type_name, message, "")


@pytest.mark.parametrize(
    ("type_name", "message", "kind"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "OOM"),  # torch's, and Ray's of that name
        ("MemoryError", "", "OOM"),
        ("_ArrayMemoryError", "Unable to allocate 8 EiB", "OOM"),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "OOM"),
        ("RuntimeError", "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes", "OOM"),
        ("RuntimeError", "CUDA error: out of memory", "OOM"),
        ("DistBackendError", "NCCL error, unhandled cuda error: Cuda failure 2 'out of memory'", "OOM"),
        ("DistBackendError", "NCCL error, remote process exited or there was a network error", "ERROR"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "OOM"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "OOM"),
        ("InductorError", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "OOM"),
        ("BackendCompilerFailed", "backend='inductor' raised: OutOfMemoryError: CUDA out of memory.", "OOM"),
        ("InductorError", "CppCompileError: C++ compile error", "ERROR"),
        ("OSError", "[Errno 12] Cannot allocate memory", "OOM"),
        ("ValueError", "the word memory, out of memory", "ERROR"),
        ("RuntimeError", "Function 'MseLossBackward0' returned nan values in its 0th output.", "DIVERGED"),
        ("ValueError", "Detected nan and/or inf values in `layer.weight`.", "DIVERGED"),
        ("FloatingPointError", "loss is nan", "DIVERGED"),
        ("RuntimeError", "shapes do not fit", "ERROR"),
        ("ActorDiedError", "the worker's process died", "ERROR"),
    ],
)
def test_memory_and_nan_are_told_from_other_failures(type_name: str, message: str, kind: str) -> None:
    assert classify(error(type_name, message)) == kind


def test_what_torch_and_numpy_raise_is_recognised() -> None:
    import numpy as np
    import torch

    raised: list[BaseException] = []
    for allocate in (lambda: torch.empty(2**50), lambda: np.empty(2**50)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        raised.append(caught.value)
    with torch.autograd.set_detect_anomaly(True):
        astray = (torch.zeros(1, requires_grad=True).sqrt() * 0).sum()
        with pytest.raises(RuntimeError) as caught:
            astray.backward()
    raised.append(caught.value)
    assert [classify(error(type(one).__name__, str(one))) for one in raised] == ["OOM", "OOM", "DIVERGED"]


@pytest.mark.parametrize("name", ["OutOfMemoryError", "FloatingPointError"])
def test_what_would_repeat_itself_is_not_tried_again(name: str) -> None:
    assert not FailurePolicy(-1, retry_exceptions=True).retries(error(name), 1)
    assert FailurePolicy(-1, retry_exceptions=True).retries(error("ValueError"), 1)


def judged(values: list[Any], mode: Any = "min") -> list[str | None]:
    one = Divergence("loss", mode)
    return [one.judge(number, {"loss": value}) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_metric_that_is_not_finite_has_diverged_also_in_the_first_report(bad: float, mode: str) -> None:
    assert judged([0.5, bad], mode)[1] == f"loss is {bad} at report 2"
    assert judged([bad], mode)[0] is not None
    assert str(judged([bad], mode)[0]).startswith(f"loss is {bad} at report 1")


def test_a_metric_a_million_times_worse_than_at_first_has_exploded_and_a_better_or_large_one_has_not() -> None:
    assert judged([2.3, 2.2e6, 2.4e6])[:2] == [None, None]
    assert judged([2.3, 2.4e6])[1] == "loss exploded from 2.3 to 2.4e+06 at report 2"
    assert judged([-5.0, -2e7], "max")[1] is not None
    assert judged([1e-9, 900.0]) == [None, None]  # next to nothing is no measure
    assert judged([1e9, 1e-9, 1e9]) == [None] * 3
    assert judged([1e-4, 1e9], "max") == [None] * 2
    assert judged([None, "x", True, 1.0]) == [None] * 4
    assert "inf at report 1" in str(judged([10**400])[0])
