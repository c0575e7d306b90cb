"""GangPBT: who offers, who adopts, what is mutated and how, who takes turns; the same reports, the same decisions."""

from __future__ import annotations

import copy
import itertools
import random
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import cloudpickle
import numpy as np
import pytest
import torch
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers.trial_scheduler import TrialScheduler

from tunelight.errors import SettingsError, TunelightError
from tunelight.messages import Adopt, Continue
from tunelight.schedulers import GangPBT
from tunelight.schedulers.base import SweepFacts
from tunelight.schedulers.pbt import default_mutations, explore, mutations_of
from tunelight.space import SearchSpace

CONTINUE, PAUSE = TrialScheduler.CONTINUE, TrialScheduler.PAUSE
LR = {"lr": tune.loguniform(1e-4, 1.0)}


def actor(name: str) -> Any:
    """Return a trial's actor: it keeps what it is told, and answers an offer with a word."""
    made = mock.Mock(told=[])
    made.decide.remote = made.told.append
    made.offer.remote.side_effect = (f"{name}/{number}" for number in itertools.count(1))
    return made


class Population:
    """Trials of one GangPBT that report what a test says, and Tune's controller, as far as a scheduler asks it."""

    def __init__(self, size: int = 4, cpus: float = 100, **settings: Any) -> None:
        settings = {"metric": "loss", "mode": "min", "perturbation_interval": 2, "hyperparam_mutations": LR, **settings}
        self.pbt = GangPBT(**settings)
        self.changes: list[tuple[Any, ...]] = []
        self.pbt.prepare(SweepFacts(on_change=lambda *change: self.changes.append(change)))
        self.controller = cast(Any, self)
        self._resource_updater = SimpleNamespace(get_num_cpus=lambda: cpus, get_num_gpus=lambda: 0)
        self.trials: list[Any] = []
        for index in range(size):
            trial: Any = Trial("made", stub=True, trial_id=f"{index:05d}", config={"lr": 0.01 * (index + 1)})
            trial.temporary_state.ray_actor = actor(trial.trial_id)
            trial.placement_group_factory = tune.PlacementGroupFactory([{"CPU": 2}])
            trial.status = Trial.RUNNING
            self.trials.append(trial)
            self.pbt.on_trial_add(self.controller, trial)

    def get_trials(self) -> list[Any]:
        return list(self.trials)

    def get_live_trials(self) -> list[Any]:
        return [trial for trial in self.trials if not trial.is_finished()]

    def report(self, index: int, number: int, loss: Any, **more: Any) -> str:
        result = {"training_iteration": number, "loss": loss, **more}
        return self.pbt.on_trial_result(self.controller, self.trials[index], result)

    def round(self, number: int, losses: list[Any]) -> list[str]:
        return [self.report(index, number, loss) for index, loss in enumerate(losses)]

    def chosen(self) -> Any:
        return self.pbt.choose_trial_to_run(self.controller)

    def adopted(self, index: int) -> list[Adopt]:
        return [one for one in self.trials[index].temporary_state.ray_actor.told if isinstance(one, Adopt)]


def test_a_trial_without_an_actor_or_with_a_dead_one_ends_nothing() -> None:
    population = Population()
    for trial in population.trials:
        trial.temporary_state.ray_actor = None
    dead = {"decide.remote.side_effect": RuntimeError("gone"), "offer.remote.side_effect": RuntimeError("gone")}
    population.trials[0].temporary_state.ray_actor = mock.Mock(**dead)
    population.round(2, [0.1, 0.2, 0.3, 0.4])
    assert population.changes[0][3] == "00000"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "up"}, "mode"),
        ({"perturbation_interval": 0}, "perturbation_interval"),
        ({"quantile_fraction": 0.6}, "quantile_fraction"),
        ({"resample_probability": 2}, "resample_probability"),
        ({"perturbation_factors": ()}, "perturbation_factors"),
        ({"max_lead": 0}, "max_lead"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        GangPBT(**settings)


def test_a_population_with_functions_can_be_sent_to_another_process() -> None:
    cloudpickle.loads(cloudpickle.dumps(GangPBT("loss", "min", hyperparam_mutations={"lr": lambda: 0.1})))


def test_at_most_one_copy_of_each_member_is_held_however_long_it_trains() -> None:
    population, rng = Population(5, perturbation_interval=1), random.Random(0)
    for number in range(1, 50):
        population.round(number, [rng.random() for _ in population.trials])
        assert set(population.pbt._offers) <= {trial.trial_id for trial in population.trials}
    population.report(0, 50, -1.0)
    assert "00000" in population.pbt._offers
    population.pbt.on_trial_complete(population.controller, population.trials[0], {})
    assert "00000" not in population.pbt._offers


# --- turns: a population larger than the cluster shares it


def test_a_population_that_fits_never_pauses_and_a_larger_one_takes_turns_with_who_had_less_first() -> None:
    population = Population(4, cpus=8)
    population.trials[3].status = Trial.PENDING  # its gang is starting
    assert population.round(2, [0.1, 0.2, 0.3, 0.4])[:3] == [CONTINUE] * 3
    population = Population(4, cpus=4)
    population.trials[2].status = population.trials[3].status = Trial.PENDING
    assert population.report(0, 1, 0.1) == CONTINUE
    assert population.report(0, 2, 0.1) == PAUSE
    assert population.pbt.reason("00000") == "others wait for their turn"
    told = population.trials[0].temporary_state.ray_actor.told
    assert Continue(until=4) not in told  # it is not to run ahead while it is put to rest
    population.trials[0].status = Trial.PAUSED
    assert population.chosen() is population.trials[2]
    population.trials[2].status = population.trials[3].status = Trial.RUNNING
    assert population.chosen() is population.trials[0]
    assert population.pbt.reason("00000") is None
    population.trials[0].status = Trial.RUNNING
    assert population.chosen() is None


def crowded(interval: int = 2) -> Population:
    """Return two members that share one gang; the second has it, and adopts as its turn ends."""
    population = Population(2, cpus=2, perturbation_interval=interval)
    population.trials[1].status = Trial.PENDING
    assert population.report(0, 2, 0.1) == PAUSE
    population.trials[0].status, population.trials[1].status = Trial.PAUSED, Trial.RUNNING
    return population


def test_who_adopts_as_its_turn_ends_says_first_what_came_of_it_and_pauses_at_its_next_report() -> None:
    population = crowded()
    assert population.report(1, 2, 0.9) == CONTINUE
    (adopt,) = population.adopted(1)
    assert (adopt.weights, adopt.parent, adopt.until) == ("00000/1", "00000", 3)
    assert population.report(1, 3, 0.2, **{"_tunelight/adopted": "memory"}) == PAUSE
    assert population.trials[1].config == adopt.config
    assert population.changes == [("00001", 2, adopt.config, "00000", 2)]


def test_a_change_that_fails_as_a_turn_ends_is_taken_back_before_the_pause() -> None:
    population = crowded()
    before = copy.deepcopy(population.trials[1].config)
    population.report(1, 2, 0.9)
    assert population.trials[1].config != before
    assert population.report(1, 3, 0.8, **{"_tunelight/adopted": "none"}) == PAUSE
    assert population.trials[1].config == before
    assert population.pbt.num_exploits == 0
    assert population.changes[-1] == ("00001", 2, before, None, None)


def test_who_need_not_rest_any_more_is_told_how_far_it_may_run() -> None:
    population = crowded()
    population.report(1, 2, 0.9)
    population.pbt.on_trial_error(population.controller, population.trials[0])
    population.trials[0].status = Trial.ERROR
    assert population.report(1, 3, 0.8) == CONTINUE
    assert population.trials[1].temporary_state.ray_actor.told[-1] == Continue(until=4)


def test_who_could_adopt_at_each_report_gives_way_all_the_same() -> None:
    population = crowded(interval=1)
    assert [population.report(1, number, 0.9) for number in (2, 3)] == [CONTINUE, PAUSE]
    assert len(population.adopted(1)) == 1


def test_a_member_far_behind_does_not_give_way_to_one_ahead() -> None:
    population = Population(2, cpus=2)
    population.report(1, 8, 0.1)
    population.trials[1].status = Trial.PAUSED
    assert population.report(0, 2, 0.1) == CONTINUE


def test_nobody_runs_far_ahead_of_who_has_not_begun_also_where_there_is_room() -> None:
    population = Population(2, cpus=100)
    assert [population.report(0, number, 0.1) for number in range(1, 7)] == [CONTINUE] * 5 + [PAUSE]
    assert population.pbt.reason("00000") == "too far ahead of the slowest"
    population.trials[0].status = Trial.PAUSED
    assert population.chosen() is None
    population.report(1, 2, 0.1)
    assert population.chosen() is population.trials[0]


@pytest.mark.parametrize("told", [True, False], ids=["ended in error", "ended unheard"])
def test_a_trial_that_has_ended_keeps_nobody_waiting(told: bool) -> None:
    population = Population(2, cpus=100)
    population.report(0, 6, 0.1)
    population.trials[0].status, population.trials[1].status = Trial.PAUSED, Trial.TERMINATED
    if told:
        population.trials[1].status = Trial.PENDING
        population.pbt.on_trial_error(population.controller, population.trials[1])
        population.trials.pop()
    assert population.chosen() is population.trials[0]


@pytest.mark.parametrize(
    ("value", "mutation", "resample", "expected"),
    [
        # A number is multiplied or drawn anew; its domain, or the number itself, says whether it stays whole.
        (1, tune.loguniform(1e-2, 10.0), 0.0, {1.2, 0.8}),
        (2, tune.quniform(0, 8, 0.5), 0.0, {2.5, 1.5}),
        (2.0, tune.randint(1, 100), 0.0, {1, 3}),
        (100, lambda: 10, 0.0, {80, 120}),
        (100.0, lambda: 10, 0.0, {80.0, 120.0}),
        (100.0, lambda: 10, 1.0, {10}),
        (100.0, tune.uniform(90.0, 110.0), 0.0, {90.0, 110.0}),  # Ray's leaves the domain's bounds
        # A value of a list moves to a neighbour.
        (4, [3, 4, 8, 10], 0.0, {3, 8}),
        (3, [3, 4, 8, 10], 0.0, {4}),  # at an end Ray's may also stay where it is
        (4, tune.choice([3, 4, 8, 10]), 0.0, {3, 8}),  # Ray's takes choice for continuous
        (7, [3, 4, 8, 10], 0.0, {3, 4, 8, 10}),  # not in the list: drawn anew
        (4, [3, 4, 8, 10], 1.0, {3, 4, 8, 10}),
        (1, [1], 0.0, {1}),
    ],
)
def test_a_value_is_multiplied_moved_or_drawn_anew(value: Any, mutation: Any, resample: float, expected: Any) -> None:
    rng, mutations = np.random.RandomState(0), mutations_of({"v": mutation})
    found = {explore({"v": value}, mutations, rng, resample, (1.2, 0.8))["v"] for _ in range(100)}
    assert found == expected
    assert {type(one) for one in found} == {type(one) for one in expected}


def test_what_a_configuration_lacks_is_not_added_and_its_parent_is_left_alone() -> None:
    parent = {"model": {"lr": 0.1}}
    mutations = mutations_of({"model": {"lr": tune.uniform(0, 1)}, "wd": tune.uniform(0, 1)})
    mutated = explore(parent, mutations, np.random.RandomState(0), 1, (2,))
    assert (list(mutated), list(mutated["model"])) == (["model"], ["lr"])
    assert parent == {"model": {"lr": 0.1}} != mutated


def test_by_default_the_real_numbers_that_training_can_follow_are_mutated_and_there_have_to_be_some() -> None:
    domains = {
        "model.lr": tune.loguniform(1e-4, 1), "model.hidden": tune.choice([32, 64]),
        "model.wd": tune.choice([0.1, 0.2]), "data.scale": tune.uniform(0, 1), "layers": tune.randint(1, 3),
    }  # fmt: skip
    assert list(default_mutations(domains)) == ["model.lr", "model.wd"]
    with pytest.raises(SettingsError, match="no real number"):
        GangPBT("loss", "min").prepare(SweepFacts({"layers": tune.randint(1, 3)}))
    with pytest.raises(SettingsError, match="Did you mean"):
        GangPBT("loss", "min", hyperparam_mutations={"lrr": [1, 2]}).prepare(SweepFacts({"lr": tune.uniform(0, 1)}))
    trial: Any = Trial("made", stub=True, config={})
    nobody: Any = None
    for pbt, says in ((GangPBT(), "metric"), (GangPBT("loss", "min"), "what to mutate")):
        with pytest.raises(SettingsError, match=says):
            pbt.on_trial_add(nobody, trial)


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
        {"model": {"lr": (0.1, 0.01), "deep": {"wd": [0.0, 0.5]}}},
        {"model": {"lr": {"choice": [0.1, 0.01]}, "opt": {"choice": ["sgd", "adam"]}}},
        {"model.lr": [0.1, 0.01]},
    ],
    ids=str,
)
def test_lists_may_stand_in_a_group_as_in_rays_own(given: dict[str, Any]) -> None:
    config: dict[str, Any] = {"model": {"lr": 0.1, "opt": "sgd", "deep": {"wd": 0.0}}}
    assert explore(config, mutations_of(given), np.random.RandomState(0), 0.0, (1.2, 0.8))["model"]["lr"] == 0.01


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
