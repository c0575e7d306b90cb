"""Search spaces in YAML files: read with the line of every key, so that an error can say where it is."""

from __future__ import annotations

import contextlib
import importlib.machinery
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tunelight.errors import SpaceError, guess

_TAG = "tag:yaml.org,2002:"


class Loader(yaml.SafeLoader):
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


class YamlFile:
    """A YAML file's ``data``, and where each of its keys stands.

    Raises: SpaceError, if it cannot be read, is no valid YAML, or holds a key twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[tuple[str, ...], int] = {}
        loader = Loader(_read(path))
        try:
            node = loader.get_single_node()
            if node is not None:
                self._note(node, (), set())
            self.data: Any = None if node is None else loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise SpaceError(f"{path}:{line}: this is no valid YAML: {what}.") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise SpaceError(f"{path}: this is no valid YAML: {error}") from error
        finally:
            loader.dispose()

    def where(self, keys: tuple[str, ...]) -> str:
        """Return "file:line: " of a key, by the path of keys that leads to it."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return f"{self.path}:{self._lines.get(keys, 1)}: "

    def _note(self, node: yaml.Node, path: tuple[str, ...], seen: set[int]) -> None:
        """Note the line of every key below ``node``; what an alias repeats is noted where it is written."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._note(item, path, seen)
        if not isinstance(node, yaml.MappingNode):
            return
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                same = (key.tag, key.value)
                if same in lines:
                    raise SpaceError(
                        f"{self.path}:{line}: the key {key.value!r} is there twice, first in line "
                        f"{lines[same]}. Keep one of them."
                    )
                lines[same] = line
                self._lines.setdefault((*path, key.value), line)
                self._note(value, (*path, key.value), seen)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = [other.name for other in path.parent.glob("*.y*ml")]
        raise SpaceError(f"There is no search space file {path}.{guess(path.name, beside)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(f"The search space file {path} cannot be read: {error}") from error


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
