"""ElasticASHA: asynchronous successive halving in its promotion form, with gangs that grow.

After Li et al., "A System for Massively Parallel Hyperparameter Tuning" (https://arxiv.org/abs/1810.05934), where a
trial pauses at a rung and is promoted when it is among the best 1/eta there. Here it goes on in place if it comes so,
and is promoted later only when it is among the best 1/eta^1.5. When trials are admitted: Liaw et al.,
"HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline" (SoCC 2019).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.ray import end_cached_actors
from tunelight.errors import known_arguments
from tunelight.messages import RESULT_KEY, Continue, Resize, Stop
from tunelight.schedulers.asha import ladder
from tunelight.schedulers.base import TRAINING_ITERATION, WORST, End, GangScheduler, SweepFacts, check_halving, tell
from tunelight.schedulers.base import number as to_number
from tunelight.schedulers.members import Ledger, Member, Members, Speed, State, TrialResources, sizes
from tunelight.settings import checks

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


_MAX_T: Final = 81
"""Rungs lie below it if the length of trials is not known."""


class ElasticASHA(GangScheduler):
    """Pause trials that are not among the best of their rung, promote them late, and grow the last ones.

    Rungs lie at ``grace_period * reduction_factor ** k`` below ``max_t``. A trial that comes to a rung among the best
    ``floor(n / reduction_factor)`` of the ``n`` filed there so far goes on in place; another one pauses, keeps its
    checkpoint and leaves its gang to others. When there is room, the highest rung's best paused trial that has come to
    be among the best ``floor(n / reduction_factor ** 1.5)``, or to be the best, is promoted, before a new trial starts.
    (The published rule, 1 instead of 1.5, took 1.4 times as long in simulations, for half of the regret:
    docs/decisions/0007.) Where no further trial can come to a rung, at least its best goes on, so that the sweep ends
    with one trained to ``max_t``; then those still paused are ended. NaN and infinities stop a trial from the first
    rung on. A trial that reaches ``max_t`` ends by itself, or is stopped at its first report past ``max_t``.

    Gangs of ``workers=(min, max)`` start with ``min``. While nothing waits for free resources, trials grow, each
    towards its share of the cluster, by doubling; they do if that saves 1.1 times what a resize costs, both learned
    from the sweep's own reports. When a trial waits, the least promising of those that grew give back.

    With a deadline, a new trial starts only while enough time is left for it to come as far as the front.

    Args:
        metric: reported name to compare; None takes what Tune is told.
        mode: "min" or "max"; None takes what Tune is told.
        reduction_factor: of how many trials one is promoted, > 1 (eta in the paper).
        grace_period: where the first rung lies, in epochs (one report each).
        max_t: where a trial ends by itself, in epochs, or is stopped soon after (None: not known; rungs lie below 81,
            and no trial is stopped for its length).
        deadline_s: seconds from the first trial on after which nothing counts (None: no deadline).
        max_workers: how far a gang may grow (None: to what the sweep's ``workers`` say; under a plain Tuner not).
        cooldown: how many reports a gang keeps its size at least.
        clock: seconds that only grow; what the deadline is measured by.

    Raises: SettingsError, for a value out of range. Runs on: driver.
    """

    resizes = True
    pauses = True

    @known_arguments
    def __init__(  # noqa: PLR0917 - metric and mode first, as in every scheduler of Tune
        self,
        metric: str | None = None,
        mode: str | None = None,
        reduction_factor: float = 3,
        grace_period: float = 1,
        max_t: float | None = None,
        deadline_s: float | None = None,
        max_workers: int | None = None,
        cooldown: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(metric, mode)
        self.max_t: float = _MAX_T if max_t is None else max_t
        check_halving("ElasticASHA", self.max_t, grace_period, reduction_factor)
        self._finish = End(max_t)
        if deadline_s is not None:
            checks.number("ElasticASHA's deadline_s", deadline_s)
        if max_workers is not None:
            checks.whole("ElasticASHA's max_workers", max_workers)
        checks.whole("ElasticASHA's cooldown", cooldown, least=0)
        self.grace_period: float = grace_period
        self.reduction_factor: float = reduction_factor
        self._deadline_s = deadline_s
        self.clock = clock
        self._members = Members()
        self._promotion = Promotion(self._members, reduction_factor, grace_period, self.max_t, self._worth)
        self._growth = Growth(self._members, max_workers, cooldown)
        self._started_at: float | None = None
        self._resources: TrialResources | None = None
        self._ending = 1

    # -- what a sweep asks ----------------------------------------------------------------------------

    def prepare(self, sweep: SweepFacts) -> None:
        """Let gangs grow to the sweep's largest at most, and leave CPUs free for its datasets."""
        super().prepare(sweep)
        limit, largest = self._growth.max_workers, sweep.max_workers
        self._growth.max_workers = largest if largest is None or limit is None else min(limit, largest)
        self._growth.ledger.kept_cpus = sweep.data_cpus
        self.clock = sweep.clock or self.clock

    def milestones(self) -> list[float]:
        """Return the rungs, ascending, in epochs."""
        return [rung.milestone for rung in self._promotion.rungs]

    def initial_decision(self) -> Continue:
        """Return the first report of a new trial that needs an answer."""
        return Continue(until=self._bound(0, 0))

    def admits(self) -> bool:
        """Tell whether a trial that starts now has the time to reach the front (HyperSched's rule)."""
        return self._in_time(self._promotion.front())

    # -- Tune's interface ---------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Add a trial that is to start, or that returns and keeps its results in the rungs."""
        self._check_judged()
        if self._started_at is None:
            self._started_at = self.clock()
        member = self._members[trial.trial_id]
        member.trial, member.resources = trial, TrialResources.of(trial)
        if trial.status in (Trial.TERMINATED, Trial.ERROR):  # Tune adds those too when it restores a sweep
            self._end(member)
            return
        if trial.status == Trial.PAUSED and member.state in (State.PAUSED, State.PAUSING):
            return  # a replay does not call choose_trial_to_run, so the pause may not have been noticed
        if member.state in (State.PAUSED, State.PAUSING):
            member.again = True
            self._promotion.leave(member)
        self._resources = member.resources
        self.explain(trial.trial_id, None)
        member.until = self._bound(0, 0)
        self._members.move(member, State.WAITING, member.target)
        self._ending = 1

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> str:
        """Decide about a report, CONTINUE, PAUSE or STOP, and send the gang what Tune cannot express."""
        member = self._members.get(trial.trial_id)
        if member is None or member.state is State.ENDED:
            return TrialScheduler.CONTINUE
        self._going(member)
        target = member.target
        verdict = self._judge(member, result)
        if verdict == "stop" or self._finish.past(trial.trial_id, result, member.progress):
            self.explain(trial.trial_id, self._reported(result) if verdict == "stop" else self._finish.reason)
            tell(trial, Stop("elastic_asha"))
            return TrialScheduler.STOP
        self.explain(trial.trial_id, self._promotion.standing(member) if verdict == "pause" else None)
        if verdict == "pause":
            self._members.move(member, State.PAUSING)
            return TrialScheduler.PAUSE
        self._tell_bound(member)
        if member.target > target:
            self._growth.promoted(member)
        self._adjust(tune_controller, member)
        return TrialScheduler.CONTINUE

    def trains_on(self, tune_controller: TuneController, trial: Trial) -> bool:
        """Let a trial go on to its next rung that was to wait at this one."""
        member = self._members[trial.trial_id]
        self._promotion.went_on(member)
        self._members.move(member, State.GOING)
        self.explain(trial.trial_id, None)
        self._tell_bound(member)
        return True

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> None:
        """File a last report that came with the end of its trial; Tune asks no decision about it."""
        member = self._members.get(trial.trial_id)
        if member is not None and member.state is not State.ENDED:
            self._judge(member, result or {}, ended=True)
        self.on_trial_end(trial)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Keep the failed trial's results in the rungs: they were measured. One that was to pause is judged again."""
        member = self._members.get(trial.trial_id)
        if member is not None and member.state is State.PAUSING:
            member.again = True  # if Tune tries it once more
        self.on_trial_end(trial)

    def on_trial_end(self, trial: Trial) -> None:
        """Forget a trial, whose results stay in the rungs."""
        if (member := self._members.get(trial.trial_id)) is not None:
            self._end(member)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """Return the paused trial to promote now, if any; make room for it, and end trials that cannot be promoted."""
        self._members.settle(self._growth.started, lambda member: self._adjust(tune_controller, member), self._paused)
        while (member := self._promotion.promotable()) is not None:
            self._growth.ledger.update_capacity(tune_controller)
            if not self._growth.ledger.fits(member.resources) and self._members.going:
                self._growth.make_room(member.resources)
                return None
            if self._promotion.promote(member):
                return self._start_again(member)
        if self._members.waiting:
            self._growth.ledger.update_capacity(tune_controller)
            self._growth.make_room(self._members.waiting[0].resources)
            return None
        if not self._members.busy:
            return self._wind_up(tune_controller)
        for member in self._members.some_going() if self._growth.may_grow(self._resources) else ():
            self._adjust(tune_controller, member)
        return None

    # -- what becomes of one trial ------------------------------------------------------------------

    def _judge(self, member: Member, result: Mapping[str, Any], *, ended: bool = False) -> Verdict:
        """Learn from a report and file it; without progress or metric it decides nothing."""
        at, loss = to_number(result.get(TRAINING_ITERATION)), self._loss(result)
        if at is None or math.isnan(at):
            return "go on"
        member.progress = at
        self._growth.heard(member, result)
        return "go on" if loss is None else self._promotion.judge(member, loss, ended=ended)

    def _going(self, member: Member) -> None:
        """Note that a trial trains, for which Tune has no callback."""
        if member.state in (State.PAUSED, State.PAUSING):  # in a replay, which does not call choose_trial_to_run
            self._promotion.went_on(member)
        if member.state is not State.GOING:
            self._members.move(member, State.GOING)
            self._growth.started(member)

    def _adjust(self, tune_controller: TuneController, member: Member) -> None:
        self._growth.ledger.update_capacity(tune_controller)
        alone = not self._members.waiting and self._promotion.promotable() is None
        left = self._promotion.end_of(member.target) - member.progress
        self._growth.adjust(tune_controller, member, left, self._promotion.expected(member), alone=alone)

    def _paused(self, member: Member) -> None:
        self._growth.gone(member)
        self._promotion.changed()

    def _end(self, member: Member) -> None:
        self.explain(member.trial_id, None)
        self._promotion.leave(member)
        self._members.move(member, State.ENDED)
        self._growth.gone(member)

    def _start_again(self, member: Member) -> Trial:
        self.explain(member.trial_id, None)
        self._members.starts(member)
        self._growth.started(member)
        member.until = self._bound(0, 0)
        trial: Trial = member.trial
        return trial

    def _wind_up(self, tune_controller: TuneController) -> Trial | None:
        """Promote the best trial of a closed rung, or end paused trials: nothing trains or waits any more.

        Whether the search will suggest more is not known: it was asked just now, and suggested nothing. It may count
        paused trials as live, so they are ended in growing numbers, worst first.
        """
        member = self._promotion.promotable(idle=True)
        if member is not None and self._promotion.promote(member):
            return self._start_again(member)
        worst_first = [trial_id for rung in self._promotion.rungs for trial_id in rung.waiting()]  # lowest rung first
        for trial_id in worst_first[: self._ending]:
            paused = self._members[trial_id]
            if paused.trial is not None:
                tune_controller.stop_trial(paused.trial)
            self._end(paused)
        self._ending *= 2
        return None

    def _in_time(self, progress: float) -> bool:
        """Tell whether a trial can make this much progress before the deadline."""
        if self._deadline_s is None or self._started_at is None:
            return True
        left = self._deadline_s - (self.clock() - self._started_at)
        each = self._growth.speed.each(self._resources.workers if self._resources else 1)
        return left > 0 and not progress * each + self._growth.speed.start_s > left

    def _worth(self, member: Member) -> bool:
        """Tell whether a paused trial can still reach its next rung."""
        return self._in_time(self._promotion.end_of(member.target) - member.progress)

    def _bound(self, rung: int, at: float) -> int | None:
        """Return the first report at or past a rung; past the last one, the first past the end."""
        rungs = self._promotion.rungs
        return math.ceil(rungs[rung].milestone) if rung < len(rungs) else self._finish.bound(at)

    def _tell_bound(self, member: Member) -> None:
        bound = self._bound(member.target, member.progress)
        if bound != member.until:
            member.until = bound
            tell(member.trial, Continue(until=bound))


# --- Successive halving in its promotion form: which trials go on, which wait, and which are promoted later ---


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
            if number >= numbers.start + sure:
                closed = rung.rank(member.trial_id) == 0 and self._closed(number)
                if not rung.among_best(member.trial_id, self.eta, closed=closed):
                    member.at = number
                    rung.wait(member.trial_id)
                    return False
            rung.promoted.add(member.trial_id)
        return True

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


# --- When gangs grow and shrink: by free slots, each trial's share of them, and what a resize saves ---

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
        reported = to_number(result.get(_WORKERS))
        workers = int(reported) if reported and math.isfinite(reported) else member.target_workers
        second = to_number(result.get("time_total_s"))
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

    def _shrink(self, missing: int) -> None:
        """Free ``missing`` workers, those included that are about to be released."""
        missing -= sum(self._giving.values())
        for member in sorted(self._grown.values(), key=lambda grown: (grown.target, -grown.loss)):
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
