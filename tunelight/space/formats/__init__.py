"""Search spaces in the formats of other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunelight.errors import SpaceError, guess, unknown
from tunelight.space.files import YamlFile
from tunelight.space.formats import optuna, tune, wandb

Read = tuple[dict[str, Any], dict[str, Any]]
"""Domains, and the keywords of SearchSpace that go with them."""

_READ: dict[str, Callable[[Mapping[str, Any]], Read]] = {
    "wandb": wandb.read,
    "optuna": optuna.read,
    "ray": tune.read,
}


def read_format(given: Any, name: str) -> Read:
    """Read a search space in the format ``name``: domains, and keywords of SearchSpace. Raises: SpaceError."""
    if name not in _READ:
        raise SpaceError(unknown("There is no format", name, _READ))
    if isinstance(given, str | os.PathLike):
        given = _load(Path(given))
    if not isinstance(given, Mapping):
        raise SpaceError(f"A search space of {name!r} is a mapping, or the path of a YAML or JSON file, not {given!r}.")
    try:
        return _READ[name](given)
    except SpaceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SpaceError(
            f"This is no search space of {name!r} as that program writes it: {type(error).__name__}: {error}. Let the "
            "program itself write it again, or read it."
        ) from error


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
