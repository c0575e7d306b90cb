"""Parts that schedulers share: reading reports, sending decisions to gangs, checking settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tunelight.compat.ray import TRAINING_ITERATION, trial_actor
from tunelight.errors import SettingsError, guess
from tunelight.messages import Adopt, Continue, Resize, Stop
from tunelight.settings import checks

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

logger = logging.getLogger(__name__)

MODES: Final = ("min", "max")
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
        self._first_epochs: dict[str, float] = {}  # 0, as Lightning counts, or 1
        self.reason = f"trained on past max_t={self._max_t:.12g}"
        """Why a trial is stopped that trains on past the end, in words."""

    def past(self, trial_id: str, result: Mapping[str, Any], at: float) -> bool:
        """Tell whether a trial's report, ``at`` this progress, is one past the end."""
        epoch = number(result.get("epoch")) if self._by_reports else None
        first = self._first_epochs.get(trial_id)
        if epoch is not None and first is None:
            first = self._first_epochs[trial_id] = min(epoch, 1.0)
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
