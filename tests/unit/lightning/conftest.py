"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.kit import tasks
from tunelight.compat import lightning
from tunelight.session import session


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes this process a rank, with these fields of its task or its start."""

    def join(
        backend: str = "ddp", rank: int = 1, size: int = 2, gpu: int | None = None, layout: tuple[int, ...] = (),
        **more: Any,
    ) -> session.Session:  # fmt: skip
        place: dict[str, Any] = {"gpus": ("0", "1") if gpu is not None else (), "gpu": gpu, "backend": backend}
        if layout:  # this is the last rank of the last node
            rank, size = sum(layout) - 1, sum(layout)
            place |= {"local_rank": layout[-1] - 1, "local_world_size": layout[-1], "node_rank": len(layout) - 1}
            place["nodes"] = len(layout)
        one = tasks.session_of(tmp_path, rank, size, **place, **more)
        session.set_current(one)
        return one

    yield join
    session.set_current(None)
    lightning.rank_zero_only.rank = 0  # type: ignore[attr-defined]  # a strategy that joins sets it for the whole process


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process a process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
