"""The kinds of domains: one row for each, which the rest of the package asks for all that differs between them.

Its methods take a domain of a space, a Ray Tune ``Domain``; :func:`kind_of` finds its row. A new kind is a row of
``KINDS``. Where Ray Tune has no function of its name, ``more_domains`` has one, which returns a ``Domain`` whose
attribute ``kind`` is that name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from tunelight.errors import SpaceError, guess, is_domain, refuse_unknown
from tunelight.settings.checks import flatten
from tunelight.space.plain import equal, same, to_plain_config

if TYPE_CHECKING:
    from numpy.random import RandomState
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_CLOSE: Final = 1e-9
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""Types of choices that Optuna's storages hold."""


@dataclass(frozen=True)
class Parameter:
    """A key of a space as Optuna's distribution; ``choices``: its values by the texts that stand for them in the study.

    Texts stand for choices that are no plain values, or that ``==`` does not tell apart: Optuna's storages cannot hold
    them. For a ``domain`` the study has the quantiles of its values.
    """

    key: str
    distribution: BaseDistribution
    choices: Mapping[str, Any] | None = None
    domain: Any = None

    def suggest(self, trial: Trial) -> Any:
        """Return what the study's sampler suggests for a trial."""
        from optuna.distributions import FloatDistribution, IntDistribution

        dist: Any = self.distribution
        if isinstance(dist, FloatDistribution):
            value = trial.suggest_float(self.key, dist.low, dist.high, step=dist.step, log=dist.log)
            return value if self.domain is None else self.domain.value(value)
        if isinstance(dist, IntDistribution):
            return trial.suggest_int(self.key, dist.low, dist.high, step=dist.step, log=dist.log)
        chosen: Any = trial.suggest_categorical(self.key, dist.choices)
        return chosen if self.choices is None else self.choices[chosen]

    def stored(self, value: Any) -> Any:
        """Return a value, also a recorded one, as the study stores it. Raises: ValueError outside of the domain."""
        from optuna.distributions import IntDistribution
        from optuna.trial import TrialState, create_trial

        if self.choices is not None:
            value = next((text for text, choice in self.choices.items() if equal(choice, value)), None)
        elif self.domain is not None:
            value = self.domain.quantile(value)
        elif isinstance(self.distribution, IntDistribution) and value != int(value):
            raise ValueError("it is no whole number")
        create_trial(  # Optuna's own check, which refuses None where that is no choice
            state=TrialState.RUNNING, params={self.key: value}, distributions={self.key: self.distribution}
        )
        return value


@dataclass(frozen=True)
class Kind:
    """A kind of domain: of numbers, or, without arguments, a user's own."""

    name: str
    about: str = ""
    arguments: tuple[str, ...] = ()
    """Their names: ``values`` is a list, ``value`` anything, ``q`` the step between numbers."""
    number: type[float] | type[int] | None = None
    """The type of its values, where they are numbers."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    log: bool = False
    """Whether all orders of magnitude are drawn alike."""
    role: Literal["drawn", "fixed", "grid", "function"] = "drawn"
    """Who gives a key its value: a searcher, the space itself, the points of its grid, or a function, called last."""
    in_python: bool = True
    """Whether ``tunelight`` has a function of its name."""
    in_words: ClassVar[bool] = True
    """Whether a command line can describe it."""

    def read(self, given: Any, *, in_file: bool = False) -> dict[str, Any]:
        """Return arguments by name, from a list of them or a mapping. Raises: SpaceError for wrong ones."""
        names = self.arguments
        if names == _VALUE:
            named, came = {"value": given}, 1
        elif isinstance(given, Mapping):
            named, came = dict(given), len(given)
            refuse_unknown(f"{self.name} takes no", given, names, "It takes", SpaceError)
        else:
            listed = list(given) if isinstance(given, list | tuple) else [given]
            if (in_file or names != _VALUES) and (parted := without_commas(listed)) is not None:
                raise SpaceError(f"commas stand between arguments: {{{self.name}: [{parted}]}}.")
            listed = [given] if names == _VALUES else listed
            named, came = dict(zip(names, listed, strict=False)), len(listed)
        if came > len(names) or not named.keys() >= set(names) - self.defaults.keys():
            least = f"{len(names) - len(self.defaults)} to " if self.defaults else ""
            wanted = f"{least}{len(names)} argument{'s' if len(names) > 1 else ''} ({', '.join(names)})"
            raise SpaceError(f"{self.name} takes {wanted}, not {came}.")
        arguments = {**self.defaults, **named}
        self.check(arguments)
        return arguments

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise SpaceError for arguments of wrong types, order or signs."""
        kind, wanted = (Integral, "a whole number") if self.number is int else (Real, "a number")
        for argument, value in arguments.items():
            if isinstance(value, bool) or not isinstance(value, kind) or value - value != 0:
                raise SpaceError(f"{self.name}'s {argument} must be {wanted}, not {value!r}.")
            if argument in ("q", "sd") and value <= 0:
                raise SpaceError(f"{self.name}'s {argument} must be more than 0, not {value!r}.")
        if "lower" not in arguments:
            return
        lower, upper = arguments["lower"], arguments["upper"]
        if self.log and lower <= 0:
            raise SpaceError(
                f"{self.name}'s bounds must be more than 0, not {lower!r}. Give the values, not their logarithms."
            )
        if lower >= upper:
            raise SpaceError(f"{self.name}'s lower bound must be below its upper one, not {lower!r} and {upper!r}.")

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """Return Ray Tune's domain. Raises: ValueError, TypeError, AssertionError, ImportPathError."""
        from ray import tune  # a second, and only a space with domains needs it

        from tunelight.space import more_domains

        function = getattr(more_domains, self.name, None) or getattr(tune, self.name)
        return function(*(arguments[name] for name in self.arguments))

    def spell(self, domain: Any) -> list[Any]:
        """Return the arguments that :meth:`make` had, in their order; of a user's own domain its text."""
        if not self.arguments:
            return [repr(domain)]
        sampler = domain.get_sampler()
        inner = sampler.get_sampler() if hasattr(sampler, "q") else sampler
        known = vars(domain) | vars(inner) | vars(sampler)
        return [known[name] for name in self.arguments]

    def choices(self, domain: Any) -> list[Any] | None:
        """Return the values that a domain chooses from; None if it is not a list of values."""
        return None

    def values(self, domain: Any) -> Sequence[Any] | None:
        """Return all values of a domain; none of a function, and None where they have no end."""
        low, high, step = self.bounds(domain)
        if self.number is int:
            return range(low, high + 1, step)
        if self.arguments == _STEPS and not self.log:
            return [self.clip(domain, low + step * index) for index in range(round((high - low) / step) + 1)]
        return None

    def bounds(self, domain: Any) -> tuple[Any, Any, Any]:
        """Return the lowest and the highest value, and the step between values (None without).

        Ray Tune excludes the upper bound of whole numbers, but in steps of 2 or more, which are multiples of the step.
        """
        low, high = getattr(domain, "lower", -math.inf), getattr(domain, "upper", math.inf)
        step = getattr(domain.get_sampler(), "q", None) if self.number else None
        if self.number is not int:
            return low, high, step
        return (low, high - 1, 1) if step in (None, 1) else (-(-low // step) * step, high // step * step, step)

    def clip(self, domain: Any, value: Any) -> Any:
        """Return a drawn value within bounds: 137 steps of 0.1 are a rounding error more than a bound of 13.7."""
        low, high, _ = self.bounds(domain)
        return type(value)(min(max(value, low), high)) if isinstance(value, float) else value

    def examples(self, domain: Any) -> list[Any]:
        """Return the values of a list, or one value between bounds; none of another domain."""
        low, high, step = self.bounds(domain)
        if not math.isfinite(high - low):
            return []
        value = low + 0.377 * (high - low)
        return [low if self.number is int else round(value / step) * step if step else value]

    def holds(self, domain: Any, value: Any) -> bool:
        """Tell whether a domain can return a value."""
        low, high, step = self.bounds(domain)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            return False
        return step is None or abs(value / step - round(value / step)) < _CLOSE

    def instead(self, domain: Any, value: Any) -> str:
        """Return sentences on what a domain returns, for an error about a value that it does not."""
        low, high, step = self.bounds(domain)
        return f" It lies between {low} and {high}{'' if step is None else f', in steps of {step}'}."

    def parameter(self, key: str, domain: Any, *, quantiles: bool = False) -> Parameter | None:
        """Return a key's domain as Optuna has it, with ``quantiles`` by those of its values; None if it cannot."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.arguments not in (_BOUNDS, _STEPS) or (self.log and self.arguments == _STEPS):
            return None
        low, high, step = self.bounds(domain)
        distribution = IntDistribution if self.number is int else FloatDistribution
        return Parameter(key, distribution(low, high, log=self.log, step=step))

    def mutate(self, domain: Any, value: Any, rng: RandomState, resample: float, factors: Sequence[float]) -> Any:
        """Return a value for population-based training to take in place of another.

        With the probability ``resample`` it is drawn; otherwise it is a neighbour in a list, or the value times one of
        ``factors``, with bounds, steps and whole numbers kept.
        """
        if rng.random_sample() < resample or isinstance(value, bool) or not isinstance(value, int | float):
            drawn = domain.sample(random_state=rng)
            return drawn.item() if hasattr(drawn, "item") else drawn
        return self.scale(domain, value, factors[rng.randint(len(factors))])

    def scale(self, domain: Any, value: float, factor: float) -> Any:
        """Return ``value`` times ``factor``, as near as the domain allows; a whole number changes by at least one."""
        low, high, step = self.bounds(domain)
        whole = self.number is int or (self.role == "function" and isinstance(value, int))
        step = step or int(whole)
        new: Any = value * factor
        new = round(new / step) * step if step else new
        if whole and new == value:
            new += step if factor > 1 else -step
        new = min(max(new, low), high)
        return int(new) if whole else float(new)


class _Values(Kind):
    """A kind of domain that chooses from a list, or has a fixed value."""

    def check(self, arguments: Mapping[str, Any]) -> None:
        (values,) = arguments.values()
        if self.role != "fixed" and (not isinstance(values, list | tuple) or not values):
            raise SpaceError(f"{self.name} takes a list of one value or more, not {values!r}.")
        refuse_domains(self.name, values)

    def spell(self, domain: Any) -> list[Any]:
        values = self.choices(domain)
        return values if self.role == "fixed" else [values]

    def choices(self, domain: Any) -> list[Any]:
        return list(domain.categories)

    values = examples = choices

    def holds(self, domain: Any, value: Any) -> bool:
        return any(same(choice, value) for choice in domain.categories)

    def instead(self, domain: Any, value: Any) -> str:
        texts = [str(choice) for choice in domain.categories]
        is_text = isinstance(value, str) and value in texts
        near = " That is text; leave the quotes out." if is_text else guess(value, texts)
        return f"{near} It is one of: {', '.join(texts)}."

    def parameter(self, key: str, domain: Any, *, quantiles: bool = False) -> Parameter | None:
        from optuna.distributions import CategoricalDistribution

        values = domain.categories
        if self.role == "fixed":
            return None
        if _PLAIN.issuperset(map(type, values)) and len(set(values)) == len(values):
            return Parameter(key, CategoricalDistribution(tuple(values)))
        texts: dict[str, Any] = {}
        for value in values:
            text = value if isinstance(value, str) else json.dumps(to_plain_config(value))
            texts[text if text not in texts else f"{text} ({len(texts)})"] = value
        return Parameter(key, CategoricalDistribution(tuple(texts)), texts)

    def mutate(self, domain: Any, value: Any, rng: RandomState, resample: float, factors: Sequence[float]) -> Any:
        values, again = domain.categories, rng.random_sample() < resample
        place = next((index for index, choice in enumerate(values) if choice == value), None)
        if again or place is None:
            return values[rng.randint(len(values))]
        beside = [index for index in (place - 1, place + 1) if 0 <= index < len(values)]
        return values[beside[rng.randint(len(beside))]] if beside else value


class _Function(Kind):
    """A kind of domain whose values a function returns."""

    in_words = False

    def check(self, arguments: Mapping[str, Any]) -> None:
        function = arguments["function"]
        if not isinstance(function, str) and not callable(function):
            raise SpaceError(f"{self.name} takes a function, not {function!r}.")

    def spell(self, domain: Any) -> list[Any]:
        return [domain.func]

    def values(self, domain: Any) -> Sequence[Any]:
        return ()


class _Quantiles(Kind):
    """A parameter of W&B: its domain has ``value(quantile)``, ``quantile(value)``, and ``written``, its argument."""

    in_words = False

    def check(self, arguments: Mapping[str, Any]) -> None:
        if not isinstance(written := arguments["value"], Mapping) or "distribution" not in written:
            raise SpaceError(f"{self.name} takes a parameter of a W&B sweep, {{distribution: q_normal, mu: 8, q: 2}}.")

    def spell(self, domain: Any) -> list[Any]:
        return [domain.written]

    def holds(self, domain: Any, value: Any) -> bool:
        return domain.quantile(value) is not None

    def parameter(self, key: str, domain: Any, *, quantiles: bool = False) -> Parameter | None:
        from optuna.distributions import FloatDistribution

        return Parameter(key, FloatDistribution(0.0, 1.0), domain=domain) if quantiles else None

    def scale(self, domain: Any, value: float, factor: float) -> Any:
        quantile = domain.quantile(value * factor)
        return super().scale(domain, value, factor) if quantile is None else domain.value(quantile)


_VALUES, _VALUE, _CODE = ("values",), ("value",), ("function",)
_BOUNDS, _STEPS, _NORMAL = ("lower", "upper"), ("lower", "upper", "q"), ("mean", "sd")
_ALIKE = "all orders of magnitude alike"

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        _Values("choice", "One of the values.", _VALUES),
        _Values("ordinal", "One of the values, which have an order: a neighbour is nearer than another.", _VALUES),
        Kind("uniform", "A number between the bounds.", _BOUNDS, float),
        Kind("quniform", "A number between the bounds, in steps of q.", _STEPS, float),
        Kind("loguniform", f"A number between the bounds, {_ALIKE}.", _BOUNDS, float, log=True),
        Kind("qloguniform", f"A number between the bounds, {_ALIKE}, in steps of q.", _STEPS, float, log=True),
        Kind("randint", "A whole number; the upper bound is excluded.", _BOUNDS, int),
        Kind("qrandint", "A whole number in steps of q; the upper bound is included.", _STEPS, int, {"q": 1}),
        Kind("lograndint", f"A whole number, {_ALIKE}; the upper bound is excluded.", _BOUNDS, int, log=True),
        Kind("qlograndint", f"A whole number in steps of q, {_ALIKE}; with the upper bound.", _STEPS, int, log=True),
        Kind("randn", "From a normal distribution.", _NORMAL, float, {"mean": 0.0, "sd": 1.0}),
        Kind("qrandn", "From a normal distribution, in steps of q.", (*_NORMAL, "q"), float),
        _Function("sample_from", "A function's value for the configuration so far.", _CODE, role="function"),
        _Values("grid_search", "Every value in turn.", _VALUES, role="grid"),
        _Values("grid", "Every value in turn.", _VALUES, role="grid"),
        _Values("fixed", "This value.", _VALUE, role="fixed", in_python=False),
        _Quantiles("wandb_parameter", "A parameter of a W&B sweep, in its own words.", _VALUE, in_python=False),
    )
}
"""By the name that files and Python have for it."""


def kind_of(domain: Any) -> Kind:
    """Return the kind of a domain."""
    name = getattr(domain, "kind", None) or _rays_name(domain)
    return KINDS.get(name) or Kind(name)


def _rays_name(domain: Any) -> str:
    """Return the name of Ray Tune's function that makes such a domain; the class of a user's own."""
    from ray.tune.search import sample

    if isinstance(domain, sample.Categorical):
        return "grid_search" if domain.is_grid() else "choice"
    if isinstance(domain, sample.Function):
        return "sample_from"
    if not isinstance(domain, sample.Float | sample.Integer):
        return type(domain).__name__
    sampler: Any = domain.get_sampler()  # type: ignore[no-untyped-call]
    steps = isinstance(sampler, sample.Quantized)
    sampler = sampler.get_sampler() if steps else sampler
    name = "uniform" if isinstance(domain, sample.Float) else "randint"
    name = "randn" if isinstance(sampler, sample.Normal) else name
    return f"{'q' * steps}{'log' * isinstance(sampler, sample.LogUniform)}{name}"


def refuse_domains(name: str, value: Any) -> None:
    """Raise SpaceError for a domain inside of a value of a domain ``name``, from which nothing would be drawn."""
    if is_domain(value):
        kind = kind_of(value)
        raise SpaceError(
            f"{name} holds a domain, {kind.name} of {kind.spell(value)}, from which nothing would be drawn. Give that "
            "domain a key of its own, with a condition: {'uniform': [0, 1], 'when': {'other.key': 'value'}}."
        )
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        refuse_domains(name, part)


def without_commas(listed: Sequence[Any]) -> str | None:
    """Return arguments with their commas, where one of them is text that holds several numbers; else None."""
    words = [arg.split() if isinstance(arg, str) else [str(arg)] for arg in listed]
    single = all(len(parts) == 1 for parts in words)
    numbers = (re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?;?", word.lower()) for parts in words for word in parts)
    texts = len(words) > 1 and all(isinstance(arg, str) for arg in listed)
    if single or texts or not all(numbers):
        return None
    return ", ".join(word.rstrip(";") for parts in words for word in parts)


def even_scales(space: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether a scale of even steps suits a number, by dotted key; ``space`` is as in ``sweep.yaml``."""
    found = (path.rpartition(".") for path in flatten(space))
    return {key: not KINDS[name].log for key, _, name in found if name in KINDS and KINDS[name].number}
