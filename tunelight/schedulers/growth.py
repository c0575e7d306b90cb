"""When gangs grow and shrink: by free slots, each trial's share of them, and what a resize saves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Final

from tunelight.compat.ray import end_cached_actors
from tunelight.messages import RESULT_KEY, Resize
from tunelight.schedulers.common import number, tell
from tunelight.schedulers.ledger import Ledger, TrialResources
from tunelight.schedulers.members import Member, Members
from tunelight.schedulers.speed import Speed, sizes

_WORKERS: Final = f"{RESULT_KEY}/workers"
_NO_GAIN: Final = 0.1
"""The least gain of doubling a gang, as log2 of the speed-up, for which the workers are kept."""
_ROUND: Final = 2.0
"""How many times its share a gang may have while there is room: shares are hardly ever powers of two."""
_PATIENCE_S: Final = 60.0
"""How long new workers may take to start and import, at least, before a growth counts as failed."""
_WORTH: Final = 1.1
"""How many times its cost growing must save."""


class Growth:
    """Decides how many workers each trial's gang is to have, and sends it there.

    The sizes of a gang are its fewest workers, that number doubled again and again, and ``max_workers``. A trial may
    grow towards a share of the cluster that is its share of the expected remaining work, in one worker's seconds.
    """

    def __init__(self, members: Members, max_workers: int | None, cooldown: int) -> None:
        self.max_workers = max_workers
        self.speed = Speed()
        self.ledger = Ledger()
        self._members = members
        self._cooldown = cooldown
        self._grown: dict[str, Member] = {}
        self._work: dict[str, float] = {}
        """Trial id -> the seconds that one worker is expected to take for the rest of it."""
        self._all_work = 0.0
        self._giving: dict[str, int] = {}
        """Trial id -> how many workers it was told to release, and has not yet."""

    def started(self, member: Member) -> None:
        """Note that a trial's gang has started, with its fewest workers."""
        self.ledger.hold(member.trial_id, member.resources)
        self.speed.restarted(member.pace)
        self._forget(member)

    def gone(self, member: Member) -> None:
        """Note that a trial has released its resources."""
        self.ledger.release(member.trial_id)
        self._expect(member.trial_id, 0.0)
        self._forget(member)

    def may_grow(self, resources: TrialResources | None) -> bool:
        """Tell whether any trial that reserves this could grow now."""
        return resources is not None and (self.max_workers or 0) > resources.workers and self.ledger.free(resources) > 0

    def promoted(self, member: Member) -> None:
        """Let a trial that was just promoted change its size at once: it has further to go now."""
        if member.since is not None:
            member.since = max(member.since, self._cooldown)

    def heard(self, member: Member, result: Mapping[str, Any]) -> None:
        """Learn from a report how many workers the trial has, and their speed."""
        said = number(result.get(_WORKERS))
        workers = int(said) if said and math.isfinite(said) else member.target_workers
        second = number(result.get("time_total_s"))
        if second is not None:
            self.speed.heard(member.pace, member.progress, second, workers)
        if member.since is None:
            return
        member.since += 1
        waited = member.pace.second - member.asked_at
        patience_s = max(2 * self.speed.longest_start_s, _PATIENCE_S)
        if workers < member.target_workers and member.since >= self._cooldown and waited > patience_s:
            member.refused += 1  # what was free is taken: ask for less, and less often from now on
            self._ask(member, workers)
        elif member.trial_id in self._grown and workers >= member.target_workers:
            member.refused = 0
        self._note(member, workers)

    def adjust(self, tune_controller: Any, member: Member, left: float, expected: float, *, alone: bool) -> None:
        """Resize a trial with ``left`` units of progress to go: it may grow if nothing waits (``alone``).

        If growing was measured to gain nothing, it shrinks to its fewest workers.
        """
        resources = member.resources
        if resources is None or self.max_workers is None or self.max_workers <= resources.workers:
            return
        patience = self._cooldown * (1 + member.refused)
        have = max(member.pace.workers, resources.workers)
        each = member.pace.each.get(have) or self.speed.each(have)
        self._expect(
            member.trial_id, expected * each * self.speed.factor(have, 1) if not math.isnan(each) else expected
        )
        if left <= 0:
            return
        if member.since is not None and (member.since < patience or member.pace.workers != member.target_workers):
            return
        if have > resources.workers and self.speed.gain(have) < _NO_GAIN:
            self._ask(member, resources.workers)
            return
        limit = min(have + self.ledger.free(resources), self._share(member, resources)) if alone else have
        limit = max(limit // 2**member.refused, min(limit, 2 * have))  # it may succeed at half the size
        for size in reversed(sizes(resources.workers, self.max_workers)):
            if have < size <= limit and self._saves(have, size, left):
                with contextlib.suppress(Exception):  # not public in Tune, and idle gangs are no reason to end a sweep
                    end_cached_actors(tune_controller)  # kept warm for a next trial, which there is not
                self._ask(member, size)
                return

    def make_room(self, resources: TrialResources | None) -> None:
        """Shrink the least promising trials that grew until a waiting trial fits."""
        if resources is not None and self._grown:
            self._shrink(resources.workers - self.ledger.free(resources))

    def keep_within(self, workers: int | None) -> None:
        """Let all trials together have so many workers (None: as many as fit); shrink those that grew beyond that."""
        self.ledger.most = workers
        if workers is not None and self._grown:
            self._shrink(self.ledger.workers - workers)

    def _shrink(self, missing: int) -> None:
        """Free ``missing`` workers, those included that are about to be released."""
        missing -= sum(self._giving.values())
        for member in sorted(self._grown.values(), key=lambda one: (one.target, -one.loss)):
            if missing <= 0:
                return
            least = member.resources.workers if member.resources else 1
            ladder = sizes(least, member.target_workers)
            size = max((size for size in ladder if size <= member.target_workers - missing), default=least)
            if size < member.target_workers:
                missing -= member.target_workers - size
                self._ask(member, size)

    def _share(self, member: Member, resources: TrialResources) -> int:
        """Return how many workers a trial may have, by its share of the remaining work."""
        share = self.ledger.total(resources) * self._work[member.trial_id] / self._all_work
        ladder = sizes(resources.workers, self.max_workers or resources.workers)
        return max((size for size in ladder if size <= share * _ROUND), default=resources.workers)

    def _expect(self, trial_id: str, work: float) -> None:
        self._all_work += work - self._work.pop(trial_id, 0.0)
        if work:
            self._work[trial_id] = work
        if not self._work:
            self._all_work = 0.0  # what rounding left

    def _saves(self, have: int, size: int, left: float) -> bool:
        waits = self.speed.longest_start_s  # for the new workers, while it trains on
        saved = (left * self.speed.each(have) - waits) * (1.0 - self.speed.factor(have, size))
        return saved > max(_WORTH * self.speed.resize_s, 0.0)

    def _ask(self, member: Member, size: int) -> None:
        member.target_workers, member.since, member.asked_at = size, 0, member.pace.second
        if member.resources is not None and size > member.resources.workers:
            self._grown[member.trial_id] = member
        else:
            self._grown.pop(member.trial_id, None)
        self._note(member, member.pace.workers)
        tell(member.trial, Resize(size))

    def _note(self, member: Member, workers: int) -> None:
        """Count the workers that a trial has, or is to get."""
        self.ledger.hold(member.trial_id, member.resources, max(workers, member.target_workers))
        if workers > member.target_workers:
            self._giving[member.trial_id] = workers - member.target_workers
        else:
            self._giving.pop(member.trial_id, None)

    def _forget(self, member: Member) -> None:
        member.target_workers = member.resources.workers if member.resources is not None else 1
        member.since, member.refused = None, 0
        self._grown.pop(member.trial_id, None)
        self._giving.pop(member.trial_id, None)
