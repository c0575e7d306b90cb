"""ElasticASHA: asynchronous successive halving in its promotion form, with gangs that grow.

After Li et al., "A System for Massively Parallel Hyperparameter Tuning" (https://arxiv.org/abs/1810.05934), where a
trial pauses at a rung and is promoted when it is among the best 1/eta there. Here it goes on in place if it comes so,
and is promoted later only when it is among the best 1/eta^1.5. When trials are admitted: Liaw et al.,
"HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline" (SoCC 2019).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.arguments import known_arguments
from tunelight.messages import Continue, Stop
from tunelight.schedulers.base import GangScheduler, SweepFacts
from tunelight.schedulers.common import TRAINING_ITERATION, End, began_at, check_halving, number, tell
from tunelight.schedulers.growth import Growth
from tunelight.schedulers.ledger import TrialResources
from tunelight.schedulers.members import Member, Members, State
from tunelight.schedulers.promotion import Promotion, Verdict
from tunelight.schedulers.rungs import described
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
        own, largest = self._growth.max_workers, sweep.max_workers
        self._growth.max_workers = largest if largest is None or own is None else min(own, largest)
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

    def within(self, workers: int | None) -> None:
        """Let gangs grow to so many workers together, and shrink the least promising ones where they have more."""
        self._growth.keep_within(workers)

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
        base = began_at(trial) or 0
        target = max(member.target, sum(rung.milestone <= base for rung in self._promotion.rungs))
        member.until = self._bound(target if base else 0, base)
        self._members.move(member, State.WAITING, target)
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

    def debug_string(self) -> str:
        """Return one line: the rungs with their number of trials, those promoted, and the value to beat."""
        return f"Using ElasticASHA: {described(self._promotion.rungs, self._promotion.eta, self._mode, closed=False)}"

    def _state(self) -> dict[str, Any]:
        return {"rungs": self._promotion.state()}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._promotion.load(state["rungs"])

    # -- what becomes of one trial ------------------------------------------------------------------

    def _judge(self, member: Member, result: Mapping[str, Any], *, ended: bool = False) -> Verdict:
        """Learn from a report and file it; without progress or metric it decides nothing."""
        at, loss = number(result.get(TRAINING_ITERATION)), self._loss(result)
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
        for trial_id in self._promotion.worst_first()[: self._ending]:
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

    def _settings(self) -> dict[str, Any]:
        return {
            "reduction_factor": self._promotion.eta,
            "grace_period": self.grace_period,
            "max_t": self.max_t,
        }
