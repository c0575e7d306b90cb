"""PB2's choice: it learns from what intervals gained, and finds better values than chance where there is something."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune

from tests.unit.schedulers.test_pbt import Population, run_random
from tunelight.errors import SettingsError
from tunelight.schedulers import GangPBT
from tunelight.schedulers.pb2 import Gains

LR = {"lr": tune.loguniform(1e-4, 1.0)}
BEST = -2.0
"""The best learning rate, as a power of ten."""


def rate_of(lr: float) -> float:
    """Return by how much a report lowers the loss under this learning rate."""
    return math.exp(-((math.log10(lr) - BEST) ** 2))


def taught(intervals: int, **domains: Any) -> Gains:
    """Return what is learned from members that each trained one interval under a rate of their own."""
    gains = Gains(domains or LR)
    rng = np.random.RandomState(0)
    for number in range(intervals):
        config = {"lr": float(10 ** rng.uniform(-4, 0)), "wd": 0.5}
        gains.heard(str(number), 1, 1.0, config, due=False)
        gains.heard(str(number), 3, 1.0 - 2 * rate_of(config["lr"]), config, due=True)
        gains.go_back(str(number), None)
    return gains


def chosen(gains: Gains, seed: int = 0, lr: float = 0.5) -> dict[str, float]:
    return gains.choose("new", 3, {"lr": lr}, np.random.RandomState(seed))


def test_it_goes_where_intervals_gained_most() -> None:
    for seed in range(5):
        assert abs(math.log10(chosen(taught(20), seed)["lr"]) - BEST) < 0.5


def test_as_long_as_little_is_known_nothing_is_chosen_and_values_are_perturbed() -> None:
    assert chosen(taught(3)) == {}
    assert chosen(taught(4)) != {}
    two = {**LR, "wd": tune.uniform(0, 1)}
    population = Population(explore="pb2", hyperparam_mutations=two)
    plain = Population(hyperparam_mutations=two)
    for one in (population, plain):
        one.round(1, [0.1, 0.2, 0.3, 0.4])
        one.round(2, [0.1, 0.2, 0.3, 0.4])
    assert population.adopted(3)[0].config == plain.adopted(3)[0].config


def test_training_that_went_astray_counts_as_the_least_gain() -> None:
    gains = taught(20)
    for number in range(6):
        gains.heard(f"lost {number}", 1, 1.0, {"lr": 0.3 + 0.1 * number}, due=False)
        gains.heard(f"lost {number}", 3, math.inf, {"lr": 0.3 + 0.1 * number}, due=True)
    assert 1e-3 < chosen(gains)["lr"] < 0.1
    gains.heard("lost 0", 5, 0.1, {"lr": 0.3}, due=True)
    assert len(gains.state()["seen"]) == 26  # what it gains on nothing, nobody can say


def test_those_that_choose_at_the_same_time_do_not_all_choose_the_same() -> None:
    gains = taught(12)
    first = chosen(gains)["lr"]
    alone = gains.choose("other", 3, {"lr": 0.5}, np.random.RandomState(0))["lr"]
    for number in range(8):
        gains.begin(str(number), 3, 0.5, {"lr": first})
    beside = gains.choose("other", 3, {"lr": 0.5}, np.random.RandomState(0))["lr"]
    assert alone == first
    assert beside != first


def test_steps_and_bounds_are_kept_and_what_the_parent_lacks_stays_away() -> None:
    domains = {"lr": tune.quniform(0.2, 0.8, 0.2), "wd": tune.uniform(0, 1), "kind": tune.choice([1, 2])}
    gains = taught(30, **domains)
    values = chosen(gains)
    assert values.keys() == {"lr"}
    assert min(abs(values["lr"] - step) for step in (0.2, 0.4, 0.6, 0.8)) < 1e-9


def test_other_values_are_changed_as_ever() -> None:
    mutations = {**LR, "kind": ["a", "b", "c"]}
    population = Population(explore="pb2", hyperparam_mutations=mutations, seed=1)
    for trial in population.trials:
        trial.config["kind"] = "b"
    run_random(population, 1, 60)
    assert {change[2]["kind"] for change in population.changes} == {"a", "b", "c"}


def test_the_same_reports_give_the_same_decisions() -> None:
    first, again, other = (run_random(Population(6, seed=seed, explore="pb2"), 1, 60) for seed in (5, 5, 6))
    assert first == again
    assert len(first) > 5
    assert first != other


def test_it_knows_where_it_was_after_save_and_restore(tmp_path: Path) -> None:
    whole, half = (Population(6, seed=3, explore="pb2") for _ in range(2))
    rng = np.random.RandomState(2)
    reports = [(index, number, float(rng.rand())) for number in range(1, 17) for index in range(6)]
    reports[20] = (*reports[20][:2], math.nan)
    for one in reports:
        whole.report(*one)
    for one in reports[:60]:
        half.report(*one)
    half.pbt.save(str(tmp_path / "state"))
    rest = Population(6, seed=3, explore="pb2")
    rest.pbt.restore(str(tmp_path / "state"))
    for trial, old in zip(rest.trials, half.trials, strict=True):
        trial.config = old.config
        rest.pbt.on_trial_add(rest.controller, trial)
    for one in reports[60:]:
        rest.report(*one)
    assert half.changes + rest.changes == whole.changes
    assert json.loads((tmp_path / "state").read_text())["gains"]["seen"]
    with pytest.raises(SettingsError, match="explore='perturb'"):
        Population(6, seed=3).pbt.restore(str(tmp_path / "state"))


def test_a_change_that_could_not_be_made_is_not_learned_from() -> None:
    population = Population(explore="pb2")
    for number in (1, 2):
        population.round(number, [0.1, 0.2, 0.3, 0.4])
    population.report(3, 3, 0.35, **{"_tunelight/adopted": "none"})
    population.report(3, 4, 0.3)
    seen = [one for one in population.pbt._gains.state()["seen"] if one[0] == 2]  # type: ignore[union-attr]
    ((number, loss, point, gain),) = seen
    assert (number, loss, point) == (2, 0.4, Gains(LR)._point({"lr": 0.04}))
    assert gain == pytest.approx(0.05)


def test_what_it_cannot_do_is_said_before_a_trial_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"must be 'perturb' or 'pb2', not 'pb3'\. Did you mean 'pb2'"):
        GangPBT(explore="pb3")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="finds none among what is mutated: kind"):
        GangPBT(explore="pb2", hyperparam_mutations={"kind": ["a", "b"]})
    monkeypatch.setattr("tunelight.schedulers.pb2.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'tunelight\[pb2\]'"):
        GangPBT(explore="pb2")


def lowest_loss(seed: int, **settings: Any) -> float:
    """Return the best loss of a population that trains 24 reports from bad learning rates."""
    population = Population(8, seed=seed, perturbation_interval=3, **settings)
    rng = np.random.RandomState(seed)
    for trial in population.trials:
        trial.config = {"lr": float(10 ** rng.uniform(-4.0, -3.2))}
    losses = [30.0] * 8
    for number in range(1, 25):
        for index, trial in enumerate(population.trials):
            losses[index] -= rate_of(trial.config["lr"])
            parents = len(population.adopted(index))
            population.report(index, number, losses[index] + 0.01 * rng.randn())
            if len(population.adopted(index)) > parents:
                losses[index] = losses[int(population.adopted(index)[-1].parent)]
    return min(losses)


def test_from_bad_learning_rates_it_comes_further_than_chance() -> None:
    better = [lowest_loss(seed, explore="pb2") < lowest_loss(seed) for seed in range(6)]
    assert sum(better) >= 5
