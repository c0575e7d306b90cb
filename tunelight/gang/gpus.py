"""Which GPUs a process sees: CUDA reads CUDA_VISIBLE_DEVICES once, when the process first uses it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from tunelight.errors import GangError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = "libcuda.so.1"


def visible_gpus(by_rank: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the GPUs of a node's ranks, each once: numbers in PCI order, then names (UUIDs, MIG) sorted."""
    each = dict.fromkeys(gpu for gpus in by_rank for gpu in gpus)
    return tuple(sorted(each, key=lambda gpu: (not gpu.isdecimal(), int(gpu) if gpu.isdecimal() else 0, gpu)))


def seen_by(own: tuple[str, ...], gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of a node's ``gpus`` a process with the GPUs ``own`` can see, in CUDA's order.

    A process sees one MIG instance at most.
    """
    return own[:1] if own and own[0].startswith("MIG-") else gpus


def fixed_gpus(own: tuple[str, ...], load: Callable[[str], Any] = ctypes.CDLL) -> tuple[str, ...]:
    """Return the GPUs that CUDA shows this process from now on; none where the process has not used CUDA yet.

    ``own`` are those that Ray gave it. Raises: GangError where CUDA does not show the first of them.
    """
    if not own or not _in_use(load):
        return ()
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return ()
    shown = seen_by(own, tuple(gpu.strip() for gpu in listed.split(",") if gpu.strip()))
    if own[0] not in shown:
        raise GangError(
            f"Ray gave this worker the GPU {own[0]}, but CUDA was first used in its process while {VISIBLE} was "
            f"{listed!r}, and it never reads that again. Leave the variable as Ray sets it in init_hook= and in what "
            "it imports.",
            "exception",
        )
    return shown


def _in_use(load: Callable[[str], Any]) -> bool:
    """Tell whether CUDA is initialised in this process, by a call to its driver that does not initialise it."""
    try:
        driver = load(_DRIVER)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)
