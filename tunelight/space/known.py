"""Configurations that need no search, ``baselines="known"``: what often does well, by the keys' names and domains."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from typing import Any, Final

from tunelight.errors import SettingsError
from tunelight.space.domains import spell, whole_bounds
from tunelight.space.space import SearchSpace

_RATE: Final = re.compile(r"(?!min_|end_|final_|warmup_|log_)(.*_)?(lr|learning_?rate)\d*")
_DROPOUT: Final = re.compile(r".*dropout.*|(?!lr_)(.*_)?(p?drop|drop_(rate|prob|path|path_rate))")
_DECAY: Final = re.compile(r"(.*_)?(weight_?decay|wd)")
_WITHOUT_SCHEDULE: Final = {"schedulefree": ("schedulefree", 1e-3), "prodigy": ("prodigyopt", 1.0)}
"""By a part of the optimizer's name: the package that has it, and its learning rate."""


@dataclass(frozen=True)
class _Plan:
    """What a baseline is to be like."""

    rate: float
    decay: float
    optimizers: Sequence[str] = ("adamw", "adamwtorch", "adam")
    """In order of preference, in small letters and digits."""
    exact: bool = False
    """Whether no other learning rate will do."""


def known_baselines(space: SearchSpace) -> tuple[dict[str, Any], ...]:
    """Return up to three configurations that often do well, without those that break a constraint.

    The first two are for Adam, with learning rates of 3e-4 and 1e-3; the third has an optimizer without a schedule,
    where the space has one by name and its package is installed. Values that the space names by ``around`` come first.

    Raises: SettingsError for a space with a grid.
    """
    axes = [key for key, domain in space.domains.items() if isinstance(domain, Mapping)]
    if axes:
        raise SettingsError(
            f"baselines='known' makes no configurations for a grid, and {', '.join(axes)} is searched by grid_search, "
            "which tries each value anyway. Write choice there, or list the baselines."
        )
    plans = [_Plan(3e-4, 0.0), _Plan(1e-3, 0.01)]
    named = {name for domain in space.domains.values() for name in map(_name, getattr(domain, "categories", ()))}
    for part, (package, rate) in _WITHOUT_SCHEDULE.items():
        if find_spec(package) is not None:
            plans += [_Plan(rate, 0.01, [name], part == "prodigy") for name in sorted(named) if part in name][:1]
    found: list[dict[str, Any]] = []
    for plan in plans:
        values = _values(space, plan)
        if values is not None and values not in found and len(found) < 3:
            found.append(values)
    return tuple(space.written(values) for values in found)


def _values(space: SearchSpace, plan: _Plan) -> dict[str, Any] | None:
    """Return a configuration by dotted key; None where the space has none like it."""
    values = space.draw(lambda key, domain: _value(key, domain, plan))
    rates = [values[key] for key in values if _RATE.fullmatch(_last(key))]
    refused = plan.exact and any(rate != plan.rate for rate in rates)
    return None if refused or space.broken(values) else values


def _value(key: str, domain: Any, plan: _Plan) -> Any:
    import numpy as np

    from tunelight.space.more_domains import prior  # imports Ray

    wanted = _wanted(_last(key), plan)
    if (around := prior(domain)) is not None and not (plan.exact and wanted == plan.rate):
        return around
    match spell(domain):
        case ("choice" | "ordinal") as kind, [values]:
            return _of_choices(values, kind == "ordinal", wanted, plan)
        case (("randn" | "qrandn"), [mean, _, *step]):
            return round(mean / step[0]) * step[0] if step else float(mean)
        case name, [low, high, *step] if "uniform" in name or "randint" in name:
            return _number(name, low, high, step[0] if step else None, wanted if low >= 0 else None)
    return domain.sample(random_state=np.random.RandomState(0))


def _last(key: str) -> str:
    return key.rpartition(".")[2].lower().replace("-", "_")


def _wanted(name: str, plan: _Plan) -> float | None:
    """Return the value that a key of this name should have; None where its name says nothing."""
    by_name = ((_RATE, plan.rate), (_DROPOUT, 0.0), (_DECAY, plan.decay))
    return next((wanted for pattern, wanted in by_name if pattern.fullmatch(name)), None)


def _number(name: str, low: Any, high: Any, step: Any, wanted: float | None) -> Any:
    """Return the number of a domain that is nearest to a wanted one, or its middle on its own scale."""
    middle = math.sqrt(low * high) if "log" in name else (low + high) / 2
    if "int" in name:
        first, last = whole_bounds(low, high, step or 1)
        middle = math.sqrt(first * last) if "log" in name else (first + last) / 2
        return min(max(round((middle if wanted is None else wanted) / (step or 1)) * (step or 1), first), last)
    value = float(f"{middle:.3g}") if wanted is None else wanted
    if step is not None:  # a bound may miss a multiple of the step by a rounding error
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        value = float(f"{min(max(round(value / step), first), last) * step:.12g}")
    return float(min(max(value, low), high))


def _of_choices(values: Sequence[Any], ordered: bool, wanted: float | None, plan: _Plan) -> Any:
    """Return the choice that a baseline takes."""
    names = [_name(value) for value in values]
    for optimizer in plan.optimizers:
        if optimizer in names:
            return values[names.index(optimizer)]
    numbers = all(isinstance(value, Real) for value in values)
    if numbers and wanted is not None:
        log = wanted > 0 and min(values) > 0
        return min(values, key=lambda value: abs(math.log(value / wanted)) if log else abs(value - wanted))
    if ordered:
        return values[(len(values) - 1) // 2]
    if numbers and not any(isinstance(value, bool) for value in values):
        return sorted(values)[(len(values) - 1) // 2]
    return values[0]


def _name(value: Any) -> str:
    """Return what an optimizer is called, in small letters and digits: adamw of "torch.optim.AdamW"."""
    text = str(value.get("class_path", "") if isinstance(value, Mapping) else value)
    return re.sub(r"[^a-z0-9]", "", re.split(r"[.:]", text)[-1].lower())
