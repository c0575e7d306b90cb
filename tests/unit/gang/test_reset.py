"""torch's settings of a process, which a trial changes by the older or the newer of two interfaces."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tunelight.extras.standalone.job import Globals
from tunelight.gang.reset import UNREADABLE, read_flags, torch_flags, write_flags

BACKENDS: Any = torch.backends
NEWER = hasattr(BACKENDS.cuda.matmul, "fp32_precision")
"""Whether this torch has the newer settings of precision."""


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


CHANGES: dict[str, Callable[[], object]] = {
    "matmul.allow_tf32": _set(BACKENDS.cuda.matmul, "allow_tf32", True),
    "cudnn.allow_tf32": _set(BACKENDS.cudnn, "allow_tf32", False),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "flash": lambda: BACKENDS.cuda.enable_flash_sdp(False),
    "memory efficient": lambda: BACKENDS.cuda.enable_mem_efficient_sdp(False),
    "math": lambda: BACKENDS.cuda.enable_math_sdp(False),
    "cudnn's": lambda: BACKENDS.cuda.enable_cudnn_sdp(not BACKENDS.cuda.cudnn_sdp_enabled()),
    "bf16 reduction": _set(BACKENDS.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
}
if hasattr(BACKENDS.cuda.matmul, "allow_fp16_accumulation"):
    CHANGES["fp16 accumulation"] = _set(BACKENDS.cuda.matmul, "allow_fp16_accumulation", True)
if hasattr(BACKENDS.cuda.matmul, "allow_fp16_reduced_precision_reduction_split_k"):
    CHANGES["split k"] = _set(BACKENDS.cuda.matmul, "allow_fp16_reduced_precision_reduction", (False, False))
if NEWER:
    CHANGES |= {
        "fp32_precision": _set(BACKENDS, "fp32_precision", "tf32"),
        "matmul.fp32_precision": _set(BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
        "cudnn.fp32_precision": _set(BACKENDS.cudnn, "fp32_precision", "tf32"),
        "cudnn.conv.fp32_precision": _set(BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    }


@pytest.fixture(autouse=True)
def before() -> Iterator[list[Any]]:
    values = read_flags(torch_flags())
    yield values
    write_flags(torch_flags(), values)
    assert read_flags(torch_flags()) == values


@pytest.mark.parametrize("change", CHANGES)
def test_each_setting_is_put_back_and_sent_from_a_driver_to_workers(before: list[Any], change: str) -> None:
    CHANGES[change]()
    sent, here = pickle.loads(pickle.dumps(Globals.here())), read_flags(torch_flags())
    assert here != before
    write_flags(torch_flags(), before)
    assert read_flags(torch_flags()) == before
    sent.set()
    assert read_flags(torch_flags()) == here


@pytest.mark.skipif(not NEWER, reason="needs torch 2.9")
def test_what_torch_refuses_to_read_is_no_error() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "tf32"
    assert UNREADABLE in read_flags(torch_flags())
