"""SearchSpace: domains, conditions, constraints, and settings of a sweep."""

from __future__ import annotations

import ast
import copy
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import SettingsError, SpaceError, guess, known_arguments, placed, unknown
from tunelight.settings import PARTS, Settings, check_names, check_trainer_argument
from tunelight.space.domains import DomainReader, When, describe, holds
from tunelight.space.files import YamlFile, find, importable, read_outline
from tunelight.space.kinds import KINDS, kind_of
from tunelight.space.plain import Grid, alike, check_part, same

if TYPE_CHECKING:
    import numpy as np


_MISSING: Any = object()
_CHECKED, _TRIES = 2_000, 100_000
"""The largest number of draws until one meets the constraints: in a check, and in a sweep."""


class SearchSpace:
    """What a sweep searches: a domain for each key, and any settings of ``tunelight.run``.

    The domains are Ray Tune's own (``tl.loguniform``, ``tl.choice``, ...), ``tl.ordinal``, descriptions of them
    ({"loguniform": [1e-4, 1e-1]}), or plain values, which are fixed. As in Ray Tune, ``randint`` and ``lograndint``
    leave out their upper bound. Mappings may be nested: {"model": {"lr": ...}} is the key ``model.lr``, and the train
    function gets the configuration as it is written here.

    A description may also hold ``when``, a condition: {"uniform": [0, 0.99], "when": {"model.optimizer": "sgd"}} (of
    several values: a list of them). A key whose condition does not hold is not in the configuration.

    Args:
        domains: a domain for each key.
        require: constraints, one or a list, which every configuration meets: "model.hidden * model.layers <= 4096". A
            constraint on a key that is not in the configuration does not apply.
        settings: any of ``tunelight.run``.

    ``domains`` holds a Ray Tune Domain for each dotted key (for an axis of the grid, a ``Categorical`` whose
    ``is_grid()`` is true), ``kinds`` its kind, ``require`` the constraints' text, ``settings`` the settings given,
    ``source`` the file that the space was loaded from, if any. Choices that are objects are plain data in ``domains``,
    such as the text ``Opt.SGD``, and in values by dotted key; ``objects`` has the objects. Configurations hold them,
    except those of :meth:`plain`.
    Raises: SpaceError, SettingsError.
    """

    @known_arguments
    def __init__(self, domains: Mapping[str, Any], /, *, require: str | Sequence[str] = (), **settings: Any) -> None:
        check_names(settings, also=("require",))
        self._fill(domains, require, settings, None)

    def _fill(self, domains: Any, require: Any, settings: Mapping[str, Any], file: YamlFile | None) -> None:
        self._file = file
        self.source: Path | None = None if file is None else file.path
        if not isinstance(domains, Mapping):
            raise SpaceError(f"{self._at('space')}A search space maps keys to domains; {domains!r} does not.")
        reader = DomainReader(lambda keys: self._at("space", *keys))
        reader.read(domains)
        if not reader.found and settings.get("script") is None:
            raise SpaceError(
                f"{self._at('space')}The search space is empty. Give it one domain or more, "
                "{'lr': tl.loguniform(1e-4, 1e-1)} for example (in YAML: lr: {loguniform: [1e-4, 1e-1]})."
            )
        checked = Settings(**settings)
        self.domains: dict[str, Any] = {".".join(keys): domain for keys, domain in reader.found.items()}
        self.kinds = {key: kind_of(domain) for key, domain in self.domains.items()}
        self.settings: dict[str, Any] = {name: getattr(checked, name) for name in settings}
        self._paths = {".".join(keys): keys for keys in reader.found}
        self._when: dict[str, When] = reader.when
        self.objects = reader.objects
        self._is_plain = False
        self._constraints: list[Constraint] = []
        listed = isinstance(require, list | tuple)
        for index, text in enumerate(require if listed else [require]):
            with placed(self._at("require", *([str(index)] if listed else []))):  # an item's own, in a list
                self._constraints.append(read_constraint(text, self.domains))
        self._grid = self._make_grid()

    def _at(self, *keys: str) -> str:
        """Return "file:line:column: " of the value at these keys; "" without a file."""
        return "" if self._file is None else self._file.where(keys)

    def _make_grid(self) -> Grid:
        axes, fixed = self._lists("grid"), self._lists("fixed")
        points = (
            {key: value for key, value in values.items() if key in axes}
            for values in self._combinations({**axes, **fixed})
            if self.broken(values) is None
        )
        with placed(self._at("space")):
            grid = Grid(axes, points if axes and (self._constraints or axes.keys() & self._when.keys()) else None)
        if not grid.size:
            raise SpaceError(f"{self._at('require')}No point of the grid meets `require: {'; '.join(self.require)}`.")
        return grid

    def _lists(self, role: str) -> dict[str, list[Any]]:
        """Return the values of keys that are fixed, or of the grid's axes, each value once."""
        keys = [key for key, kind in self.kinds.items() if kind.role == role]
        return {key: list({alike(value): value for value in self._choices(key)}.values()) for key in keys}

    def _combinations(self, lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """Yield one value of each key's list, in all combinations, the last key changing fastest.

        A key whose condition does not hold is left out of a combination.
        """
        keys = [key for key in self.domains if key in lists]

        def walk(at: int, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
            while at < len(keys) and not holds(self._when.get(keys[at], {}), values):
                at += 1
            if at == len(keys):
                yield values
                return
            for value in lists[keys[at]]:
                yield from walk(at + 1, {**values, keys[at]: value})

        return walk(0, {})

    def every(self) -> Iterator[dict[str, Any] | None]:
        """Yield the configurations of a finite space, as values by dotted key, the last key changing fastest.

        For one that breaks a constraint, None stands.
        """
        lists = {key: values for key, kind in self.kinds.items() if (values := kind.values(self.domains[key]))}

        def whole(chosen: Mapping[str, Any], index: int) -> dict[str, Any] | None:
            values = self.draw(lambda key, _: chosen[key], index)
            return values if self.broken(values) is None else None

        for index in range(self.grid_size):
            point = {key: [value] for key, value in self._grid.point(index).items()}
            for chosen in self._combinations({**lists, **point}):
                yield whole(chosen, index)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchSpace:
        """Read a YAML file: domains under ``space:``, constraints under ``require:``, and any setting beside them.

        A sweep configuration of W&B is read, too: its program is the script, and its command says the arguments.
        ``train``, ``model``, ``data`` and ``callbacks`` are import paths ("package.module:Name"); modules
        beside the file are found. Raises: SpaceError, SettingsError, ImportPathError, with file, line and column.
        """
        file = YamlFile(Path(path))
        with importable(file.path.parent):
            data = file.data
            of_wandb = isinstance(data, Mapping) and "space" not in data and isinstance(data.get("parameters"), Mapping)
            outline = _of_wandb(file) if of_wandb else data
            if isinstance(outline, dict) and isinstance(script := outline.get("script"), str):
                beside = file.path.parent / script
                outline["script"] = script if Path(script).is_file() or not beside.is_file() else str(beside)
            if outline is data:
                outline = read_outline(file)
            space = cls.__new__(cls)
            space._fill(outline.pop("space"), outline.pop("require", ()), outline, file)
        return space

    @classmethod
    def of(cls, given: SearchSpace | Mapping[str, Any] | str | os.PathLike[str]) -> SearchSpace:
        """Return a search space from a SearchSpace, a dict of domains, a YAML file, or the name of a shipped one."""
        if isinstance(given, SearchSpace):
            return given
        if isinstance(given, Mapping):
            return cls(given)
        if isinstance(given, str | os.PathLike):
            return cls.load(find(given))
        if callable(given):
            raise SpaceError(
                f"The search space comes first and what is trained second, tl.run(space, train), and the first is "
                f"{getattr(given, '__name__', given)!r}. Swap them."
            )
        raise SpaceError(
            "A search space is a SearchSpace, a dict of domains, the path of a YAML file or the name of a space that "
            f"comes with tunelight, not {given!r}."
        )

    @property
    def require(self) -> list[str]:
        """The constraints, as text."""
        return [constraint.text for constraint in self._constraints]

    @property
    def when(self) -> dict[str, When]:
        """Conditions by dotted key: the allowed values of the other keys that they name."""
        return dict(self._when)

    @property
    def grid_size(self) -> int:
        """The number of grid points that conditions and constraints allow; 1 without a grid."""
        return self._grid.size

    def grid_point(self, values: Mapping[str, Any]) -> int | None:
        """Return the grid's point that values by dotted key have; None where they have none of them."""
        return self._grid.index(values)

    def sample(self, rng: np.random.RandomState, grid_index: int = 0) -> dict[str, Any]:
        """Draw a configuration, nested as the space is written, for the grid's point ``grid_index``.

        It depends on ``rng`` and ``grid_index`` alone; the grid's last axis moves first. Functions given to
        ``sample_from`` are called last, with what was drawn so far, and answer for their own randomness.
        Raises: SpaceError when 100,000 draws break a constraint each.
        """
        return self._sample(rng, grid_index, _TRIES)

    def _sample(self, rng: np.random.RandomState, grid_index: int, tries: int) -> dict[str, Any]:
        tally = [0] * len(self._constraints)
        for _ in range(tries):
            values = self.draw(lambda _, domain: domain.sample(random_state=rng), grid_index)
            if not self.broken(values):
                return self.written(values)
            for index, constraint in enumerate(self._constraints):
                tally[index] += constraint.met(values)
        raise self._nothing_left(tally, grid_index, tries)

    def draw(self, choose: Callable[[str, Any], Any], grid_index: int = 0) -> dict[str, Any]:
        """Draw a value for each dotted key whose condition holds; constraints are not checked.

        ``choose`` is asked, with a key and its domain, in the order of the space and so after what the key's condition
        names; not for fixed values, points of the grid, and functions, which are called last.
        """
        point = self._grid.point(grid_index)
        values: dict[str, Any] = {}
        functions = []
        for key, domain in self.domains.items():
            kind = self.kinds[key]
            if kind.role == "function":
                functions.append(key)
            elif holds(self._when.get(key, {}), values):
                if key in point or kind.role == "fixed":
                    values[key] = point[key] if key in point else domain.categories[0]
                else:
                    values[key] = kind.clip(domain, choose(key, domain))
        for key in functions:
            if holds(self._when.get(key, {}), values):
                values[key] = self.domains[key].sample(config=self.objects.restored(self._nested(values)))
        return {key: values[key] for key in self.domains if key in values}

    def broken(self, values: Mapping[str, Any]) -> str | None:
        """Return the first constraint that values by dotted key violate, as text; None if they meet all."""
        return next((constraint.text for constraint in self._constraints if not constraint.met(values)), None)

    def check_constraints(self) -> None:
        """Raise SpaceError if no draw meets the constraints, at any point of the grid."""
        import numpy as np

        for index in range(self.grid_size if self._constraints else 0):
            self._sample(np.random.RandomState(0), index, _CHECKED)

    def _nothing_left(self, tally: Sequence[int], grid_index: int, tries: int) -> SpaceError:
        """Return the error for constraints that no draw met, one of them or all together."""
        never = next((index for index, met in enumerate(tally) if not met), None)
        point = f" (with {self._grid.point(grid_index)})" if self._grid.point(grid_index) else ""
        if never is not None:
            where = self._at("require", str(never)) if len(tally) > 1 else self._at("require")
            return SpaceError(
                f"{where}None of {tries:,} draws from the space{point} meets `require: {self.require[never]}`. Widen "
                "a domain, or loosen the constraint."
            )
        each = "; ".join(f"{text} (met by {met})" for text, met in zip(self.require, tally, strict=True))
        return SpaceError(
            f"{self._at('require')}None of {tries:,} draws from the space{point} meets all of `require`: {each}. "
            "Widen a domain, or loosen a constraint."
        )

    def fixed(self, values: Mapping[str, Any]) -> SearchSpace:
        """Return a copy in which these values, by dotted key, are fixed; in its baselines too.

        A key that is new to the space must be one of ``model.``, ``data.`` or ``trainer.``. Raises: SpaceError.
        """
        new = copy.copy(self)
        new.objects = copy.copy(self.objects)
        for key in values:
            if key not in self.domains and (key.partition(".")[0] not in PARTS or "." not in key):
                raise SpaceError(unknown("The search space has no key", key, self.domains, None, "It has"))
        kind = KINDS["fixed"]
        fixed = {key: kind.make({"value": new.objects.add(key, [value])[0]}) for key, value in values.items()}
        new.domains = {**self.domains, **fixed}
        new.kinds = {**self.kinds, **dict.fromkeys(fixed, kind)}
        new._paths = {**{key: (key,) for key in values}, **self._paths}
        new._paths = {key: new._paths[key] for key in new.domains}
        new._grid = new._make_grid()
        if "baselines" in self.settings:
            dotted = [self.dotted(config) for config in self.settings["baselines"]]
            dotted = [config | {key: fixed[key].categories[0] for key in fixed if key in config} for config in dotted]
            new.settings = {**self.settings, "baselines": tuple(self.written(config) for config in dotted)}
        return new

    def is_fixed(self, key: str) -> bool:
        """Tell whether a key has one value in all configurations."""
        return self.kinds[key].role == "fixed"

    def describe(self) -> dict[str, Any]:
        """Return the space as plain data that is read back: {"lr": {"loguniform": [1e-4, 0.1]}}."""
        return self._nested({key: describe(domain, self._when.get(key)) for key, domain in self.domains.items()})

    def plain(self) -> SearchSpace:
        """Return a copy whose configurations hold plain data in place of objects, as the record does."""
        new = copy.copy(self)
        new._is_plain = True
        if "baselines" in self.settings:
            new.settings = {**self.settings, "baselines": self.plain_configs(self.settings["baselines"])}
        return new

    def plain_configs(self, configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Return configurations with plain data in place of objects; other objects than choices are known then."""
        return tuple(
            self._nested({key: self.objects.add(key, [value])[0] for key, value in self._values(config).items()})
            for config in configs
        )

    def where(self, key: str) -> str:
        """Return "file:line:column: " of a key, or "" where the space comes from no file."""
        return self._at("space", *self._paths[key])

    def placing(self, settings: Settings, name: str) -> AbstractContextManager[None]:
        """Prefix errors about a setting with its position in the file, if the value is the file's."""
        ours = name in self.settings and self.settings[name] == getattr(settings, name)
        return placed(self._at(name)) if ours else nullcontext()

    def check_parts(self, model: Any, data: Any, trainer_args: Mapping[str, Any] | None = None) -> None:
        """Raise SpaceError unless every key is an argument of a ``model=`` sweep's model, data or Trainer."""
        for key in self.domains:
            check_part(key, self.where(key), model, data)
        for name in trainer_args or ():
            check_part(f"trainer.{name}", self._at_argument(name, trainer_args), model, data)

    def check_trainer(self, settings: Settings) -> None:
        """Raise SettingsError for Trainer arguments of a ``model=`` sweep that contradict its workers.

        Checked are ``trainer_args`` and the choices of ``trainer.*`` keys.
        """
        given, values = settings.trainer_args or {}, []
        for key in (key for key in self.domains if key.startswith("trainer.")):
            values += [(key.removeprefix("trainer."), value, self.where(key)) for value in self.choices(key)]
        values += [(name, value, self._at_argument(name, given)) for name, value in given.items()]
        for name, value, where in values:
            with placed(where):
                check_trainer_argument(name, value, settings)

    def _at_argument(self, name: str, trainer_args: Mapping[str, Any] | None) -> str:
        return self._at("trainer_args", str(name)) if trainer_args == self.settings.get("trainer_args") else ""

    def check_baselines(self, baselines: Sequence[Mapping[str, Any]], known: Any = None, what: str = "") -> None:
        """Raise SettingsError unless every baseline is a configuration of the space, written as there.

        What :meth:`filled` adds may be left out. ``what``: how messages call it ("baselines[0]").
        """
        ours = list(baselines) == list(self.settings.get("baselines", ()))
        for index, config in enumerate(baselines):
            start = (self._at("baselines", str(index)) if ours else "") + (what or f"baselines[{index}]")
            for keys in self._leaves(config):
                if keys not in self._paths.values():
                    key = ".".join(keys)
                    near = f" The space has it written as {self._nested({key: ...})}." if key in self.domains else ""
                    raise SettingsError(
                        f"{start} holds {key!r}, which is not in the search space."
                        f"{near or guess(key, self.domains)} The space has: {', '.join(self.domains)}."
                    )
            if wrong := self._wrong(self.dotted(self.filled(config, known))):
                raise SettingsError(f"{start} {wrong}")

    def _wrong(self, values: Mapping[str, Any]) -> str | None:
        """Describe why values by dotted key are not a configuration (domains' bounds are not checked); else None."""
        counts = {key: holds(self._when.get(key, {}), values) for key in self.domains}
        if missing := [key for key in self.domains if counts[key] and key not in values]:
            return f"says nothing of {', '.join(missing)}: a baseline is a whole configuration."
        for key, value in values.items():
            if not counts[key]:
                return f"holds {key}, which only counts when {dict(self._when[key])}. Leave it out."
            if self.kinds[key].number and (isinstance(value, bool) or not isinstance(value, Real)):
                return f"holds {key}={value!r}, which must be a number."
            choices = list(self._choices(key)) if self._is_plain and key in self.objects else []
            if choices and not any(same(value, choice) for choice in choices):
                return f"holds {key}={value!r}, which is not one of its choices: {', '.join(map(repr, choices))}."
            if self.is_fixed(key) and not same(value, self.domains[key].categories[0]):
                return f"holds {key}={value!r}, and the space keeps it fixed at {self.domains[key].categories[0]!r}."
        broken = self.broken(values)
        return broken and f"breaks `require: {broken}`: it has {dict(values)}."

    def filled(self, config: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a configuration with the values that it leaves out: fixed ones, and those of ``known`` (dotted)."""
        values = self.dotted(config)
        more = {**(known or {}), **{key: value for key, (value,) in self._lists("fixed").items()}}
        lacking = [key for key in self.domains if key in more and key not in values]
        for key in lacking:
            if holds(self._when.get(key, {}), values):
                values[key] = more[key]
        return self.written(values) if lacking else dict(config)

    def _leaves(self, config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the paths of a configuration's values; a mapping is a value if the space has no key below it."""
        for key, value in config.items():
            here = (*path, str(key))
            below = any(len(keys) > len(here) and keys[: len(here)] == here for keys in self._paths.values())
            if below and isinstance(value, Mapping):
                yield from self._leaves(value, here)
            else:
                yield here

    def written(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by dotted key as a configuration: nested as the space was written, in its order."""
        config = self._nested(values)
        return config if self._is_plain else self.objects.restored(config)

    def from_dotted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration whose keys are dotted as it is written; its values may be objects."""
        return self.written({key: self.objects.plain(key, value) for key, value in config.items()})

    def _nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for key, keys in self._paths.items():
            if key in values:
                inner = config
                for part in keys[:-1]:
                    inner = inner.setdefault(part, {})
                inner[keys[-1]] = values[key]
        return config

    def choices(self, key: str) -> list[Any]:
        """Return the values that a key is chosen from; empty if its domain is not a list of values."""
        return [self.objects.value(key, value) for value in self._choices(key)]

    def _choices(self, key: str) -> list[Any]:
        return self.kinds[key].choices(self.domains[key]) or []

    def dotted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration's values by dotted key: the way back of :meth:`written`."""
        return {key: self.objects.plain(key, value) for key, value in self._values(config).items()}

    def _values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, keys in self._paths.items():
            found: Any = config
            for part in keys:
                found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
            if found is not _MISSING:
                values[key] = found
        return values

    def __repr__(self) -> str:
        given = {**({"require": self.require} if self._constraints else {}), **self.settings}
        settings = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"SearchSpace({self.describe()}{settings})"


def _of_wandb(file: YamlFile) -> dict[str, Any]:
    """Return a sweep configuration of W&B as an outline: ``space`` and settings, its script among them."""
    from tunelight.extras import wandb

    try:
        domains, settings = wandb.read(file.data, lambda *keys: file.where(keys))
        settings |= wandb.script(file.data, lambda *keys: file.where(keys))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SpaceError(
            f"{file.where(())}This is no sweep as W&B writes it: {type(error).__name__}: {error}. Let W&B read it."
        ) from error
    file.words = wandb.WORDS
    return {"space": domains, **settings}


# Constraints: ``require: "model.hidden * model.layers <= 4096"``, read into a small language and never run as code.

# There are numbers, text and true/false; keys of the space by their dotted names; + - * / // % **; comparisons, chained
# too; and, or, not; min, max, abs, log. Whole numbers to a power become real ones, so that none grows without bound.


_LONGEST: Final = 1000
_ARITHMETIC: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SIGNS: Final[dict[type, Callable[[Any], Any]]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], int, int]]] = {
    "min": (min, 2, 99),
    "max": (max, 2, 99),
    "abs": (abs, 1, 1),
    "log": (math.log, 1, 1),
}
"""Each with the least and the most arguments that it takes."""

_ALLOWED = (
    "There are numbers, text, true/false, keys of the space, + - * / // % **, comparisons, and, or, not, "
    f"{', '.join(_FUNCTIONS)}."
)


@dataclass(frozen=True)
class Constraint:
    """One constraint: its text, the keys that it names, and the tree that it was read into."""

    text: str
    names: frozenset[str]
    tree: ast.expr

    def met(self, values: Mapping[str, Any]) -> bool:
        """Tell whether values by dotted key meet it; where one of its keys has none, it does not apply.

        What cannot be computed, as a division by zero, is not met.
        """
        if not self.names <= values.keys():
            return True
        try:
            return bool(_value(self.tree, values))
        except (ArithmeticError, ValueError, TypeError):
            return False


def read_constraint(text: Any, domains: Mapping[str, Any]) -> Constraint:
    """Read a constraint on the keys of ``domains``. Raises: SpaceError, saying which part of it is wrong."""
    if not isinstance(text, str) or not text.strip():
        raise SpaceError(f"`require` holds text such as 'model.hidden * model.layers <= 4096', not {text!r}.")
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        raise SpaceError(
            f"`require` holds {len(text)} characters, and {_LONGEST} are the most. Split it: all must hold."
        )
    try:
        tree = ast.parse(text, mode="eval").body
        reader = _Reader(text, domains)
        reader.read(tree)
    except SyntaxError as error:
        raise SpaceError(
            f"`require: {text}` cannot be read, from character {error.offset or 1}: {error.msg}. {_ALLOWED}"
        ) from error
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, SpaceError):
            raise
        raise SpaceError(f"`require: {text}` cannot be read: {error}. {_ALLOWED}") from error
    if not _is_condition(tree, domains):
        raise SpaceError(f"`require: {text}` is no condition. Compare it with something: {text} <= 10.")
    if not reader.names:
        raise SpaceError(f"`require: {text}` names no key of the space, so it says nothing of a configuration.")
    return Constraint(text, frozenset(reader.names), tree)


def _name_of(node: ast.expr) -> str | None:
    """Return the dotted name if an expression is a name, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := _name_of(node.value)) is not None:
        return f"{head}.{node.attr}"
    return None


_WORDS: Final = {"true": True, "false": False, "null": None}
"""As YAML and JSON write them; Python's own words are constants already."""


def _constant_of(node: ast.expr) -> tuple[Any] | None:
    """Return the value of a constant expression, in a tuple; None for any other expression."""
    if isinstance(node, ast.Constant):
        return (node.value,)
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return (_WORDS[node.id],)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return (_SIGNS[type(node.op)](value),) if type(value) in (int, float) else None
    return None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Evaluate a parsed expression for these values."""
    if (name := _name_of(node)) is not None and name in values:
        return values[name]
    if (constant := _constant_of(node)) is not None:
        return constant[0]
    match node:
        case ast.BinOp(left, op, right):
            return _ARITHMETIC[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, values)
        case ast.UnaryOp(op, operand):
            return _SIGNS[type(op)](_value(operand, values))
        case ast.BoolOp(op, parts):
            decide = all if isinstance(op, ast.And) else any
            return decide(_value(part, values) for part in parts)
        case ast.Call(ast.Name(function), arguments):
            return _FUNCTIONS[function][0](*(_value(argument, values) for argument in arguments))
        case ast.Compare(left, ops, rights):
            chain = [_value(part, values) for part in (left, *rights)]
            return all(COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, chain, chain[1:], strict=False))
    raise TypeError(type(node).__name__)


def _is_condition(tree: ast.expr, domains: Mapping[str, Any]) -> bool:
    """Tell whether an expression is true or false: by its form, or as a key that is."""
    if (name := _name_of(tree)) is not None:
        domain = domains.get(name)
        return all(isinstance(choice, bool) for choice in kind_of(domain).choices(domain) or ())
    return isinstance(tree, ast.Compare | ast.BoolOp) or (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    )


class _Reader:
    """Walks a parsed expression: collects the keys that it names, and rejects what is not allowed or never true."""

    def __init__(self, text: str, domains: Mapping[str, Any]) -> None:
        self._text = text
        self._domains = domains
        self.names: set[str] = set()

    def _error(self, node: ast.expr, message: str) -> SpaceError:
        part = ast.get_source_segment(self._text, node) or self._text
        return SpaceError(f"`require: {self._text}`, character {node.col_offset + 1}: {part} {message}")

    def read(self, node: ast.expr) -> None:
        """Read an expression, and those in it."""
        name = _name_of(node)
        if name is not None and name in self._domains:
            self.names.add(name)
            return
        if _constant_of(node) is not None:
            return
        if name is not None:
            keys = ", ".join(self._domains)
            raise self._error(node, f"is no key of the space.{guess(name, self._domains)} The space has: {keys}.")
        match node:
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                parts = [left, right]
            case ast.UnaryOp(op, operand) if type(op) in (ast.Not, *_SIGNS):
                parts = [operand]
            case ast.BoolOp(_, parts):
                pass
            case ast.Call(ast.Name(function), parts, []):
                self._check_call(node, function, len(parts))
            case ast.Compare(left, comparisons, rights):
                parts = [left, *rights]
                for comparison, before, after in zip(comparisons, parts, rights, strict=False):
                    self._check_comparison(comparison, before, after)
            case _:
                raise self._error(node, f"is nothing that a constraint can hold. {_ALLOWED}")
        for part in parts:
            self.read(part)

    def _check_call(self, node: ast.expr, function: str, count: int) -> None:
        if function not in _FUNCTIONS:
            raise self._error(node, f"is no function that there is.{guess(function, _FUNCTIONS)} {_ALLOWED}")
        _, least, most = _FUNCTIONS[function]
        if not least <= count <= most:
            wanted = f"{least} or more values" if most > least else "1 value"
            raise self._error(node, f"is wrong: {function} takes {wanted}, not {count}.")

    def _check_comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> None:
        if type(op) not in COMPARISONS:
            raise self._error(left, f"is compared in a way that there is not. {_ALLOWED}")
        for key, constant in ((left, _constant_of(right)), (right, _constant_of(left))):
            domain = self._domains.get(_name_of(key) or "")
            kind = kind_of(domain)
            choices = kind.choices(domain)
            if not isinstance(op, ast.Eq | ast.NotEq) or constant is None or choices is None or constant[0] in choices:
                continue
            raise self._error(key, f"is never {constant[0]!r}.{kind.instead(domain, constant[0])}")
