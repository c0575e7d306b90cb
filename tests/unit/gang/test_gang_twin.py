"""The fake gang keeps the contract that the real one keeps in tests/integration/test_gang.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.contract import GangContract
from tests.kit.fakes import FakeGang
from tunelight.gang.spec import GangSpec


class TestFakeGang(GangContract):
    @pytest.fixture
    def gang(self) -> Iterator[FakeGang]:
        with FakeGang.form(GangSpec()) as gang:
            yield gang
