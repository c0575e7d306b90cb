"""Search spaces: declared, loaded with the line of every error, sampled, described."""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray import tune
from ray.tune.search.sample import Categorical

import tunelight as tl
from tunelight.errors import ImportPathError, SettingsError, SpaceError
from tunelight.settings import Checkpoints, Settings

ALL = {
    "a": tune.choice([1, "b", 2.5]),
    "b": tune.uniform(0, 1),
    "c": tune.quniform(0, 1, 0.25),
    "d": tune.loguniform(1e-4, 1e-1),
    "e": tune.qloguniform(0.5, 8, 0.5),
    "f": tune.randint(1, 9),
    "g": tune.qrandint(2, 8, 2),
    "h": tune.lograndint(1, 99),
    "i": tune.qlograndint(8, 64, 8),
    "j": tune.randn(1, 2),
    "k": tune.qrandn(0, 1, 0.5),
    "l": tune.grid_search([1, 2, 3]),
}


def rng(seed: int = 0) -> np.random.RandomState:
    return np.random.RandomState(seed)


def twice(config: dict[str, Any]) -> Any:
    return 2 * config["x"]


@pytest.fixture
def load(tmp_path):
    def write(text: str, name: str = "space.yaml") -> tl.SearchSpace:
        path = tmp_path / name
        path.write_text(text)
        return tl.SearchSpace.load(path)

    return write


def test_the_domains_are_ray_tunes_own():
    import tunelight.space as room

    for name in set(room.__all__) - {"SearchSpace", "names", "ordinal"}:
        ours, theirs = getattr(tl, name), getattr(tune, "grid_search" if name == "grid" else name)
        assert ours.__wrapped__ is theirs
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert pickle.loads(pickle.dumps(ours)) is ours
    assert type(tl.loguniform(1e-4, 1)) is type(tune.loguniform(1e-4, 1))
    with pytest.raises(AttributeError, match="Did you mean 'loguniform'"):
        _ = room.logunifrom


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ({"model": {}}, "model: a domain is one name"),
        ({"lr": [1, 2]}, r"lr: \[1, 2\] is not a search domain.*tl.choice\(\[...\]\).*fixed"),
        ({"model": {"lr": tune.uniform(0, 1), "sizes": [1, 2]}}, r"model.sizes: \[1, 2\] is not a search domain"),
        ({"lr": "uniform(0, 1)"}, r"lr: 'uniform\(0, 1\)' is text. Write the domain as \{uniform: \[0, 1\]\}"),
        ({"lr": {"uniform": [0, 1], "wen": {"a": 1}}}, "lr: a domain is one name.* 'wen': Did you mean 'when'"),
        ({1: tune.uniform(0, 1)}, "1: a key of a search space must be text"),
        ({"lr": {"randint": [0.5, 3]}}, "lr: randint's lower must be a whole number, not 0.5"),
        ({"lr": tune.grid_search([])}, "lr: grid_search takes a list of one value or more"),
        ({"lr": tune.qrandint(11, 14, 10)}, "lr: no value can be drawn"),
        ({"a.b": tune.randn(), "a": {"b": tune.randn()}}, "a.b: this key is there twice"),
        ({"lr": {"qrandint": [1]}}, "lr: qrandint takes 2 to 3 arguments"),
        ({"lr": {"uniform": [0.1]}}, r"lr: uniform takes 2 arguments \(lower, upper\), not 1"),
        ({"lr": {"uniform": {"lower": 0, "uper": 1}}}, "lr: uniform takes no 'uper'. Did you mean 'upper'"),
        ({"lr": {"uniform": [0, float("inf")]}}, "lr: uniform's upper must be a number, not inf"),
        ({"lr": {"quniform": [0.1, 1, 0.25]}}, "lr: Ray Tune refuses quniform"),
        ({"lr": {"randn": [0, 0]}}, "lr: randn's sd must be more than 0"),
    ],
)
def test_what_is_no_space_names_the_key(domains, message):
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace(domains)


def test_a_space_of_anything(tmp_path):
    space = tl.SearchSpace(ALL)
    assert tl.SearchSpace.of(space) is space
    assert list(tl.SearchSpace.of(ALL).domains) == list(ALL)
    path = tmp_path / "s.yaml"
    path.write_text("space: {lr: {uniform: [0, 1]}}")
    assert tl.SearchSpace.of(str(path)).source == tl.SearchSpace.of(path).source == path
    with pytest.raises(SpaceError, match="not 3"):
        tl.SearchSpace.of(3)  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1))
def test_draws_of_a_space_without_conditions_stay_what_they_were(seed):
    """One draw from each domain, in the order of the space, by one generator: sweeps that go on rely on it."""
    generator = rng(seed)
    drawn = {key: domain.sample(random_state=generator) for key, domain in ALL.items() if key != "l"}
    sampled = tl.SearchSpace(ALL).sample(rng(seed))
    assert json.loads(json.dumps(sampled)) == sampled == {**drawn, "l": 1}


def test_a_grid_is_walked_through_once():
    space = tl.SearchSpace({"a": tune.grid_search([1, 2]), "b": tune.choice("xy"), "c": tl.grid([3, 4, 5])})
    assert space.grid_size == 6
    points = [space.sample(rng(), index) for index in range(6)]
    assert [(p["a"], p["c"]) for p in points] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert list(points[0]) == ["a", "b", "c"]
    assert tl.SearchSpace({"a": tl.grid([16, 32, 32, 64]), "b": tl.grid([1, 1.0, True])}).grid_size == 6
    assert tl.SearchSpace(ALL | {"l": tune.choice([1])}).grid_size == 1
    assert tl.SearchSpace({"a": Categorical([1, 2]).grid()}).grid_size == 2


def test_a_description_is_read_back(load):
    written = tl.SearchSpace(ALL | {"m": {"n": tune.sample_from(twice)}})
    told = json.loads(json.dumps(written.describe()))
    assert told["d"] == {"loguniform": [1e-4, 0.1]}
    assert told["m"]["n"] == {"sample_from": f"{__name__}:twice"}
    assert told["l"] == {"grid_search": [1, 2, 3]}
    assert tl.SearchSpace(told).describe() == told
    odd = tl.SearchSpace({"a": tune.choice([np.int64(1), Settings, (1, None), np.float64(0.5)])})  # no plain data
    assert odd.describe() == {"a": {"choice": [1, "tunelight.settings.values:Settings", [1, None], 0.5]}}
    assert load(yaml.safe_dump({"space": told})).describe() == told


GOOD = """\
space:
  model.lr: {loguniform: [1e-4, 1e-1]}
  model.hidden: {choice: [32, 64, 128]}
metric: val_loss
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1E5", 1e5), ("-.5", -0.5), ("1.", 1.0), (".inf", float("inf")), ("12", 12),
        ("0x10", 16), ("0o17", 15), ("010", 10), ("'no'", "no"), ("true", True), ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"), ("~", None), ("'1'", "1"), ("'1_000'", "1_000"), ("1e", "1e"), ("+3", 3),
    ],
)  # fmt: skip
def test_scalars_are_read_by_yaml_1_2(load, text, value):
    (read,) = load(f"space: {{a: {{choice: [{text}]}}}}").domains["a"].categories
    assert read == value
    assert type(read) is type(value)


def test_a_file_is_a_whole_sweep(load):
    space = load(
        GOOD + "mode: max\nworkers: 2\nscheduler: {name: asha, grace_period: 1}\ncheckpoints: {keep: 2}\n"
        "train: tunelight.settings:check_train\ntime_budget: 2h\nseed: 0x7\n"
    )
    assert space.settings["checkpoints"] == Checkpoints(keep=2)
    assert space.settings["train"].__name__ == "check_train"
    assert Settings(**space.settings).budget_s == 7200
    assert space.domains["model.lr"].lower == 1e-4


@pytest.mark.parametrize(
    ("text", "line", "error", "message"),
    [
        ("spaces: {}\n", 1, SettingsError, "Did you mean 'space'"),
        (GOOD + "model.layers: {randint: [1, 3]}", 5, SpaceError, "must stand under `space:`"),
        ("space:\n  a: {randn: []}\n  b: {randn: []}\n  a: {}", 4, SpaceError, "'a' is there twice.*line 2"),
        (GOOD + "progress: no", 5, SpaceError, "no is a boolean in YAML 1.1 .*Write false, or 'no' for the text"),
        (GOOD + "num_samples: 1_000", 5, SpaceError, "1_000 is a number in YAML 1.1 .*Write 1000"),
        ("a: &a {x: 1}\nspace:\n  <<: *a", 3, SpaceError, "keys are not merged .<<.. Write out the keys"),
        (GOOD + "max_epochs: 2\nscheduler: {name: asha, grace_period: 3}", 6, SettingsError, "larger than"),
        (GOOD + "callbacks: [nowhere_at_all:X]", 5, ImportPathError, "no module 'nowhere_at_all'"),
        ("space:\n  lr: {sample_from: nowhere_at_all:f}", 2, ImportPathError, "lr: .*no module"),
        ("space:\n  n:\n    lr: {uniform: [0, 1]}\n    x: {loguniform: [0, 1]}", 4, SpaceError, "n.x: log"),
        ("metric: a\nspace: {}", 2, SpaceError, "search space is empty"),
        ("metric: a\nspace:", 2, SpaceError, "maps keys to domains"),
        ("- 1", 1, SpaceError, "holds `space:` and settings"),
        ("metric: a", 1, SpaceError, "The file has no `space:`"),
        ("space:\n  a: {choice: [!!python/object:os.system x]}", 2, SpaceError, "not valid YAML"),
        ("space: {a: {randn: []}}\n---\nb: 1", 2, SpaceError, "not valid YAML"),
    ],
)  # fmt: skip
def test_an_error_in_a_file_names_the_line(load, text, line, error, message):
    with pytest.raises(error, match=rf"space\.yaml:{line}:\d+: .*{message}"):
        load(text)


def test_an_anchor_is_read_and_one_that_holds_itself_ends(load):
    space = load("space:\n  a: &lr {uniform: [0, 1]}\n  b: *lr\n")
    assert list(space.domains) == ["a", "b"]
    with pytest.raises(SpaceError, match=r"space\.yaml:2:\d+: a"):
        load("space:\n  a: &a [*a]\n")


def test_a_module_beside_the_file_is_found_and_the_path_else_left_as_it_was(load, tmp_path, monkeypatch):
    before = [*sys.path]
    monkeypatch.setattr(sys, "path", [*sys.path])
    load(GOOD)
    with pytest.raises(ImportPathError):
        load(GOOD + "train: nowhere_at_all:train")
    assert sys.path == before
    (tmp_path / "beside_the_space.py").write_text("def train(config): pass")
    space = load(GOOD + "train: beside_the_space:train")
    assert space.settings["train"].__module__ == "beside_the_space"
    assert str(tmp_path) in sys.path, "workers are handed the driver's path"


def model(lr: float, hidden: int = 3) -> None:
    """Build nothing."""


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lr", r"begin with model\., data\. or trainer\..*Did you mean 'model.lr'"),
        ("data.size", "there is no data="),
    ],
)
def test_keys_name_their_part(load, key, message):
    space = load(f"space:\n  {key}: {{uniform: [0, 1]}}")
    with pytest.raises(SpaceError, match=rf"space\.yaml:2:3: {key}: .*{message}"):
        space.check_parts(model, None)
