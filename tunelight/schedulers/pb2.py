"""PB2's choice of a configuration: where a population is likely to gain most, by its gains so far.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits" (https://arxiv.org/abs/2002.02518): a Gaussian process from time and hyperparameters to the change of the
metric over an interval, and the configuration of the highest upper confidence bound. Here gains are ranked, so that
one diverging training does not hide the differences between the others, and time is a dimension with its own length
scale.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np

from tunelight.errors import SettingsError
from tunelight.schedulers.common import is_number
from tunelight.schedulers.mutation import stepped
from tunelight.settings.dotted import holder_of
from tunelight.space.domains import spell

_KINDS: Final = ("uniform", "quniform", "loguniform", "qloguniform")
_REMEMBERED: Final = 200
"""How many of the last intervals are used: the cost of a Gaussian process grows with their cube."""
_LEAST: Final = 2
"""How many intervals are needed for each dimension before they are used."""
_DRAWN: Final = 500
"""How many candidates are drawn from the domains, and as many near the parent's configuration."""
_NEAR: Final = 0.1
"""The standard deviation of the latter, in widths of a domain."""
_BOLD: Final = 2.0
"""How many standard deviations above the mean the upper confidence bound lies."""


class Interval(NamedTuple):
    """The values that a member has trained with since its report ``number``, and its loss then."""

    number: int
    loss: float
    point: tuple[float, ...]
    """Its values, from 0 to 1 within their domains."""


class Gains:
    """What members of a population gained between comparisons, and with which values.

    Raises: SettingsError without scikit-learn, or if there is no real number with bounds among ``domains``.
    """

    def __init__(self, domains: Mapping[str, Any]) -> None:
        self._domains = {key: domain for key, domain in domains.items() if spell(domain)[0] in _KINDS}
        if not self._domains:
            raise SettingsError(
                "GangPBT(explore='pb2') chooses real numbers with bounds (tune.uniform, tune.loguniform, ...), and "
                f"finds none among what is mutated: {', '.join(domains) or 'nothing'}. Use explore='perturb'."
            )
        self._seen: deque[tuple[Interval, float]] = deque(maxlen=_REMEMBERED)
        self._open: dict[str, Interval] = {}

    def heard(self, trial_id: str, number: int, loss: float, config: Mapping[str, Any], *, due: bool) -> None:
        """Learn from a member's report; a ``due`` one ends an interval."""
        begun = self._open.get(trial_id)
        if begun is None:
            self.begin(trial_id, number, loss, config)
        elif due:
            if math.isfinite(begun.loss) and number > begun.number:
                self._seen.append((begun, (begun.loss - loss) / (number - begun.number)))
            self._open[trial_id] = Interval(number, loss, begun.point)

    def begin(self, trial_id: str, number: int, loss: float, config: Mapping[str, Any]) -> None:
        """Begin a member's interval, with its current loss and the ``config`` that it trains on with."""
        self._open[trial_id] = Interval(number, loss, self._point(config))

    def running(self, trial_id: str) -> Interval | None:
        """Return the current interval of a member, if any."""
        return self._open.get(trial_id)

    def go_back(self, trial_id: str, interval: Interval | None) -> None:
        """Restore a member's earlier interval; None: its next report begins one."""
        self._open.pop(trial_id, None)
        if interval is not None:
            self._open[trial_id] = interval

    def choose(
        self, trial_id: str, number: int, config: Mapping[str, Any], rng: np.random.RandomState
    ) -> dict[str, float]:
        """Return the most promising values, by dotted key, from report ``number`` on, for one that adopts ``config``.

        Nothing while too little is known. The values that others train with now count with their expected gain (the
        paper's batches), so that members that choose at the same time do not all choose the same.
        """
        parent = self._point(config)
        drawn = rng.random_sample((_DRAWN, len(parent)))
        near = np.clip(parent + _NEAR * rng.standard_normal((_DRAWN, len(parent))), 0.0, 1.0)
        if len(self._seen) < _LEAST * (len(parent) + 1):
            return {}
        points = np.vstack([drawn, near, [parent]])
        others = [one.point for key, one in self._open.items() if key != trial_id]
        promise = _promise(list(self._seen), number, others, points)
        best = points[int(np.argmax(promise))]
        return {
            key: _value(domain, float(place))
            for (key, domain), place in zip(self._domains.items(), best, strict=True)
            if is_number(_found(config, key))
        }

    def state(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"seen": [[*begun, gain] for begun, gain in self._seen], "open": dict(self._open)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load what ``state`` returned."""
        self._seen.clear()
        self._seen.extend((_interval(begun), gain) for *begun, gain in state["seen"])
        self._open = {key: _interval(begun) for key, begun in state["open"].items()}

    def _point(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        """Return a configuration as a point in the unit cube; 0.5 for missing values."""
        return tuple(_place(domain, _found(config, key)) for key, domain in self._domains.items())


def check_installed() -> None:
    """Raise SettingsError without scikit-learn."""
    if find_spec("sklearn") is None:
        raise SettingsError(
            "GangPBT(explore='pb2') needs scikit-learn, which is not installed here. Install it with: "
            "pip install 'tunelight[pb2]' (or pip install scikit-learn), or use explore='perturb'."
        )


def _promise(
    seen: list[tuple[Interval, float]], number: int, others: list[tuple[float, ...]], points: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the upper confidence bound of the gain at each of ``points``, at report ``number``."""
    from sklearn.exceptions import ConvergenceWarning  # an extra, and it takes a second
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    first, last = seen[0][0].number, max(number, seen[-1][0].number)

    def at(when: float, where: Any) -> list[float]:
        return [(when - first) / max(last - first, 1), *where]

    known = np.array([at(begun.number, begun.point) for begun, _ in seen])
    ranks = np.unique([gain for _, gain in seen], return_inverse=True)[1].astype(float)
    gains = (ranks - ranks.mean()) / (ranks.std() or 1.0)
    scales = RBF(np.full(known.shape[1], 0.5), (0.1, 10.0))
    kernel = ConstantKernel(1.0, (0.1, 10.0)) * scales + WhiteKernel(0.3, (0.01, 2.0))
    with warnings.catch_warnings(), threadpool_limits(1):  # more threads take as long, and take cores from training
        warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound says that it does not matter
        process = GaussianProcessRegressor(kernel).fit(known, gains)
        if others:
            pending = np.array([at(number, where) for where in others])
            expected = process.predict(pending)
            process = GaussianProcessRegressor(process.kernel_, optimizer=None)
            process.fit(np.vstack([known, pending]), np.concatenate([gains, expected]))
        mean, deviation = process.predict(np.array([at(number, where) for where in points]), return_std=True)
    noise = process.kernel_.k2.noise_level
    bound: np.ndarray[Any, Any] = mean + _BOLD * np.sqrt(np.maximum(deviation**2 - noise, 0.0))
    return bound


def _interval(plain: Any) -> Interval:
    number, loss, point = plain
    return Interval(number, loss, tuple(point))


def _found(config: Mapping[str, Any], key: str) -> Any:
    holder, last = holder_of(dict(config), key)
    return holder.get(last)


def _place(domain: Any, value: Any) -> float:
    """Return a value's position in its domain, from 0 to 1."""
    name, (lower, upper, *_) = spell(domain)
    if not is_number(value):
        return 0.5
    value = min(max(value, lower), upper)
    if "log" in name:
        value, lower, upper = math.log(value), math.log(lower), math.log(upper)
    return float((value - lower) / (upper - lower)) if upper > lower else 0.5


def _value(domain: Any, place: float) -> float:
    """Return the value at a position between 0 and 1 in a domain."""
    name, (lower, upper, *_) = spell(domain)
    if "log" in name:
        value = math.exp(math.log(lower) + place * (math.log(upper) - math.log(lower)))
    else:
        value = lower + place * (upper - lower)
    return float(min(max(stepped(value, domain), lower), upper))
