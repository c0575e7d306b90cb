"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit import tasks
from tests.kit.fakes import MemoryControl
from tunelight.compat.lightning import rank_zero_only
from tunelight.messages import Place
from tunelight.session import session
from tunelight.session.mailbox import Mailbox


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes this process a rank."""

    def join(
        backend: str = "ddp", rank: int = 1, size: int = 2, gpu: int | None = None, layout: tuple[int, ...] = ()
    ) -> session.Session:
        gpus = ("0", "1") if gpu is not None else ()
        place = Place(rank, size, rank, size, 0, "127.0.0.1", gpus=gpus, gpu=gpu)
        if layout:  # this is the last rank of the last node
            here, size = layout[-1], sum(layout)
            place = Place(size - 1, size, here - 1, here, len(layout) - 1, "127.0.0.1", gpus, gpu, nodes=len(layout))
        place = replace(place, backend=backend)
        one = session.Session(*tasks.trial(tmp_path), place, MemoryControl(), lambda event: None, Mailbox(None))
        session.set_current(one)
        return one

    yield join
    session.set_current(None)
    rank_zero_only.rank = 0  # type: ignore[attr-defined]  # a strategy that joins sets it for the whole process
