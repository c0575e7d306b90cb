"""Large imports, a fifth faster: the garbage collector rests while they make what will live for ever."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_resting() -> Iterator[None]:
    """Import within this: the collector would walk the growing heap again and again, and find nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
