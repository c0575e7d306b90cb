"""Search spaces: declared, loaded with errors' lines, sampled, described, with conditions, constraints, objects."""

from __future__ import annotations

import dataclasses
import enum
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
from tunelight.searchers.choose import build_searcher
from tunelight.settings import Checkpoints, Settings
from tunelight.space.check import check_settings
from tunelight.space.plain import Objects
from tunelight.space.space import read_constraint

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
def load(write):
    return lambda text: tl.SearchSpace.load(write(text))


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
        ({"a": 1, "b": {"fixed": 1, "when": {"c": 1}}}, "b: its `when`: the search space has no key 'c'.* has: a"),
        ({"b": {"fixed": 1, "when": {"a": 1}}, "a": 1}, "b: its `when` names a, which does not stand above it"),
        ({"a": {"fixed": 1, "when": {"a": 1}}}, "a: its `when` names a, which does not stand above it"),
        ({"a": tune.choice(["sgd"]), "b": {"fixed": 1, "when": {"a": "sdg"}}}, "never is. Did you mean 'sgd'.*: sgd"),
        ({"a": tune.uniform(0, 1), "b": {"fixed": 1, "when": {"a": 2}}}, "never is. It lies between 0 and 1"),
        ({"a": tune.randint(1, 5), "b": {"fixed": 1, "when": {"a": 5}}}, "never is. It lies between 1 and 4, in steps"),
        ({"a": {"wandb_parameter": {"distribution": "q_normal"}}, "b": {"fixed": 1, "when": {"a": "x"}}}, "never is"),
        ({"a": tune.sample_from(lambda _: 2), "b": {"fixed": 1, "when": {"a": 2}}}, "which a function gives"),
        ({"a": tune.choice([1]), "b": {"grid": [1], "when": {"a": 1}}}, "points of the grid would be missed"),
        ({"a": {"fixed": 1, "when": "a"}}, "a: `when` maps other keys"),
        ({"o": 1, "a": {"domain": tune.uniform(0, 1), "when": {"o": 1}}}, "a.when: `when` stands beside the name of"),
    ],
)
def test_what_is_no_space_or_has_a_condition_that_cannot_be_right_names_the_key(domains, message):
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


SGD = {
    "opt": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0, 0.99], "when": {"opt": "sgd"}},
    "nesterov": {"choice": [True, False], "when": {"opt": "sgd", "momentum": 0.0}},
    "lr": {"loguniform": [1e-4, 1e-1]},
}
KEYS = {
    "model.hidden": tune.choice([32, 64]),
    "model.layers": tune.randint(1, 5),
    "model.act": tune.choice(["relu", "tanh"]),
    "model.bias": tune.choice([True, False]),
    "model.clip": tune.choice([None, 0.5]),
    "f": tune.sample_from(lambda _: 1),
}


def draws(space: tl.SearchSpace, count: int = 50) -> list[dict[str, Any]]:
    generator = rng()
    return [space.sample(generator, index % space.grid_size) for index in range(count)]


def test_grid_points_that_conditions_and_constraints_leave_out_are_not_counted():
    space = tl.SearchSpace(
        {"opt": tl.grid(["sgd", "adam"]), "m": {"grid": [0.1, 0.9], "when": {"opt": "sgd"}}, "n": tl.grid([1, 2, 3])},
        require="n < 3",
    )
    assert space.grid_size == 6
    assert [tuple(config.values()) for config in draws(space, 6)] == [
        ("sgd", 0.1, 1), ("sgd", 0.1, 2), ("sgd", 0.9, 1), ("sgd", 0.9, 2), ("adam", 1), ("adam", 2),
    ]  # fmt: skip
    with pytest.raises(SpaceError, match="No point of the grid meets `require: n > 3`"):
        tl.SearchSpace({"n": tl.grid([1, 2, 3])}, require="n > 3")
    with pytest.raises(SpaceError, match="1,000,000 combinations, and 100,000 are the most"):
        tl.SearchSpace({key: tl.grid(list(range(10))) for key in "abcdef"}, require="a < b")


def test_what_is_described_is_read_back_with_its_conditions():
    told = {**SGD, "x": {"uniform": [0, 1]}, "o": {"ordinal": [1, 2]}, "t": "f(x)"}
    space = tl.SearchSpace(told)
    again = tl.SearchSpace(space.describe())
    assert again.describe() == space.describe() == told
    assert again.when == space.when
    assert draws(again) == draws(space) == draws(pickle.loads(pickle.dumps(space)))
    kept = tl.SearchSpace({"a": tune.choice([[1, 2], 3]), "b": {"fixed": "choice(1)", "when": {"a": [[1, 2]]}}})
    assert tl.SearchSpace(kept.describe()).when == kept.when == {"b": {"a": [[1, 2]]}}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("model.hidden - 2 * model.layers == 60", True),
        ("1 < model.layers <= 2", True),
        ("not model.act == 'tanh'", True),
        ("model.act != 'relu' or model.bias", True),
        ("model.bias == true and model.bias == True", True),
        ("model.clip == null", True),
        ("max(model.hidden, 100, model.layers) == 100 and min(model.layers, 9) == 2", True),
        ("abs(-model.layers) == 2 and log(model.hidden) > 4", True),
        ("model.hidden // 7 == 9 and model.hidden % 7 == 1 and model.hidden / 2 == 32", True),
        ("model.layers ** 2 == 4", True),
        ("10.0 ** (model.hidden ** model.hidden) > 0", False),
        ("1 / (model.layers - 2) < 1", False),
        ("log(model.layers - 3) < 9", False),
        ("f == 'anything'", False),
        ("f > 0", True),
    ],
)
def test_the_language_of_constraints(text, met):
    values = {
        "model.hidden": 64,
        "model.layers": 2,
        "model.act": "relu",
        "model.bias": True,
        "model.clip": None,
        "f": 1,
    }
    assert read_constraint(text, KEYS).met(values) is met


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model.hiden < 3",
            r"character 1: model.hiden is no key of the space. Did you mean 'model.hidden'.*has: m",
        ),
        ("model.layers < hidden", "character 16: hidden is no key"),
        ("model.act", "is no condition"),
        ("model.act == 3", "model.act is never 3"),
        ("model.act == 'rleu'", "model.act is never 'rleu'. Did you mean 'relu'. It is one of: relu, tanh"),
        ("model.layers < ", "cannot be read, from character"),
        ("sqrt(model.layers) < 2", "no function that there is"),
        ("mx(model.layers, 2) < 2", "Did you mean 'max'"),
        ("log(model.layers, 2) < 2", "log takes 1 value, not 2"),
        ("max(*model.layers, 1) < 2", "nothing that a constraint can hold"),
        ("__import__('os').system('true') == 0", "nothing that a constraint can hold"),
        ("model.layers.__class__ == 3", "no key of the space"),
        ("model.act in ('relu',)", "compared in a way that there is not"),
        ("3 < 4", "names no key"),
        ("(" * 300 + "model.layers" + ")" * 300 + " < 1", "cannot be read"),
        ("model.layers < 1 and " * 60 + "model.bias", "1000 are the most"),
        ("", "`require` holds text"),
        (3, "`require` holds text"),
    ],
)
def test_a_wrong_constraint_says_which_part_is_wrong(text, message):
    with pytest.raises(SpaceError, match=message):
        read_constraint(text, KEYS)


def test_a_space_of_which_nothing_is_left_is_refused_before_anything_runs():
    impossible = tl.SearchSpace({"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}, require=["a > 0", "a + b > 2"])
    settings = Settings(train=print, metric="loss")
    with pytest.raises(SpaceError, match=r"None of 2,000 draws .* meets `require: a \+ b > 2`"):
        check_settings(impossible, settings)
    together = tl.SearchSpace({"a": tune.uniform(0, 1)}, require=["a > 0.5", "a < 0.5"])
    with pytest.raises(SpaceError, match=r"meets all of `require`: a > 0.5 \(met by \d+\); a < 0.5 \(met by \d+\)"):
        check_settings(together, settings)
    in_part = tl.SearchSpace({"g": tl.grid([1, 2]), "a": tune.randint(0, 3)}, require="a > g")
    with pytest.raises(SpaceError, match=r"with \{'g': 2\}"):
        check_settings(in_part, settings)
    check_settings(tl.SearchSpace({"a": tune.uniform(0, 1)}, require="a > 0.99"), settings)


def test_a_searcher_of_rays_is_not_given_what_it_cannot_know():
    from ray.tune.search import Searcher

    class Theirs(Searcher):
        pass

    settings = Settings(train=print, metric="loss", searcher=Theirs("loss", "min"))
    for space in (tl.SearchSpace(SGD), tl.SearchSpace({"a": tune.uniform(0, 1)}, require="a > 0.5")):
        with pytest.raises(SettingsError, match="Theirs knows neither conditions nor constraints"):
            build_searcher(space, settings)
    build_searcher(tl.SearchSpace({"a": tune.uniform(0, 1), "b": 3}), settings)


def test_keys_can_be_fixed_afterwards():
    space = tl.SearchSpace({"model": {"lr": tune.uniform(0, 1)}, "n": tl.grid([1, 2])}, metric="loss")
    fixed = space.fixed({"model.lr": 0.5, "n": 3, "data.root": "/data"})
    assert fixed.sample(rng()) == {"model": {"lr": 0.5}, "n": 3, "data.root": "/data"}
    assert (fixed.grid_size, space.grid_size, fixed.settings) == (1, 2, {"metric": "loss"})
    told = tl.SearchSpace({"a": tune.uniform(0, 1), "b": 1}, baselines=[{"a": 0.5}, {"a": 0.1, "b": 1}]).fixed({"a": 0})
    assert told.settings["baselines"] == ({"a": 0}, {"a": 0, "b": 1})
    with pytest.raises(SpaceError, match=r"has no key 'modle.lr'.* Did you mean 'model.lr'"):
        space.fixed({"modle.lr": 0.5})


def test_a_baseline_holds_what_counts_and_need_not_repeat_what_is_fixed():
    space = tl.SearchSpace({"model": {"k": 3}, **SGD}, require="lr < 0.05")
    space.check_baselines([{"opt": "adam", "lr": 1e-2}, {"opt": "sgd", "momentum": 0.5, "lr": 1e-2, "model": {"k": 3}}])
    assert space.filled({"opt": "adam", "lr": 1e-2}) == {"model": {"k": 3}, "opt": "adam", "lr": 1e-2}
    for config, message in [
        ({"opt": "sgd", "lr": 1e-2}, "says nothing of momentum: a baseline is a whole"),
        ({"opt": "adam", "momentum": 0.5, "lr": 1e-2}, "holds momentum, which only counts when {'opt': .'sgd'.}"),
        ({"opt": "adam", "lr": 1e-2, "model": {"k": 4}}, "holds model.k=4, and the space keeps it fixed at 3"),
        ({"opt": "adam", "lr": 0.1}, "breaks `require: lr < 0.05`"),
        ({"opt": "adam", "lr": 1e-2, "model.k": 3}, r"holds 'model.k'.*written as \{'model': \{'k'"),
        ({"opt": "adam", "lrr": 1e-2}, "holds 'lrr'.*Did you mean 'lr'"),
    ]:
        with pytest.raises(SettingsError, match=rf"baselines\[0\] {message}"):
            space.check_baselines([config])


class Opt(enum.Enum):
    SGD = 1
    ADAM = 2


@dataclasses.dataclass(frozen=True)
class Aug:
    p: float
    opt: Opt = Opt.SGD


def double(x: int) -> int:
    return 2 * x


def space(**more: Any) -> tl.SearchSpace:
    return tl.SearchSpace(
        {
            "opt": tl.choice([Opt.SGD, Opt.ADAM]),
            "model": {"aug": tl.choice([Aug(0.5), Aug(0.1)]), "kind": tl.choice([list, double])},
            "sizes": tl.grid_search([(1, 2), (3,)]),
            **more,
        }
    )


def test_a_configuration_has_the_objects_and_its_plain_form_their_texts() -> None:
    given = space()
    config, plain = given.sample(rng()), given.plain().sample(rng())
    assert config["opt"] in Opt
    assert config["model"]["aug"] in (Aug(0.5), Aug(0.1))
    assert config["sizes"] == (1, 2)
    assert plain == json.loads(json.dumps(plain))
    assert plain["opt"] == f"Opt.{config['opt'].name}"
    assert given.plain_configs([config]) == (plain,)
    assert given.objects.restored(plain) == config
    alone: Any = tl.OptunaSearcher("tpe", space=space(), metric="loss", mode="min")  # without a sweep
    assert alone.suggest("00000")["opt"] in Opt


def test_an_object_that_no_reference_leads_to_is_told_apart_and_stays_its_text() -> None:
    first, second = (lambda x: x), (lambda x: -x)
    given = tl.SearchSpace({"act": tl.choice([first, second])})
    assert given.dotted({"act": second}) != given.dotted({"act": first})
    assert given.objects.restored(given.dotted({"act": second}))["act"] is second
    recorded = given.objects.described()
    assert Objects.recalled(recorded).restored({"act": "there"}) == {"act": "there"}
    with pytest.raises(SpaceError, match="act: the record has the choice"):
        Objects.recalled(recorded, strict=True)


def test_a_record_of_others_makes_nothing_but_dataclasses_and_members() -> None:
    called = {"x": [["a", {"dataclass": "os:system", "fields": {"command": {"value": "true"}}}]]}
    assert not Objects.recalled(called)
    assert not Objects.recalled({"x": "a", "y": [1], "z": [["a", {"enum": "os:path", "name": "join"}]]})
    assert not Objects.recalled(["x"])


def test_conditions_and_functions_know_the_objects() -> None:
    given = tl.SearchSpace(
        {
            "sgd": tl.sample_from(lambda config: config["opt"] is Opt.SGD),  # which is drawn below
            "opt": {"ordinal": [Opt.SGD, Opt.ADAM]},
            "momentum": {"uniform": [0, 1], "when": {"opt": Opt.SGD}},
        }
    )
    for number in range(8):
        config = given.plain().sample(rng(number))
        assert ("momentum" in config) == config["sgd"] == (config["opt"] == "Opt.SGD")


def test_baselines_may_be_objects_and_what_is_enqueued_must_be_a_choice() -> None:
    given = tl.SearchSpace({"opt": tl.choice([Opt.SGD, Opt.ADAM])})
    given.check_baselines([{"opt": Opt.ADAM}])
    assert given.plain_configs([{"opt": Opt.ADAM}]) == ({"opt": "Opt.ADAM"},)
    given.plain().check_baselines([{"opt": "Opt.ADAM"}])
    with pytest.raises(SettingsError, match=r"not one of its choices: 'Opt.SGD', 'Opt.ADAM'"):
        given.plain().check_baselines([{"opt": "Opt.RMS"}])


def test_a_population_moves_from_object_to_object_in_a_plain_tuner_and_by_text_in_a_sweep() -> None:
    from tunelight.schedulers.pbt import explore, mutations_of

    mutations = mutations_of({"opt": [Opt.SGD, Opt.ADAM]})
    assert explore({"opt": Opt.SGD}, mutations, rng(), 0.0, (1.2,)) == {"opt": Opt.ADAM}
    assert explore({"opt": "Opt.SGD"}, mutations, rng(), 0.0, (1.2,)) == {"opt": "Opt.ADAM"}


@pytest.mark.parametrize(
    "domain",
    [
        {"choice": [tl.uniform(0, 1), 3]},
        {"grid_search": [[tl.uniform(0, 1)]]},
        {"ordinal": [{"lr": tl.uniform(0, 1)}, 2]},
        {"fixed": [tl.uniform(0, 1)]},
    ],
)
def test_a_domain_inside_of_a_value_is_refused_where_it_is_written_and_at_once_by_a_choice(domain: Any) -> None:
    with pytest.raises(SpaceError, match=r"holds a domain, uniform of \[0, 1\].*'when'"):
        tl.SearchSpace({"x": domain})
    with pytest.raises(SpaceError, match=r"tl.choice: choice holds a domain"):
        tl.choice([tl.uniform(0, 1), 3])
