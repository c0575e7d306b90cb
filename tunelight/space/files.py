"""Search spaces in YAML files: read with the place of every key, so that an error can say where it is."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tunelight.errors import SettingsError, SpaceError, TunelightError, guess, placed, unknown
from tunelight.settings import NAMES, Settings, check_setting
from tunelight.settings.checks import BoundedLoader
from tunelight.space.kinds import KINDS

_TAG = "tag:yaml.org,2002:"
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""What PyYAML lets pass of values that do not fit their tag, `!!int three`."""

_BESIDE = ("space", "require")
"""Keys of a file that are no settings."""


class Loader(BoundedLoader):
    """PyYAML's safe loader by YAML 1.2's rules: 1e-4 is a number, ``no`` and 12:30 are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own way


def _whole(loader: Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)
Loader.add_constructor(f"{_TAG}int", _whole)


_SWITCH = re.compile(r"(?i)yes|no|on|off")


def _old_habit(node: yaml.ScalarNode, *, key: bool = False) -> str | None:
    """Describe a value that YAML 1.1, which W&B, Hydra and LightningCLI read, takes for another; None for others."""
    text = node.value
    if node.style is not None or node.tag != f"{_TAG}str":
        return None
    if key:
        return "keys are not merged (<<). Write out the keys that the alias stands for." if text == "<<" else None
    if _SWITCH.fullmatch(text):
        meant = "true" if text.lower() in ("yes", "on") else "false"
        return f"{text} is a boolean in YAML 1.1 and text in YAML 1.2. Write {meant}, or '{text}' for the text."
    if re.fullmatch(r"[-+]?([0-9]{1,3}(_[0-9]{3})+(\.[0-9_]*)?|0b[01_]+)", text):
        with contextlib.suppress(ValueError):
            if isinstance(number := yaml.safe_load(text), int | float):
                return f"{text} is a number in YAML 1.1 and text in YAML 1.2. Write {number}, or '{text}' for the text."
    return None


def _old_habits(node: Any, *, key: bool = False, seen: set[int] | None = None) -> Iterator[tuple[yaml.Node, str]]:
    """Yield what :func:`_old_habit` finds in a node, each with its place."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode) and (habit := _old_habit(node, key=key)) is not None:
        yield node, habit
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _old_habits(item, seen=seen)
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _old_habits(name, key=True, seen=seen)
            yield from _old_habits(value, seen=seen)


def read_value(text: str) -> Any:
    """Parse text as YAML. Raises: ValueError."""
    try:
        habits = list(_old_habits(yaml.compose(text, Loader)))
        value = yaml.load(text, Loader)  # noqa: S506 - it derives from PyYAML's safe loader
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"the value is not valid YAML: {_fault(error)[0]}") from error
    except (yaml.YAMLError, RecursionError, *_UNREADABLE) as error:
        raise ValueError(f"the value is not valid YAML: {error}") from error
    if habits:
        raise ValueError(habits[0][1])
    return value


class YamlFile:
    """A YAML file's ``data``, and the position of each of its keys.

    Raises: SpaceError, if it cannot be read, is not valid YAML, or holds a key twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.words: Mapping[str, str] = {}
        """What the file calls a key at its top, if it is another program's."""
        self._places: dict[tuple[str, ...], str] = {}
        text = _read(path)
        try:
            loader = Loader(text)
            node = loader.get_single_node()
            if node is not None:
                self._note(node, (), set(), frozenset())
                for place, habit in _old_habits(node):
                    raise SpaceError(f"{path}:{_place(place.start_mark)}: {habit}")
            self.data: Any = None if node is None else loader.construct_document(node)
        except SpaceError:
            raise
        except yaml.MarkedYAMLError as error:
            what, mark = _fault(error)
            raise SpaceError(f"{path}:{_place(mark)}: this is not valid YAML: {what}.") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise SpaceError(f"{path}: this is not valid YAML: {_line(error)}") from error
        except _UNREADABLE as error:
            raise SpaceError(f"{path}: a value is not what its tag says, or too long to be read: {error}.") from error

    def where(self, keys: tuple[str, ...]) -> str:
        """Return "file:line:column: " of a key, by the path of keys that leads to it; items are numbered from 0."""
        keys = (*(self.words.get(key, key) for key in keys[:1]), *keys[1:])
        while keys and keys not in self._places:
            keys = keys[:-1]
        return f"{self.path}:{self._places.get(keys, '1:1')}: "

    def _note(self, node: yaml.Node, path: tuple[str, ...], seen: set[int], above: frozenset[int]) -> None:
        """Store the position of every key and item below ``node``; that of an alias is where its anchor is."""
        if id(node) in above:
            raise SpaceError(f"{self.path}:{_place(node.start_mark)}: an alias in here repeats what it stands in.")
        if id(node) in seen:
            return
        seen.add(id(node))
        above |= {id(node)}
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._places.setdefault((*path, str(index)), _place(item.start_mark))
                self._note(item, (*path, str(index)), seen, above)
        if not isinstance(node, yaml.MappingNode):
            return
        before: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                same = (key.tag, key.value)
                if same in before:
                    raise SpaceError(
                        f"{self.path}:{_place(key.start_mark)}: the key {key.value!r} is there twice, first in line "
                        f"{before[same]}. Keep one of them."
                    )
                before[same] = key.start_mark.line + 1
                self._places.setdefault((*path, key.value), _place(key.start_mark))
                self._note(value, (*path, key.value), seen, above)


def read_outline(file: YamlFile) -> dict[str, Any]:
    """Return a file's settings, checked, with ``space`` and ``require`` as they were written.

    Raises: SpaceError, SettingsError, ImportPathError, with the place of each mistake.
    """
    if not isinstance(file.data, Mapping):
        what = "nothing" if file.data is None else repr(file.data)
        raise SpaceError(f"{file.where(())}A search space file holds `space:` and settings; this one holds {what}.")
    found: dict[str, Any] = {}
    mistakes: list[TunelightError] = []
    for name, value in file.data.items():
        inner = value if isinstance(value, Mapping) else {}
        if name not in (*_BESIDE, *NAMES):
            mistake = unknown("there is no key", str(name), [*_BESIDE, *NAMES])
            if set(inner) & KINDS.keys():
                mistakes.append(
                    SpaceError(f"{file.where((str(name),))}{name}: a domain must stand under `space:`, not beside it.")
                )
            else:
                mistakes.append(SettingsError(f"{file.where((str(name),))}{mistake}"))
            continue
        try:
            found[name] = value if name in _BESIDE else check_setting(name, value)
        except TunelightError as error:
            wrong = [str(key) for key in inner if f"{key!r}" in str(error)]
            mistakes.append(type(error)(f"{file.where((name, *wrong[:1]))}{error}"))
    if "space" not in file.data:
        mistakes.append(SpaceError(f"{file.where(())}The file has no `space:`, which maps keys to domains."))
    if mistakes:
        raise type(mistakes[0])("\n".join(map(str, mistakes)))
    with placed(file.where(("scheduler",))):  # each is right by itself: it is the scheduler against max_epochs
        Settings(**{name: value for name, value in found.items() if name in NAMES})
    return found


def _fault(error: yaml.MarkedYAMLError) -> tuple[str, yaml.Mark | None]:
    """Return what is wrong with YAML, and where: of what has no end, its beginning."""
    endless = re.search("flow|quoted|simple key", str(error.context))
    mark = error.context_mark if endless else error.problem_mark or error.context_mark
    return " ".join(part for part in (error.context, error.problem) if part), mark


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _place(mark: yaml.Mark | None) -> str:
    return f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = [other.name for other in path.parent.glob("*.y*ml")]
        raise SpaceError(f"There is no search space file {path}.{guess(path.name, beside)}") from error
    except UnicodeDecodeError as error:
        raise SpaceError(f"The search space file {path} cannot be read: {error}. Save it as text in UTF-8.") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise SpaceError(f"The search space file {path} cannot be read: {why}. Give a file that can be.") from error


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let modules in ``folder`` be imported by name, after all that is importable already.

    The folder stays on ``sys.path`` if a module of it was imported, for workers look for it there too.
    """
    entry = str(folder.absolute())
    if entry in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.append(entry)
    used = False
    try:
        yield
        tops = {name.partition(".")[0] for name in set(sys.modules) - before}
        used = any(importlib.machinery.PathFinder.find_spec(name, [entry]) for name in tops)
    finally:
        if not used:
            sys.path.remove(entry)


# --- The search spaces that come with tunelight, found by name: ``tl.run("digits_mlp")`` ------------------

_SUFFIXES = (".yaml", ".yml")


def folder() -> Path:
    """Return the folder of the spaces: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "searchspaces"
    return installed if installed.is_dir() else package.parent / "searchspaces"


def names() -> list[str]:
    """Return the names of the spaces that come with tunelight."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def find(given: str | os.PathLike[str]) -> Path:
    """Return the file of a space: an existing path as it is, else the file of a shipped space of that name.

    Raises: SpaceError for an unknown name.
    """
    path = Path(given)
    if path.suffix == ".py":
        raise SpaceError(
            f"{path} is a Python file, and a search space is a YAML file (with `train: {path.stem}:train` in it). A "
            f"script that calls tl.run itself is run by python: python {path}"
        )
    is_file = os.path.isfile(path)  # noqa: PTH113 - Path's own raises where a name is too long
    if path.suffix in _SUFFIXES or len(path.parts) > 1 or is_file or not isinstance(given, str):
        return path
    if given in names():
        return folder() / f"{given}.yaml"
    beside = [other.name for suffix in _SUFFIXES for other in Path().glob(f"*{suffix}")]
    raise SpaceError(
        f"There is no search space {given!r}.{guess(given, [*names(), *beside])} With tunelight come: "
        f"{', '.join(names())}. A file of your own is named with its ending, {given}.yaml."
    )
