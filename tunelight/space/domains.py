"""Domains as a person writes them, read into Ray Tune's own, checked, and written down again.

A space holds Ray Tune's domains (``tune.loguniform(1e-4, 1e-1)``), descriptions of them
(``{"loguniform": [1e-4, 1e-1]}``, as in YAML), fixed values (``3``), or nested mappings of these.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from tunelight.errors import SpaceError, TunelightError, guess, unknown
from tunelight.settings import load_object
from tunelight.space.plain import Objects, to_plain_config

Path = tuple[str, ...]

_BOUNDS = ("lower", "upper")
_VALUES = ("values",)
ARGUMENTS: dict[str, Path] = {
    "choice": _VALUES,
    "ordinal": _VALUES,
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
    "grid_search": _VALUES,
    "grid": _VALUES,
    "fixed": ("value",),
    "wandb_parameter": ("parameter",),
}
"""Arguments of each domain, by name: Ray Tune's, ``ordinal``, ``fixed``, and what a W&B sweep has beside these."""

_OTHER_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"))
_BESIDE_BOUNDS = ("type", "distribution", "name", "log", "step", "q", "scale")

OPTIONAL = {"qrandint": 1, "randn": 2}


class DomainReader:
    """Reads a mapping of domains; ``where`` says in which file and line a path stands, for the errors.

    ``found`` holds what was read: a Ray Tune Domain, or {"grid_search": [...]}, by the path of its keys, ``when`` the
    conditions, by dotted key, and ``objects`` the choices that are objects, for which plain data stands in the others.
    """

    def __init__(self, where: Callable[[Path], str]) -> None:
        self._where = where
        self.found: dict[Path, Any] = {}
        self.when: dict[str, When] = {}
        self.objects = Objects()

    def read(self, given: Mapping[Any, Any]) -> None:
        """Read every entry of ``given``, and of mappings inside it. Raises: SpaceError."""
        self._read(given, ())
        domains = {".".join(path): domain for path, domain in self.found.items()}
        paths = {".".join(path): path for path in self.found}
        for key, when in self.when.items():
            plain = {name: [self.objects.plain(name, value) for value in wanted] for name, wanted in when.items()}
            self.when[key] = plain
            check_when(key, plain, domains, lambda key, name: self._where((*paths[key], "when", name)))

    def _read(self, given: Mapping[Any, Any], path: Path) -> None:
        for key, value in given.items():
            here = (*path, str(key))
            if not isinstance(key, str) or not key:
                raise self._error(here, "a key of a search space must be text.")
            if path and key == "when":
                raise self._error(
                    here, "`when` stands beside the name of a domain: {uniform: [0, 1], when: ...}, in Python too."
                )
            if isinstance(value, Mapping) and value:
                self._bracketed(here, value)
                self._not_bounds(here, value)
            if _is_group(value):
                self._read(value, here)
                continue
            taken = {".".join(other) for other in self.found}
            if ".".join(here) in taken:
                raise self._error(here, "this key is there twice, once dotted and once nested. Keep one of them.")
            self.found[here] = self._domain(here, value)

    def _error(self, path: Path, message: str, inside: str = "") -> SpaceError:
        return SpaceError(f"{self._where((*path, inside) if inside else path)}{'.'.join(path)}: {message}")

    def _domain(self, path: Path, value: Any) -> Any:
        if _is_domain(value):
            name, arguments = spell(value)
            if name in ARGUMENTS:
                self._check(path, name, dict(zip(ARGUMENTS[name], arguments, strict=True)))
            if name == "grid_search":
                return {"grid_search": self._plain(path, arguments[0])}
            if hasattr(value, "categories"):
                value = copy.copy(value)
                value.categories = self._plain(path, value.categories)
            return self._tried(path, value)
        if not isinstance(value, Mapping):
            return self._fixed(path, value)
        names = [name for name in value if name != "when"]
        if len(names) != 1:
            near = next((f" {name!r}:{near}" for name in names if (near := guess(name, ["when"]))), "")
            raise self._error(
                path,
                "a domain is one name with its arguments, {loguniform: [1e-4, 1e-1]} (beside it may stand "
                f"when), not {dict(value)!r}.{near}",
            )
        (name,) = names
        if name not in ARGUMENTS:
            raise self._error(
                path,
                unknown("there is no domain", name, ARGUMENTS),
                inside=str(name),
            )
        domain = self._build(path, name, self._named(path, name, value[name]))
        if "when" in value:
            try:
                self.when[".".join(path)] = read_when(value["when"])
            except SpaceError as error:
                raise self._error(path, str(error), inside="when") from error
        return domain

    def _plain(self, path: Path, values: Sequence[Any]) -> list[Any]:
        """Return the choices of a key as plain data, after noting those that are objects."""
        return self.objects.add(".".join(path), values)

    def _fixed(self, path: Path, value: Any) -> Any:
        """Return the domain of a plain value, which holds nothing else."""
        from tunelight.space.more_domains import Fixed  # see _build

        if value is not None and not isinstance(value, bool | Real | str):
            raise self._error(
                path,
                f"{value!r} is not a search domain. To choose from a list, write {{choice: [...]}} (in Python: "
                f"tl.choice([...])); to keep it fixed, {{fixed: ...}}; other domains are {', '.join(ARGUMENTS)}.",
            )
        if isinstance(value, str) and _calls(value):
            name = value.partition("(")[0]
            raise self._error(
                path,
                f"{value!r} is text. Write the domain as {{{name}: [{value[len(name) + 1 : -1]}]}}; to keep the text "
                f"itself, {{fixed: {value!r}}}.",
            )
        return Fixed(self._plain(path, [value]))

    def _named(self, path: Path, name: str, given: Any) -> dict[str, Any]:
        """Return a domain's arguments by name, from a list of them or a mapping."""
        names = ARGUMENTS[name]
        if name in ("fixed", "wandb_parameter"):
            return {names[0]: given}
        if isinstance(given, Mapping):
            for key in given:
                if key not in names:
                    raise self._error(path, unknown(f"{name} takes no", key, names, listed="It takes"), inside=name)
            named = dict(given)
        else:
            listed = list(given) if isinstance(given, list | tuple) else [given]
            if (names != _VALUES or self._where(path)) and (parted := without_commas(listed)) is not None:
                raise self._error(path, f"commas stand between arguments: {{{name}: [{parted}]}}.", inside=name)
            if names == _VALUES:
                listed = [given]
            if len(listed) > len(names):
                raise self._error(path, _count(name, len(listed)), inside=name)
            named = dict(zip(names, listed, strict=False))
        required = names[: len(names) - OPTIONAL.get(name, 0)]
        if not set(required) <= set(named):
            raise self._error(path, _count(name, len(named)), inside=name)
        return named

    def _build(self, path: Path, name: str, arguments: dict[str, Any]) -> Any:
        from ray import tune  # a second, and only a space with domains needs it

        from tunelight.space.more_domains import Fixed, Ordinal

        self._check(path, name, arguments)
        if name == "wandb_parameter":
            from tunelight.extras.wandb import OfWandb  # imports Ray

            return self._tried(path, OfWandb(arguments["parameter"]))
        if name in ("grid", "grid_search"):
            return {"grid_search": self._plain(path, arguments["values"])}
        if name == "fixed":
            return Fixed(self._plain(path, [arguments["value"]]))
        if "values" in arguments:
            arguments = {"values": self._plain(path, arguments["values"])}
        if name == "ordinal":
            return Ordinal(arguments["values"])
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
        """Return a domain, after a test draw; functions (``sample_from``) are not called."""
        import numpy as np

        if not domain.is_function():
            try:
                domain.sample(random_state=np.random.RandomState(0))
            except Exception as error:
                raise self._error(path, f"no value can be drawn from this domain: {error}") from error
        return domain

    def _check(self, path: Path, name: str, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a domain: kinds, order and signs."""
        if (wrong := wrong_argument(name, arguments)) is not None:
            raise self._error(path, wrong, inside=name)

    def _bracketed(self, path: Path, value: Mapping[Any, Any]) -> None:
        """Refuse a list without its brackets, as YAML reads {choice: 16, 32}: {"choice": 16, 32: None}."""
        first, *rest = value.items()
        if rest and first[0] in ARGUMENTS and all(item is None and key != "when" for key, item in rest):
            listed = ", ".join(str(item) for item in (first[1], *(key for key, _ in rest)))
            raise self._error(
                path, f"a list stands in brackets: {{{first[0]}: [{listed}]}}, not {{{first[0]}: {listed}}}."
            )

    def _not_bounds(self, path: Path, value: Mapping[Any, Any]) -> None:
        """Warn of what looks like a domain in another program's words, {min: 0, max: 1}, and is two fixed values here.

        Only in a file, and once both are written {fixed: ...} no more: what a sweep has recorded is read in silence.
        """
        if not (where := self._where(path)):
            return
        words = {key: item for key, item in value.items() if not isinstance(item, Mapping | list | tuple)}
        bounds = next(((low, high) for low, high in _OTHER_BOUNDS if low in words and high in words), None)
        if bounds is None or len(words) < len(value) or not set(words) <= {*bounds, *_BESIDE_BOUNDS}:
            return
        low, high = (words[name] for name in bounds)
        warnings.warn(
            f"{where}{'.'.join(path)}: {dict(value)!r} is read as fixed values. A domain between two bounds is "
            f"{{uniform: [{low}, {high}]}} (or loguniform, ...); where they are meant to be fixed, {{{bounds[0]}: "
            f"{{fixed: {low}}}, {bounds[1]}: {{fixed: {high}}}}} says so.",
            stacklevel=2,
        )


def wrong_argument(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Describe what is wrong with a domain's arguments (types, order, signs); None if nothing is."""
    if ARGUMENTS[name] == _VALUES:
        values = arguments["values"]
        if not isinstance(values, list | tuple) or not values:
            return f"{name} takes a list of one value or more, not {values!r}."
        return holds_domain(name, values)
    if name == "fixed":
        return holds_domain(name, arguments["value"])
    if name == "wandb_parameter":
        named = isinstance(arguments["parameter"], Mapping) and "distribution" in arguments["parameter"]
        return None if named else f"{name} takes a parameter of a W&B sweep, {{distribution: q_normal, mu: 8, q: 2}}."
    if name == "sample_from":
        function = arguments["function"]
        known = isinstance(function, str) or callable(function)
        return None if known else f"sample_from takes a function, not {function!r}."
    kind, wanted = (Integral, "a whole number") if "int" in name else (Real, "a number")
    for argument, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, kind) or value - value != 0:
            return f"{name}'s {argument} must be {wanted}, not {value!r}."
        if argument in ("q", "sd") and value <= 0:
            return f"{name}'s {argument} must be more than 0, not {value!r}."
    if "lower" not in arguments:
        return None
    lower, upper = arguments["lower"], arguments["upper"]
    if "log" in name and lower <= 0:
        return f"{name}'s bounds must be more than 0, not {lower!r}. Give the values, not their logarithms."
    if lower >= upper:
        return f"{name}'s lower bound must be below its upper one, not {lower!r} and {upper!r}."
    return None


def holds_domain(name: str, value: Any) -> str | None:
    """Describe a domain inside of a value, from which nothing would be drawn; None without one."""
    if _is_domain(value):
        inner, arguments = spell(value)
        return (
            f"{name} holds a domain, {inner} of {arguments}, from which nothing would be drawn. Give that domain a key "
            "of its own, with a condition: {'uniform': [0, 1], 'when': {'other.key': 'value'}}."
        )
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((wrong for part in parts if (wrong := holds_domain(name, part)) is not None), None)


def without_commas(listed: Sequence[Any]) -> str | None:
    """Return arguments with their commas, where one of them is text that holds several numbers; else None."""
    words = [one.split() if isinstance(one, str) else [str(one)] for one in listed]
    single = all(len(parts) == 1 for parts in words)
    numbers = (re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?;?", word.lower()) for parts in words for word in parts)
    texts = len(words) > 1 and all(isinstance(one, str) for one in listed)
    if single or texts or not all(numbers):
        return None
    return ", ".join(word.rstrip(";") for parts in words for word in parts)


def _keywords(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if name == "choice":
        return {}
    return {"func": arguments["function"]} if name == "sample_from" else dict(arguments)


def _count(name: str, came: int) -> str:
    names = ARGUMENTS[name]
    least = len(names) - OPTIONAL.get(name, 0)
    wanted = str(len(names)) if least == len(names) else f"{least} to {len(names)}"
    plural = "" if names[1:] == () else "s"
    return f"{name} takes {wanted} argument{plural} ({', '.join(names)}), not {came}."


def _calls(value: Any) -> bool:
    """Tell whether a value is text that looks like the call of a domain."""
    return isinstance(value, str) and value.endswith(")") and value.partition("(")[0] in ARGUMENTS


def _is_domain(value: Any) -> bool:
    from ray.tune.search.sample import Domain  # see DomainReader._build

    return isinstance(value, Domain)


def _is_group(value: Any) -> bool:
    """Tell whether a value is a nested part of a space, not the description of a domain."""
    if not isinstance(value, Mapping) or not value:
        return False
    names = [key for key in value if key in ARGUMENTS]
    lists = any(isinstance(part, list | tuple) for part in value.values())
    if len(names) == 1 and all(key in (names[0], "when") for key in value):
        return False
    if any(isinstance(value[name], list | tuple) for name in names) or (lists and "when" in value):
        return False  # a domain, with a word beside it or a name that there is not
    return not lists or any(isinstance(part, Mapping) or _is_domain(part) for part in value.values())


def whole_bounds(lower: int, upper: int, step: int = 1) -> tuple[int, int]:
    """Return the bounds of the whole numbers that Ray Tune draws: multiples of ``step``, from 2 on with the end.

    Without steps, and in steps of 1, the upper bound is left out.
    """
    return (lower, upper - 1) if step == 1 else (-(-lower // step) * step, upper // step * step)


def spell(domain: Any) -> tuple[str, list[Any]]:
    """Return a domain's name and arguments: ("loguniform", [1e-4, 1e-1]); inverse of reading it."""
    from ray.tune.search import sample  # see DomainReader._build

    from tunelight.space.more_domains import Fixed, Ordinal, Quantiles

    if isinstance(domain, Quantiles):
        return domain.name, [domain.written]
    if isinstance(domain, Mapping):
        return "grid_search", [list(domain["grid_search"])]
    if isinstance(domain, Fixed):
        return "fixed", list(domain.categories)
    if isinstance(domain, sample.Categorical):
        name = "ordinal" if isinstance(domain, Ordinal) else "grid_search" if domain.is_grid() else "choice"
        return name, [list(domain.categories)]
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


def describe(domain: Any, when: When | None = None) -> Any:
    """Return a domain as plain data: {"loguniform": [1e-4, 1e-1]}; a fixed value as itself if possible."""
    name, arguments = spell(domain)
    one = ARGUMENTS.get(name) in (_VALUES, ("function",), ("value",), ("parameter",))
    told = {name: to_plain_config(arguments[0] if one else arguments)}
    if name == "fixed" and when is None and not isinstance(told[name], list | Mapping) and not _calls(told[name]):
        return told[name]
    if when is not None:
        told["when"] = {
            key: to_plain_config(wanted[0] if len(wanted) == 1 and not isinstance(wanted[0], list | tuple) else wanted)
            for key, wanted in when.items()
        }
    return told


# --- Conditions: ``when: {model.optimizer: sgd}``, values that other keys must have for a key to be drawn

_CLOSE = 1e-9
When = Mapping[str, Sequence[Any]]
"""Allowed values of other keys, by dotted key; each of these keys must have one of its values."""


def read_when(given: Any) -> dict[str, list[Any]]:
    """Return a condition, {key: value} or {key: [values]}, with a list for each key. Raises: SpaceError."""
    if not isinstance(given, Mapping) or not given:
        raise SpaceError(
            f"`when` maps other keys to the values that they must have, {{model.optimizer: sgd}} or "
            f"{{model.layers: [2, 3]}}; {given!r} does not."
        )
    found = {str(key): list(value) if isinstance(value, list | tuple) else [value] for key, value in given.items()}
    if empty := [key for key, values in found.items() if not values]:
        raise SpaceError(f"`when` names no value that {empty[0]} must have. Give one, or a list of them.")
    return found


def holds(when: When, values: Mapping[str, Any]) -> bool:
    """Tell whether a condition holds; it does not if a key that it names was left out."""
    return all(key in values and any(same(values[key], wanted) for wanted in when[key]) for key in when)


def same(value: Any, wanted: Any) -> bool:
    """Tell whether two values are equal (true differs from 1); objects may be given by their import path."""
    if isinstance(value, bool) != isinstance(wanted, bool):
        return False
    return bool(to_plain_config(value) == to_plain_config(wanted))


def check_when(key: str, when: When, domains: Mapping[str, Any], where: Callable[[str, str], str]) -> None:
    """Raise SpaceError unless a key's condition names keys that stand above it, and values that they can have.

    ``where`` says where a name of a key's condition stands.
    """
    order = list(domains)
    for name, wanted in when.items():
        start = f"{where(key, name)}{key}: its `when`"
        if name not in domains:
            others = [other for other in order if other != key]
            raise SpaceError(unknown(f"{start}: the search space has no key", name, others, None, "It has"))
        if order.index(name) >= order.index(key):
            raise SpaceError(
                f"{start} names {name}, which does not stand above it. Put {name} first: keys are drawn in their order."
            )
        domain = domains[name]
        if not isinstance(domain, Mapping) and domain.is_function():
            raise SpaceError(
                f"{start} names {name}, which a function gives, and those are asked last. Name what it follows from."
            )
        for value in wanted:
            if not _possible(domain, value):
                raise SpaceError(f"{start} wants {name} to be {value!r}, which it never is.{_choices(domain, value)}")
        if isinstance(domains[key], Mapping) and not isinstance(domain, Mapping) and not _fixed(domain):
            raise SpaceError(
                f"{start} names {name}, which is drawn, so that points of the grid would be missed. Make {name} a grid "
                f"too, or {key} a choice."
            )


def _fixed(domain: Any) -> bool:
    from tunelight.space.more_domains import Fixed  # imports Ray

    return isinstance(domain, Fixed)


def values_of(domain: Any) -> list[Any] | None:
    """Return the values that a domain chooses from; None if it is not a list of values."""
    return list(domain["grid_search"]) if isinstance(domain, Mapping) else getattr(domain, "categories", None)


def _possible(domain: Any, value: Any) -> bool:
    choices = values_of(domain)
    if choices is not None:
        return any(same(choice, value) for choice in choices)
    if isinstance(value, bool) or not isinstance(value, int | float) or not domain.lower <= value <= domain.upper:
        return False
    return _on_grid(domain, value)


def _on_grid(domain: Any, value: float) -> bool:
    """Tell whether a domain can return a number: a whole number below the upper bound, or a multiple of q."""
    step = getattr(domain.get_sampler(), "q", None)
    if type(domain).__name__ == "Integer" and step in (None, 1):
        return value == int(value) and value < domain.upper
    return step is None or abs(value / step - round(value / step)) < _CLOSE


def _choices(domain: Any, value: Any) -> str:
    choices = values_of(domain)
    if choices is None:
        step = getattr(domain.get_sampler(), "q", 1 if type(domain).__name__ == "Integer" else None)
        steps = "" if step is None else f", in steps of {step}"
        return f" It lies between {domain.lower} and {domain.upper}{steps}."
    texts = [str(choice) for choice in choices]
    near = " That is text; leave the quotes out." if isinstance(value, str) and value in texts else guess(value, texts)
    return f"{near} It is one of: {', '.join(texts)}."
