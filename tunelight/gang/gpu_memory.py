"""GPU memory between trials: what a worker may use of its GPU, and what a trial has left allocated there.

A warm worker keeps its process, and with it whatever a trial has put into a global, a class attribute or a cache of a
library. On a GPU that soon takes the memory that the next trial needs, so that a trial would run out of memory for what
an earlier one has left. The limit counts from the first trial, so that many small leaks reach it as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

PART: Final = 0.05
"""The part of a worker's GPU memory that trials may leave allocated."""
LEAST: Final = 512 * 2**20
"""What they may leave on a small GPU, in bytes."""


class GpuMemory:
    """The memory of one worker's GPU, for as long as its process lives. Runs on: worker, in the trial's thread.

    It does not initialise CUDA, except for a trial on a part of a GPU.

    Args:
        share: the part of a GPU that Ray gave the worker; 1 or more is no limit.
        cuda: the module ``torch.cuda``, or what stands for it.
    """

    def __init__(self, share: float = 1.0, cuda: Any = None) -> None:
        import torch

        self._share = min(1.0, float(share)) or 1.0
        self._cuda = torch.cuda if cuda is None else cuda
        self._device: int | None = None
        self._before: int | None = None
        """Bytes that were allocated before the first trial, such as by ``init_hook``."""
        self._reserved_before = 0
        """Bytes that torch had reserved then, allocated or not."""

    def begin(self, device: int | None) -> None:
        """Prepare a trial on ``device`` (None: on CPUs): allow its process the worker's part of the GPU, and no less.

        torch's allocator has one limit for each process and device, which an earlier trial's code may have changed. A
        smaller one that ``init_hook`` has set stays, where torch can tell it.
        """
        self._device = device
        if device is None:
            return
        used = self._cuda.is_initialized()
        if used and self._before is None and hasattr(self._cuda, "get_per_process_memory_fraction"):
            self._share = min(self._share, self._cuda.get_per_process_memory_fraction(device))
        if used or (self._share < 1 and self._cuda.is_available()):
            self._cuda.set_per_process_memory_fraction(self._share, device)
        if self._before is None:
            self._before = self._cuda.memory_allocated(device) if used else 0
            self._reserved_before = self._cuda.memory_reserved(device) if used else 0

    def left(self, drop: Callable[[], object] | None) -> tuple[str, ...]:
        """Free what is cached; return what is still allocated, where that is more than the limit.

        Where more is in use, CUDA graphs included, ``drop`` is called, which frees what is kept from trial to trial,
        and garbage of any age is collected: a new process would have nothing of that either. With None, nothing is
        looked for: a driver's job leaves the states of its optimizers where they are, for the driver to ask for.

        An error of CUDA, such as a device-side assert, is returned as well: each later call of the process would raise
        it again.
        """
        if not self._cuda.is_initialized():
            return ()
        try:
            self._cuda.synchronize(self._device)
        except RuntimeError as error:
            message = str(error).partition("\n")[0]
            return (f"an error of CUDA, which ends only with the process: {message}",)
        self._cuda.empty_cache()
        if drop is None or self._device is None or self._before is None:
            return ()
        limit = max(PART * self._share * self._cuda.get_device_properties(self._device).total_memory, LEAST)
        # CUDA graphs hold memory, for their next replay, that torch does not count as allocated.
        if self._cuda.memory_reserved(self._device) - self._reserved_before <= limit:
            return ()
        drop()
        gc.unfreeze()
        gc.collect()
        self._cuda.empty_cache()
        growth = self._growth()
        if growth <= limit:
            return ()
        return (f"{_size(growth)} allocated on its GPU, more than the limit of {_size(limit)}",)

    def _growth(self) -> int:
        return int(self._cuda.memory_allocated(self._device)) - (self._before or 0)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
