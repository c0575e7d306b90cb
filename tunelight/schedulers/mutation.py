"""Explore: how a member of a population mutates the hyperparameters that it takes over.

The two ways of Jaderberg et al., "Population Based Training of Neural Networks" (https://arxiv.org/abs/1711.09846):
a value is drawn from its domain again, or multiplied by a factor. Bounds, steps and whole numbers are kept.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Function, Integer, Quantized

from tunelight.errors import SettingsError, unknown
from tunelight.settings.dotted import holder_of
from tunelight.space import SearchSpace
from tunelight.space.domains import ARGUMENTS, MODIFIERS, whole_bounds
from tunelight.space.more_domains import Fixed, Quantiles
from tunelight.space.plain import Objects

_BUILT_ONCE = ("data", "trainer")
"""Parts of a model= sweep's space that a running training cannot change."""
_NOTHING = object()
_HOW = "For example {'lr': tune.loguniform(1e-4, 1), 'model.dropout': [0.0, 0.1, 0.2]}."


class Mutations(dict[str, Any]):
    """Domains by dotted key. ``objects``: what plain data among their choices stands for."""

    objects = Objects()


def mutations_of(given: Mapping[str, Any]) -> Mutations:
    """Return domains by dotted key from a user's mapping, also nested, of domains, lists, functions without arguments.

    Raises: SettingsError, SpaceError for entries without a choice: a plain value would overwrite each trial's own.
    """
    if not isinstance(given, Mapping):
        raise SettingsError(f"GangPBT's hyperparam_mutations must be a mapping, not {given!r}. {_HOW}")
    if not given:
        raise SettingsError(f"GangPBT's hyperparam_mutations is empty: there is nothing to mutate. {_HOW}")
    space = SearchSpace(_as_domains(given))
    domains = Mutations(space.domains)
    domains.objects = space.objects
    for key, domain in domains.items():
        if isinstance(domain, Fixed):
            raise _no_choice(key, domain.categories[0])
    return domains


def default_mutations(domains: Mapping[str, Any]) -> dict[str, Any]:
    """Return the domains of a space that a running training can usually change: its real numbers.

    Whole numbers and other choices usually decide how a model is built; ``data.*`` and ``trainer.*`` are built once.
    """
    return {
        key: domain
        for key, domain in domains.items()
        if key.partition(".")[0] not in _BUILT_ONCE
        and (isinstance(domain, Float) or (_values(domain) and all(type(one) is float for one in _values(domain))))
    }


def check_known(mutations: Mapping[str, Any], domains: Mapping[str, Any]) -> None:
    """Raise SettingsError for a mutation of a key that the space lacks, or to an object that is none of its choices."""
    objects = _objects(mutations)
    for key, domain in mutations.items():
        if key not in domains:
            raise SettingsError(
                unknown("hyperparam_mutations: the search space has no key", key, domains, None, "It has")
            )
        for value in _values(domain):
            if objects.value(key, value) is not value and value not in _values(domains[key]):
                raise SettingsError(
                    f"GangPBT's hyperparam_mutations: {key!r} has the choice {value}, which the search space lacks. "
                    "Add it to the choices of the space: workers know its objects only."
                )


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    rng: np.random.RandomState,
    resample_probability: float,
    factors: Sequence[float],
) -> dict[str, Any]:
    """Return a copy of ``config`` with ``mutations`` drawn again or perturbed; keys that it lacks are skipped.

    An object is replaced by an object, as in a plain Tuner, and plain data by plain data, as in a sweep.
    """
    objects = _objects(mutations)
    mutated = copy.deepcopy(dict(config))
    for key, domain in mutations.items():
        holder, last = holder_of(mutated, key)
        value = holder.get(last, _NOTHING)
        if value is not _NOTHING:
            plain = objects.plain(key, value) if key in objects else value
            new = _mutate(plain, domain, rng, resample_probability, factors)
            holder[last] = new if plain is value else objects.value(key, new)
    return mutated


def _objects(mutations: Mapping[str, Any]) -> Objects:
    return mutations.objects if isinstance(mutations, Mutations) else Objects()


def _mutate(
    value: Any, domain: Any, rng: np.random.RandomState, resample_probability: float, factors: Sequence[float]
) -> Any:
    resample = rng.random_sample() < resample_probability
    values = _values(domain)
    if values:
        place = next((index for index, one in enumerate(values) if one == value), None)
        if resample or place is None:
            return values[rng.randint(len(values))]
        beside = [index for index in (place - 1, place + 1) if 0 <= index < len(values)]
        return values[beside[rng.randint(len(beside))]] if beside else value
    if resample or isinstance(value, bool) or not isinstance(value, int | float):
        drawn = domain.sample(random_state=rng)
        return drawn.item() if hasattr(drawn, "item") else drawn
    factor = factors[rng.randint(len(factors))]
    if isinstance(domain, Quantiles) and (quantile := domain.quantile(value * factor)) is not None:
        return domain.value(quantile)
    return _perturbed(value, domain, factor)


def _perturbed(value: float, domain: Any, factor: float) -> float:
    """Return ``value`` times ``factor``, as near as the domain allows; a whole number changes by at least one."""
    lower, upper = (getattr(domain, name, None) for name in ("lower", "upper"))
    sampler: Any = domain.get_sampler() if isinstance(domain, Float | Integer) else None  # type: ignore[no-untyped-call]
    step: Any = sampler.q if isinstance(sampler, Quantized) else None
    new: float = value * factor
    whole = isinstance(domain, Integer) or (isinstance(domain, Function) and isinstance(value, int))
    if isinstance(domain, Integer):
        lower, upper = whole_bounds(domain.lower, domain.upper, step or 1)
    if whole:
        step = step or 1
        new = round(new / step) * step
        new = new if new != value else value + (step if factor > 1 else -step)
    new = round(new / step) * step if step else new
    new = new if lower is None else max(new, lower)
    new = new if upper is None else min(new, upper)
    return int(new) if whole else float(new)


def _as_domains(given: Mapping[str, Any], way: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in given.items():
        where = f"{way}{key}"
        if isinstance(value, list | tuple):
            made[key] = tune.choice(list(value)) if value else {"choice": []}  # which is refused, with its key
        elif isinstance(value, Mapping):
            names = [name for name in value if name not in MODIFIERS]
            described = len(names) == 1 and names[0] in ARGUMENTS  # {"uniform": [0, 1]}, and no group
            made[key] = value if described else _as_domains(value, f"{where}.")
        elif isinstance(value, Function) or (callable(value) and not _takes_nothing(value)):
            raise SettingsError(
                f"GangPBT's hyperparam_mutations: {where!r} is {value!r}, which needs the rest of the configuration. "
                "Give a function without arguments, a domain, or a list of values."
            )
        elif callable(value):
            made[key] = tune.sample_from(_called(value))
        elif isinstance(value, Domain):
            made[key] = value
        else:
            raise _no_choice(where, value)
    return made


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def _called(function: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda _: function()


def _no_choice(key: str, value: Any) -> SettingsError:
    return SettingsError(
        f"GangPBT's hyperparam_mutations: {key!r} is {value!r}, which leaves nothing to choose. Leave {key!r} out to "
        f"keep each trial's own value, or give a list of values. {_HOW}"
    )


def _values(domain: Any) -> list[Any]:
    """Return the values of a domain; none if it is not a list of values."""
    if isinstance(domain, Mapping):
        return list(domain["grid_search"])
    return list(domain.categories) if isinstance(domain, Categorical) else []
