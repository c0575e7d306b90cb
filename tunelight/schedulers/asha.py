"""Asynchronous successive halving, in its stopping form. It reads no clock and draws no random number.

Li, Jamieson, Rostamizadeh, Gonina, Ben-Tzur, Hardt, Recht and Talwalkar, "A System for Massively Parallel
Hyperparameter Tuning" (https://arxiv.org/abs/1810.05934). The paper pauses a trial at a rung and promotes it later;
here, as in Ray Tune's scheduler of that name, a trial goes on at once if it is among the best of its rung as it arrives
there, else it is stopped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ray.tune.schedulers import TrialScheduler
from sortedcontainers import SortedList

from tunelight.errors import SettingsError, guess, known_arguments
from tunelight.messages import RESULT_KEY, Continue, Stop
from tunelight.schedulers.base import (
    TRAINING_ITERATION,
    WORST,
    End,
    GangScheduler,
    check_halving,
    number,
    tell,
    top_count,
)
from tunelight.settings import checks

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial


UNITS: Final = {"epochs": TRAINING_ITERATION, "samples": "samples", "seconds": "time_total_s"}
"""Unit -> the reported name that counts it."""
_MAX_T: Final = 100
"""Rungs lie below it if the length of trials is not known."""
_SECONDS: Final = f"{RESULT_KEY}/seconds"


class ASHA(GangScheduler):
    """Stop trials that are not among the best at their rung (Ray Tune ``TrialScheduler``).

    Rungs lie at ``grace_period * reduction_factor ** (k + s)`` below ``max_t``, for bracket ``s``, in ``unit``. The
    first report at or past a rung is filed there, at each rung that it passes, once a trial and rung.
    The trial goes on if it is among the best ``max(1, floor(n / reduction_factor))`` of the ``n`` filed at that rung so
    far, itself included; of equals the earlier wins. From the first rung on, NaN and infinities stop the trial at once
    (in ``tunelight.run`` it has ended as DIVERGED by then). A report without the metric, or with one that is no number,
    decides nothing and is not filed.

    A trial that reaches ``max_t`` is not stopped there: it ends by itself, so that its last code runs. One that does
    not is stopped at its first report past ``max_t`` (where reports come several times an epoch: past that epoch).

    Args:
        metric: reported name to compare; None takes what Tune is told (``TuneConfig(metric=...)``).
        mode: "min" or "max"; None takes what Tune is told.
        time_attr: reported name of the progress, in whose units ``max_t`` and ``grace_period`` are (None: that of
            ``unit``); other than "training_iteration", the gang waits for an answer to each of its reports.
        max_t: where a trial ends by itself, or is stopped soon after (None: not known; rungs lie below 100, and no
            trial is stopped for its length).
        grace_period: no trial is stopped before it (the first rung of bracket 0).
        reduction_factor: of how many trials one goes on, > 1 (eta in the paper).
        brackets: how many brackets share the trials, with later first rungs; Hyperband's weights, dealt in
            a fixed order.
        unit: what progress is counted in: "epochs" (reports: "training_iteration", one at the end of each epoch unless
            the training code reports otherwise), "samples" (those trained on, which the training code reports under
            that name) or "seconds" (of training: "time_total_s"; compares trials at equal cost). Of a gang those are
            counted in its workers, from when the training code begins: without pauses, the gang's start, and what the
            ranks wait for an answer. Without a gang they are Tune's.
        milestones: where rungs lie, in ``unit`` (None: as above, from ``grace_period`` on).

    Raises: SettingsError, for a value out of range. Runs on: driver.
    """

    @known_arguments
    def __init__(  # noqa: PLR0917 - the order of the paper's and Ray's arguments is public
        self,
        metric: str | None = None,
        mode: str | None = None,
        time_attr: str | None = None,
        max_t: float | None = None,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        unit: Literal["epochs", "samples", "seconds"] | None = None,
        milestones: Sequence[float] | None = None,
    ) -> None:
        super().__init__(metric, mode)
        self._milestones = None if milestones is None else _ascending(milestones, brackets)
        self.max_t: float = _MAX_T if max_t is None else max_t
        if self._milestones is not None:
            self.max_t = max(_MAX_T, self._milestones[-1] + 1) if max_t is None else max_t
            grace_period = min(self._milestones[0], self.max_t)  # training may end before the first of them
        self.grace_period: float = grace_period
        self.reduction_factor = eta = reduction_factor
        check_halving("ASHA", self.max_t, grace_period, reduction_factor)
        self.time_attr = _counted_by(time_attr, unit)
        self._end = End(max_t, self.time_attr)
        checks.whole("ASHA's brackets", brackets)
        if brackets > 1 and grace_period * reduction_factor ** (brackets - 1) > self.max_t:
            raise SettingsError(
                f"The first rung of the last of brackets={brackets} would lie beyond max_t={self.max_t!r}, with "
                f"grace_period={grace_period!r} and reduction_factor={reduction_factor!r}. Have fewer brackets."
            )
        self._brackets = [ladder(grace_period * eta**s, eta, self.max_t) for s in range(brackets)]
        if self._milestones is not None:
            self._brackets = [[Rung(milestone) for milestone in self._milestones if milestone < self.max_t]]
        self._credit = [0.0] * brackets
        self._bracket_of: dict[str, int] = {}
        self._bound_of: dict[str, int | None] = {}
        self.num_stopped = 0
        """How many trials this scheduler has stopped."""

    def milestones(self, bracket: int = 0) -> list[float]:
        """Return the rungs of a bracket, ascending, in units of ``time_attr``."""
        return [rung.milestone for rung in self._brackets[bracket]]

    def initial_decision(self) -> Continue:
        """Return the first report of a new trial that needs an answer."""
        return Continue(until=1 if self.time_attr != TRAINING_ITERATION else self._bound(self._brackets[0], 0))

    def can_spare(self, trial_id: str, number: int, has_epoch: bool) -> bool:
        """Tell whether a report comes before the next one that needs an answer; a derived class may want it."""
        first = has_epoch and trial_id not in self._end.first_epochs
        return type(self) is ASHA and number < (self._bound_of.get(trial_id) or 0) and not first

    # -- Tune's interface ---------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Assign a trial to a bracket; one that returns after an error keeps its own, and its place in the rungs."""
        self._check_judged()
        self.on_trial_end(trial)
        if trial.trial_id not in self._bracket_of:
            self._bracket_of[trial.trial_id] = self._deal()

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> str:
        """Decide about a report, CONTINUE or STOP, and send the decision to the trial's gang."""
        why = self._judge(trial.trial_id, result)
        self.explain(trial.trial_id, why)
        if why is None:
            self._tell_bound(trial, result)
            return TrialScheduler.CONTINUE
        self.num_stopped += 1
        tell(trial, Stop("asha"))
        return TrialScheduler.STOP

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> None:
        """File a last report that came with the end of its trial; Tune asks no decision about it."""
        self._judge(trial.trial_id, result or {})
        self.on_trial_end(trial)

    def on_trial_end(self, trial: Trial) -> None:
        """Forget how far a trial was allowed to run, and why it was stopped; its results stay in the rungs."""
        super().on_trial_end(trial)
        self._bound_of.pop(trial.trial_id, None)

    # -- the rule -----------------------------------------------------------------------------------

    def _judge(self, trial_id: str, result: Mapping[str, Any]) -> str | None:
        """File a report at every rung that its trial reaches with it; return why the trial is stopped, if it is."""
        trained = number(result.get(_SECONDS)) if self.time_attr == UNITS["seconds"] else None  # if its gang says them
        time, loss = number(result.get(self.time_attr)) if trained is None else trained, self._loss(result)
        if time is None or math.isnan(time):
            return None
        rungs = self._rungs_of(trial_id)
        past = self._end.past(trial_id, result, time)
        if loss is None or not rungs:
            return self._end.reason if past else None
        why = self._reported(result) if loss == WORST and time >= rungs[0].milestone else None
        for rung in rungs:
            if time < rung.milestone:
                break
            if trial_id not in rung.filed:
                rung.file(trial_id, loss)
                if why is None and not rung.among_best(trial_id, self.reduction_factor, closed=True):
                    unit = {TRAINING_ITERATION: "", UNITS["seconds"]: "seconds"}.get(self.time_attr, self.time_attr)
                    why = rung.standing(trial_id, self.reduction_factor, closed=True, unit=unit)
        if past:
            return self._end.reason
        return None if time >= self.max_t else why

    def _rungs_of(self, trial_id: str) -> list[Rung]:
        """Return the rungs at which a trial is compared."""
        return self._brackets[self._bracket_of[trial_id]] if trial_id in self._bracket_of else []

    def _deal(self) -> int:
        """Choose the next trial's bracket: weighted round robin, evenly interleaved.

        A trial in a bracket of m halvings costs about (m + 1) / eta^m of a full one, so that with Hyperband's weights
        eta^m / (m + 1) all brackets get the same budget.
        """
        weights = [self.reduction_factor ** len(rungs) / (len(rungs) + 1) for rungs in self._brackets]
        for bracket, weight in enumerate(weights):
            self._credit[bracket] += weight
        chosen = max(range(len(weights)), key=lambda bracket: self._credit[bracket])
        self._credit[chosen] -= sum(weights)
        return chosen

    def _tell_bound(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """Send the trial's gang the next report that needs an answer, if that has changed."""
        trial_id = trial.trial_id
        if self.time_attr != TRAINING_ITERATION or trial_id not in self._bracket_of:
            return
        rungs = self._rungs_of(trial_id)
        at = number(result.get(TRAINING_ITERATION))
        bound = self._bound([rung for rung in rungs if trial_id not in rung.filed], at or 0)
        if trial_id not in self._bound_of:
            self._bound_of[trial_id] = self.initial_decision().until
        if bound != self._bound_of[trial_id]:
            self._bound_of[trial_id] = bound
            tell(trial, Continue(until=bound))

    def _bound(self, rungs: list[Rung], at: float) -> int | None:
        """Return the first report at or past the first of these rungs; without one, the first past the end."""
        return math.ceil(rungs[0].milestone) if rungs else self._end.bound(at)


def _ascending(milestones: Sequence[float], brackets: int) -> list[float]:
    """Return milestones as a list. Raises: SettingsError unless they are ascending numbers above 0."""
    found = list(milestones) if isinstance(milestones, Sequence) and not isinstance(milestones, str) else []
    numbers = [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]
    if (
        not found
        or numbers != found
        or any(low >= high for low, high in itertools.pairwise([0, *found]))
        or brackets > 1
    ):
        raise SettingsError(
            f"ASHA's milestones must be a list of ascending numbers above 0, of one bracket, and are {milestones!r}."
        )
    return found


def _counted_by(time_attr: str | None, unit: str | None) -> str:
    """Return the reported name that counts progress. Raises: SettingsError if the two contradict."""
    if unit is not None and unit not in UNITS:
        raise SettingsError(
            f"ASHA's unit must be 'epochs', 'samples' or 'seconds', and is {unit!r}.{guess(str(unit), list(UNITS))} "
            "To count by another name that is reported, give time_attr."
        )
    if time_attr is not None and unit is not None and time_attr != UNITS[unit]:
        raise SettingsError(
            f"ASHA was given unit={unit!r}, which counts {UNITS[unit]!r}, and time_attr={time_attr!r}: leave one out."
        )
    return time_attr or UNITS[unit or "epochs"]


# --- Rungs of successive halving: which trials reached them, are among the best, wait, or went on ---------

_LATE: Final = 1.5
"""A trial is promoted later only if it is among the best 1/eta to this power."""


@dataclass
class Rung:
    """One milestone, with the losses of trials when they first reached it; O(log n) per operation.

    Trials are compared by (loss, order of arrival), so that there are no ties: of equals the earlier is better.
    """

    milestone: float
    filed: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Trial id -> (loss, order of arrival), in that order."""
    promoted: set[str] = field(default_factory=set)
    """Ids of the trials that went past this rung."""
    _order: SortedList = field(default_factory=SortedList)
    _waiting: SortedList = field(default_factory=SortedList)

    def file(self, trial_id: str, loss: float) -> None:
        """File a trial that reaches this rung for the first time."""
        key = (loss, len(self.filed))
        self.filed[trial_id] = key
        self._order.add(key)

    def rank(self, trial_id: str) -> int:
        """Return how many filed trials are better than this one."""
        return int(self._order.bisect_left(self.filed[trial_id]))

    def among_best(self, trial_id: str, eta: float, *, closed: bool) -> bool:
        """Tell whether a trial is among the best 1/eta; at least one is, if the rung is closed."""
        return self.rank(trial_id) < self._best(eta, closed=closed)

    def standing(self, trial_id: str, eta: float, *, closed: bool, unit: str = "") -> str:
        """Return a trial's place and how many may go on, in words; ``unit``: what is counted, where not epochs."""
        n = self._best(eta, closed=closed)
        going = f"the best {n} go on" if n > 1 else "the best goes on" if n else "none goes on yet"
        return f"{self.place(trial_id, unit)}; {going}"

    def place(self, trial_id: str, unit: str = "") -> str:
        """Return a trial's place among those filed so far, in words: ``place 7 of 12 at rung 4``."""
        counted = f" ({unit})" if unit else ""
        return f"place {self.rank(trial_id) + 1} of {len(self.filed)} at rung {self.milestone:.12g}{counted}"

    def wait(self, trial_id: str) -> None:
        """Let a paused trial wait here for a promotion."""
        self._waiting.add((*self.filed[trial_id], trial_id))

    def leave(self, trial_id: str) -> None:
        """Remove a trial from those that wait, if it is among them."""
        if trial_id in self.filed:
            self._waiting.discard((*self.filed[trial_id], trial_id))

    def ready(self, eta: float, *, closed: bool) -> Iterator[str]:
        """Yield the waiting trials that may be promoted now, the best first.

        They are among the best 1/eta^1.5, or the best; of a closed rung that nobody has passed, the best that waits
        (better ones have ended there). A late promotion is marginal: the next rung usually drops it.
        """
        n = top_count(len(self.filed), eta)
        late = max(top_count(len(self.filed), eta**_LATE), 1 if closed or n else 0)
        for before, (*key, trial_id) in enumerate(self._waiting):
            if self._order.bisect_left(tuple(key)) >= late and (before or not closed or self.promoted):
                return
            yield trial_id

    def waiting(self) -> list[str]:
        """Return the waiting trials, the worst first."""
        return [trial_id for *_, trial_id in reversed(self._waiting)]

    def _best(self, eta: float, *, closed: bool) -> int:
        return max(top_count(len(self.filed), eta), 1 if closed else 0)


def ladder(first: float, eta: float, end: float) -> list[Rung]:
    """Return the rungs at ``first * eta ** k`` below ``end``."""
    rungs: list[Rung] = []
    while first < end:
        rungs.append(Rung(first))
        first *= eta
    return rungs
