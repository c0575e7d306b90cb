"""What a head tells of the workers that its trial holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tunelight.gang.gang_log import GangLog
from tunelight.gang.placement import Location


def gang(*pids: int, met_at: float, trials: int = 1) -> Any:
    places = [Location("abcdef0123", "10.0.0.1", pid, "host") for pid in pids]
    return SimpleNamespace(size=len(pids), locations=places, met_at=met_at, warm=trials > 1, name="g1")


def test_it_is_told_once_who_trains_and_how_long_they_took_to_meet() -> None:
    log = GangLog(clock=lambda: 100.0)
    log.begin()
    assert log.news(gang(1, 2, met_at=106.0)) == {
        "gang": "g1",
        "nodes": ("host#abcdef", "host#abcdef"),
        "warm": False,
        "began": 100.0,
        "ready": 106.0,
    }
    assert log.news(gang(1, 2, met_at=106.0)) is None


def test_a_warm_gang_is_ready_at_once() -> None:
    log = GangLog(clock=lambda: 200.0)
    log.begin()
    news = log.news(gang(1, 2, met_at=106.0, trials=2))
    assert news is not None
    assert (news["warm"], news["began"], news["ready"]) == (True, 200.0, 200.0)


def test_a_replaced_worker_and_another_size_are_news() -> None:
    log = GangLog(clock=lambda: 100.0)
    log.begin()
    log.news(gang(1, 2, met_at=106.0))
    for pids in ((1, 3), (1, 3, 4)):
        news = log.news(gang(*pids, met_at=150.0))
        assert news is not None
        assert (len(news["nodes"]), news["began"], news["ready"]) == (len(pids), 150.0, 150.0)


def test_the_next_trial_on_the_same_workers_is_news() -> None:
    log = GangLog(clock=lambda: 100.0)
    for _ in range(2):
        log.begin()
        assert log.news(gang(1, met_at=50.0, trials=2)) is not None


def test_of_no_gang_there_is_nothing_to_tell() -> None:
    assert GangLog().news(gang(met_at=0.0)) is None
