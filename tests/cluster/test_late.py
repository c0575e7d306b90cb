"""Ranks of a Horovod gang that come late, over what the gang takes for two nodes."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.late import HOROVODS_PATIENCE_S
from tests.cluster.three import finished
from tests.marks import needs_horovod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@needs_horovod
def test_a_rank_may_come_later_than_horovod_waits() -> None:
    """Without a wait of the gang's own, Horovod aborts the processes of those that came in time."""
    said = finished(sys.executable, "-m", "tests.cluster.late", str(2 * HOROVODS_PATIENCE_S), "2,1", limit_s=180)
    assert "ended with [0, 0, 0]" in said, said
    assert [f"rank {rank}: 3" in said for rank in range(3)] == [True] * 3
