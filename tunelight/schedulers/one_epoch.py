"""OneEpoch: train every trial for a few epochs, and the best few of them to the end.

Egele, Mohr, Viering and Balaprakash, "The Unreasonable Effectiveness Of Early Discarding After One Epoch In Neural
Network Hyperparameter Optimization" (https://arxiv.org/abs/2404.04111), who call it i-Epoch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial

from tunelight.compat.arguments import known_arguments
from tunelight.errors import SettingsError
from tunelight.schedulers.common import WORST, all_made, failed, number
from tunelight.schedulers.elastic import ElasticASHA
from tunelight.schedulers.growth import release_idle
from tunelight.schedulers.members import Member, Members, State
from tunelight.schedulers.promotion import Promotion, Verdict
from tunelight.schedulers.rungs import who_goes_on

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class BestFew(Promotion):
    """One rung, from which the best ``keep`` trials go on once no further trial can come there.

    A trial counts unless it failed, or was ended while it waited. As many as may go on are kept waiting as a reserve,
    for those that fail later; whoever falls behind them is ended.
    """

    def __init__(self, members: Members, epochs: int, keep: int, max_t: float, worth: Callable[[Member], bool]) -> None:
        super().__init__(members, math.inf, epochs, max_t, worth)
        self.keep = keep
        self.out: set[str] = set()
        """Ids of the trials that do not count any more."""
        self._all_made = False

    @property
    def all_made(self) -> bool:
        """Whether the search will make no further trial; if it may, a trial goes on only when nothing else happens."""
        return self._all_made

    @all_made.setter
    def all_made(self, made: bool) -> None:
        if made != self._all_made:
            self._all_made = made
            self.changed()

    @property
    def is_closed(self) -> bool:
        """Whether no further trial can come to the rung, as far as is known."""
        return self._all_made and bool(self.rungs) and not self._members.any_towards(0)

    def judge(self, member: Member, loss: float, *, ended: bool) -> Verdict:
        """File a trial's report at the rung if it reaches that, and return what becomes of the trial."""
        verdict = super().judge(member, loss, ended=ended)
        if verdict == "pause" and self._is_behind(member.trial_id, 2 * self.keep):
            self.leave(member)
            return "stop"
        return verdict

    def standing(self, member: Member) -> str:
        """Return a trial's place, and how many go on, in words."""
        return f"{self.rungs[0].place(member.trial_id)}; {who_goes_on(self.keep)}"

    def drop(self, member: Member) -> None:
        """Let a trial count no more: the next best one takes its place."""
        self.out.add(member.trial_id)
        self.changed()

    def count(self, member: Member) -> None:
        """Let a trial count that returns."""
        self.out.discard(member.trial_id)
        self.changed()

    def waits(self, member: Member) -> bool:
        """Tell whether a trial waits at the rung."""
        return member.state is State.PAUSED and any(member.trial_id in rung.waiting() for rung in self.rungs)

    def displaced(self) -> list[Member]:
        """Return the paused trials that are behind the best ones and their reserve."""
        waiting = [self._members.know(trial_id) for rung in self.rungs for trial_id in rung.waiting()]
        paused = [member for member in waiting if member.state is State.PAUSED and member.trial is not None]
        return [member for member in paused if self._is_behind(member.trial_id, 2 * self.keep)]

    def worst_first(self) -> list[str]:
        """Return the waiting trials that can be ended now, the worst first."""
        return [
            trial_id
            for rung in self.rungs
            for trial_id in rung.waiting()
            if self._all_made or self._is_behind(trial_id, self.keep)
        ]

    def state(self) -> list[dict[str, Any]]:
        """Return plain data for JSON."""
        return [{**rung, "out": sorted(self.out)} for rung in super().state()]

    def load(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Load what ``state`` returned."""
        saved = list(state)
        super().load(saved)
        self.out = {trial_id for rung in saved for trial_id in rung["out"]}

    def _is_behind(self, trial_id: str, n: int) -> bool:
        """Tell whether ``n`` trials that count are better than this one."""
        rung = self.rungs[0]
        better = rung.rank(trial_id)
        key = rung.filed[trial_id]
        return better >= n and better - sum(rung.filed[out] < key for out in self.out if out in rung.filed) >= n

    def _may(self, trial_id: str, number: int) -> bool:
        return False  # who is among the best is known when the last trial has come

    def _first(self, *, idle: bool) -> Member | None:
        if not self.rungs or self._members.any_towards(0):
            return None
        if not self._all_made and not (idle and not self.worst_first()):
            return None
        for trial_id in reversed(self.rungs[0].waiting()):
            if self._is_behind(trial_id, self.keep):
                return None
            member = self._members.know(trial_id)
            if member.state is State.PAUSED and self._to_go_on(member):
                return member
        return None


class OneEpoch(ElasticASHA):
    """Train all trials for ``epochs`` epochs, and the best ``keep`` of them to the end (i-Epoch).

    A trial pauses after ``epochs``, and leaves its gang to the next one. Once all trials have come so far, the best
    ``keep`` go on, all of them at once where there is room. If one of them fails, the next best takes its place: until
    then as many more as ``keep`` stay paused. All others are stopped as soon as so many are better, and searchers that
    learn from trials that have ended learn from them. NaN or infinite after ``epochs`` stops a trial.

    A trial that is added later, when the best ones train already, trains ``epochs`` epochs, and goes on if it is among
    the best ``keep`` of all. If the search pauses although trials are to come, as one with a limit of its own may do,
    the reserve is ended, and then the best trial goes on, so that the sweep does.

    While the best ones train to the end, gangs that have nothing to do are ended. Gangs of ``workers=(min, max)`` start
    with ``min``, and grow as under `ElasticASHA` while nothing waits.

    Args:
        metric: reported name to compare; None takes what Tune is told.
        mode: "min" or "max"; None takes what Tune is told.
        epochs: how long each trial trains before it is compared, in epochs (one report each).
        keep: how many trials are trained to the end.
        max_t: where a trial ends by itself, in epochs, or is stopped soon after (None: not known; then it is taken for
            81 by ``deadline_s``, and no trial is stopped for its length).
        deadline_s: seconds from the first trial on after which nothing counts (None: no deadline). A new trial starts
            only while there is time for it and then to train the best ones to ``max_t``.
        max_workers: how far a gang may grow (None: to what the sweep's ``workers`` say; under a plain Tuner not).
        cooldown: how many reports a gang keeps its size at least.
        clock: seconds that only grow; what the deadline is measured by.

    Raises: SettingsError, for a value out of range. Runs on: driver.
    """

    called = "one_epoch"
    _promotion: BestFew

    @known_arguments("scheduler")
    def __init__(  # noqa: PLR0917 - metric and mode first, as in every scheduler of Tune
        self,
        metric: str | None = None,
        mode: str | None = None,
        epochs: int = 1,
        keep: int = 3,
        max_t: float | None = None,
        deadline_s: float | None = None,
        max_workers: int | None = None,
        cooldown: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_counts(epochs, keep, max_t)
        super().__init__(
            metric,
            mode,
            grace_period=epochs,
            max_t=max_t,
            deadline_s=deadline_s,
            max_workers=max_workers,
            cooldown=cooldown,
            clock=clock,
        )
        self._promotion = BestFew(self._members, epochs, keep, self._promotion.max_t, self._worth)
        self._first_epochs_s: deque[float] = deque(maxlen=32)

    def admits(self) -> bool:
        """Tell whether there is time for a trial that starts now and, after it, to train the best ones to the end."""
        gangs = 1
        if self._resources is not None:
            gangs = self._growth.ledger.total(self._resources) // self._resources.workers or self._promotion.keep
        rounds = math.ceil(self._promotion.keep / gangs)
        return self._in_time(self._grace + rounds * (self._promotion.max_t - self._grace))

    # -- Tune's interface ---------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Add a trial that is to start, or that returns and keeps its result at the rung."""
        super().on_trial_add(tune_controller, trial)
        member = self._members.know(trial.trial_id)
        if member.state is not State.ENDED:
            self._promotion.count(member)

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> None:
        """File a last report that came with the end of its trial; one that failed makes room for the next best."""
        super().on_trial_complete(tune_controller, trial, result)
        member = self._members.get(trial.trial_id)
        if member is not None and (member.loss == WORST or failed(result or {})):
            self._promotion.drop(member)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Make room for the next best trial: this one failed."""
        super().on_trial_error(tune_controller, trial)
        self._promotion.drop(self._members.know(trial.trial_id))

    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        """Make room for the next best trial: this one was ended while it waited. Its reason is its place then."""
        member = self._members.know(trial.trial_id)
        waited = self._promotion.waits(member)
        super().on_trial_remove(tune_controller, trial)
        self._promotion.drop(member)
        if waited:
            self._explain(trial.trial_id, self._promotion.standing(member))

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """Return the paused trial to go on now, if any; make room for it, and end trials that cannot go on."""
        self._promotion.all_made = all_made(tune_controller)
        chosen = super().choose_trial_to_run(tune_controller)
        for member in self._promotion.displaced():
            tune_controller.stop_trial(member.trial)
        if chosen is None and self._members.settled and self._promotion.is_closed and not self._promotion.promotable():
            release_idle(tune_controller)
        return chosen

    # -- what differs from successive halving ---------------------------------------------------------

    def _judge(self, member: Member, result: Mapping[str, Any], *, ended: bool = False) -> Verdict:
        fresh = not member.progress
        verdict = super()._judge(member, result, ended=ended)
        if fresh and member.progress and (seconds := number(result.get("time_total_s"))):
            self._first_epochs_s.append(seconds / member.progress)
        return verdict

    def _epoch_s(self) -> float:
        """Return the seconds of an epoch; as long as no trial has reported twice, with a part of its start."""
        measured = super()._epoch_s()
        return median(self._first_epochs_s) if math.isnan(measured) and self._first_epochs_s else measured

    def _why_stopped(self, member: Member, result: Mapping[str, Any]) -> str:
        return self._reported(result) if member.loss == WORST else self._promotion.standing(member)

    def _worth(self, member: Member) -> bool:
        """Tell whether there is any time left: a trial that goes on for a part of its way gets better, too."""
        return self._in_time(0.0)

    def _settings(self) -> dict[str, Any]:
        return {
            "metric": self._metric,
            "mode": self._mode,
            "epochs": self._grace,
            "keep": self._promotion.keep,
            "max_t": self._promotion.max_t,
        }


def _check_counts(epochs: Any, keep: Any, max_t: Any) -> None:
    """Raise SettingsError unless the numbers that ElasticASHA does not know are in range."""
    for name, value in (("epochs", epochs), ("keep", keep)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SettingsError(f"OneEpoch's {name} must be a whole number of 1 or more, and is {value!r}.")
    if max_t == "auto":
        raise SettingsError("OneEpoch's max_t must be a number of epochs, and is 'auto': that is for ElasticASHA.")
    if isinstance(max_t, int | float) and 0 < max_t < epochs:
        raise SettingsError(
            f"OneEpoch's epochs must be at most max_t, and is {epochs} with max_t={max_t!r}: no trial would ever be "
            "compared. Lower epochs, or train longer."
        )
