"""Elastic gangs on real workers: they shrink, grow by a reservation of their own, and leave nothing of it behind."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.test_gang import spec
from tests.kit.waiting import until
from tunelight.gang.gang import Gang
from tunelight.gang.seat import sweep_seats
from tunelight.resources import Reservation


def groups(ray: Any) -> list[str]:
    return [group["name"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]


def test_a_gang_grows_by_a_reservation_of_its_own_and_gives_it_back(ray4: Any) -> None:
    with Gang.form(replace(spec(), reservation=Reservation(1, least=1, most=2)), None) as gang:
        assert gang.size == 1
        until(gang.ready, 60)
        assert len(groups(ray4)) == 1
        gang.heal()
        assert gang.size == 2
        gang.heal(1)
        assert gang.size == 1
        until(lambda: not groups(ray4), 60)


def test_what_a_gang_was_given_stays_warm_when_it_shrinks(ray4: Any) -> None:
    with Gang.form(replace(spec(), reservation=Reservation(2, least=1)), None) as gang:
        pids = {location.pid for location in gang.locations}
        for size in (1, 2):
            gang.heal(size)
            assert gang.size == size
        assert {location.pid for location in gang.locations} == pids


@pytest.mark.slow
def test_what_a_killed_head_had_reserved_is_swept(ray4: Any) -> None:
    class Head:
        def grow(self, one: Any) -> bool:
            self.gang = Gang.form(one, None)
            until(self.gang.ready, 60)
            return True

    head: Any = ray4.remote(num_cpus=0)(Head).remote()
    assert ray4.get(head.grow.remote(replace(spec(), reservation=Reservation(1, least=1, most=2))), timeout=90)
    sweep_seats()
    assert len(groups(ray4)) == 1
    ray4.kill(head)
    end = time.monotonic() + 30
    while groups(ray4):
        assert time.monotonic() < end
        sweep_seats()
        time.sleep(0.1)
