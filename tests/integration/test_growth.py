"""Reservations on a real Ray: gangs grow by one of their own and leave nothing of it behind, and some have to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.test_gang import spec
from tests.kit.waiting import until
from tunelight.cluster.connect import waits_for
from tunelight.gang.gang import Gang
from tunelight.resources import Reservation


def groups(ray: Any) -> dict[str, int]:
    """Return the reservations there are: the name of each, and how many bundles it holds."""
    there = ray.util.placement_group_table().items()
    return {f"{group['name']} {key}": len(group["bundles"]) for key, group in there if group["state"] != "REMOVED"}


def sizes(ray: Any) -> list[int]:
    return sorted(groups(ray).values())


def test_a_gang_grows_by_a_reservation_of_its_own_and_gives_it_back(ray4: Any) -> None:
    with Gang.form(replace(spec(), reservation=Reservation(1, least=1, most=2)), None) as gang:
        assert gang.size == 1
        until(gang.ready, 60)
        assert sizes(ray4) == [1]
        gang.heal()
        assert gang.size == 2
        gang.heal(1)
        assert gang.size == 1
        until(lambda: not sizes(ray4), 60)


def test_a_gang_of_a_given_size_holds_no_more_than_that_in_one_reservation_for_each_doubling(
    ray4: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gang.form(replace(spec(), reservation=Reservation(1, least=1, most=4)), None) as gang:
        gang.heal(1)
        assert (gang.ready(), sizes(ray4)) == (0, [])
        gang.want(4, busy=True)
        until(lambda: gang.ready() == 3, 60)
        assert sizes(ray4) == [1, 2]
        gang.want(2, busy=True)  # growth that is withdrawn is given back while the trial runs on
        until(lambda: sizes(ray4) == [1], 60)
        assert (gang.size, gang.met, gang.ready()) == (1, True, 1)
        gang.want(4)
        until(lambda: gang.ready() == 3, 60)
        gang.heal(4)
        gang.heal(3)  # between two doublings the reservation is kept, and the worker ends
        assert (gang.size, sizes(ray4), gang.ready()) == (3, [1, 2], 0)
        gang.want(4)
        until(lambda: gang.ready() == 1, 60)
        gang.heal(4)
        pids = [location.pid for location in gang.locations]
        gang.want(2, busy=True)  # ranks keep their seats while a trial runs, and lose them after it
        assert (gang.size, sizes(ray4), gang.met) == (4, [1, 2], True)
        there: list[int] = []
        leave = gang._leave

        def left() -> None:
            there.append(sum(map(bool, gang.workers)))
            leave()

        monkeypatch.setattr(gang, "_leave", left)
        gang.want(2)
        assert (gang.met, there) == (False, [4]), "all leave before any is ended"
        until(lambda: sizes(ray4) == [1], 60)
        gang.heal(2)
        assert [location.pid for location in gang.locations] == pids[:2]


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
        says = "it needs 2 CPUs, and 1 of 4 are free. Others hold the rest."
        until(lambda: says in waits_for(reservation), 20)  # Ray counts a while what an earlier gang had
    finally:
        for group in groups:
            remove_placement_group(group)
