"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import MemoryControl
from tunelight.compat.lightning import rank_zero_only
from tunelight.messages import Place
from tunelight.session import session
from tunelight.session.mailbox import Mailbox
from tunelight.session.task import Task


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes this process a rank."""

    def join(backend: str = "ddp", rank: int = 1, size: int = 2, gpu: int | None = None) -> session.Session:
        task = Task("00000", str(tmp_path), {}, b"", 1, ".", backend=backend)
        place = Place(rank, size, rank, size, 0, "127.0.0.1", gpus=("0", "1") if gpu is not None else (), gpu=gpu)
        one = session.Session(task, place, MemoryControl(), lambda event: None, Mailbox(None))
        session.set_current(one)
        return one

    yield join
    session.set_current(None)
    rank_zero_only.rank = 0  # type: ignore[attr-defined]  # a strategy that joins sets it for the whole process
