"""What the tests of Ray Tune's population-based training check, asked of GangPBT; see docs/migration.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Trial

from tests.unit.schedulers.test_pbt import Handle, Population
from tunelight.schedulers import GangPBT
from tunelight.schedulers.pbt import explore, mutations_of

SCORES = [0.0, 50.0, 100.0, 150.0, 200.0]
CONFIG: dict[str, Any] = {"rate": 2.0, "size": 10, "kind": 3, "fixed": 7, "part": {"rate": 3.0}}
MUTATIONS: dict[str, Any] = {"rate": lambda: 100.0, "size": lambda: 10, "kind": [100], "part": {"rate": lambda: 50.0}}


def scored(**settings: Any) -> Population:
    """Return five members that have all been compared once, at report 10; more is better."""
    given: dict[str, Any] = {
        "mode": "max", "perturbation_interval": 10, "hyperparam_mutations": MUTATIONS, "max_lead": 100_000,
    }  # fmt: skip
    population = Population(5, **(given | settings))
    for trial in population.trials:
        trial.config = {**CONFIG, "part": dict(CONFIG["part"])}
    population.round(10, SCORES)  # the worst first, so that nobody has anything to learn yet
    assert population.pbt.num_exploits == 0
    return population


# --- new values


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


@pytest.mark.parametrize(
    ("resample", "rates", "sizes", "parts"),
    [(0.0, {2.4, 1.6}, {8, 12}, {3.0 * 1.2, 3.0 * 0.8}), (1.0, {100.0}, {10}, {50.0})],
)
def test_a_member_that_takes_over_gets_the_others_configuration_mutated(
    resample: float, rates: set[float], sizes: set[int], parts: set[float]
) -> None:
    population = scored(resample_probability=resample)
    population.report(0, 20, -100.0)
    config = population.trials[0].config
    assert config["rate"] in rates
    assert config["size"] in sizes
    assert config["kind"] == 100
    assert config["part"]["rate"] in parts
    assert config["fixed"] == 7
    assert (type(config["rate"]), type(config["size"])) == (float, int)
    (adopt,) = population.adopted(0)
    assert adopt.config == config
    assert population.trials[4].config["rate"] == 2.0, "the other's own is left alone"


def test_a_population_with_functions_can_be_sent_to_another_process() -> None:
    cloudpickle.loads(cloudpickle.dumps(GangPBT("loss", "min", hyperparam_mutations={"lr": lambda: 0.1})))


# --- a population larger than the cluster, and what it holds


@pytest.mark.parametrize("told", [True, False], ids=["ended when it was added", "ended unheard"])
def test_a_trial_that_has_ended_keeps_nobody_waiting(told: bool) -> None:
    population = scored(max_lead=20)
    late: Any = Trial("made", stub=True, trial_id="late", config=dict(CONFIG))
    late.temporary_state.ray_actor = Handle("late")
    late.status = Trial.TERMINATED if told else Trial.PENDING
    population.controller.trials.append(late)
    population.pbt.on_trial_add(population.controller, late)
    late.status = Trial.TERMINATED
    for index in range(5):
        population.report(index, 40, 1.0)
        population.trials[index].status = Trial.PAUSED
    assert population.chosen() is not None


def test_at_most_one_copy_of_each_member_is_held_however_long_it_trains() -> None:
    population = scored(perturbation_interval=1)
    rng = np.random.RandomState(0)
    for number in range(11, 60):
        population.round(number, list(rng.uniform(0, 1, 5)))
        held = population.pbt._offers
        assert set(held) <= {trial.trial_id for trial in population.trials}
    population.pbt.on_trial_complete(population.controller, population.trials[0], {})
    assert population.trials[0].trial_id not in population.pbt._offers
