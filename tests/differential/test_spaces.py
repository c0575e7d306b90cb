"""Random spaces, written as YAML: what is drawn and accepted, against a slow reference that reads the text."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ray.tune.search import Searcher

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.searchers import TrackingSearcher
from tunelight.searchers.choose import build_searcher
from tunelight.settings import Settings

WORDS = ["sgd", "adam", "on", "null", "é"]
Spec = dict[str, Any]
"""Dotted key -> {domain: arguments}, with `when` beside it, in the order of the file."""


def written(rng: random.Random) -> tuple[Spec, list[str]]:
    """Draw a space and its constraints."""
    spec: Spec = {}
    names = rng.sample(["lr", "model.layers", "model.act", "model.opt.name", "data.size", "data.flip", "seed"], 5)
    for key in names:
        spec[key] = {rng.choice(list(DRAWN)): None}
        name = next(iter(spec[key]))
        spec[key][name] = DRAWN[name](rng)
        above = [one for one in spec if one != key and values_of(spec[one])]
        if name != "grid_search" and above and rng.random() < 0.5:
            other = rng.choice(above)
            wanted = rng.sample(values_of(spec[other]), rng.randint(1, min(2, len(values_of(spec[other])))))
            spec[key]["when"] = {other: wanted if len(wanted) > 1 or rng.random() < 0.5 else wanted[0]}
    numbers = [key for key in spec if name_of(spec[key]) in ("uniform", "randint", "quniform", "loguniform")]
    constraints = []
    if len(numbers) > 1 and rng.random() < 0.6:
        one, other = rng.sample(numbers, 2)
        constraints.append(
            rng.choice([f"{one} + {other} < 40", f"{one} <= 3 or {other} >= 2", f"not {one} > {other} * 4"])
        )
    return spec, constraints


DRAWN: dict[str, Callable[[random.Random], list[Any]]] = {
    "choice": lambda rng: rng.sample([*WORDS, 1, 2, 0.5, True, None], rng.randint(1, 4)),
    "ordinal": lambda rng: sorted(rng.sample([1, 2, 4, 8, 16], rng.randint(2, 4))),
    "grid_search": lambda rng: rng.sample([*WORDS, 1, 2, False], rng.randint(1, 3)),
    "uniform": lambda rng: [rng.choice([0, 0.5, -1.0]), rng.choice([1, 2.5, 30])],
    "loguniform": lambda rng: [rng.choice([1e-4, 0.5]), rng.choice([1, 10.0])],
    "quniform": lambda rng: [rng.choice([0, 1]), rng.choice([3, 30]), rng.choice([0.5, 1, 0.1])],
    "randint": lambda rng: [rng.choice([0, 1, -3]), rng.choice([2, 5, 9])],
    "qrandint": lambda rng: [rng.choice([0, 3]), rng.choice([8, 17]), rng.choice([1, 2, 4])],
    "lograndint": lambda rng: [1, rng.choice([3, 50])],
}


def name_of(entry: dict[str, Any]) -> str:
    return next(iter(entry))


def values_of(entry: dict[str, Any]) -> list[Any]:
    """Return the values of a domain that is a list of them."""
    return entry[name_of(entry)] if name_of(entry) in ("choice", "ordinal", "grid_search") else []


def equal(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def in_domain(entry: dict[str, Any], value: Any) -> bool:
    """Tell whether a value may be drawn, by the words of searchspaces/README.md."""
    name, arguments = name_of(entry), entry[name_of(entry)]
    if values_of(entry):
        return any(equal(value, one) for one in arguments)
    lower, upper, *step = arguments
    if isinstance(value, bool):
        return False
    if "int" in name:
        if not isinstance(value, int):
            return False
        if step and step[0] > 1:
            return bool(value % step[0] == 0 and lower <= value <= upper)
        return bool(lower <= value < upper)
    if not isinstance(value, float):
        return False
    on_step = not step or math.isclose(value / step[0], round(value / step[0]), abs_tol=1e-6)
    return bool(lower <= value <= upper and on_step)


def flat(config: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def active(spec: Spec, key: str, values: dict[str, Any]) -> bool:
    """Tell whether a key counts among these values."""
    for other, wanted in spec[key].get("when", {}).items():
        options = wanted if isinstance(wanted, list) else [wanted]
        if not active(spec, other, values) or not any(equal(values.get(other), one) for one in options):
            return False
    return True


def met(constraint: str, values: dict[str, Any]) -> bool:
    """Evaluate a constraint as Python, its keys replaced by their values."""
    text = constraint
    for key in sorted(values, key=len, reverse=True):
        text = text.replace(key, f"({values[key]!r})")
    try:
        return bool(eval(text, {"__builtins__": {}}))
    except (NameError, AttributeError):  # a key without a value
        return True


def valid(spec: Spec, constraints: list[str], config: dict[str, Any]) -> bool:
    """Tell whether a configuration is one of the space."""
    values = flat(config)
    return (
        all((key in values) is active(spec, key, values) for key in spec)
        and all(key in spec and in_domain(spec[key], value) for key, value in values.items())
        and all(met(one, values) for one in constraints)
    )


def nested(spec: Spec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, entry in spec.items():
        *path, last = key.split(".")
        at = found
        for part in path:
            at = at.setdefault(part, {})
        at[last] = entry
    return found


def in_file_order(spec: Spec) -> Spec:
    """Return a space's keys in the order in which its nested form has them."""

    def keys(at: dict[str, Any], path: str) -> list[str]:
        return [
            name
            for key, value in at.items()
            for name in ([path + key] if path + key in spec else keys(value, f"{path}{key}."))
        ]

    return {key: spec[key] for key in keys(nested(spec), "")}


@pytest.mark.parametrize("seed", range(150))
def test_what_is_drawn_from_a_file_is_what_its_text_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    spec, constraints = written(rng)
    dotted = rng.random() < 0.5
    file = tmp_path / "space.yaml"
    text = {"space": dict(spec) if dotted else nested(spec), "require": constraints}
    file.write_text(yaml.safe_dump(text, sort_keys=False, allow_unicode=True), encoding="utf-8")
    ordered = spec if dotted else in_file_order(spec)
    late = [
        key for number, key in enumerate(ordered)
        for other in ordered[key].get("when", {}) if list(ordered).index(other) > number
    ]  # fmt: skip
    assert not [key for key in spec if name_of(spec[key]) == "grid_search" and spec[key].get("when")]  # none is drawn
    if late:
        with pytest.raises(SpaceError, match="does not stand above it"):
            tl.SearchSpace.load(file)
        return
    space = tl.SearchSpace.load(file)
    axes = {key: values_of(entry) for key, entry in spec.items() if name_of(entry) == "grid_search"}
    generator = np.random.RandomState(seed)
    try:
        space.check_constraints()
    except SpaceError:
        assert constraints
        return
    seen: list[dict[str, Any]] = []
    for index in range(max(20, 2 * space.grid_size)):
        try:
            config = space.sample(generator, index % space.grid_size)
        except SpaceError:  # no value meets the constraints at this point
            assert constraints
            continue
        assert valid(spec, constraints, config), config
        seen.append(config)
        space.check_baselines([config])
    if not constraints:
        points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        assert space.grid_size == len(points)
        found = [{key: flat(config)[key] for key in axes} for config in seen[: space.grid_size]]
        assert sorted(map(repr, found)) == sorted(repr({key: one[key] for key in axes}) for one in points)
    again = tl.SearchSpace(space.describe(), require=space.require)
    assert again.describe() == space.describe()
    other = np.random.RandomState(3), np.random.RandomState(3)
    if not constraints:
        assert [space.sample(other[0]) for _ in range(5)] == [again.sample(other[1]) for _ in range(5)]


@pytest.mark.parametrize("name", ["random", "tpe"])
@pytest.mark.parametrize("seed", range(30))
def test_what_a_searcher_suggests_is_a_configuration_of_the_space_and_the_same_for_a_seed(name: str, seed: int) -> None:
    rng = random.Random(f"searchers {seed}")
    spec, constraints = written(rng)
    space, given = tl.SearchSpace(spec, require=constraints), Settings(searcher=name, metric="loss", seed=seed)
    try:
        one, other = build_searcher(space, given), build_searcher(space, given)
        for number in range(14):
            trial = f"{number:05d}"
            config: Any = one.suggest(trial)
            assert other.suggest(trial) == config
            if config == Searcher.FINISHED:  # each of finitely many configurations has been tried
                return
            assert valid(spec, constraints, config), config
            for searcher in (one, other):
                result = {"loss": number % 5, "training_iteration": 1, "timestamp": 1.0}
                searcher.on_trial_result(trial, result)
                if number % 3 and isinstance(searcher, TrackingSearcher):
                    searcher.end(trial, ("FINISHED", "STOPPED", "DIVERGED", "ERROR")[number % 4], result)
    except SpaceError:  # hardly any point meets the constraints
        assert constraints


@pytest.mark.parametrize("seed", range(80))
def test_a_baseline_is_accepted_only_if_it_is_a_configuration_of_the_space(seed: int) -> None:
    rng = random.Random(f"baselines {seed}")
    spec, constraints = written(rng)
    space = tl.SearchSpace(spec, require=constraints)
    generator = np.random.RandomState(seed)
    try:
        configs = [space.sample(generator, index % space.grid_size) for index in range(6)]
    except SpaceError:
        return
    for config in configs:
        values = flat(config)
        key = rng.choice(list(spec))
        change = rng.choice(["drop", "other", "add"])
        if change == "drop":
            values.pop(key, None)
        elif change == "other" and key in values and values_of(spec[key]):
            values[key] = rng.choice(values_of(spec[key]))
        else:
            values.setdefault(
                key, values_of(spec[key])[0] if values_of(spec[key]) else spec[key][name_of(spec[key])][0]
            )
        numeric = [one for one in values if not values_of(spec[one])]
        if not all(
            in_domain(spec[one], float(values[one]) if "int" not in name_of(spec[one]) else values[one])
            for one in numeric
        ):
            continue  # bounds are not checked: a baseline may lie outside of them
        wanted = all((one in values) is active(spec, one, values) for one in spec) and all(
            met(one, values) for one in constraints
        )
        if wanted:
            space.check_baselines([values])
        else:
            with pytest.raises(SettingsError):
                space.check_baselines([values])
