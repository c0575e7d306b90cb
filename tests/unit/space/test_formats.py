"""Search spaces of other programs, as those programs' own libraries make them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune

import tunelight as tl
from tunelight.errors import SpaceError
from tunelight.settings import Settings
from tunelight.space.check import check_settings


def test_a_file_is_read_as_yaml_and_as_json(tmp_path):
    given = {"parameters": {"a": {"min": 0.0, "max": 1.0}, "b": {"value": 3}}}
    for path, dump in ((tmp_path / "s.json", json.dumps), (tmp_path / "s.yaml", yaml.safe_dump)):
        path.write_text(dump(given))
        for place in (path, str(path)):
            assert tl.SearchSpace.from_format(place, "wandb").describe() == {"a": {"uniform": [0.0, 1.0]}, "b": 3}


def test_a_param_space_of_ray_is_read():
    given = {
        "model": {"lr": tune.loguniform(1e-4, 1e-1), "sizes": [1, 2], "act": None, "empty": {}},
        "seed": tune.grid_search([1, 2]),
        "f": tune.sample_from(lambda _: 3),
        "n": tune.qrandint(2, 8, 2),
        "k": 3,
    }
    space = tl.SearchSpace.from_format(given, "ray")
    assert list(space.domains) == ["model.lr", "model.sizes", "model.act", "model.empty", "seed", "f", "n", "k"]
    configs = [space.sample(np.random.RandomState(0), index) for index in range(space.grid_size)]
    assert [config["seed"] for config in configs] == [1, 2]
    config = configs[0]
    assert (config["model"]["sizes"], config["model"]["act"], config["model"]["empty"]) == ([1, 2], None, {})
    assert (config["f"], config["k"]) == (3, 3)
    assert config["n"] in (2, 4, 6, 8)
    assert 1e-4 <= config["model"]["lr"] <= 1e-1


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
        "batch": {"wandb_parameter": {"distribution": "q_log_uniform_values", "min": 32, "max": 256, "q": 8}},
        "epochs": 5,
    }
    assert (space.settings["metric"], space.settings["mode"], space.settings["num_samples"]) == ("val_acc", "max", 30)
    bands = [3, 9, 27, 81, 243, 729]
    assert space.settings["scheduler"] == {"name": "asha", "milestones": bands, "reduction_factor": 3}
    check_settings(space, Settings(**space.settings, train=print))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"parameters": {"a": {"distribution": "gamma", "a": 1}}},
            "a: .*W&B's distribution 'gamma'. It reads: constant",
        ),
        ({"parameters": {"a": {"distribution": "uniform", "min": 1, "max": 2, "q": 1}}}, "a: .*'q' of uniform"),
        ({"parameters": {"a": {"distribution": "q_normal", "q": 0}}}, "a: q of q_normal must be more than 0"),
        ({"parameters": {"a": {"min": 2, "max": 1}}}, "a: min must be below max"),
        ({"parameters": {"a": {"min": 1}}}, "a: .*distribution None"),
        ({"parameters": {"a": {"distribution": "uniform", "min": 1}}}, "a: uniform lacks its 'max'"),
        ({"parameters": {"a": {"values": [1, 2], "probabilities": [0.1, 0.8]}}}, "a: probabilities .* sum up to 1"),
        ({"parameters": {"a": {"values": [1, 2], "probabilities": [1.0]}}}, "a: probabilities are as many as values"),
        ({"parameters": {"a": 3}}, "a: a parameter of a W&B sweep is a mapping"),
        ({"parameters": {}, "methd": "grid"}, "the key 'methd' of a W&B sweep. Did you mean 'method'"),
        ({"parameters": {}, "method": "other"}, "method: .*W&B's 'other'. It reads: random, grid, bayes"),
        ({"parameters": {}, "method": ["bayes"]}, r"method: .*W&B's \['bayes'\]. It reads: random, grid, bayes"),
        ({"parameters": {}, "metric": "loss"}, "metric: a W&B sweep says"),
        ({"parameters": {}, "metric": {"name": "a", "goal": "least"}}, "goal 'least'"),
        ({"parameters": {}, "metric": {"name": "a", "target": 1}}, "'target'"),
        ({"parameters": {}, "early_terminate": {"type": "hyperband", "max_iter": 27}}, "early_terminate: .*27"),
        ({"parameters": {}, "early_terminate": {"type": "envelope"}}, "early_terminate: .*envelope"),
        ({"parameters": {}, "early_terminate": "hyperband"}, "early_terminate: .*hyperband"),
        ({"method": "grid", "parameters": {"a": {"min": 0.0, "max": 1.0}}}, "a: .*grid over uniform"),
        ({"method": "random"}, "holds `parameters:`"),
        ([1], "is a mapping, or the path of"),
    ],
)
def test_what_wandb_says_and_tunelight_cannot_is_named(given, message):
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace.from_format(given, "wandb")


# --- Optuna -----------------------------------------------------------------------------------------------

DISTRIBUTIONS: dict[str, Any] = {
    "a": (CategoricalDistribution(["x", 1, 2.5, True]), {"choice": ["x", 1, 2.5, True]}),
    "b": (FloatDistribution(0.0, 1.0), {"uniform": [0.0, 1.0]}),
    "c": (FloatDistribution(1e-4, 1e-1, log=True), {"loguniform": [1e-4, 1e-1]}),
    "d": (FloatDistribution(0.0, 1.0, step=0.25), {"quniform": [0.0, 1.0, 0.25]}),
    "e": (IntDistribution(1, 8), {"randint": [1, 9]}),
    "f": (IntDistribution(1, 98, log=True), {"lograndint": [1, 99]}),
    "g.h": (IntDistribution(2, 8, step=2), {"qrandint": [2, 8, 2]}),
    "i": (CategoricalDistribution([None, "x"]), {"choice": [None, "x"]}),
}


def test_optuna_s_distributions_are_read_as_objects_as_text_and_as_json():
    distributions = {key: one for key, (one, _) in DISTRIBUTIONS.items()}
    texts = {key: optuna.distributions.distribution_to_json(one) for key, one in distributions.items()}
    for given in (distributions, texts, {key: json.loads(text) for key, text in texts.items()}):
        space = tl.SearchSpace.from_format(given, "optuna")
        assert space.describe() == {key: domain for key, (_, domain) in DISTRIBUTIONS.items()}
    trial = optuna.create_study().ask(distributions)
    assert all(space.domains[key].is_valid(value) for key, value in trial.params.items())


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


def test_an_unknown_format_gets_a_guess():
    with pytest.raises(SpaceError, match=r"no format 'wandbb'. Did you mean 'wandb'.*: wandb, optuna, ray"):
        tl.SearchSpace.from_format({"a": 1}, "wandbb")
    with pytest.raises(SpaceError, match=r"There is no file nowhere.json"):
        tl.SearchSpace.from_format("nowhere.json", "optuna")
