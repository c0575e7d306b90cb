"""Values of a search space as plain data, for JSON and YAML, and the objects that this data stands for."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Final

from tunelight.compat.lightning import loaded
from tunelight.errors import ImportPathError, SpaceError, guess, unknown
from tunelight.settings import PARTS, import_path, load_object
from tunelight.settings.checks import holder_of

_EXACT: Final = (type(None), bool, int, float, str)


def to_plain_config(value: Any) -> Any:
    """Return a value in JSON's and YAML's types.

    Functions and classes become import paths, members of an Enum ``Opt.SGD``, other objects their text.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain_config(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_config(part) for part in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return import_path(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


class Objects:
    """The objects among the choices of a search space, and the plain data that stands for them.

    Searchers, schedulers and the record work with the plain data alone. The objects take its place where a
    configuration leaves them: on a worker, which has them from the pickle of its train function, so that they are the
    objects that the function knows, and in results.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[Any, Any]]] = {}
        """Dotted key -> pairs of plain data and object."""

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __copy__(self) -> Objects:
        new = Objects()
        new._known = dict(self._known)
        return new

    def plain(self, key: str, value: Any) -> Any:
        """Return what stands for a value of a key; for an unknown object, its plain form."""
        value = _number(value)
        if _is_plain(value):
            return value
        known = self._known.get(key, [])
        return next((plain for plain, obj in known if equal(obj, value)), to_plain_config(value))

    def add(self, key: str, values: Iterable[Any]) -> list[Any]:
        """Return what stands for the choices of a key, for no two objects the same; these are known from now on."""
        found: list[Any] = []
        known = self._known.get(key, [])
        for value in map(_number, values):
            plain = self.plain(key, value)
            if not _is_plain(value) and not any(equal(obj, value) for _, obj in known):
                first, number = plain, 1
                while any(_identical(plain, other) for other in (*found, *(taken for taken, _ in known))):
                    number += 1
                    plain = f"{first} ({number})"
                self._known[key] = known = [*known, (plain, value)]
            found.append(plain)
        return found

    def value(self, key: str, plain: Any) -> Any:
        """Return the object that plain data of a key stands for; the data itself if it stands for none."""
        if not _is_plain(plain):
            return plain
        return next((obj for known, obj in self._known.get(key, ()) if _identical(known, plain)), plain)

    def restored(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration, nested or dotted, with the objects that its plain data stands for."""
        new = _copied(config)
        for key in self._known:
            holder, last = holder_of(new, key)
            if last in holder:
                holder[last] = self.value(key, holder[last])
        return new

    def described(self) -> dict[str, list[list[Any]]]:
        """Return pairs of plain data and :func:`reference` by key, for a record."""
        return {key: [[plain, reference(obj)] for plain, obj in known] for key, known in self._known.items()}

    @classmethod
    def recalled(cls, described: Any, *, strict: bool = False, imported: bool = False) -> Objects:
        """Return the objects that a record refers to, imported or made again, without those for which that fails.

        Args:
            described: what :meth:`described` has returned.
            strict: raise SpaceError for the first that fails.
            imported: take only what is in modules that this process has imported already, and run no others' code.
        """
        new = cls()
        for key, plain, ref in references(described):
            try:
                found = rebuilt(ref, imported=imported)
            except (ImportPathError, SpaceError) as error:
                if strict:
                    raise SpaceError(
                        f"{key}: the record has the choice {plain!r} as text only, and it cannot be restored: {error}"
                    ) from error
            else:
                new._known.setdefault(key, []).append((plain, found))
        return new


def references(described: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key, plain data and :func:`reference` of each object that a record describes."""
    for key, pairs in described.items() if isinstance(described, Mapping) else ():
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list | tuple) and len(pair) == 2:
                yield str(key), *pair


def reference(value: Any) -> Any:
    """Return plain data by which :func:`rebuilt` finds an object or makes an equal one; None where it could not.

    Classes and functions are import paths; members of an Enum, dataclasses, tuples, lists and dicts are made of such
    paths and of plain values.
    """
    try:
        found = _reference(value)
        return found if equal(rebuilt(found), value) else None
    except (ImportPathError, SpaceError):
        return None


def _reference(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return {"enum": import_path(type(value)), "name": value.name}
    if _is_plain(value) and not isinstance(value, list | dict):
        return {"value": value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _reference(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"dataclass": import_path(type(value)), "fields": fields}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_reference(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _reference(item) for key, item in value.items()}}
    if callable(value) and hasattr(value, "__qualname__"):
        return import_path(value)
    raise SpaceError(f"{value!r} has no import path.")


def rebuilt(described: Any, *, imported: bool = False) -> Any:
    """Return the object of a :func:`reference`. Nothing is called but the classes of Enums and dataclasses.

    With ``imported`` no module is imported for it. Raises: ImportPathError, SpaceError.
    """
    match described:
        case str():
            return _load(described, imported)
        case {"enum": str() as path, "name": str() as name}:
            kind = _load(path, imported)
            if isinstance(kind, enum.EnumType) and name in kind.__members__:
                return kind[name]
        case {"dataclass": str() as path, "fields": dict() as fields}:
            kind = _load(path, imported)
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                try:
                    return kind(**{name: rebuilt(field, imported=imported) for name, field in fields.items()})
                except Exception as error:  # its own code runs, which may raise anything
                    raise SpaceError(f"{path} cannot be made again: {type(error).__name__}: {error}.") from error
        case {"tuple": list() as parts}:
            return tuple(rebuilt(part, imported=imported) for part in parts)
        case {"list": list() as parts}:
            return [rebuilt(part, imported=imported) for part in parts]
        case {"dict": dict() as parts}:
            return {key: rebuilt(part, imported=imported) for key, part in parts.items()}
        case {"value": value}:
            return value
    raise SpaceError("it can neither be imported nor made again.")


def _load(path: str, imported: bool) -> Any:
    if imported and path.partition(":")[0] not in sys.modules:
        raise SpaceError(f"{path} is in no module that is imported here.")
    return load_object(path)


def _is_plain(value: Any) -> bool:
    """Tell whether a value is the same after a round trip through JSON."""
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return type(value) in _EXACT


def _number(value: Any) -> Any:
    """Return Python's number for one of NumPy's."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def equal(value: Any, other: Any) -> bool:
    """Tell whether two values are equal, and of one type."""
    try:
        return value is other or (type(value) is type(other) and bool(value == other))
    except Exception:  # noqa: BLE001 - an array, or a class that cannot compare
        return False


def _identical(value: Any, other: Any) -> bool:
    """Tell whether plain data is the same: 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in config.items()}


# --- What keys are: arguments of the model, the data module or the Trainer in a ``model=`` sweep; options of a script


def split_config(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a dotted configuration as arguments for each part: {"model": {...}, "data": ..., "trainer": ...}."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for key, value in config.items():
        part, dot, name = key.partition(".")
        if dot:
            parts[part][name] = value
        elif isinstance(value, Mapping):
            parts[part].update(value)
    return parts


def check_part(key: str, where: str, model: Any, data: Any) -> None:
    """Raise SpaceError unless a key is an argument of the model, data or Trainer; ``where`` begins the message."""
    part, _, name = key.partition(".")
    if part not in PARTS or not name:
        near = guess(part, PARTS) if name else f" Did you mean 'model.{key}'?"
        raise SpaceError(
            f"{where}{key}: with model=, keys begin with model., data. or trainer., for what they are arguments "
            f"of.{near}"
        )
    if part == "data" and data is None:
        raise SpaceError(f"{where}{key}: there is no data= that could take it.")
    # Lightning is there where the model came from a module; a driver does not import it for this.
    trainer = getattr(loaded(), "Trainer", None)
    given = {"model": model, "data": data, "trainer": trainer}[part]
    taken = _parameters(given)
    if taken is not None and name not in taken:
        raise SpaceError(
            unknown(
                f"{where}{key}: {getattr(given, '__name__', part)} takes no argument", name, taken, None, "It takes"
            )
        )


def _parameters(code: Any) -> list[str] | None:
    """Return the keyword arguments of a class or function; None if it takes any, or has no signature."""
    if code is None:
        return None
    try:
        parameters = inspect.signature(code).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


# --- The points of a search space's grid: all combinations of its axes that conditions and constraints allow

_MOST: Final = 100_000
"""The largest number of combinations that are checked one by one."""

Point = dict[str, Any]


class Grid:
    """The points of ``axes``, different values by dotted key; the last axis moves first.

    ``points`` yields the grid's points; without it, every combination is one. Raises: SpaceError where there are too
    many combinations to go through.
    """

    def __init__(self, axes: dict[str, list[Any]], points: Iterator[Point] | None = None) -> None:
        self._axes = axes
        self.size = math.prod(len(values) for values in axes.values())
        self._points: list[Point] | None = None
        self._indices: dict[str, int] = {}
        if points is None:
            return
        if self.size > _MOST:
            raise SpaceError(
                f"The grid has {self.size:,} combinations, and {_MOST:,} are the most where conditions or constraints "
                "leave some out. Take values from its axes, or make some of them choices."
            )
        self._points = list(points)
        self.size = len(self._points)

    def index(self, values: Mapping[str, Any]) -> int | None:
        """Return the index of the point that a configuration has; None where it is none of the grid's."""
        if self._points is not None:
            if not self._indices:
                self._indices = {alike(point): index for index, point in enumerate(self._points)}
            return self._indices.get(alike({key: values[key] for key in self._axes if key in values}))
        index = 0
        for key, axis in self._axes.items():
            wanted = alike(values[key]) if key in values else None
            place = next((place for place, value in enumerate(axis) if alike(value) == wanted), None)
            if place is None:
                return None
            index = index * len(axis) + place
        return index

    def point(self, index: int) -> Point:
        """Return point ``index``, from 0."""
        if self._points is not None:
            return self._points[index]
        point: Point = {}
        for key, values in reversed(self._axes.items()):
            index, position = divmod(index, len(values))
            point[key] = values[position]
        return point


def same(value: Any, wanted: Any) -> bool:
    """Tell whether two values are equal (true differs from 1); objects may be given by their import path."""
    if isinstance(value, bool) != isinstance(wanted, bool):
        return False
    return bool(to_plain_config(value) == to_plain_config(wanted))


def alike(value: Any) -> str:
    """Return text that equal values share: 1 and 1.0 do, 1 and True do not, nor do numbers and text."""
    if isinstance(value, Mapping):
        return repr(sorted((str(key), alike(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return repr([alike(item) for item in value])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if isinstance(value, int) else f"{value:.0f}" if value.is_integer() else f"{value:.12g}"
    return repr(value)
