"""The head's side of a gang, without the workers."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from tunelight.gang.gang import Gang
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.gang.watch import Sign
from tunelight.messages import Ended, Event, Report


def test_a_gang_runs_until_its_last_event_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has ended; one poll of rank 0 then brings its last report and its end at once."""
    monkeypatch.setattr(ray, "get", lambda poll: (poll, Sign()))
    gang = Gang(GangSpec(workers=2), None)
    gang.trials = 1
    gang._crew.ranks = [Seat(gang.spec), Seat(gang.spec)]
    last: list[Event] = [Report(3, {"loss": 1.0}), Ended(0)]
    gang._take(1, [Ended(1)])
    gang._take(0, last)
    read: list[Any] = []
    while gang.running:
        read.append(gang.next_event(0))
    assert read == [Ended(1), *last]
