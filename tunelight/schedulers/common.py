"""Parts that schedulers share: reading reports, sending decisions to gangs, checking settings."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tunelight import stores
from tunelight.compat.ray import DEFAULT_METRIC, TRAINING_ITERATION, trial_actor
from tunelight.errors import SettingsError, guess
from tunelight.messages import Adopt, Continue, Resize, Stop

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

logger = logging.getLogger(__name__)

MODES: Final = ("min", "max")
WORST: Final = math.inf
"""The loss of NaN and both infinities: they count in a rung, behind everything else."""


class ByMetric:
    """A mixin for schedulers that compare trials by a metric, which Tune may set."""

    _metric: str | None
    _mode: str | None

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

    def _loss(self, result: Mapping[str, Any]) -> float | None:
        """Return the loss of a report; None if its metric is missing or no number."""
        value = number(result.get(self._metric or DEFAULT_METRIC))
        return None if value is None else loss_of(value, self._mode)

    def _reported(self, result: Mapping[str, Any]) -> str:
        """Return what a report says of the metric, in words: ``reported loss=nan``."""
        name = self._metric or DEFAULT_METRIC
        return f"reported {name}={number(result.get(name))}"


class Reasons:
    """A mixin for schedulers that say why they stop or pause a trial."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    def reason(self, trial_id: str) -> str | None:
        """Return in words why the last decision on a trial was to stop or to pause it.

        None if it was to go on, or if the trial has ended since.
        """
        return self._reasons.get(trial_id)

    def _explain(self, trial_id: str, reason: str | None) -> None:
        """Set the reason of the last decision on a trial; None forgets it."""
        if reason is None:
            self._reasons.pop(trial_id, None)
        else:
            self._reasons[trial_id] = reason


def write_state(path: str, state: Mapping[str, Any]) -> None:
    """Write a scheduler's state as JSON, atomically."""
    stores.write_atomically(path, json.dumps(state))


def tell(trial: Trial, decision: Continue | Stop | Resize | Adopt) -> None:
    """Send a decision to the trial's actor; it arrives before the trial's next ``step()``."""
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


def loss_of(value: float, mode: str | None) -> float:
    """Return a metric's value as a loss: less is better, NaN and infinities are worst."""
    if not math.isfinite(value):
        return WORST
    return -value if mode == "max" else value


class End:
    """Tells which trials train on past ``max_t``, where they should have ended by themselves (infinite: not known).

    Reports count as epochs, unless they name their epoch: then there may be several in an epoch, and one after the
    last, for what the training code does then.
    """

    def __init__(self, max_t: float, counted_by: str = TRAINING_ITERATION) -> None:
        self._max_t = max_t
        self._by_reports = counted_by == TRAINING_ITERATION
        self._say_epochs: set[str] = set()

    @property
    def reason(self) -> str:
        """Why a trial is stopped that trains on past the end, in words."""
        return f"trained on past max_t={in_words(self._max_t)}"

    def past(self, trial_id: str, result: Mapping[str, Any], at: float) -> bool:
        """Tell whether a trial's report, ``at`` this progress, is one past the end."""
        epoch = number(result.get("epoch")) if self._by_reports else None
        if epoch is not None:
            self._say_epochs.add(trial_id)
        if at <= self._max_t:
            return False
        return trial_id not in self._say_epochs if epoch is None else epoch >= self._max_t

    def bound(self, at: float) -> int | None:
        """Return the first report past the end, which needs an answer; None for a trial that is past it."""
        return math.floor(self._max_t) + 1 if math.isfinite(self._max_t) and at <= self._max_t else None


def top_count(n: int, eta: float) -> int:
    """Return the size of the best 1/eta of ``n`` trials: floor(n / eta)."""
    return math.floor(n / eta + 1e-9)  # 11 / 1.1 is 9.999..., and means 10


def in_words(progress: float) -> str:
    """Return a rung or another measure of progress as text, without what rounding left."""
    return f"{progress:.12g}"


def whole(eta: float) -> float:
    """Return an eta that is a whole number as int, so that milestones are whole."""
    return int(eta) if eta == int(eta) else eta


def is_number(value: Any) -> bool:
    """Tell whether a setting is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_mode(mode: str | None, who: str) -> None:
    """Raise SettingsError unless ``mode`` is "min", "max" or None."""
    if mode is not None and mode not in MODES:
        raise SettingsError(f"{who}'s mode must be 'min' or 'max', and is {mode!r}.{guess(mode, MODES)}")


def check_positive(who: str, **values: Any) -> None:
    """Raise SettingsError for the first value that is not a finite number above 0."""
    for name, value in values.items():
        if not is_number(value) or value <= 0:
            raise SettingsError(f"{who}'s {name} must be a number above 0, and is {value!r}.")


def check_judged(who: str, metric: str | None, mode: str | None) -> None:
    """Raise SettingsError unless there is a metric and a mode to compare trials by."""
    if not metric or not mode:
        raise SettingsError(
            f"{who} needs a metric and a mode to compare trials by, and has metric={metric!r}, "
            f"mode={mode!r}. Give both to {who}(metric=..., mode='min') or to the sweep "
            "(with a plain Tuner: TuneConfig(metric=..., mode='min'))."
        )


def agreed(own: dict[str, Any], saved: Mapping[str, Any], who: str, path: str) -> dict[str, Any]:
    """Return a scheduler's settings, with the saved metric and mode if it lacks them.

    Raises: SettingsError if the others differ: the saved state would mean something else under them.
    """
    judged: dict[str, Any] = {name: own[name] or saved[name] for name in ("metric", "mode") if name in own}
    both = {**own, **judged}
    differ = [f"{name}={both[name]!r} (saved: {saved.get(name)!r})" for name in both if both[name] != saved.get(name)]
    if differ:
        raise SettingsError(
            f"{path} was saved by {who} with other settings than this one: {', '.join(differ)}. Restore it with the "
            "settings it was saved under."
        )
    return both
