"""Which seats a gang holds, without Ray: what it reserves for itself, and what it gives back when."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import RayTaskError

from tunelight.errors import GangError
from tunelight.gang import membership as memberships
from tunelight.gang import seat as seats
from tunelight.gang.membership import Membership
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.resources import Reservation


class Groups:
    """Ray's placement groups, of which only the sizes count."""

    def __init__(self) -> None:
        self.held: list[list[Any]] = []

    def reserve(self, bundles: list[Any], strategy: str, name: str) -> Any:
        assert strategy == "PACK"
        self.held.append(bundles)
        return bundles

    def remove(self, group: Any) -> None:
        self.held = [one for one in self.held if one is not group]

    @property
    def sizes(self) -> list[int]:
        return sorted(len(group) for group in self.held)


class Made(Membership):
    """A membership whose workers arrive at once, and meet without a word."""

    leaves: list[list[int]]

    def _gather_round(self, enough: int, limit_s: float) -> None:
        for one in self._seats[: self.spec.workers]:
            one.occupy()

    def _meet(self, seats: list[Seat]) -> None:
        self.ranks, self.met = list(seats), True

    def _leave(self) -> None:
        self.leaves.append([index for index, one in enumerate(self._seats) if one.location is not None])

    @property
    def there(self) -> list[int]:
        return [index for index, one in enumerate(self._seats) if one.worker is not None]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    held = Groups()

    def occupy(self: Any) -> None:
        if self.of_its_own and self.group is None:
            seats.reserve_seats([self])
        self.worker = self.location = self.worker or object()

    def vacate(self: Any, why: str, *, healthy: bool = False) -> None:
        self.worker = self.location = None

    monkeypatch.setattr(seats, "placement_group", held.reserve)
    monkeypatch.setattr(seats, "remove_placement_group", held.remove)
    monkeypatch.setattr(seats, "_owner", lambda: "me")
    monkeypatch.setattr("tunelight.gang.membership.sweep_seats", lambda: None)
    monkeypatch.setattr(Seat, "occupy", occupy)
    monkeypatch.setattr(Seat, "look", lambda self, timeout_s=0.0: True)
    monkeypatch.setattr(Seat, "vacate", vacate)
    monkeypatch.setattr(Seat, "dismiss", lambda self: None)
    return held


def membership(workers: int = 2, most: int = 8, size: int | None = 2) -> Made:
    made = Made(GangSpec(Reservation(workers, least=workers, most=most)), None)
    made.leaves = []
    made.heal(size)
    return made


def grown(size: int) -> Made:
    made = membership()
    made.want(size)
    made.ready()
    made.heal(size)
    return made


def test_a_gang_holds_no_more_than_it_is_asked_for_in_one_reservation_for_each_doubling(groups: Groups) -> None:
    made = membership()
    assert made.ready() == 0
    assert (made.size, groups.sizes) == (2, [])
    made.want(8)
    assert made.ready() == 6
    assert groups.sizes == [2, 4]
    made.heal(8)
    assert made.size == 8
    made.leaves.clear()
    made.heal(4)
    assert (made.size, groups.sizes, made.there) == (4, [2], [0, 1, 2, 3])
    assert made.leaves[0] == list(range(8))  # all left before any was ended
    made.heal(2)
    assert (made.size, groups.sizes, made.there) == (2, [], [0, 1])


def test_a_size_below_the_reservation_s_or_between_two_doublings_keeps_it(groups: Groups) -> None:
    made = grown(4)
    made.heal(3)
    assert (made.size, groups.sizes, made.there) == (3, [2], [0, 1, 2])
    made.want(4)
    assert made.ready() == 1
    assert groups.sizes == [2]
    made = membership(workers=2, most=2, size=1)
    assert (made.size, made.there) == (1, [0, 1])
    made.heal(2)
    assert made.size == 2


def test_ranks_keep_their_seats_while_a_trial_runs_and_lose_them_after_it(groups: Groups) -> None:
    made = membership()
    made.want(4, busy=True)
    made.ready()
    made.want(2, busy=True)
    assert (made.size, groups.sizes, made.there, made.met) == (2, [], [0, 1], True)
    made = grown(4)
    made.want(2, busy=True)
    assert (made.there, groups.sizes, made.met) == ([0, 1, 2, 3], [2], True)
    made.want(2)
    assert (made.there, groups.sizes, made.met) == ([0, 1], [], False)
    made.heal(2)
    assert made.met
    assert made.size == 2


def test_a_gang_that_grows_by_itself_takes_one_seat_after_the_other(groups: Groups) -> None:
    made = membership(workers=1, most=4, size=None)
    assert made.ready() == 3
    assert groups.sizes == [1, 1, 1]
    made.close()
    assert groups.sizes == []


class Answers:
    """Ray's side of calls, of which each is answered already: by itself, or an error."""

    @staticmethod
    def wait(calls: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return calls, []

    @staticmethod
    def get(calls: list[Any]) -> list[Any]:
        if failed := [call for call in calls if isinstance(call, Exception)]:
            raise failed[0]
        return calls


@pytest.mark.parametrize(("live", "cause"), [(True, "exception"), (False, "unresponsive")])
def test_what_a_worker_says_of_its_meeting_is_kept_unless_another_one_is_gone(monkeypatch, live, cause):
    monkeypatch.setattr(memberships, "ray", Answers)
    monkeypatch.setattr(Membership, "_all_live", lambda self: live)
    monkeypatch.setattr(Membership, "lose", lambda self, rank, reason: None)
    said = GangError("Rank 1 cannot reach rank 0", "exception")
    error = RayTaskError("join", "a long traceback", said).as_instanceof_cause()
    with pytest.raises(GangError) as caught:
        Membership(GangSpec(Reservation(2)), None)._gather([error, "joined"], 1.0, "its ranks to meet")
    assert (str(caught.value), caught.value.cause) == ("Rank 1 cannot reach rank 0", cause)
