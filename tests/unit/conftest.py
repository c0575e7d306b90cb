"""Fixtures: a sweep of fake trials; a space's file; machines that share nothing but a store, played by one process."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.kit.recording import Sweep
from tunelight import stores
from tunelight.checkpoints import policy


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    """Return a sweep whose trials are fake, with its recorder."""
    made = Sweep(tmp_path)
    yield made
    made.callback.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a search space's file, and returns it."""

    def wrote(text: str) -> Path:
        path = tmp_path / "space.yaml"
        path.write_text(text)
        return path

    return wrote


@pytest.fixture
def every_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each report write its checkpoint: on a busy machine they cost a short trial too much of its time."""
    monkeypatch.setattr(policy, "FREE_S", 600.0)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes this process one on another machine, which shares nothing but its storage."""

    def become(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.setattr("tunelight.record.lease.process_table", lambda: name)

    become("first")
    return become


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, machine: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that returns the working folder of a storage: of this machine, in a store of its own."""
    name = uuid.uuid4().hex

    def working() -> Path:
        if request.param == "local":
            return stores.working(f"local://{tmp_path}/store/sweeps")
        return Path(os.environ["XDG_CACHE_HOME"], stores.FOLDER, "memory", name, "sweeps")  # as URL it is refused

    yield working
    if request.param == "memory":
        with contextlib.suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm(f"/{name}", recursive=True)
