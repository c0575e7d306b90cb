"""What W&B draws and no domain of Ray Tune does: by the quantiles of its own package ``sweeps``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Final

from tunelight.space.more_domains import Quantiles

_INSIDE: Final = 1e-12
"""How far from 0 and 1 a quantile stays whose value would be infinite."""


class OfWandb(Quantiles):
    """A parameter of a W&B sweep that no domain of Ray Tune equals, by its own quantiles, as W&B draws it.

    Rounded to multiples of ``q`` (``q_uniform``, ``q_normal``, ...) its values are whole if ``q`` is, and the last ones
    may lie half a step outside of the bounds.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        super().__init__("wandb_parameter", dict(written))
        kind = str(written["distribution"])
        self._kind, self._step = kind.removeprefix("q_"), written.get("q", 1.0) if kind.startswith("q_") else None
        self._mu, self._sigma = written.get("mu", 0.0), written.get("sigma", 1.0)
        self._low, self._high = written.get("min", 0.0), written.get("max", 1.0)
        if self._kind == "log_uniform_values":
            self._low, self._high = math.log(self._low), math.log(self._high)
        self._shares = list(itertools.accumulate(written.get("probabilities", ())))

    def value(self, quantile: float) -> Any:
        """Return the value at a quantile, from 0 to 1."""
        if self._shares:
            place = sum(share <= quantile * self._shares[-1] for share in self._shares)
            return self.written["values"][min(place, len(self._shares) - 1)]
        found = self._real(min(max(quantile, 0.0), 1.0))
        if self._step is None:
            return found
        rounded = round(found / self._step) * self._step
        return int(rounded) if isinstance(self._step, int) else float(rounded)

    def _real(self, quantile: float) -> float:
        inside = min(max(quantile, _INSIDE), 1 - _INSIDE)
        if self._kind in ("normal", "log_normal"):
            found = self._mu + self._sigma * NormalDist().inv_cdf(inside)
        elif self._kind == "beta":
            from scipy.special import betaincinv

            return float(betaincinv(self.written.get("a", 1), self.written.get("b", 1), quantile))
        else:
            found = self._low + quantile * (self._high - self._low)
        return math.exp(found) if self._kind.startswith("log_") else found

    def quantile(self, value: Any) -> float | None:
        """Return the quantile of a value; None where it is none of the values."""
        if self._shares:
            parts = zip(self.written["values"], (0.0, *self._shares), self._shares, strict=False)
            return next(
                ((low + high) / 2 for one, low, high in parts if type(one) is type(value) and one == value), None
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self._kind == "beta":
            from scipy.special import betainc

            return float(betainc(self.written.get("a", 1), self.written.get("b", 1), min(max(value, 0.0), 1.0)))
        if self._kind.startswith("log_"):
            value = math.log(value) if value > 0 else -math.inf
        if self._kind in ("normal", "log_normal"):
            return NormalDist().cdf((value - self._mu) / self._sigma)
        return float(min(max((value - self._low) / (self._high - self._low), 0.0), 1.0))
