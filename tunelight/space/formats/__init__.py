"""Search spaces in the formats of other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunelight.errors import SpaceError, guess, unknown
from tunelight.space.files import YamlFile
from tunelight.space.formats import configspace, optuna, tune, wandb
from tunelight.space.formats.common import Described

Read = tuple[dict[str, Any], dict[str, Any]]
"""Domains, and the keywords of SearchSpace that go with them."""

_READ: dict[str, Callable[[Mapping[str, Any]], Read]] = {
    "wandb": wandb.read,
    "optuna": optuna.read,
    "configspace": configspace.read,
    "ray": tune.read,
}
_WRITE: dict[str, Callable[[Described], dict[str, Any]]] = {
    "wandb": wandb.write,
    "optuna": optuna.write,
    "configspace": configspace.write,
    "ray": tune.write,
}


def read_format(given: Any, name: str) -> Read:
    """Read a search space in the format ``name``: domains, and keywords of SearchSpace. Raises: SpaceError."""
    read = _known(_READ, name)
    if isinstance(given, str | os.PathLike):
        given = _load(Path(given))
    if not isinstance(given, Mapping):
        raise SpaceError(f"A search space of {name!r} is a mapping, or the path of a YAML or JSON file, not {given!r}.")
    try:
        found: Read = read(given)
    except SpaceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SpaceError(
            f"This is no search space of {name!r} as that program writes it: {type(error).__name__}: {error}. Let the "
            "program itself write it again, or read it."
        ) from error
    return found


def write_format(space: Described, name: str) -> dict[str, Any]:
    """Write a search space in the format ``name``. Raises: SpaceError."""
    written: dict[str, Any] = _known(_WRITE, name)(space)
    return written


def _known(table: Mapping[str, Any], name: Any) -> Any:
    if name not in table:
        raise SpaceError(unknown("There is no format", name, table))
    return table[name]


def _load(path: Path) -> Any:
    if path.suffix != ".json":
        return YamlFile(path).data
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        beside = [other.name for other in path.parent.glob("*.json")]
        raise SpaceError(f"There is no file {path}.{guess(path.name, beside)}") from error
    except (OSError, ValueError) as error:
        raise SpaceError(f"{path} cannot be read as JSON: {error}") from error
