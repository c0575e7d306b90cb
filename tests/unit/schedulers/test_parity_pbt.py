"""What the tests of Ray Tune's population-based training check, asked of GangPBT; see docs/migration.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Trial

from tests.unit.schedulers.test_pbt import CONTINUE, PAUSE, Controller, Handle, Population, as_tunes
from tunelight.errors import SettingsError
from tunelight.schedulers import GangPBT
from tunelight.schedulers.choose import build_scheduler
from tunelight.schedulers.mutation import explore, mutations_of
from tunelight.settings import Settings

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


def offered(population: Population) -> list[int]:
    """Return how often each member has offered since this was last asked."""
    found = population.offers()
    for trial in population.trials:
        trial.temporary_state.ray_actor.offers = 0
    return found


# --- who gives, and who takes


def test_the_best_offer_where_they_are_due_and_not_before() -> None:
    population = scored()
    offered(population)
    population.report(0, 15, 200.0)
    assert offered(population) == [0] * 5
    population.report(0, 20, 200.0)
    population.report(1, 30, 201.0)
    assert offered(population) == [1, 1, 0, 0, 0]
    population.report(4, 30, 199.0)  # among the best no more
    assert offered(population) == [0] * 5
    assert population.pbt.num_exploits == 0


def test_the_worst_take_over_one_of_the_best_where_they_are_due_and_not_before() -> None:
    population = scored()
    population.report(0, 15, -100.0)
    assert population.adopted(0) == []
    assert population.report(0, 20, -100.0) == CONTINUE, "in place: it need not be paused for that"
    assert population.report(2, 20, 40.0) == CONTINUE
    best = {population.trials[index].trial_id for index in (3, 4)}
    assert {population.adopted(index)[0].parent for index in (0, 2)} <= best
    assert population.pbt.num_exploits == 2
    assert [change[0] for change in population.changes] == [population.trials[index].trial_id for index in (0, 2)]


def test_who_took_over_is_compared_again_only_an_interval_later() -> None:
    population = scored()
    population.report(0, 500, -100.0)
    population.report(0, 505, -100.0)
    assert population.pbt.num_exploits == 1
    population.report(0, 510, -100.0)
    assert population.pbt.num_exploits == 2


def test_a_report_without_progress_or_metric_compares_nobody_and_ends_nothing() -> None:
    population = scored()
    trial = population.trials[0]
    assert population.pbt.on_trial_result(population.controller, trial, {"loss": 4.0}) == CONTINUE
    assert population.pbt.on_trial_result(population.controller, trial, {"training_iteration": 20}) == CONTINUE
    assert population.pbt.num_exploits == 0


def test_an_interval_of_one_report_compares_at_each() -> None:
    population = Population(5, perturbation_interval=1, mode="max", max_lead=100)
    population.report(0, 1, 10.0)
    assert population.report(2, 1, 200.0) == CONTINUE
    assert population.offers()[2] == 1


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


def test_what_a_configuration_lacks_stays_away() -> None:
    """Ray's draws it for each trial at its start; here the search space says what a configuration holds."""
    population = scored(hyperparam_mutations={"rate": [2.0, 4.0], "more": tune.uniform(0, 1)})
    population.report(0, 20, -100.0)
    assert population.trials[0].config == {**CONFIG, "rate": 4.0}


def test_a_population_with_functions_can_be_sent_to_another_process() -> None:
    cloudpickle.loads(cloudpickle.dumps(GangPBT("loss", "min", hyperparam_mutations={"lr": lambda: 0.1})))


def test_nested_values_are_chosen_as_flat_ones_are() -> None:
    def configs(nested: bool) -> list[list[float]]:
        domains = {"a": tune.uniform(1.0, 2.0), "c": tune.uniform(2.0, 4.0)}
        mutations = (
            {"a": domains["a"], "b": {"c": domains["c"]}} if nested else {"a": domains["a"], "b.c": domains["c"]}
        )
        population = Population(
            4,
            mode="max",
            perturbation_interval=1,
            max_lead=100,
            hyperparam_mutations=mutations,
            seed=3,
        )
        for index, trial in enumerate(population.trials):
            values = (1.0 + 0.3 * index, 2.0 + 0.5 * index)
            trial.config = {"a": values[0], "b": {"c": values[1]}} if nested else dict(zip(("a", "b.c"), values))  # noqa: B905
        for number in range(1, 12):
            population.round(number, [number * (index + 1) * 10.0 for index in range(4)])
        assert population.pbt.num_exploits > 3
        found = [trial.config for trial in population.trials]
        return [[one["a"], one["b"]["c"] if nested else one["b.c"]] for one in found]

    assert configs(nested=True) == configs(nested=False)


# --- a population larger than the cluster, and what it holds


def test_a_member_gives_way_to_one_that_waits_and_that_one_is_next() -> None:
    population = scored()
    population.controller._resource_updater = as_tunes(Controller(cpus=8))._resource_updater  # room for four of five
    population.trials[0].status = Trial.PENDING
    assert population.report(1, 20, 1000.0) == PAUSE
    assert population.chosen() is population.trials[0]


def test_of_those_that_wait_the_one_furthest_behind_is_next_and_nobody_where_none_waits() -> None:
    population = scored()
    for index, number in enumerate((800, 700, 600, 500, 700)):
        population.report(index, number, 1000.0 + index)
    assert population.chosen() is None
    for trial in population.trials:
        trial.status = Trial.PENDING
    assert population.chosen() is population.trials[3]


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


@pytest.mark.parametrize(
    "word", ["synch", "burn_in_period", "custom_explore_fn", "time_attr", "log_config", "require_attrs"]
)
def test_words_of_rays_that_it_has_no_use_for_are_refused_by_name(word: str) -> None:
    settings = Settings(train=print, metric="loss", scheduler={"name": "gang_pbt", word: 1})
    with pytest.raises(SettingsError, match=f"gang_pbt' has no '{word}'"):
        build_scheduler(settings)
