"""Search spaces of other programs: read, written, and judged by those programs' own libraries."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from ConfigSpace import ConfigurationSpace
from ConfigSpace.hyperparameters import NormalFloatHyperparameter
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune

import tunelight as tl
from tunelight.errors import SpaceError
from tunelight.settings import Settings
from tunelight.space.check import check_settings
from tunelight.space.more_domains import WIDTH

PLAIN = {
    "a": {"choice": ["x", 1, 2.5, True]},
    "b": {"uniform": [0.0, 1.0]},
    "c": {"loguniform": [1e-4, 1e-1]},
    "d": {"randint": [1, 9]},
    "e": 3,
    "f": "text",
}
WANDB = PLAIN | {
    "g": {"quniform": [0.0, 1.0, 0.25]},
    "h": {"qloguniform": [1.0, 8.0, 0.5]},
    "i": {"randn": [1.0, 2.0]},
    "j": {"qrandn": [0.0, 1.0, 0.5]},
    "k": {"fixed": [1, 2]},
}
OPTUNA = PLAIN | {
    "g": {"quniform": [0.0, 1.0, 0.25]},
    "h": {"lograndint": [1, 99]},
    "i": {"qrandint": [2, 8, 2]},
    "j": {"choice": [None, "x"]},
}
CONFIGSPACE = {
    "opt": {"choice": ["sgd", "adam", "lion"]},
    "layers": {"randint": [1, 5]},
    "hidden": {"ordinal": [16, 32, 64]},
    "lr": {"loguniform": [1e-4, 1e-1], "around": 1e-3},
    "drop": {"uniform": [0.0, 0.5], "around": 0.1},
    "model.momentum": {"uniform": [0.0, 0.99], "when": {"opt": "sgd"}},
    "model.beta": {"uniform": [0.8, 0.99], "when": {"opt": ["adam", "lion"], "layers": 2}},
    "width": {"lograndint": [1, 99]},
    "k": 3,
}


def round_trip(space: tl.SearchSpace, name: str) -> tl.SearchSpace:
    """Return what comes back of a space that was written as JSON."""
    return tl.SearchSpace.from_format(json.loads(json.dumps(space.to_format(name))), name)


# --- round trips ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "domains"), [("wandb", WANDB), ("optuna", OPTUNA), ("configspace", CONFIGSPACE)])
def test_what_is_written_is_read_back(name, domains, tmp_path):
    space = tl.SearchSpace(domains)
    assert round_trip(space, name).describe() == space.describe() == domains
    for path, dump in ((tmp_path / "s.json", json.dumps), (tmp_path / "s.yaml", yaml.safe_dump)):
        path.write_text(dump(space.to_format(name)))
        assert tl.SearchSpace.from_format(path, name).describe().keys() == domains.keys()
        assert tl.SearchSpace.from_format(str(path), name).sample(np.random.RandomState(0))


def test_a_param_space_of_ray_is_read_and_written():
    given = {
        "model": {"lr": tune.loguniform(1e-4, 1e-1), "sizes": [1, 2], "act": None, "empty": {}},
        "seed": tune.grid_search([1, 2]),
        "f": tune.sample_from(lambda _: 3),
        "n": tune.qrandint(2, 8, 2),
        "k": 3,
    }
    space = tl.SearchSpace.from_format(given, "ray")
    assert space.sample(np.random.RandomState(0))["model"]["sizes"] == [1, 2]
    written = space.to_format("ray")
    assert written == given
    variants = list(tune.search.variant_generator.generate_variants(written))
    assert [config["seed"] for _, config in variants] == [1, 2]
    assert tl.SearchSpace.from_format(written, "ray").describe() == space.describe()


def test_nesting_stays_where_the_format_knows_it():
    space = tl.SearchSpace({"model": {"lr": {"uniform": [0.0, 1.0]}, "opt": {"eps": 1}}, "a.b": 2})
    told = space.to_format("wandb")["parameters"]
    assert told["model"]["parameters"]["opt"] == {"parameters": {"eps": {"value": 1}}}
    assert round_trip(space, "wandb").describe() == space.describe()
    assert list(round_trip(space, "optuna").describe()) == ["model.lr", "model.opt.eps", "a.b"]


# --- Weights & Biases -------------------------------------------------------------------------------------

SWEEP = """\
program: train.py
name: demo
method: bayes
metric: {goal: maximize, name: val_acc}
run_cap: 30
early_terminate: {type: hyperband, min_iter: 3}
parameters:
  optimizer: {values: [adam, sgd]}
  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
  layers: {min: 1, max: 4}
  dropout: {min: 0.1, max: 0.5}
  batch: {distribution: q_log_uniform_values, q: 8, min: 32, max: 256}
  epochs: {value: 5}
"""


def test_a_sweep_of_wandb_becomes_a_space_with_its_settings(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    space = tl.SearchSpace.from_format(path, "wandb")
    assert space.describe() == {
        "optimizer": {"choice": ["adam", "sgd"]},
        "lr": {"loguniform": [1e-5, 1e-1]},
        "layers": {"randint": [1, 5]},
        "dropout": {"uniform": [0.1, 0.5]},
        "batch": {"qloguniform": [32, 256, 8]},
        "epochs": 5,
    }
    assert (space.settings["metric"], space.settings["mode"], space.settings["num_samples"]) == ("val_acc", "max", 30)
    assert space.settings["scheduler"] == {"name": "asha", "grace_period": 3, "reduction_factor": 3}
    again = space.to_format("wandb")
    assert again["metric"] == {"name": "val_acc", "goal": "maximize"}
    check_settings(space, Settings(**space.settings, train=print))


def test_a_grid_of_wandb_is_a_grid():
    given = {"method": "grid", "parameters": {"a": {"values": [1, 2]}, "b": {"min": 1, "max": 3}, "c": {"value": 0}}}
    space = tl.SearchSpace.from_format(given, "wandb")
    assert (space.grid_size, space.settings["num_samples"]) == (6, 1)
    assert round_trip(space, "wandb").describe() == space.describe()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parameters": {"a": {"distribution": "beta", "a": 1}}}, "a: .*W&B's distribution 'beta'. It reads: constant"),
        ({"parameters": {"a": {"distribution": "log_uniform", "min": 1, "max": 2}}}, "distribution 'log_uniform'"),
        ({"parameters": {"a": {"min": 1}}}, "a: .*distribution None"),
        ({"parameters": {"a": {"distribution": "uniform", "min": 1}}}, "a: uniform lacks its 'max'"),
        ({"parameters": {"a": {"values": [1, 2], "probabilities": [0.1, 0.9]}}}, "a: .*'probabilities' of categorical"),
        ({"parameters": {"a": 3}}, "a: a parameter of a W&B sweep is a mapping"),
        ({"parameters": {}, "methd": "grid"}, "the key 'methd' of a W&B sweep. Did you mean 'method'"),
        ({"parameters": {}, "method": "other"}, "method: .*W&B's 'other'. It reads: random, grid, bayes"),
        ({"parameters": {}, "metric": "loss"}, "metric: a W&B sweep says"),
        ({"parameters": {}, "metric": {"name": "a", "goal": "least"}}, "goal 'least'"),
        ({"parameters": {}, "metric": {"name": "a", "target": 1}}, "'target'"),
        ({"parameters": {}, "early_terminate": {"type": "hyperband", "max_iter": 27, "s": 2}}, "early_terminate: .*27"),
        ({"method": "grid", "parameters": {"a": {"min": 0.0, "max": 1.0}}}, "a: .*grid over uniform"),
        ({"method": "random"}, "holds `parameters:`"),
        ([1], "is a mapping, or the path of"),
    ],
)
def test_what_wandb_says_and_tunelight_cannot_is_named(given, message):
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace.from_format(given, "wandb")


# --- Optuna -----------------------------------------------------------------------------------------------


def test_optuna_reads_what_is_written_and_draws_what_the_space_can():
    space = tl.SearchSpace(OPTUNA)
    distributions = {
        key: optuna.distributions.json_to_distribution(json.dumps(told))
        for key, told in space.to_format("optuna").items()
    }
    assert distributions["c"] == FloatDistribution(1e-4, 1e-1, log=True)
    assert distributions["d"] == IntDistribution(1, 8)
    assert distributions["h"] == IntDistribution(1, 98, log=True)
    assert distributions["i"] == IntDistribution(2, 8, step=2)
    trial = optuna.create_study().ask(distributions)
    for key, value in trial.params.items():
        assert space.domains[key].is_valid(value)
    as_text = {key: optuna.distributions.distribution_to_json(one) for key, one in distributions.items()}
    assert tl.SearchSpace.from_format(as_text, "optuna").describe() == OPTUNA
    assert tl.SearchSpace.from_format(distributions, "optuna").describe() == OPTUNA


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (FloatDistribution(0.1, 1.1, step=0.25), "a: .*Optuna's step 0.25 from 0.1 to 1.1"),
        (IntDistribution(1, 7, step=2), "a: .*Optuna's step 2 from 1 to 7"),
        ({"name": "Other", "attributes": {}}, "a: .*Optuna's Other. It reads: FloatDistribution"),
        ({"name": "FloatDistribution", "attributes": {"low": 1}}, "a: FloatDistribution lacks its attribute 'high'"),
        ("{", "a: '{' is no JSON"),
        (3, "a: a distribution is written"),
    ],
)
def test_what_optuna_says_and_tunelight_cannot_is_named(given, message):
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace.from_format({"a": given}, "optuna")


def test_a_distribution_of_one_value_is_fixed():
    given = {"a": CategoricalDistribution([7]), "b": IntDistribution(3, 3), "c": FloatDistribution(0.5, 0.5)}
    assert tl.SearchSpace.from_format(given, "optuna").describe() == {"a": 7, "b": 3, "c": 0.5}


# --- ConfigSpace ------------------------------------------------------------------------------------------

REQUIRE = [
    "layers <= 3",
    "hidden != 64 or layers == 1",
    "lr < drop or opt == 'adam' or not (lr >= 0.01)",
    "1 < layers and layers < 4 or k == 3",
    "drop >= lr",
]


def configspace(space: tl.SearchSpace) -> ConfigurationSpace:
    """Return ConfigSpace's own object for a space."""
    return ConfigurationSpace.from_serialized_dict(json.loads(json.dumps(space.to_format("configspace"))))


def test_configspace_reads_what_is_written_and_draws_what_the_space_can():
    space = tl.SearchSpace(CONFIGSPACE, require=REQUIRE)
    theirs = configspace(space)
    theirs.seed(0)
    for config in theirs.sample_configuration(200):
        values = dict(config)
        assert space.broken(values) is None
        assert space._wrong(values) is None, "the same keys count"
    again = tl.SearchSpace.from_format(json.loads(json.dumps(theirs.to_serialized_dict())), "configspace")
    assert {key: sorted(map(str, told)) for key, told in again.describe().items() if isinstance(told, dict)} == {
        key: sorted(map(str, told)) for key, told in space.describe().items() if isinstance(told, dict)
    }
    assert again.when == space.when


@given(st.integers(0, 2**32 - 1))
def test_configspace_forbids_what_breaks_a_constraint(seed):
    free, bound = tl.SearchSpace(CONFIGSPACE), tl.SearchSpace(CONFIGSPACE, require=REQUIRE)
    again = round_trip(bound, "configspace")
    values = free.sample(np.random.RandomState(seed))
    broken = bound.broken(values) is not None
    assert (again.broken(values) is not None) == broken
    clauses = configspace(bound).forbidden_clauses
    named = [clause for clause in clauses if all(hp in values for hp in _names(clause))]
    assert any(clause.is_forbidden_value(values) for clause in named) == broken


def _names(clause: Any) -> list[str]:
    if hasattr(clause, "components"):
        return [name for part in clause.components for name in _names(part)]
    return [clause.left.name, clause.right.name] if hasattr(clause, "left") else [clause.hyperparameter.name]


def test_a_prior_is_as_wide_in_configspace():
    theirs: Any = configspace(tl.SearchSpace(CONFIGSPACE))
    for key in ("lr", "drop"):
        assert isinstance(theirs[key], NormalFloatHyperparameter)
        vector = theirs[key].to_vector(np.array([theirs[key].sample_value(size=4000, seed=np.random.RandomState(0))]))
        assert np.std(vector) == pytest.approx(WIDTH, rel=0.2)
    assert math.isclose(theirs["drop"].sigma, 0.5 * WIDTH)


def configured(**told: Any) -> dict[str, Any]:
    return {"hyperparameters": [{"name": "a", **told}, {"name": "p", "type": "categorical", "choices": [1, 2, 3]}]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (configured(type="beta_float", alpha=1), "a: .*ConfigSpace's beta_float. It reads: uniform_float"),
        (configured(type="categorical", choices=[1, 2], weights=[1, 3]), r"a: .*weights \[1, 3\]"),
        (configured(type="normal_float", lower=0, upper=1, mu=0.5, sigma=0.5), "a: .*sigma 0.5"),
        (configured(type="uniform_float", lower=0), "a: uniform_float lacks its 'upper'"),
        ({"hyperparameters": 3}, "holds a list of `hyperparameters`"),
        (
            configured(type="constant", value=1)
            | {"conditions": [{"type": "LT", "child": "a", "parent": "p", "value": 2}]},
            "a: .*condition LT on p. It reads: EQ, IN, AND; NEQ",
        ),
        (
            configured(type="constant", value=1) | {"forbiddens": [{"type": "ODD", "name": "a"}]},
            "forbiddens: .*ConfigSpace's ODD",
        ),
    ],
)
def test_what_configspace_says_and_tunelight_cannot_is_named(given, message):
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace.from_format(given, "configspace")


def test_a_condition_of_configspace_that_excludes_is_one_that_lists_the_others():
    given = configured(type="constant", value=1)
    given["conditions"] = [{"type": "NEQ", "child": "a", "parent": "p", "value": 2}]
    space = tl.SearchSpace.from_format(given, "configspace")
    assert list(space.domains) == ["p", "a"], "what a condition names comes first"
    assert space.when == {"a": {"p": [1, 3]}}


# --- what a format cannot say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "description", "message"),
    [
        ("wandb", {"ordinal": [1, 2]}, "W&B has no equivalent of ordinal. Make it a choice"),
        ("wandb", {"lograndint": [1, 9]}, "W&B has no equivalent of lograndint"),
        ("wandb", {"qrandint": [2, 8, 2]}, "W&B has no equivalent of qrandint"),
        ("wandb", {"uniform": [0, 1], "around": 0.5}, "W&B has no equivalent of around"),
        ("wandb", {"grid": [1, 2]}, "W&B has no equivalent of a grid beside what is drawn"),
        ("optuna", {"ordinal": [1, 2]}, "Optuna has no equivalent of ordinal"),
        ("optuna", {"grid": [1, 2]}, "Optuna has no equivalent of grid_search"),
        ("optuna", {"randn": []}, "Optuna has no equivalent of randn"),
        ("optuna", {"qloguniform": [1, 2, 0.5]}, "Optuna has no equivalent of qloguniform"),
        ("optuna", {"choice": [[1], 2]}, r"Optuna has no equivalent of the choice \[1\]"),
        ("optuna", {"uniform": [0, 1], "around": 0.5}, "Optuna has no equivalent of around"),
        ("configspace", {"quniform": [0, 1, 0.5]}, "ConfigSpace has no equivalent of quniform"),
        ("configspace", {"grid": [1]}, "ConfigSpace has no equivalent of grid_search"),
        ("configspace", {"randint": [0, 9], "around": 3}, "ConfigSpace has no equivalent of around of randint"),
        ("ray", {"ordinal": [1, 2]}, "Ray Tune has no equivalent of ordinal"),
        ("ray", {"uniform": [0, 1], "around": 0.5}, "Ray Tune has no equivalent of around"),
    ],
)
def test_what_a_format_has_no_word_for_is_named(name, description, message):
    with pytest.raises(SpaceError, match=f"x: {message}"):
        tl.SearchSpace({"y": tune.uniform(0, 1), "x": description}).to_format(name)


def test_conditions_and_constraints_are_refused_by_all_but_configspace():
    conditional = tl.SearchSpace({"a": tune.choice([1, 2]), "b": {"fixed": 1, "when": {"a": 1}}})
    bound = tl.SearchSpace({"a": tune.choice([1, 2])}, require="a * a < 3")
    for name in ("wandb", "optuna", "ray"):
        with pytest.raises(SpaceError, match=r"b: .* has no equivalent of its condition"):
            conditional.to_format(name)
        with pytest.raises(SpaceError, match=r"require: .* has no equivalent of the constraint 'a \* a < 3'"):
            bound.to_format(name)
    with pytest.raises(SpaceError, match=r"require: ConfigSpace has no equivalent of 'a \* a < 3'"):
        bound.to_format("configspace")


def test_an_unknown_format_gets_a_guess():
    with pytest.raises(SpaceError, match=r"no format 'wandbb'. Did you mean 'wandb'.*: wandb, optuna, configspace"):
        tl.SearchSpace({"a": 1}).to_format("wandbb")
    with pytest.raises(SpaceError, match=r"There is no file nowhere.json"):
        tl.SearchSpace.from_format("nowhere.json", "optuna")
