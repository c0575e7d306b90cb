"""What keys are: arguments of the model, the data module or the Trainer in a ``model=`` sweep; options of a script."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tunelight.compat.lightning import loaded
from tunelight.errors import SettingsError, SpaceError, guess, unknown
from tunelight.settings import PARTS, Settings, check_trainer_argument


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


def check_trainer_value(name: str, value: Any, where: str, settings: Settings) -> None:
    """Raise SettingsError for a Trainer argument that contradicts the sweep's workers."""
    try:
        check_trainer_argument(
            name,
            value,
            workers=settings.workers,
            gpus_per_worker=settings.gpus_per_worker,
            resources_per_trial=settings.resources_per_trial,
        )
    except SettingsError as error:
        raise SettingsError(f"{where}{error}") from error


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
