"""Reports that need no answer are sent together, and nothing that someone waits for is held back."""

from __future__ import annotations

import threading
import time

import pytest

from tunelight.gang import worker
from tunelight.gang.worker import TrialBox
from tunelight.messages import Continue, Ended, Event, Report, Saved


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> TrialBox:
    """A box whose trial has just begun, and trains to report 8 without an answer."""
    monkeypatch.setattr(worker, "_LINGER_S", 30.0)  # longer than the test may take: who waits for it fails
    box = TrialBox(1)
    box.mailbox.put(Continue(8))
    return box


def numbers(events: list[Event]) -> list[int]:
    return [event.number for event in events if isinstance(event, Report)]


def later(box: TrialBox, *events: Event) -> None:
    def post() -> None:
        for event in events:
            time.sleep(0.05)
            box.events.put(event)

    threading.Thread(target=post, daemon=True).start()


@pytest.mark.parametrize(
    "urgent", [Ended(0), Saved(None), Report(8, {})], ids=["end", "answer", "report that waits for an answer"]
)
def test_reports_are_sent_with_the_first_event_that_someone_waits_for(box: TrialBox, urgent: Event) -> None:
    later(box, Report(2, {}), Report(3, {}), urgent)
    events = box.read(5.0)
    assert numbers(events)[:2] == [2, 3]
    assert events[2] == urgent


def test_a_report_after_a_pause_is_sent_at_once_and_those_after_it_in_time(
    box: TrialBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LINGER_S", 0.2)
    time.sleep(0.25)
    box.events.put(Report(2, {}))
    began = time.monotonic()
    assert numbers(box.read(5.0)) == [2]
    assert time.monotonic() - began < 0.15
    later(box, Report(3, {}), Report(4, {}))
    assert numbers(box.read(5.0)) == [3, 4]


def test_a_read_without_events_ends_in_time_and_one_with_many_is_cut(box: TrialBox) -> None:
    assert box.read(0.01) == []
    for number in range(2, 2003):
        box.events.put(Report(number, {}))
    box.mailbox.put(Continue(None))
    assert len(box.read(1.0)) == 1000
