"""Heads whose gangs are threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.heads import Heads, heads_in


@pytest.fixture
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heads]:
    with heads_in(tmp_path, monkeypatch) as made:
        yield made
