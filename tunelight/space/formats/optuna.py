"""Optuna's distributions by name, each as its ``distribution_to_json`` writes it.

{"lr": {"name": "FloatDistribution", "attributes": {"low": 0.0001, "high": 0.1, "log": true, "step": null}}}
https://optuna.readthedocs.io/en/stable/reference/distributions.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tunelight.errors import SpaceError
from tunelight.space.formats.common import unreadable

_OPTUNA = "Optuna"
_FLOAT, _INT, _CHOICE = "FloatDistribution", "IntDistribution", "CategoricalDistribution"


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of distributions by name: as JSON, as the text of each, or as objects."""
    return {str(key): _read(str(key), given_entry) for key, given_entry in given.items()}, {}


def _read(key: str, given_entry: Any) -> Any:
    kind, attributes = _taken_apart(key, given_entry)
    if kind not in (_FLOAT, _INT, _CHOICE):
        raise unreadable(_OPTUNA, key, str(kind), f"{_FLOAT}, {_INT}, {_CHOICE}")
    try:
        if kind == _CHOICE:
            choices = list(attributes["choices"])
            return {"fixed": choices[0]} if len(choices) == 1 else {"choice": choices}
        low, high, log = attributes["low"], attributes["high"], "log" if attributes.get("log") else ""
    except KeyError as error:
        raise SpaceError(f"{key}: {kind} lacks its attribute {error}.") from error
    step = attributes.get("step")
    if low == high:
        return {"fixed": low}
    if kind == _INT and step in (None, 1):
        return {f"{log}randint": [low, high + 1]}
    if step is None:
        return {f"{log}uniform": [low, high]}
    if not _divides(step, low, high):
        raise unreadable(_OPTUNA, key, f"step {step} from {low} to {high}", "steps whose multiples the bounds are")
    return {"qrandint" if kind == _INT else "quniform": [low, high, step]}


def _taken_apart(key: str, given_entry: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the name and the attributes of a distribution: of an object, of JSON, or of its text."""
    if type(given_entry).__module__ == "optuna.distributions":
        return type(given_entry).__name__, given_entry._asdict()
    if isinstance(given_entry, str):
        try:
            given_entry = json.loads(given_entry)
        except ValueError as error:
            raise SpaceError(f"{key}: {given_entry!r} is no JSON: {error}") from error
    if not isinstance(given_entry, Mapping) or not isinstance(given_entry.get("attributes"), Mapping):
        raise SpaceError(
            f"{key}: a distribution is written {{name: ..., attributes: ...}}, as optuna.distributions."
            f"distribution_to_json does, not {given_entry!r}."
        )
    return given_entry.get("name"), given_entry["attributes"]


def _divides(step: float, *bounds: float) -> bool:
    return all(abs(bound / step - round(bound / step)) < 1e-9 for bound in bounds)
