"""The pool of warm gangs, with gangs that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.kit.waiting import until
from tunelight.errors import GangError
from tunelight.extras.standalone import driver as drivers
from tunelight.extras.standalone import pool as pools
from tunelight.extras.standalone.driver import DriverLauncher
from tunelight.extras.standalone.pool import Held, Pool
from tunelight.gang.spec import GangSpec
from tunelight.resources import Reservation
from tunelight.session.task import Home


class Gang:
    """Stands in for a gang; counts what was formed."""

    formed: list[Gang]

    def __init__(self, spec: GangSpec) -> None:
        self.spec = spec
        self.unfit: str | None = None
        self.dead = self.closed = False

    @classmethod
    def form(cls, spec: GangSpec, group: Any) -> Gang:
        cls.formed.append(cls(spec))
        return cls.formed[-1]

    def check_alive(self, limit_s: float) -> None:
        if self.dead:
            raise GangError("no sign of life")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        self.unfit, self.closed = "it was closed", True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    Gang.formed = []
    monkeypatch.setattr(pools, "Gang", Gang)
    monkeypatch.setattr(Pool, "_reserve", lambda *_: "a reservation")
    monkeypatch.setattr(pools, "remove_placement_group", lambda group: None)
    pool = Pool()
    yield pool
    pool.close()


def take(pool: Pool, workers: int = 2, cwd: str = "/a", group: Any = None, **kwargs: Any) -> Held:
    return pool.take(GangSpec(Reservation(workers), home=Home(cwd)), Reservation(workers), group, **kwargs)


def test_the_next_job_of_the_same_kind_finds_the_gang_warm_and_any_other_gets_its_own(pool: Pool) -> None:
    first = take(pool)
    assert take(pool) is not first  # which is taken
    pool.give_back(first, 60)
    assert take(pool, workers=3) is not first
    assert take(pool, cwd="/b") is first


@pytest.mark.parametrize("why", ["it died while it idled", "it is unfit", "it idled too long"])
def test_a_gang_that_cannot_be_had_again_is_closed_and_replaced(pool: Pool, why: str) -> None:
    first = take(pool)
    if why == "it is unfit":
        Gang.formed[0].unfit = "rank 1 died"
    pool.give_back(first, 0.01 if why == "it idled too long" else 60)
    if why == "it idled too long":
        until(lambda: first.closed, 5)
    Gang.formed[0].dead = why == "it died while it idled"
    assert take(pool) is not first
    assert first.closed


def test_a_timer_that_is_late_closes_no_gang_that_was_taken_meanwhile(pool: Pool) -> None:
    first = take(pool)
    pool.give_back(first, 60)
    timer: Any = first.timer
    assert take(pool) is first
    timer.function(*timer.args)  # it had begun before it was cancelled
    assert not first.closed
    pool.give_back(first, 60)
    timer.function(*timer.args)
    assert not first.closed


def test_a_strategy_that_is_shut_down_ends_its_own_workers_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "pool", pool)
    one, other = (DriverLauncher(cast("Any", None), None) for _ in range(2))
    for launcher in (one, other):  # one fit after the other, on the same warm gang
        launcher._held = take(pool)
        launcher._lease = launcher._held.lease
        pool.give_back(launcher._held, 60)
    held = one._held
    assert held is other._held
    assert held is not None
    one.shutdown()
    assert not held.closed
    other.shutdown()
    assert held.closed


def test_closing_the_pool_ends_what_idles_alone(pool: Pool) -> None:
    idle, busy = take(pool), take(pool)
    pool.give_back(idle, 60)
    pool.close()
    assert (idle.closed, busy.closed) == (True, False)
