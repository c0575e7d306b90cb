"""Search spaces in the formats of other programs: W&B's sweeps, Optuna's distributions, Ray Tune's param_space.

https://optuna.readthedocs.io/en/stable/reference/distributions.html
https://docs.ray.io/en/latest/tune/api/search_space.html
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunelight.errors import SpaceError, guess, unknown
from tunelight.extras.spaces import wandb
from tunelight.space.files import YamlFile

Read = tuple[dict[str, Any], dict[str, Any]]
"""Domains, and the keywords of SearchSpace that go with them."""
_FLOAT, _INT, _CHOICE = "FloatDistribution", "IntDistribution", "CategoricalDistribution"


def read_format(given: Any, name: str) -> Read:
    """Read a search space in the format ``name``: domains, and keywords of SearchSpace. Raises: SpaceError."""
    if name not in _READ:
        raise SpaceError(unknown("There is no format", name, _READ))
    if isinstance(given, str | os.PathLike):
        given = _load(Path(given))
    if not isinstance(given, Mapping):
        raise SpaceError(f"A search space of {name!r} is a mapping, or the path of a YAML or JSON file, not {given!r}.")
    with written_as(name):
        return _READ[name](given)


@contextlib.contextmanager
def written_as(name: str) -> Iterator[None]:
    """Raise SpaceError for data that the reader of the format ``name`` stumbles over."""
    try:
        yield
    except SpaceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SpaceError(
            f"This is no search space of {name!r} as that program writes it: {type(error).__name__}: {error}. Let the "
            "program itself write it again, or read it."
        ) from error


def wandb_domain(written: Mapping[str, Any]) -> Any:
    """Return the domain of a W&B sweep's parameter that Ray Tune has none for."""
    from tunelight.extras.spaces.wandb_domain import OfWandb  # a second, and reading the formats needs none

    return OfWandb(written)


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


# --- Ray Tune ---------------------------------------------------------------------------------------------


def _ray(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the domains of a param_space; its constants, of whatever kind, are fixed."""
    from ray.tune.search.sample import Domain  # a second, and reading the other formats needs none

    domains: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, Domain) or (isinstance(value, Mapping) and value.keys() == {"grid_search"}):
            domains[key] = value
        else:
            domains[key] = _ray(value) if isinstance(value, Mapping) and value else {"fixed": value}
    return domains


# --- Optuna -----------------------------------------------------------------------------------------------


def _distribution(key: str, given: Any) -> Any:
    """Return the domain of a distribution: an object, or as ``distribution_to_json`` writes it, text or parsed."""
    if type(given).__module__ == "optuna.distributions":
        given = {"name": type(given).__name__, "attributes": given._asdict()}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise SpaceError(f"{key}: {given!r} is no JSON: {error}") from error
    if not isinstance(given, Mapping) or not isinstance(given.get("attributes"), Mapping):
        raise SpaceError(
            f"{key}: a distribution is written {{name: ..., attributes: ...}}, as optuna.distributions."
            f"distribution_to_json does, not {given!r}."
        )
    kind, attributes = given.get("name"), given["attributes"]
    if kind not in (_FLOAT, _INT, _CHOICE):
        raise wandb.unreadable("Optuna", key, str(kind), f"{_FLOAT}, {_INT}, {_CHOICE}")
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
    if any(abs(bound / step - round(bound / step)) > 1e-9 for bound in (low, high)):
        raise wandb.unreadable(
            "Optuna", key, f"step {step} from {low} to {high}", "steps whose multiples the bounds are"
        )
    return {"qrandint" if kind == _INT else "quniform": [low, high, step]}


_READ: dict[str, Callable[[Mapping[str, Any]], Read]] = {
    "wandb": wandb.read,
    "optuna": lambda given: ({str(key): _distribution(str(key), entry) for key, entry in given.items()}, {}),
    "ray": lambda given: (_ray(given), {}),
}
