"""What is mutated, and how: within bounds, of its own kind, by one of two factors or drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ray import tune

from tunelight.errors import SettingsError, TunelightError
from tunelight.schedulers import GangPBT
from tunelight.schedulers.base import SweepFacts
from tunelight.schedulers.pbt import default_mutations, explore, mutations_of
from tunelight.space import SearchSpace


def test_values_stay_within_their_domains_and_keep_their_kind() -> None:
    mutations = mutations_of(
        {
            "lr": tune.loguniform(1e-3, 1e-1),
            "layers": tune.randint(1, 4),
            "q": tune.quniform(0, 1, 0.25),
            "kind": ["a", "b", "c"],
            "nested": {"wd": tune.uniform(0, 1)},
            "drawn": lambda: 5,
        }
    )
    rng = np.random.RandomState(0)
    config: dict[str, Any] = {"lr": 0.05, "layers": 2, "q": 0.5, "kind": "b", "nested": {"wd": 0.5}, "drawn": 1}
    kinds = set()
    for _ in range(300):
        config = explore(config, mutations, rng, 0.25, (1.2, 0.8))
        assert 1e-3 <= config["lr"] <= 1e-1
        assert isinstance(config["layers"], int)
        assert 1 <= config["layers"] <= 3
        assert config["q"] in (0, 0.25, 0.5, 0.75, 1.0)
        assert 0 <= config["nested"]["wd"] <= 1
        assert all(type(value) in (int, float, str, dict) for value in config.values())
        kinds.add(config["kind"])
    assert kinds == {"a", "b", "c"}


def test_perturbing_multiplies_and_a_whole_number_moves() -> None:
    rng = np.random.RandomState(0)
    mutations = {"lr": tune.uniform(0, 10), "n": tune.randint(1, 100)}
    seen = [explore({"lr": 1.0, "n": 2}, mutations, rng, 0.0, (1.2, 0.8)) for _ in range(50)]
    assert {one["lr"] for one in seen} == {1.2, 0.8}
    assert {one["n"] for one in seen} == {1, 3}


def test_the_domain_alone_decides_whether_a_number_stays_whole() -> None:
    rng = np.random.RandomState(0)
    domains = {"lr": tune.loguniform(1e-2, 10.0), "q": tune.quniform(0, 8, 0.5), "n": tune.randint(1, 100)}
    seen = [explore({"lr": 1, "q": 2, "n": 2.0}, domains, rng, 0.0, (1.2, 0.8)) for _ in range(50)]
    assert {one["lr"] for one in seen} == {1.2, 0.8}
    assert {one["q"] for one in seen} == {2.5, 1.5}
    assert {(one["n"], type(one["n"])) for one in seen} == {(1, int), (3, int)}


def test_what_a_configuration_lacks_is_not_added_and_its_parent_is_left_alone() -> None:
    parent = {"model.lr": 0.1}
    mutated = explore(
        parent, {"model.lr": tune.uniform(0, 1), "wd": tune.uniform(0, 1)}, np.random.RandomState(0), 1, (2,)
    )
    assert mutated.keys() == {"model.lr"}
    assert parent == {"model.lr": 0.1}


def test_by_default_the_real_numbers_that_training_can_follow_are_mutated() -> None:
    domains = {
        "model.lr": tune.loguniform(1e-4, 1),
        "model.hidden": tune.choice([32, 64]),
        "model.wd": tune.choice([0.1, 0.2]),
        "data.scale": tune.uniform(0, 1),
        "layers": tune.randint(1, 3),
    }
    assert list(default_mutations(domains)) == ["model.lr", "model.wd"]
    pbt = GangPBT("loss", "min")
    pbt.prepare(SweepFacts(domains))
    with pytest.raises(SettingsError, match="no real number"):
        GangPBT("loss", "min").prepare(SweepFacts({"layers": tune.randint(1, 3)}))
    with pytest.raises(SettingsError, match="Did you mean"):
        GangPBT("loss", "min", hyperparam_mutations={"lrr": [1, 2]}).prepare(SweepFacts({"lr": tune.uniform(0, 1)}))


def test_an_object_that_the_space_lacks_is_no_mutation() -> None:
    space = SearchSpace({"act": tune.choice([torch.nn.ReLU, torch.nn.Tanh])})
    known = GangPBT("loss", "min", hyperparam_mutations={"act": [torch.nn.Tanh, torch.nn.ReLU]})
    known.prepare(SweepFacts(space.domains))
    other = GangPBT("loss", "min", hyperparam_mutations={"act": [torch.nn.ReLU, torch.nn.GELU]})
    with pytest.raises(SettingsError, match=r"'act' has the choice .*GELU, which the search space lacks"):
        other.prepare(SweepFacts(space.domains))


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"lr": [0.1, 0.01]}},
        {"model": {"lr": (0.1, 0.01), "deep": {"wd": [0.0, 0.5]}}},
        {"model": {"lr": {"choice": [0.1, 0.01]}}},
        {"model": {"lr": [0.1, 0.01], "opt": {"choice": ["sgd", "adam"]}}},
        {"model.lr": [0.1, 0.01]},
    ],
    ids=str,
)
def test_lists_may_stand_in_a_group_as_in_rays_own(given: dict[str, Any]) -> None:
    mutations = mutations_of(given)
    assert mutations["model.lr"].categories == [0.1, 0.01]
    config: dict[str, Any] = {"model": {"lr": 0.1, "opt": "sgd", "deep": {"wd": 0.0}}}
    mutated = explore(config, mutations, np.random.RandomState(0), 0.0, (1.2, 0.8))
    assert mutated["model"]["lr"] == 0.01


@pytest.mark.parametrize("described", [{"uniform": [0, 1]}, {"uniform": {"lower": 0, "upper": 1}}, tune.uniform(0, 1)])
def test_a_domain_may_be_described_as_in_a_space(described: Any) -> None:
    assert mutations_of({"model": {"lr": described}})["model.lr"].upper == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"opt": "sgd"}, "'opt' is 'sgd'"),
        ({"lr": 0.1}, "'lr' is 0.1"),
        ({"model": {"lr": [0.1], "opt": None}}, "'model.opt' is None"),
        ({"lr": {"fixed": 0.1}}, "'lr'"),
        ({"lr": range(3)}, "list"),
        ({"lr": tune.sample_from(lambda spec: 1.0)}, "function without arguments"),
        ({"lr": lambda spec: 1.0}, "without arguments"),
        ({"lr": []}, "one value or more"),
        ({}, "is empty"),
        ([("lr", [0.1])], "mapping"),
    ],
)
def test_what_is_no_choice_of_values_is_refused_before_anything_runs(given: Any, says: str) -> None:
    """A plain value would have overwritten the trial's own, with nobody having asked for it."""
    with pytest.raises(TunelightError, match=says):
        GangPBT("loss", "min", hyperparam_mutations=given)


# --- what the tests of Ray Tune's population-based training check; see docs/migration.md


def explored(value: Any, mutation: Any, resample: float) -> set[Any]:
    rng = np.random.RandomState(0)
    mutations = mutations_of({"v": mutation})
    return {explore({"v": value}, mutations, rng, resample, (1.2, 0.8))["v"] for _ in range(100)}


@pytest.mark.parametrize(
    ("value", "resample", "expected"),
    [
        (4, 0.0, {3, 8}),
        (3, 0.0, {4}),  # at an end Ray's may also stay where it is
        (10, 0.0, {8}),
        (7, 0.0, {3, 4, 8, 10}),  # not in the list: drawn anew
        (4, 1.0, {3, 4, 8, 10}),
    ],
)
def test_a_value_of_a_list_moves_to_a_neighbour(value: int, resample: float, expected: set[int]) -> None:
    assert explored(value, [3, 4, 8, 10], resample) == expected
    assert explored(value, tune.choice([3, 4, 8, 10]), resample) == expected  # Ray's takes choice for continuous


def test_a_number_is_multiplied_or_drawn_anew_and_keeps_its_kind() -> None:
    draws = iter(range(10**6))
    function: Callable[[], Any] = lambda: (10, 100)[next(draws) % 2]  # noqa: E731 - what a user would write
    assert explored(100, function, 0.0) == {80, 120}
    assert {type(value) for value in explored(100, function, 0.0)} == {int}
    assert explored(100.0, function, 0.0) == {80.0, 120.0}
    assert explored(100.0, function, 1.0) == {10, 100}
    assert explored(100.0, tune.uniform(90.0, 110.0), 0.0) == {90.0, 110.0}  # Ray's leaves the domain's bounds


def test_a_list_of_one_value_leaves_it_as_it_is() -> None:
    assert explored(1, [1], 0.0) == explored(1, [1], 1.0) == {1}
