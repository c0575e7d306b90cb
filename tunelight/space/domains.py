"""Domains as a person writes them, read into Ray Tune's own, checked, and written down again.

A space holds Ray Tune's domains (``tune.loguniform(1e-4, 1e-1)``), descriptions of them
(``{"loguniform": [1e-4, 1e-1]}``, as in YAML), or nested mappings of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from tunelight.errors import SpaceError, TunelightError, guess
from tunelight.settings import import_path, load_object

Path = tuple[str, ...]

_BOUNDS = ("lower", "upper")
ARGUMENTS: dict[str, Path] = {
    "choice": ("values",),
    "uniform": _BOUNDS,
    "quniform": (*_BOUNDS, "q"),
    "loguniform": _BOUNDS,
    "qloguniform": (*_BOUNDS, "q"),
    "randint": _BOUNDS,
    "qrandint": (*_BOUNDS, "q"),
    "lograndint": _BOUNDS,
    "qlograndint": (*_BOUNDS, "q"),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    "sample_from": ("function",),
    "grid_search": ("values",),
    "grid": ("values",),
}
"""Ray Tune's domains by name, and what each takes."""

_OPTIONAL = {"qrandint": 1, "randn": 2}


class DomainReader:
    """Reads a mapping of domains; ``where`` says in which file and line a path stands, for the errors.

    ``found`` holds what was read: a Ray Tune Domain, or {"grid_search": [...]}, by the path of its keys.
    """

    def __init__(self, where: Callable[[Path], str]) -> None:
        self._where = where
        self.found: dict[Path, Any] = {}

    def read(self, given: Mapping[Any, Any], path: Path = ()) -> None:
        """Read every entry of ``given``, and of mappings inside it. Raises: SpaceError."""
        for key, value in given.items():
            here = (*path, str(key))
            if not isinstance(key, str) or not key:
                raise self._error(here, "a key of a search space must be text.")
            if _is_group(value):
                self.read(value, here)
                continue
            taken = {".".join(other) for other in self.found}
            if ".".join(here) in taken:
                raise self._error(here, "this key is there twice, once dotted and once nested. Keep one of them.")
            self.found[here] = self._domain(here, value)

    def _error(self, path: Path, message: str) -> SpaceError:
        return SpaceError(f"{self._where(path)}{'.'.join(path)}: {message}")

    def _domain(self, path: Path, value: Any) -> Any:
        if _is_domain(value):
            name, arguments = spell(value)
            if name in ARGUMENTS:
                self._check(path, name, dict(zip(ARGUMENTS[name], arguments, strict=True)))
            return {"grid_search": arguments[0]} if name == "grid_search" else self._tried(path, value)
        if not isinstance(value, Mapping):
            raise self._error(
                path,
                f"{value!r} is a value that is no domain. To keep it fixed, write tl.choice([{value!r}]) "
                f"(in YAML: {{choice: [{value!r}]}}); other domains are {', '.join(ARGUMENTS)}.",
            )
        if len(value) != 1:
            raise self._error(
                path,
                f"a domain is one name with its arguments, {{loguniform: [1e-4, 1e-1]}}, not {dict(value)!r}.",
            )
        ((name, given),) = value.items()
        if name not in ARGUMENTS:
            raise self._error(
                path,
                f"there is no domain {name!r}.{guess(name, ARGUMENTS)} There are: {', '.join(ARGUMENTS)}.",
            )
        return self._build(path, name, self._named(path, name, given))

    def _named(self, path: Path, name: str, given: Any) -> dict[str, Any]:
        """Return a domain's arguments by name, from a list of them or a mapping."""
        names = ARGUMENTS[name]
        if isinstance(given, Mapping):
            for key in given:
                if key not in names:
                    raise self._error(
                        path, f"{name} takes no {key!r}.{guess(key, names)} It takes: {', '.join(names)}."
                    )
            named = dict(given)
        else:
            listed = list(given) if isinstance(given, list | tuple) else [given]
            if names == ("values",):
                listed = [given]
            if len(listed) > len(names):
                raise self._error(path, _count(name, len(listed)))
            named = dict(zip(names, listed, strict=False))
        required = names[: len(names) - _OPTIONAL.get(name, 0)]
        if not set(required) <= set(named):
            raise self._error(path, _count(name, len(named)))
        return named

    def _build(self, path: Path, name: str, arguments: dict[str, Any]) -> Any:
        from ray import tune  # noqa: PLC0415 - a second, and only a space with domains needs it

        self._check(path, name, arguments)
        if name in ("grid", "grid_search"):
            return {"grid_search": list(arguments["values"])}
        if name == "sample_from" and isinstance(arguments["function"], str):
            try:
                arguments = {"function": load_object(arguments["function"])}
            except TunelightError as error:
                raise type(error)(f"{self._where(path)}{'.'.join(path)}: {error}") from error
        try:
            domain = getattr(tune, name)(*arguments.values() if name == "choice" else (), **_keywords(name, arguments))
        except (ValueError, TypeError, AssertionError) as error:
            raise self._error(path, f"Ray Tune refuses {name} of {arguments}: {error}") from error
        return self._tried(path, domain)

    def _tried(self, path: Path, domain: Any) -> Any:
        """Return a domain that a value could be drawn from; what functions need is known in a sweep."""
        import numpy as np  # noqa: PLC0415

        if not domain.is_function():
            try:
                domain.sample(random_state=np.random.RandomState(0))
            except Exception as error:
                raise self._error(path, f"no value can be drawn from this domain: {error}") from error
        return domain

    def _check(self, path: Path, name: str, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a domain: kinds, order and signs."""
        if ARGUMENTS[name] == ("values",):
            values = arguments["values"]
            if not isinstance(values, list | tuple) or not values:
                raise self._error(path, f"{name} takes a list of one value or more, not {values!r}.")
            return
        if name == "sample_from":
            if not isinstance(arguments["function"], str) and not callable(arguments["function"]):
                raise self._error(path, f"sample_from takes a function, not {arguments['function']!r}.")
            return
        kind, wanted = (Integral, "a whole number") if "int" in name else (Real, "a number")
        for argument, value in arguments.items():
            if isinstance(value, bool) or not isinstance(value, kind) or value - value != 0:
                raise self._error(path, f"{name}'s {argument} must be {wanted}, not {value!r}.")
            if argument in ("q", "sd") and value <= 0:
                raise self._error(path, f"{name}'s {argument} must be more than 0, not {value!r}.")
        if "lower" not in arguments:
            return
        lower, upper = arguments["lower"], arguments["upper"]
        if "log" in name and lower <= 0:
            raise self._error(
                path,
                f"{name}'s bounds must be more than 0, not {lower!r}. Give the values, not their logarithms.",
            )
        if lower >= upper:
            raise self._error(path, f"{name}'s lower bound must be below its upper one, not {lower!r} and {upper!r}.")


def _keywords(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if name == "choice":
        return {}
    return {"func": arguments["function"]} if name == "sample_from" else dict(arguments)


def _count(name: str, came: int) -> str:
    names = ARGUMENTS[name]
    least = len(names) - _OPTIONAL.get(name, 0)
    wanted = str(len(names)) if least == len(names) else f"{least} to {len(names)}"
    plural = "" if names[1:] == () else "s"
    return f"{name} takes {wanted} argument{plural} ({', '.join(names)}), not {came}."


def _is_domain(value: Any) -> bool:
    from ray.tune.search.sample import Domain  # noqa: PLC0415 - see DomainReader._build

    return isinstance(value, Domain)


def _is_group(value: Any) -> bool:
    """Tell whether a value is a nested part of a space, and no description of one domain."""
    if not isinstance(value, Mapping) or not value or (len(value) == 1 and next(iter(value)) in ARGUMENTS):
        return False
    return any(isinstance(part, Mapping) or _is_domain(part) for part in value.values())


def spell(domain: Any) -> tuple[str, list[Any]]:
    """Return a domain's name and arguments: ("loguniform", [1e-4, 1e-1]); inverse of reading it."""
    from ray.tune.search import sample  # noqa: PLC0415 - see DomainReader._build

    if isinstance(domain, Mapping):
        return "grid_search", [list(domain["grid_search"])]
    if isinstance(domain, sample.Categorical):
        return "grid_search" if domain.is_grid() else "choice", [list(domain.categories)]
    if isinstance(domain, sample.Function):
        return "sample_from", [domain.func]
    if not isinstance(domain, sample.Float | sample.Integer):
        return type(domain).__name__, [repr(domain)]
    sampler: Any = domain.get_sampler()  # type: ignore[no-untyped-call]
    quantum: list[Any] = []
    if isinstance(sampler, sample.Quantized):
        sampler, quantum = sampler.get_sampler(), [sampler.q]
    if isinstance(sampler, sample.Normal):
        name, arguments = "randn", [sampler.mean, sampler.sd]
    else:
        name = "uniform" if isinstance(domain, sample.Float) else "randint"
        arguments = [domain.lower, domain.upper]
        if isinstance(sampler, sample.LogUniform):
            name = "loguniform" if name == "uniform" else "lograndint"
    return f"q{name}" if quantum else name, [*arguments, *quantum]


def describe(domain: Any) -> dict[str, Any]:
    """Return a domain as plain data: {"loguniform": [1e-4, 1e-1]}."""
    name, arguments = spell(domain)
    return {name: plain(arguments[0] if ARGUMENTS.get(name) in (("values",), ("function",)) else arguments)}


def plain(value: Any) -> Any:
    """Return a value as JSON and YAML hold it; functions and classes as import paths, objects as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return import_path(value) if callable(value) else repr(value)
