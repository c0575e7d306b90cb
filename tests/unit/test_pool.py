"""The pool of warm gangs, with gangs that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tunelight.errors import GangError
from tunelight.gang import pool as pools
from tunelight.gang.pool import Held, Pool
from tunelight.gang.spec import GangSpec
from tunelight.resources import Reservation


class Gang:
    """Stands in for a gang; counts what was formed."""

    formed: list[Gang]

    def __init__(self) -> None:
        self.unfit: str | None = None
        self.dead = False

    @classmethod
    def form(cls, spec: GangSpec, group: Any) -> Gang:
        cls.formed.append(cls())
        return cls.formed[-1]

    def check_alive(self, limit_s: float) -> None:
        if self.dead:
            raise GangError("no sign of life")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        self.unfit = "it was closed"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    Gang.formed = []
    monkeypatch.setattr(pools, "Gang", Gang)
    monkeypatch.setattr(Pool, "_reserve", lambda *_: "a reservation")
    monkeypatch.setattr(pools, "remove_placement_group", lambda group: None)
    pool = Pool()
    yield pool
    pool.close()


def take(pool: Pool, workers: int = 2, cwd: str = "/a", group: Any = None) -> Held:
    return pool.take(GangSpec(workers, cwd=cwd), Reservation(workers), group)


def test_the_next_job_of_the_same_kind_finds_the_gang_warm(pool: Pool) -> None:
    first = take(pool)
    pool.give_back(first, 60)
    assert take(pool, cwd="/b") is first


def test_a_gang_that_is_taken_is_nobody_else_s(pool: Pool) -> None:
    assert take(pool) is not take(pool)


def test_another_kind_gets_a_gang_of_its_own(pool: Pool) -> None:
    pool.give_back(take(pool), 60)
    take(pool, workers=3)
    assert len(Gang.formed) == 2


def test_a_gang_that_died_while_it_idled_is_replaced(pool: Pool) -> None:
    first = take(pool)
    pool.give_back(first, 60)
    Gang.formed[0].dead = True
    assert take(pool) is not first
    assert first.closed


def test_an_unfit_gang_is_closed_and_not_kept(pool: Pool) -> None:
    first = take(pool)
    Gang.formed[0].unfit = "rank 1 died"
    pool.give_back(first, 60)
    assert first.closed
    assert take(pool) is not first


def test_closing_the_pool_ends_what_idles_alone(pool: Pool) -> None:
    idle, busy = take(pool), take(pool)
    pool.give_back(idle, 60)
    pool.close()
    assert (idle.closed, busy.closed) == (True, False)
