"""When gangs grow and give back: the ledger of slots, a share for each, and what a resize saves."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from tunelight.compat.ray import end_cached_actors
from tunelight.messages import RESULT_KEY, Resize
from tunelight.schedulers.common import number, tell
from tunelight.schedulers.ledger import Ledger, Need
from tunelight.schedulers.members import Member, Members
from tunelight.schedulers.speed import Speed, sizes

logger = logging.getLogger(__name__)

_WORKERS: Final = f"{RESULT_KEY}/workers"
_NO_GAIN: Final = 0.1
"""What doubling a gang must gain at least, as log2 of how much faster it is, for it to be kept."""
_ROUND: Final = 2.0
"""By how much a gang may be larger than its share, while there is room: a share is hardly ever a power of two."""
_PATIENCE_S: Final = 60.0
"""How long new workers may take to start and import, at least, before they count as not to be had."""
_WORTH: Final = 1.1
"""How many times its cost a growth must save."""


class Growth:
    """Decides how many workers each trial's gang is to have, and tells it.

    The sizes of a gang are its least, the doubles of that, and ``most``. Each trial that trains may grow towards a
    share of the cluster as large as its share of the work that is expected to be left, in one worker's seconds.
    """

    def __init__(self, members: Members, most: int | None, cooldown: int) -> None:
        self.most = most
        self.speed = Speed()
        self.ledger = Ledger()
        self._members = members
        self._cooldown = cooldown
        self._grown: dict[str, Member] = {}
        self._work: dict[str, float] = {}
        """Trial id -> the seconds that one worker would be expected to take for what is left of it."""
        self._all_work = 0.0
        self._giving: dict[str, int] = {}
        """Trial id -> how many workers it was asked to give back, and has not yet."""

    def started(self, member: Member) -> None:
        """Note that a trial's gang has started, with its least."""
        self.ledger.hold(member.trial_id, member.need)
        self.speed.restarted(member.pace)
        self._forget(member)

    def gone(self, member: Member) -> None:
        """Note that a trial holds nothing any more."""
        self.ledger.release(member.trial_id)
        self._expect(member.trial_id, 0.0)
        self._forget(member)

    def may_grow(self, need: Need | None) -> bool:
        """Tell whether any trial of this need could grow now."""
        return need is not None and (self.most or 0) > need.workers and self.ledger.free(need) > 0

    def promoted(self, member: Member) -> None:
        """Let a trial that was just promoted change its size at once: it has another stretch before it."""
        if member.since is not None:
            member.since = max(member.since, self._cooldown)

    def heard(self, member: Member, result: Mapping[str, Any]) -> None:
        """Learn from a report how many workers its trial has, and how fast they are."""
        said = number(result.get(_WORKERS))
        workers = int(said) if said and math.isfinite(said) else member.asked
        second = number(result.get("time_total_s"))
        if second is not None:
            self.speed.heard(member.pace, member.progress, second, workers)
        if member.since is None:
            return
        member.since += 1
        waited = member.pace.second - member.asked_at
        patience_s = max(2 * self.speed.longest_start_s, _PATIENCE_S)
        if workers < member.asked and member.since >= self._cooldown and waited > patience_s:
            member.refused += 1  # what was free is taken: ask for less, and less often from now on
            self._ask(member, workers)
        elif member.trial_id in self._grown and workers >= member.asked:
            member.refused = 0
        self._note(member, workers)

    def adjust(self, tune_controller: Any, member: Member, left: float, expected: float, *, alone: bool) -> None:
        """Resize a trial with ``left`` units of progress before it: it grows if nothing waits (``alone``).

        Where growing was measured to gain nothing, it gives back what it got.
        """
        need = member.need
        if need is None or self.most is None or self.most <= need.workers:
            return
        patience = self._cooldown * (1 + member.refused)
        have = max(member.pace.workers, need.workers)
        each = member.pace.each.get(have) or self.speed.each(have)
        self._expect(
            member.trial_id, expected * each * self.speed.factor(have, 1) if not math.isnan(each) else expected
        )
        if left <= 0:
            return
        if member.since is not None and (member.since < patience or member.pace.workers != member.asked):
            return
        if have > need.workers and self.speed.gain(have) < _NO_GAIN:
            self._ask(member, need.workers)
            return
        limit = min(have + self.ledger.free(need), self._share(member, need)) if alone else have
        limit = max(limit // 2**member.refused, min(limit, 2 * have))  # what was not to be had may be, of half the size
        for size in reversed(sizes(need.workers, self.most)):
            if have < size <= limit and self._saves(have, size, left):
                _release_idle(tune_controller)
                self._ask(member, size)
                return

    def make_room(self, need: Need | None) -> None:
        """Let the least promising of those that grew give back what a trial that waits needs."""
        if need is None or not self._grown:
            return
        missing = need.workers - self.ledger.free(need) - sum(self._giving.values())
        if missing <= 0:
            return
        for member in sorted(self._grown.values(), key=lambda one: (one.target, -one.loss)):
            least = member.need.workers if member.need else 1
            fitting = [size for size in sizes(least, member.asked) if size <= member.asked - missing]
            size = max(fitting, default=least)
            if size < member.asked:
                missing -= member.asked - size
                self._ask(member, size)
            if missing <= 0:
                return

    def _share(self, member: Member, need: Need) -> int:
        """Return how many workers a trial may have: its share of the work that is left, rounded in the logarithm."""
        share = self.ledger.total(need) * self._work[member.trial_id] / self._all_work
        ladder = sizes(need.workers, self.most or need.workers)
        return max((size for size in ladder if size <= share * _ROUND), default=need.workers)

    def _expect(self, trial_id: str, work: float) -> None:
        self._all_work += work - self._work.pop(trial_id, 0.0)
        if work:
            self._work[trial_id] = work
        if not self._work:
            self._all_work = 0.0  # what rounding left

    def _saves(self, have: int, size: int, left: float) -> bool:
        waits = self.speed.longest_start_s  # for the new workers, while it trains on as it is
        saved = (left * self.speed.each(have) - waits) * (1.0 - self.speed.factor(have, size))
        return saved > max(_WORTH * self.speed.resize_s, 0.0)

    def _ask(self, member: Member, size: int) -> None:
        member.asked, member.since, member.asked_at = size, 0, member.pace.second
        if member.need is not None and size > member.need.workers:
            self._grown[member.trial_id] = member
        else:
            self._grown.pop(member.trial_id, None)
        self._note(member, member.pace.workers)
        tell(member.trial, Resize(size))

    def _note(self, member: Member, workers: int) -> None:
        """Count what a trial holds: what it has, and what it may get."""
        self.ledger.hold(member.trial_id, member.need, max(workers, member.asked))
        if workers > member.asked:
            self._giving[member.trial_id] = workers - member.asked
        else:
            self._giving.pop(member.trial_id, None)

    def _forget(self, member: Member) -> None:
        member.asked = member.need.workers if member.need is not None else 1
        member.since, member.refused = None, 0
        self._grown.pop(member.trial_id, None)
        self._giving.pop(member.trial_id, None)


def _release_idle(tune_controller: Any) -> None:
    """Let go of gangs that Tune keeps warm for a next trial: there is none, and they hold what could be used."""
    try:
        end_cached_actors(tune_controller)
    except Exception as error:  # noqa: BLE001 - a part of Tune that is not public; idle gangs are no reason to end
        logger.debug("idle gangs were not released: %s", error)
