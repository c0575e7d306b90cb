"""The contract between a sweep and its scheduler: Ray Tune's interface, and what a sweep of gangs asks besides."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tunelight.compat.ray import DEFAULT_METRIC, TRAINING_ITERATION, trial_actor
from tunelight.errors import SettingsError, guess
from tunelight.messages import Adopt, Continue, Resize, Stop
from tunelight.settings import checks
from tunelight.settings.values import MODES

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


Change = Callable[[str, int, Mapping[str, Any], str | None, int | None], object]
"""Takes a trial's id, its report, its new configuration, and the id and report of the trial that it is taken from."""

_CHANGE: Final = (PopulationBasedTraining, PopulationBasedTrainingReplay)
PAUSING: Final = (*_CHANGE, HyperBandScheduler)
"""Those of Ray's that pause trials, or start them again from others' checkpoints."""
_NOT_REPLAYABLE: Final = (*_CHANGE, HyperBandScheduler, ResourceChangingScheduler)


@dataclass(frozen=True)
class SweepFacts:
    """What a scheduler learns about its sweep, see :meth:`GangScheduler.prepare`."""

    domains: Mapping[str, Any] | None = None
    """The search space by dotted key; None where it is not known."""
    max_workers: int | None = None
    """The most workers of a gang; None: gangs keep their size."""
    data_cpus: float = 0.0
    """CPUs that trials leave free, for preprocessing datasets."""
    clock: Callable[[], float] | None = None
    """Returns seconds that only grow, virtual ones in simulations of tests; None: the scheduler's own clock."""
    on_change: Change = lambda *_: None
    """To be called whenever a trial goes on with another configuration; without a parent: the last change failed."""


class GangScheduler(FIFOScheduler):  # type: ignore[misc,unused-ignore]
    """A Ray Tune scheduler for trials that are gangs. As it stands, it trains every trial to its end, in order.

    A scheduler of your own derives from it, and overrides ``on_trial_result`` at least, which returns CONTINUE, PAUSE
    or STOP. It can send a trial's gang more than these words by :func:`~tunelight.schedulers.base.tell`:
    ``Continue(until)`` is the next report that needs an answer, ``Resize(workers)`` another size of the gang.

    All methods are called in the driver's process by one thread, and must not wait. In ``tunelight.run`` and in the
    simulator the order is: ``prepare``; for a resumed sweep ``on_trial_add``, ``on_trial_result`` and so on with the
    recorded events, whose decisions are ignored; ``initial_decision``; then the sweep. Under a plain ``tune.Tuner``
    only Tune's own methods are called. Ray's schedulers, and others that derive from Ray's classes alone, work in a
    sweep as well: :func:`adapted` holds them, with the defaults of this class. Experimental.
    """

    _supports_buffered_results = False
    resizes: bool = False
    """Whether it resizes gangs: those of ``workers=(1, 4)`` then start with 1 worker."""
    pauses: bool = False
    """Whether it pauses trials and chooses which goes on."""
    changes_configs: bool = False
    """Whether trials change their configuration as they train, so that ``repeats=`` cannot train one again."""
    replayable: bool = True
    """Whether its state follows from the order of events alone, so that a sweep under it can be resumed."""
    time_attr: str = TRAINING_ITERATION
    """The reported name that counts progress: the unit of ``max_t``, ``grace_period`` and ``milestones``."""
    max_t: float | None = None
    """Where trials end; None: not known."""
    grace_period: float | None = None
    """No trial is stopped or paused before it; None: not known."""
    sweep: SweepFacts = SweepFacts()
    """What ``prepare`` was given."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        check_mode(mode, type(self).__name__)
        self._metric, self._mode = metric, mode
        self._reasons: dict[str, str] = {}

    @property
    def inner(self) -> TrialScheduler:
        """The scheduler itself; of another library's, the object that is adapted."""
        return self

    # -- what a sweep asks ----------------------------------------------------------------------------

    @property
    def longest(self) -> float:
        """The report at which trials end, as far as it is known (infinite: it is not)."""
        by_reports = self.time_attr == TRAINING_ITERATION
        return math.inf if self.max_t is None or not by_reports else float(self.max_t)

    def prepare(self, sweep: SweepFacts) -> None:
        """Learn about the sweep, once, before its first trial. Raises: SettingsError if they do not fit each other."""
        self.sweep = sweep

    def initial_decision(self) -> Continue:
        """Return the first report of a new trial that needs an answer (1). Called once, before the first trial."""
        return Continue(until=1)

    def admits(self) -> bool:
        """Tell whether a new trial may begin now (True). Called before each new trial."""
        return True

    def milestones(self) -> Sequence[float]:
        """Return the rungs, ascending, in units of ``time_attr`` (none). Called once, for the record."""
        return ()

    def trains_on(self, tune_controller: TuneController, trial: Trial) -> bool:
        """Take back a PAUSE: the trial writes no checkpoint, and could not go on. Return whether it is still judged."""
        return True

    def reason(self, trial_id: str) -> str | None:
        """Return in words why the last decision on a trial was to stop or to pause it.

        Called after each such decision, for the record. None if the trial was to go on, or if it has ended since.
        """
        return self._reasons.get(trial_id)

    def can_spare(self, trial_id: str, number: int, has_epoch: bool) -> bool:
        """Tell whether report ``number`` of a trial changes nothing here, so that a replay may leave it out."""
        return type(self.inner) in (GangScheduler, FIFOScheduler)

    def explain(self, trial_id: str, reason: str | None) -> None:
        """Set the reason of the last decision on a trial; None forgets it."""
        if reason is None:
            self._reasons.pop(trial_id, None)
        else:
            self._reasons[trial_id] = reason

    # -- Tune's interface -----------------------------------------------------------------------------

    @property
    def mode(self) -> str | None:
        """Return "min", "max", or None if Tune has yet to set it."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Set metric and mode from Tune; return False if they contradict the scheduler's own."""
        check_mode(mode, type(self).__name__)
        if (metric and self._metric not in (None, metric)) or (mode and self._mode not in (None, mode)):
            return False
        self._mode = mode or self._mode
        self._metric = metric or self._metric or (DEFAULT_METRIC if self._mode else None)
        return True

    def on_trial_end(self, trial: Trial) -> None:
        """Forget a trial that completed, failed or was removed; one that failed may be added again.

        Called by Tune's ``on_trial_complete``, ``on_trial_error`` and ``on_trial_remove``.
        """
        self.explain(trial.trial_id, None)

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: Mapping[str, Any]) -> None:
        """Take the end of a trial that ran, with its last report."""
        self.on_trial_end(trial)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Take a failure."""
        self.on_trial_end(trial)

    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        """Take the end of a trial that waited or was paused."""
        self.on_trial_end(trial)

    def debug_string(self) -> str:
        """Return text for Tune's own table."""
        return f"Using {type(self).__name__}"

    # -- for subclasses -------------------------------------------------------------------------------

    def _check_judged(self) -> None:
        """Raise SettingsError unless there is a metric and a mode to compare trials by."""
        if not self._metric or not self._mode:
            who = type(self).__name__
            raise SettingsError(
                f"{who} needs a metric and a mode to compare trials by, and has metric={self._metric!r}, "
                f"mode={self._mode!r}. Give both to {who}(metric=..., mode='min') or to the sweep (with a plain Tuner: "
                "TuneConfig(metric=..., mode='min'))."
            )

    def _loss(self, result: Mapping[str, Any]) -> float | None:
        """Return the loss of a report; None if its metric is missing or no number."""
        value = number(result.get(self._metric or DEFAULT_METRIC))
        if value is None or not math.isfinite(value):
            return None if value is None else WORST
        return -value if self._mode == "max" else value

    def _reported(self, result: Mapping[str, Any]) -> str:
        """Return what a report says of the metric, in words: ``reported loss=nan``."""
        name = self._metric or DEFAULT_METRIC
        return f"reported {name}={number(result.get(name))}"


class _Adapted(GangScheduler):
    """Another library's scheduler: Tune's calls go to it, and the rest is answered from its class."""

    _FORWARDED: Final = (
        *("set_search_properties", "on_trial_add", "on_trial_result", "on_trial_complete", "on_trial_error"),
        *("on_trial_remove", "choose_trial_to_run", "debug_string"),
    )

    def __init__(self, inner: TrialScheduler) -> None:
        super().__init__()
        self._inner: Any = inner
        for name in self._FORWARDED:
            setattr(self, name, getattr(inner, name))
        self.changes_configs = isinstance(inner, _CHANGE)
        self.replayable = not isinstance(inner, _NOT_REPLAYABLE)
        self.time_attr = getattr(inner, "_time_attr", TRAINING_ITERATION)
        self.max_t = getattr(inner, "_max_t", None)
        self.grace_period = getattr(inner, "_grace_period", None)

    @property
    def inner(self) -> TrialScheduler:
        """The scheduler that is adapted."""
        return self._inner  # type: ignore[no-any-return]

    @property
    def metric(self) -> str | None:
        """The metric, if it has one already."""
        return self._inner.metric  # type: ignore[no-any-return]

    @property
    def mode(self) -> str | None:
        """The mode, if it has one already: Ray has no public name for it."""
        return getattr(self._inner, "_mode", getattr(self._inner, "mode", None))

    def trains_on(self, tune_controller: TuneController, trial: Trial) -> bool:
        """Leave the trial out from now on, as one that has ended: another library's scheduler takes it for paused."""
        self._inner.on_trial_remove(tune_controller, trial)
        return False

    @property
    def supports_buffered_results(self) -> bool:
        """Whether the scheduler need not see each report at once."""
        return bool(self._inner.supports_buffered_results)

    def initial_decision(self) -> Continue:
        """Ask at every report, but never under Ray's FIFO, which only answers CONTINUE."""
        return Continue(until=None if type(self._inner) is FIFOScheduler else 1)


def adapted(scheduler: TrialScheduler) -> GangScheduler:
    """Return a scheduler with tunelight's contract: itself, if it derives from :class:`GangScheduler`."""
    return scheduler if isinstance(scheduler, GangScheduler) else _Adapted(scheduler)


# --- Parts that schedulers share: reading reports, sending decisions to gangs, checking settings ----------

logger = logging.getLogger(__name__)

WORST: Final = math.inf
"""The loss of NaN and both infinities: they count in a rung, behind everything else."""


def tell(trial: Trial, decision: Continue | Stop | Resize | Adopt) -> None:
    """Send a decision to the trial's actor; it arrives before the trial's next ``step()``. Experimental."""
    call_actor(trial, "decide", decision)


def call_actor(trial: Trial, method_name: str, *args: Any) -> Any:
    """Call a method of the trial's actor and return a reference to its answer; None if it has none. Never raises."""
    try:
        method = getattr(trial_actor(trial), method_name, None)
        return None if method is None else method.remote(*args)
    except Exception as error:  # noqa: BLE001 - whatever a dead actor raises would end the sweep
        logger.debug("trial %s was not reached for %s: %s", trial.trial_id, method_name, error)
        return None


def number(value: Any) -> float | None:
    """Return a number as a float, including NaN and infinities; None for anything else."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of more than one value
        return None
    except OverflowError:  # an integer beyond float
        return math.inf


class End:
    """Tells which trials train on past ``max_t``, where they should have ended by themselves (None: not known).

    Reports count as epochs, unless they name their epoch: then there may be several in an epoch, and one after the
    last, for what the training code does then.
    """

    def __init__(self, max_t: float | None, counted_by: str = TRAINING_ITERATION) -> None:
        self._max_t = math.inf if max_t is None else max_t
        self._by_reports = counted_by == TRAINING_ITERATION
        self.first_epochs: dict[str, float] = {}  # 0, as Lightning counts, or 1
        self.reason = f"trained on past max_t={self._max_t:.12g}"
        """Why a trial is stopped that trains on past the end, in words."""

    def past(self, trial_id: str, result: Mapping[str, Any], at: float) -> bool:
        """Tell whether a trial's report, ``at`` this progress, is one past the end."""
        epoch = number(result.get("epoch")) if self._by_reports else None
        first = self.first_epochs.get(trial_id)
        if epoch is not None and first is None:
            first = self.first_epochs[trial_id] = min(epoch, 1.0)
        if at <= self._max_t:
            return False
        return first is None if epoch is None else epoch >= self._max_t + (first or 0.0)

    def bound(self, at: float) -> int | None:
        """Return the first report past the end, which needs an answer; None for a trial that is past it."""
        return math.floor(self._max_t) + 1 if math.isfinite(self._max_t) and at <= self._max_t else None


def top_count(n: int, eta: float) -> int:
    """Return the size of the best 1/eta of ``n`` trials: floor(n / eta)."""
    return math.floor(n / eta + 1e-9)  # 11 / 1.1 is 9.999..., and means 10


def check_mode(mode: str | None, who: str) -> None:
    """Raise SettingsError unless ``mode`` is "min", "max" or None."""
    if mode not in (None, *MODES):
        raise SettingsError(f"{who}'s mode must be 'min' or 'max', and is {mode!r}.{guess(mode, MODES)}")


def check_halving(who: str, max_t: Any, grace_period: Any, reduction_factor: Any) -> None:
    """Raise SettingsError unless the settings of successive halving are in range and agree."""
    for name, value in (("max_t", max_t), ("grace_period", grace_period)):
        checks.number(f"{who}'s {name}", value)
    if checks.number(f"{who}'s reduction_factor", reduction_factor) <= 1:
        raise SettingsError(
            f"{who}'s reduction_factor must be a number above 1 (of how many trials one goes on), and is "
            f"{reduction_factor!r}. The usual ones are 2, 3 and 4."
        )
    if grace_period > max_t:
        raise SettingsError(
            f"{who}'s grace_period must be at most max_t, and is {grace_period!r} with max_t={max_t!r}: no trial would "
            "ever be stopped or paused. Lower grace_period, or train longer."
        )
