"""SearchSpace: what is searched, and the settings that go with it."""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.errors import SettingsError, SpaceError, TunelightError, guess
from tunelight.settings import NAMES, PARTS, Settings, check_names, check_setting
from tunelight.space.domains import ARGUMENTS, DomainReader, describe
from tunelight.space.files import YamlFile, importable

if TYPE_CHECKING:
    import numpy as np

_MISSING: Any = object()


class SearchSpace:
    """What a sweep searches: a domain for each key, and any settings of ``tunelight.run``.

    The domains are Ray Tune's own (``tl.loguniform``, ``tl.choice``, ...) or descriptions of them
    ({"loguniform": [1e-4, 1e-1]}). Mappings may be nested: {"model": {"lr": ...}} is the key ``model.lr``,
    and the train function gets the configuration as it is written here.

    ``domains`` holds a Ray Tune Domain or {"grid_search": [...]} for each dotted key, ``settings`` those
    that were given, ``source`` the file that the space was loaded from, if any.
    Raises: SpaceError, SettingsError.
    """

    def __init__(self, domains: Mapping[str, Any], /, **settings: Any) -> None:
        check_names(settings)
        self._fill(domains, settings, lambda _: "", None)

    def _fill(
        self,
        domains: Any,
        settings: Mapping[str, Any],
        where: Callable[[tuple[str, ...]], str],
        source: Path | None,
    ) -> None:
        start = where(()) if source is None else where(("space",))
        if not isinstance(domains, Mapping):
            raise SpaceError(f"{start}A search space maps keys to domains; {domains!r} does not.")
        reader = DomainReader(where if source is None else lambda keys: where(("space", *keys)))
        reader.read(domains)
        if not reader.found:
            raise SpaceError(
                f"{start}The search space is empty. Give it one domain or more, "
                "{'lr': tl.loguniform(1e-4, 1e-1)} for example (in YAML: lr: {loguniform: [1e-4, 1e-1]})."
            )
        checked = Settings(**settings)
        self.domains: dict[str, Any] = {".".join(keys): domain for keys, domain in reader.found.items()}
        self.settings: dict[str, Any] = {name: getattr(checked, name) for name in settings}
        self.source = source
        self._paths = {".".join(keys): keys for keys in reader.found}
        self._places = {
            key: where(keys) if source is None else where(("space", *keys)) for key, keys in self._paths.items()
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchSpace:
        """Read a YAML file: domains under ``space:``, and any setting beside it.

        ``train``, ``model``, ``data`` and ``callbacks`` are import paths ("package.module:Name"); modules
        beside the file are found. Raises: SpaceError, SettingsError, ImportPathError, with file and line.
        """
        file = YamlFile(Path(path))
        data = file.data
        if not isinstance(data, Mapping):
            raise SpaceError(f"{file.where(())}A search space file holds `space:` and settings, not {data!r}.")
        with importable(file.path.parent):
            settings = {name: _setting(file, name, data[name]) for name in data if name != "space"}
            if "space" not in data:
                raise SpaceError(f"{file.where(())}The file holds no `space:`, under which the domains stand.")
            try:
                Settings(**settings)
            except SettingsError as error:  # each is right by itself: it is the scheduler against max_epochs
                raise type(error)(f"{file.where(('scheduler',))}{error}") from error
            space = cls.__new__(cls)
            space._fill(data["space"], settings, file.where, file.path)
        return space

    @classmethod
    def of(cls, given: SearchSpace | Mapping[str, Any] | str | os.PathLike[str]) -> SearchSpace:
        """Return a space as it is, of a dict of domains, or loaded from a YAML file."""
        if isinstance(given, SearchSpace):
            return given
        if isinstance(given, Mapping):
            return cls(given)
        if isinstance(given, str | os.PathLike):
            return cls.load(given)
        raise SpaceError(
            f"A search space is a SearchSpace, a dict of domains, or the path of a YAML file, not {given!r}."
        )

    @property
    def grid_size(self) -> int:
        """How many points the grid axes make together; 1 without any."""
        return math.prod(len(values) for values in self._grid().values())

    def sample(self, rng: np.random.RandomState, grid_index: int = 0) -> dict[str, Any]:
        """Draw one configuration, as the space is written; of the grid, point ``grid_index``.

        It depends on ``rng`` and ``grid_index`` alone; the grid's last axis moves first. Functions given to
        ``sample_from`` are called last, with what was drawn so far, and answer for their own randomness.
        """
        drawn: dict[str, Any] = {}
        for key, values in reversed(self._grid().items()):
            grid_index, position = divmod(grid_index, len(values))
            drawn[key] = values[position]
        for functions in (False, True):
            for key, domain in self.domains.items():
                if key not in drawn and domain.is_function() is functions:
                    drawn[key] = domain.sample(config=self.written(drawn), random_state=rng)
        return self.written(drawn)

    def describe(self) -> dict[str, Any]:
        """Return the space as plain data that is read back: {"lr": {"loguniform": [1e-4, 0.1]}}."""
        return self.written({key: describe(domain) for key, domain in self.domains.items()})

    def where(self, key: str) -> str:
        """Return "file:line: " of a key, or "" where the space comes from no file."""
        return self._places[key]

    def check_parts(self, model: Any, data: Any) -> None:
        """Raise SpaceError unless every key is an argument of a ``model=`` sweep's model, data or Trainer."""
        for key in self.domains:
            part, _, name = key.partition(".")
            if part not in PARTS or not name:
                near = guess(part, PARTS) if name else f" Did you mean 'model.{key}'?"
                raise SpaceError(
                    f"{self.where(key)}{key}: with model=, keys begin with model., data. or trainer., for "
                    f"what they are arguments of.{near}"
                )
            if part == "data" and data is None:
                raise SpaceError(f"{self.where(key)}{key}: there is no data= that could take it.")
            taken = _parameters({"model": model, "data": data}.get(part))
            if taken is not None and name not in taken:
                given = {"model": model, "data": data}[part]
                raise SpaceError(
                    f"{self.where(key)}{key}: {getattr(given, '__name__', part)} takes no argument {name!r}."
                    f"{guess(name, taken)} It takes: {', '.join(taken) or 'none'}."
                )

    def check_baselines(self, baselines: Sequence[Mapping[str, Any]]) -> None:
        """Raise SettingsError unless every key of every baseline is one of the space, written as there."""
        valid = list(self.domains)
        for index, config in enumerate(baselines):
            for keys in self._leaves(config):
                if keys not in self._paths.values():
                    key = ".".join(keys)
                    near = f" The space has it written as {self.written({key: ...})}." if key in valid else ""
                    raise SettingsError(
                        f"baselines[{index}] holds {key!r}, which is not in the search space."
                        f"{near or guess(key, valid)} The space has: {', '.join(valid)}."
                    )
            given = set(self._leaves(config))
            if missing := [key for key, keys in self._paths.items() if keys not in given]:
                raise SettingsError(
                    f"baselines[{index}] says nothing of {', '.join(missing)}: a baseline is a whole configuration."
                )

    def _leaves(self, config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the paths of a configuration's values; a mapping is one if the space has no key below."""
        for key, value in config.items():
            here = (*path, str(key))
            below = any(len(keys) > len(here) and keys[: len(here)] == here for keys in self._paths.values())
            if below and isinstance(value, Mapping):
                yield from self._leaves(value, here)
            else:
                yield here

    def _grid(self) -> dict[str, list[Any]]:
        return {key: d["grid_search"] for key, d in self.domains.items() if isinstance(d, Mapping)}

    def written(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by dotted key as the space was written, nested where it is, in its order."""
        config: dict[str, Any] = {}
        for key, keys in self._paths.items():
            if key in values:
                inner = config
                for part in keys[:-1]:
                    inner = inner.setdefault(part, {})
                inner[keys[-1]] = values[key]
        return config

    def fixed(self, values: Mapping[str, Any]) -> SearchSpace:
        """Return a copy in which these values, by dotted key, are fixed.

        A key that is new to the space must be one of ``model.``, ``data.`` or ``trainer.``. Raises: SpaceError.
        """
        new = copy.copy(self)
        new.domains, new._paths, new._places = dict(self.domains), dict(self._paths), dict(self._places)
        for key, value in values.items():
            if key not in self.domains and (key.partition(".")[0] not in PARTS or "." not in key):
                raise SpaceError(
                    f"{key!r} is not in the search space, so it cannot be fixed.{guess(key, self.domains)} The space "
                    f"has: {', '.join(self.domains)}."
                )
            reader = DomainReader(lambda _: "")
            reader.read({key: {"choice": [value]}})
            (new.domains[key],) = reader.found.values()
            new._paths.setdefault(key, (key,))
            new._places.setdefault(key, "")
        return new

    def choices(self, key: str) -> list[Any]:
        """Return what a key is chosen from; nothing where its domain is no list of values."""
        domain = self.domains[key]
        return list(domain["grid_search"] if isinstance(domain, Mapping) else getattr(domain, "categories", ()))

    def dotted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration's values by dotted key: the way back of :meth:`written`."""
        values: dict[str, Any] = {}
        for key, keys in self._paths.items():
            found: Any = config
            for part in keys:
                found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
            if found is not _MISSING:
                values[key] = found
        return values

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"SearchSpace({self.describe()}{settings})"


def _setting(file: YamlFile, name: Any, value: Any) -> Any:
    """Return a setting of a YAML file, checked; an error is told with its line."""
    if name not in NAMES:
        where = file.where((str(name),))
        if isinstance(value, Mapping) and set(value) & set(ARGUMENTS):
            raise SpaceError(f"{where}{name}: a domain must stand under `space:`, not beside it.")
        raise SettingsError(
            f"{where}there is no key {name!r}.{guess(name, ['space', *NAMES])} There are: space, {', '.join(NAMES)}."
        )
    try:
        return check_setting(name, value)
    except TunelightError as error:
        wrong = [key for key in value if f"{key!r}" in str(error)] if isinstance(value, Mapping) else []
        raise type(error)(f"{file.where((name, *map(str, wrong[:1])))}{error}") from error


def _parameters(code: Any) -> list[str] | None:
    """Return what a class or function takes by name; None where it takes any name, or nobody can tell."""
    if code is None:
        return None
    try:
        parameters = inspect.signature(code).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
