"""Ray Tune's domains as Optuna's distributions, and values converted between the two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial, TrialState, create_trial

from tunelight.space.domains import spell, whole_bounds
from tunelight.space.plain import to_plain_config

_PLAIN = (bool, int, float, str)


@dataclass(frozen=True)
class Parameter:
    """A key of a space as Optuna's distribution; ``choices``: its values by the texts that stand for them in the study.

    Texts stand for choices that are no plain values, or that ``==`` does not tell apart: Optuna's storages cannot hold
    them.
    """

    key: str
    distribution: BaseDistribution
    choices: Mapping[str, Any] | None = None

    def suggest(self, trial: Trial) -> Any:
        """Return what the study's sampler suggests for a trial."""
        one = self.distribution
        if isinstance(one, FloatDistribution):
            return trial.suggest_float(self.key, one.low, one.high, step=one.step, log=one.log)
        if isinstance(one, IntDistribution):
            return trial.suggest_int(self.key, one.low, one.high, step=one.step, log=one.log)
        assert isinstance(one, CategoricalDistribution)  # there are these three
        chosen: Any = trial.suggest_categorical(self.key, one.choices)
        return chosen if self.choices is None else self.choices[chosen]

    def stored(self, value: Any) -> Any:
        """Return a value, also a recorded one, as the study stores it. Raises: ValueError outside of the domain."""
        if self.choices is not None:
            found = [text for text, choice in self.choices.items() if _same(choice, value)]
            if not found:
                raise ValueError("it is none of the choices")
            value = found[0]
        elif isinstance(self.distribution, IntDistribution) and value != int(value):
            raise ValueError("it is no whole number")
        create_trial(  # Optuna's own check
            state=TrialState.RUNNING, params={self.key: value}, distributions={self.key: self.distribution}
        )
        return value


@dataclass(frozen=True)
class QuantileParameter(Parameter):
    """A key whose quantile the study has."""

    domain: Any = None

    def suggest(self, trial: Trial) -> Any:
        """Return what the study's sampler suggests for a trial."""
        return self.domain.value(trial.suggest_float(self.key, 0.0, 1.0))

    def stored(self, value: Any) -> Any:
        """Return a value's quantile. Raises: ValueError outside of the domain."""
        if (quantile := self.domain.quantile(value)) is None:
            raise ValueError("it is none of the values")
        return quantile


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def parameter_of(key: str, domain: Any) -> Parameter | None:
    """Return a key's domain as Optuna's distribution; None if Optuna has no such distribution.

    It has none for ``qloguniform``, ``qlograndint``, ``randn``, ``qrandn``, ``sample_from`` and users' own domains.
    An upper bound that Ray Tune excludes (``randint``, ``lograndint``) is excluded there too.
    """
    name, arguments = spell(domain)
    if name in ("choice", "ordinal", "grid_search"):
        return _categorical(key, arguments[0])
    made: BaseDistribution
    match name, arguments:
        case "uniform", [low, high]:
            made = FloatDistribution(low, high)
        case "quniform", [low, high, q]:
            made = FloatDistribution(low, high, step=q)
        case "loguniform", [low, high]:
            made = FloatDistribution(low, high, log=True)
        case (("randint" | "qrandint"), [low, high, *q]):
            made = IntDistribution(*whole_bounds(low, high, *q), step=q[0] if q else 1)
        case "lograndint", [low, high]:
            made = IntDistribution(low, high - 1, log=True)
        case _:
            return None
    return Parameter(key, made)


def _categorical(key: str, values: Sequence[Any]) -> Parameter:
    """Return a choice; texts stand for its values if these are not plain, or equal each other."""
    usual = all(value is None or type(value) in _PLAIN for value in values)
    if usual and len(set(values)) == len(values):
        return Parameter(key, CategoricalDistribution(tuple(values)))
    texts: dict[str, Any] = {}
    for value in values:
        text = value if isinstance(value, str) else json.dumps(to_plain_config(value))
        texts[text if text not in texts else f"{text} ({len(texts)})"] = value
    labels: tuple[CategoricalChoiceType, ...] = tuple(texts)
    return Parameter(key, CategoricalDistribution(labels), texts)
