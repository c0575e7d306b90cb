"""Sweeps of W&B, as its own packages make them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.extras.scripts.script import Script
from tunelight.extras.wandb import OfWandb
from tunelight.schedulers.choose import build_scheduler
from tunelight.searchers.choose import build_searcher, count_trials
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings


@pytest.fixture
def load(tmp_path, write):
    """Return a function that loads a sweep of W&B, with a script beside it, as a space."""
    (tmp_path / "train.py").touch()
    return lambda text: SearchSpace.load(write(text))


SWEEP = """\
program: train.py
name: demo
method: bayes
metric: {goal: maximize, name: val_acc}
run_cap: 30
early_terminate: {type: hyperband, min_iter: 3}
parameters:
  layers: {min: 1, max: 4}
  batch: {distribution: q_log_uniform_values, q: 8, min: 32, max: 256}
  epochs: {value: 5}
"""


def test_a_sweep_of_wandb_becomes_a_space_with_its_settings(load):
    space = load(SWEEP)
    assert space.describe() == {
        "layers": {"randint": [1, 5]},
        "batch": {"wandb_parameter": {"distribution": "q_log_uniform_values", "min": 32, "max": 256, "q": 8}},
        "epochs": 5,
    }
    assert (space.settings["metric"], space.settings["mode"], space.settings["num_samples"]) == ("val_acc", "max", 30)
    bands = [3, 9, 27, 81, 243, 729]
    assert space.settings["scheduler"] == {"name": "asha", "milestones": bands, "reduction_factor": 3}
    check_settings(space, Settings(**space.settings))


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
    ],
)
def test_what_wandb_says_and_tunelight_cannot_is_named(given, message, load):
    with pytest.raises(SpaceError, match=message):
        load(yaml.safe_dump(given))


# --- W&B's own answers, as scripts/wandb_answers.py has recorded them


HERE = Path(__file__).parent
SWEEPS = (HERE / "wandb_sweeps.yaml").read_text(encoding="utf-8").partition("\n")[2].partition("\n")[2].split("---\n")
ANSWERS = json.loads((HERE / "wandb_answers.json").read_text(encoding="utf-8"))["answers"]
assert len(SWEEPS) == len(ANSWERS)
DRAWS = 1000


@pytest.mark.parametrize("number", range(len(SWEEPS)), ids=lambda number: f"sweep {number + 1}")
def test_a_sweep_of_wandb_draws_stops_and_is_written_as_wandb_does(load: Any, number: int) -> None:
    space, answer = load(SWEEPS[number]), ANSWERS[number]
    settings = {"metric": "loss", **space.settings, "script": None, "args": [], "style": None, "train": print}
    if "grid" in answer:
        checked = Settings(**settings)
        searcher = build_searcher(space, checked)
        assert [searcher.suggest(str(number)) for number in range(count_trials(space, checked))] == answer["grid"]
    for key, told in answer.get("parameters", {}).items():
        drawn = space.domains[key].sample(size=DRAWS, random_state=np.random.RandomState(1))
        drawn = [one.item() if isinstance(one, np.generic) else one for one in drawn]
        assert sorted({type(one).__name__ for one in drawn}) == told["types"], key
        counts = Counter(map(json.dumps, drawn))
        for value, share in told.get("equal", ()):
            assert counts[json.dumps(value)] / DRAWS == pytest.approx(share, abs=0.05), key
        for value, share in told.get("at_most", ()):
            assert sum(one <= value for one in drawn) / DRAWS == pytest.approx(share, abs=0.05), key
        low, high = told.get("ends", (None, None))
        assert low is None or low - 1e-6 <= min(drawn) <= max(drawn) <= high + 1e-6
    if "bands" in answer:
        asha: Any = build_scheduler(Settings(**settings))
        assert asha.milestones() == answer["bands"]
    script_of_it = Script("train.py", args=tuple(space.settings["args"]), style=space.settings["style"])
    assert script_of_it.command(answer["config"]) == answer["words"]


def test_what_wandb_draws_is_searched_by_its_quantiles_and_read_back() -> None:
    written = {"distribution": "q_log_uniform_values", "min": 32, "max": 256, "q": 8}
    space = SearchSpace({"batch": {"wandb_parameter": written}})
    assert SearchSpace(space.describe()).describe() == space.describe() == {"batch": {"wandb_parameter": written}}
    domain: Any = space.domains["batch"]
    for value in (32, 104, 256):
        assert domain.value(domain.quantile(value)) == value
    for name in ("gp", "tpe"):
        searcher: Any = build_searcher(space, Settings(metric="loss", searcher=name, train=print))
        for number in range(12):
            value = searcher.suggest(f"{number:05d}")["batch"]
            assert type(value) is int
            assert value % 8 == 0
            searcher.on_trial_result(f"{number:05d}", {"loss": value, "training_iteration": 1})
            searcher.end(f"{number:05d}", "FINISHED")
    mixed = OfWandb(
        {"distribution": "categorical_w_probabilities", "values": ["a", "b"], "probabilities": [0.25, 0.75]}
    )
    assert [mixed.value(one) for one in (0.0, 0.2, 0.25, 1.0)] == ["a", "a", "b", "b"]
    assert [mixed.quantile(one) for one in ("a", "b", "c")] == [0.125, 0.625, None]


@pytest.mark.parametrize("milestones", [[], [3, 3], [0, 1], ["3"], 3, "39"])
def test_milestones_ascend(milestones: Any) -> None:
    with pytest.raises(SettingsError, match="milestones must be a list of ascending numbers above 0"):
        tl.ASHA(milestones=milestones)


def test_milestones_past_the_end_of_training_stop_nothing() -> None:
    asked: dict[str, Any] = {"name": "asha", "milestones": [3, 9], "reduction_factor": 3}
    built: Any = [build_scheduler(Settings(metric="loss", scheduler=asked, max_epochs=most)) for most in (2, 9, 10)]
    assert [one.milestones() for one in built] == [[], [3], [3, 9]]
