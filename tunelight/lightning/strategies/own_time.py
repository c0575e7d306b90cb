"""Measures a rank's own part of each training step: loading the batch, and forward up to the first collective."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

Marks = tuple[Any, Any]
"""When something began and ended: seconds, or events of the GPU."""
_MOST_PENDING = 64


class OwnTime:
    """Adds (own seconds, seconds from this step to the next) to ``steps``. Own seconds are those of one turn.

    On a GPU it records events, and reads those that the GPU has passed at later steps; it never waits for the GPU.

    Args:
        steps: what it adds to.
        gpu: True where the rank trains on a GPU.
        forward: False where other ranks are waited for all over the forward: only loading counts.
    """

    def __init__(self, steps: deque[tuple[float, float]], *, gpu: bool, forward: bool) -> None:
        self._steps, self._gpu, self._counts_forward = steps, gpu, forward
        self.loads = 1
        """How many batches the rank loads for a step: one for each of its parts in a smaller gang."""
        self._before: Any = None
        self._fetches: list[Marks] = []
        self._step: list[Marks] = []
        """The loading of the running step's batch."""
        self._forward: Any = None
        self._forwards: Marks | None = None
        self._began: float | None = None
        self._pending: deque[tuple[list[Marks], Marks | None, float]] = deque(maxlen=_MOST_PENDING)

    def begin(self, fetcher: Any) -> None:
        """Begin a training step on a batch of ``fetcher``."""
        now = time.perf_counter()
        if self._began is not None:
            self._pending.append((self._step, self._forwards, now - self._began))
            self._read()
        if fetcher._start_profiler is not self._before:  # Lightning sets its own at the start of an epoch
            self._follow(fetcher)
        self._step, self._fetches, self._forwards = self._fetches, [], None
        self._began = now if self._step else None
        self._forward = self._mark() if self._counts_forward else None

    def end(self) -> None:
        """End the own part of the step: at its first collective, or at the end of its forward."""
        if self._forward is not None:
            self._forwards, self._forward = (self._forward, self._mark()), None

    def _follow(self, fetcher: Any) -> None:
        """Measure how long a fetcher of Lightning's takes for each batch, from the next one on."""
        self._fetches = []
        start, stop = fetcher._start_profiler, fetcher._stop_profiler
        began: Any = None

        def before() -> None:
            nonlocal began
            start()
            began = self._mark()

        def after() -> None:
            self._fetches.append((began, self._mark()))
            stop()

        self._before = fetcher._start_profiler = before
        fetcher._stop_profiler = after

    def _mark(self) -> Any:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        """Add the steps whose ends have passed."""
        while self._pending:
            fetches, forward, step = self._pending[0]
            last = forward or fetches[-1]
            if self._gpu and not last[1].query():
                return
            self._pending.popleft()
            own = sum(map(self._between, fetches)) / self.loads + (self._between(forward) if forward else 0.0)
            self._steps.append((own, step))

    def _between(self, marks: Marks) -> float:
        begin, end = marks
        return float(begin.elapsed_time(end)) / 1000 if self._gpu else float(end - begin)
