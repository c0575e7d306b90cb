"""Domains as a person writes them, read into Ray Tune's own, checked, and written down again.

A space holds Ray Tune's domains (``tune.loguniform(1e-4, 1e-1)``), descriptions of them
(``{"loguniform": [1e-4, 1e-1]}``, as in YAML), fixed values (``3``), or nested mappings of these.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from tunelight.errors import SpaceError, guess, is_domain, placed, unknown
from tunelight.space.kinds import KINDS, kind_of
from tunelight.space.plain import Objects, same, to_plain_config

Path = tuple[str, ...]

_OTHER_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"))
_BESIDE_BOUNDS = ("type", "distribution", "name", "log", "step", "q", "scale")


class DomainReader:
    """Reads a mapping of domains; ``where`` says in which file and line a path stands, for the errors.

    ``found`` holds what was read, as Ray Tune's domains by the path of their keys, ``when`` the conditions, by dotted
    key, and ``objects`` the choices that are objects, for which plain data stands in the others.
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

    def _start(self, path: Path, inside: str = "") -> str:
        return f"{self._where((*path, inside) if inside else path)}{'.'.join(path)}: "

    def _error(self, path: Path, message: str, inside: str = "") -> SpaceError:
        return SpaceError(f"{self._start(path, inside)}{message}")

    def _domain(self, path: Path, value: Any) -> Any:
        if is_domain(value):
            kind = kind_of(value)
            with placed(self._start(path, kind.name)):
                kind.check(dict(zip(kind.arguments, kind.spell(value), strict=False)))
            return self._taken(path, value)
        if not isinstance(value, Mapping):
            return self._taken(path, self._fixed(path, value))
        names = [name for name in value if name != "when"]
        if len(names) != 1:
            near = next((f" {name!r}:{near}" for name in names if (near := guess(name, ["when"]))), "")
            raise self._error(
                path,
                "a domain is one name with its arguments, {loguniform: [1e-4, 1e-1]} (beside it may stand "
                f"when), not {dict(value)!r}.{near}",
            )
        (name,) = names
        if name not in KINDS:
            raise self._error(path, unknown("there is no domain", name, KINDS), inside=str(name))
        with placed(self._start(path, name)):
            arguments = KINDS[name].read(value[name], in_file=bool(self._where(path)))
        try:
            with placed(self._start(path)):
                domain = KINDS[name].make(arguments)
        except (ValueError, TypeError, AssertionError) as error:
            raise self._error(path, f"Ray Tune refuses {name} of {arguments}: {error}") from error
        domain = self._taken(path, domain)
        if "when" in value:
            with placed(self._start(path, "when")):
                self.when[".".join(path)] = read_when(value["when"])
        return domain

    def _taken(self, path: Path, domain: Any) -> Any:
        """Return a domain, after a test draw and with plain data for choices that are objects."""
        import numpy as np

        if (choices := kind_of(domain).choices(domain)) is not None:
            domain = copy.copy(domain)
            domain.categories = self.objects.add(".".join(path), choices)
        elif not domain.is_function():
            try:
                domain.sample(random_state=np.random.RandomState(0))
            except Exception as error:
                raise self._error(path, f"no value can be drawn from this domain: {error}") from error
        return domain

    def _fixed(self, path: Path, value: Any) -> Any:
        """Return the domain of a plain value, which holds nothing else."""
        if value is not None and not isinstance(value, bool | Real | str):
            raise self._error(
                path,
                f"{value!r} is not a search domain. To choose from a list, write {{choice: [...]}} (in Python: "
                f"tl.choice([...])); to keep it fixed, {{fixed: ...}}; other domains are {', '.join(KINDS)}.",
            )
        if isinstance(value, str) and _calls(value):
            name = value.partition("(")[0]
            raise self._error(
                path,
                f"{value!r} is text. Write the domain as {{{name}: [{value[len(name) + 1 : -1]}]}}; to keep the text "
                f"itself, {{fixed: {value!r}}}.",
            )
        return KINDS["fixed"].make({"value": value})

    def _bracketed(self, path: Path, value: Mapping[Any, Any]) -> None:
        """Refuse a list without its brackets, as YAML reads {choice: 16, 32}: {"choice": 16, 32: None}."""
        first, *rest = value.items()
        if rest and first[0] in KINDS and all(item is None and key != "when" for key, item in rest):
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


def _calls(value: Any) -> bool:
    """Tell whether a value is text that looks like the call of a domain."""
    return isinstance(value, str) and value.endswith(")") and value.partition("(")[0] in KINDS


def _is_group(value: Any) -> bool:
    """Tell whether a value is a nested part of a space, not the description of a domain."""
    if not isinstance(value, Mapping) or not value:
        return False
    names = [key for key in value if key in KINDS]
    lists = any(isinstance(part, list | tuple) for part in value.values())
    if len(names) == 1 and all(key in (names[0], "when") for key in value):
        return False
    if any(isinstance(value[name], list | tuple) for name in names) or (lists and "when" in value):
        return False  # a domain, with a word beside it or a name that there is not
    return not lists or any(isinstance(part, Mapping) or is_domain(part) for part in value.values())


def describe(domain: Any, when: When | None = None) -> Any:
    """Return a domain as plain data, which is read back: {"loguniform": [1e-4, 1e-1]}; a fixed value as itself."""
    kind = kind_of(domain)
    arguments = kind.spell(domain)
    plain = {kind.name: to_plain_config(arguments[0] if len(kind.arguments) == 1 else arguments)}
    value = plain[kind.name]
    if kind.role == "fixed" and when is None and not isinstance(value, list | Mapping) and not _calls(value):
        return value
    if when is not None:
        plain["when"] = {
            key: to_plain_config(wanted[0] if len(wanted) == 1 and not isinstance(wanted[0], list | tuple) else wanted)
            for key, wanted in when.items()
        }
    return plain


# --- Conditions: ``when: {model.optimizer: sgd}``, values that other keys must have for a key to be drawn

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
        kind = kind_of(domains[name])
        if kind.role == "function":
            raise SpaceError(
                f"{start} names {name}, which a function gives, and those are asked last. Name what it follows from."
            )
        for value in wanted:
            if not kind.holds(domains[name], value):
                instead = kind.instead(domains[name], value)
                raise SpaceError(f"{start} wants {name} to be {value!r}, which it never is.{instead}")
        if kind_of(domains[key]).role == "grid" and kind.role == "drawn":
            raise SpaceError(
                f"{start} names {name}, which is drawn, so that points of the grid would be missed. Make {name} a grid "
                f"too, or {key} a choice."
            )
