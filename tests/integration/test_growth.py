"""Reservations on a real Ray: gangs grow by one of their own and leave nothing of it behind, and some have to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.integration.test_gang import spec
from tests.kit.waiting import until
from tunelight.cluster.connect import waits_for
from tunelight.gang.gang import Gang
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


def test_a_trial_whose_resources_others_hold_says_so(ray4: Any) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    reservation = Reservation(2)
    assert not waits_for(reservation)
    groups = [placement_group([{"CPU": 3}])]
    try:
        assert groups[0].wait(30)
        groups.append(placement_group(reservation.bundles))
        until(lambda: waits_for(reservation), 20)
        assert "it needs 2 CPUs, and 1 of 4 are free. Others hold the rest." in waits_for(reservation)
    finally:
        for group in groups:
            remove_placement_group(group)
