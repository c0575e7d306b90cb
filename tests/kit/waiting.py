"""Waits for what happens in other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], limit_s: float, every_s: float = 0.01) -> None:
    """Wait until something is true, which is asked every ``every_s`` seconds; fail after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"waited {limit_s:g} s in vain"
        time.sleep(every_s)
