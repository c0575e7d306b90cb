"""Successive halving in its promotion form: which trials go on, which wait, and which are promoted later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from tunelight.schedulers.common import WORST
from tunelight.schedulers.members import Member, Members, State
from tunelight.schedulers.rungs import ladder

Verdict = Literal["go on", "pause", "stop"]


class Promotion:
    """Rungs at ``grace * eta ** k`` below ``max_t``, and which trials may go past each.

    A trial may if it is among the best ``floor(n / eta)`` of the ``n`` filed at a rung. Of a rung that no further trial
    can reach, as far as is known, at least the best may. ``worth``: whether it pays for a paused trial to go on.
    """

    def __init__(
        self,
        members: Members,
        eta: float,
        grace: float,
        max_t: float,
        worth: Callable[[Member], bool] = lambda _: True,
    ) -> None:
        self._members = members
        self._worth = worth
        self.eta = eta
        self.max_t = max_t
        self.rungs = ladder(grace, eta, max_t)
        self._nobody = False
        """Whether it is known that no trial can be promoted, until something changes."""

    def changed(self) -> None:
        """Note that trials may be promotable that were not before."""
        self._nobody = False

    def end_of(self, rung: int) -> float:
        """Return the progress at the rung with this index, or at the end of a trial."""
        return self.rungs[rung].milestone if rung < len(self.rungs) else self.max_t

    def expected(self, member: Member) -> float:
        """Return the progress that a trial is expected to make from here: 1/eta of it past each rung."""
        total, share, at = 0.0, 1.0, member.progress
        for number in range(member.target, len(self.rungs) + 1):
            total += share * (self.end_of(number) - at)
            share, at = share / self.eta, self.end_of(number)
        return total

    def front(self) -> float:
        """Return the highest milestone that any trial has reached; 0 before the first."""
        return max((rung.milestone for rung in self.rungs if rung.filed), default=0.0)

    def judge(self, member: Member, loss: float, *, ended: bool) -> Verdict:
        """File a trial's report at every rung that it reaches with it, and return what becomes of the trial.

        ``ended``: only file the report.
        """
        at, first = member.progress, member.target
        member.loss = loss
        self._file(member, at, loss)
        if ended or not self.rungs or at >= self.max_t:
            return "go on"
        if loss == WORST and at >= self.rungs[0].milestone:
            return "stop"
        start = member.at if member.again else first
        member.again = False
        return "go on" if self._passes(member, range(start, member.target)) else "pause"

    def standing(self, member: Member) -> str:
        """Return why a trial waits at its rung, in words."""
        return self.rungs[member.at].standing(member.trial_id, self.eta, closed=False)

    def promotable(self, *, idle: bool = False) -> Member | None:
        """Return the trial to promote first: the best one paused at the highest rung where one may go on.

        ``idle``: nothing trains or waits, so that rungs are closed that no paused trial can be promoted to.
        """
        if self._nobody and not idle:
            return None
        found = self._first(idle=idle)
        self._nobody = found is None
        return found

    def promote(self, member: Member) -> bool:
        """Let a paused trial go on; False if it had passed a further rung, too, and now waits at that one."""
        self.rungs[member.at].leave(member.trial_id)
        self.changed()
        return self._passes(member, range(member.at, member.target), sure=1)

    def went_on(self, member: Member) -> None:
        """Note that a paused trial trains again: it was promoted, though not by this object."""
        for rung in self.rungs[member.at : member.target]:
            rung.leave(member.trial_id)
            rung.promoted.add(member.trial_id)
        self.changed()

    def leave(self, member: Member) -> None:
        """Take a trial that has ended from those that may be promoted."""
        if self.rungs and member.at < len(self.rungs):
            self.rungs[member.at].leave(member.trial_id)
        self.changed()

    def worst_first(self) -> list[str]:
        """Return the paused trials, the worst of the lowest rung first."""
        return [trial_id for rung in self.rungs for trial_id in rung.waiting()]

    def state(self) -> list[dict[str, Any]]:
        """Return plain data for JSON."""
        return [rung.state() for rung in self.rungs]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Load what ``state`` returned; trials that trained then are expected to be added again."""
        for number, (rung, filed) in enumerate(zip(self.rungs, state, strict=True)):
            rung.load(filed)
            for trial_id, (loss, _) in rung.filed.items():
                member = self._members[trial_id]
                member.target, member.loss = number + 1, loss
            for trial_id in rung.waiting():
                member = self._members[trial_id]
                member.at, member.state = number, State.PAUSED
                member.progress = rung.milestone
        self.changed()

    def _file(self, member: Member, at: float, loss: float) -> None:
        target = member.target
        while target < len(self.rungs) and at >= self.rungs[target].milestone:
            self.rungs[target].file(member.trial_id, loss)
            target += 1
        if target != member.target:
            self._members.move(member, member.state, target)
            self.changed()

    def _passes(self, member: Member, numbers: range, sure: int = 0) -> bool:
        """Promote a trial past these rungs while it is among their best; past the first ``sure`` ones in any case."""
        for number in numbers:
            rung = self.rungs[number]
            if number >= numbers.start + sure and not self._may(member.trial_id, number):
                member.at = number
                rung.wait(member.trial_id)
                return False
            rung.promoted.add(member.trial_id)
        return True

    def _may(self, trial_id: str, number: int) -> bool:
        rung = self.rungs[number]
        return rung.among_best(trial_id, self.eta, closed=rung.rank(trial_id) == 0 and self._closed(number))

    def _closed(self, number: int) -> bool:
        """Tell whether no further trial can reach a rung, as far as is known.

        Then none can reach those below either, where the best one that waits may still go on.
        """
        if self._members.any_towards(number):
            return False
        below = (trial_id for rung in self.rungs[:number] for trial_id in rung.ready(self.eta, closed=True))
        return not any(self._to_go_on(self._members[trial_id]) for trial_id in below)

    def _to_go_on(self, member: Member) -> bool:
        return member.trial is not None and self._worth(member)

    def _first(self, *, idle: bool) -> Member | None:
        for number in reversed(range(len(self.rungs))):
            for trial_id in self.rungs[number].ready(self.eta, closed=idle and self._closed(number)):
                member = self._members[trial_id]
                if member.state is State.PAUSED and self._to_go_on(member):
                    return member
        return None
