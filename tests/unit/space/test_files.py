"""Search space files: their JSON Schema, the place of every mistake, and those that come with tunelight."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped] # its stubs are a package of their own
import pytest
import torch

import tunelight as tl
from scripts.space_schema import SpaceFile, schema
from tests.unit.space.test_space import ALL, GOOD, rng
from tunelight.errors import SettingsError, SpaceError
from tunelight.settings import NAMES, Settings, check_model, check_setting
from tunelight.space import names
from tunelight.space.check import check_settings
from tunelight.space.files import YamlFile, folder
from tunelight.space.kinds import KINDS

SHIPPED = ["cifar10_vit", "digits_cnn", "digits_mlp", "digits_vit", "mnist_mlp"]
JUDGE = jsonschema.Draft202012Validator(schema())


def test_the_schema_that_ships_is_that_of_the_code_and_knows_every_setting_and_every_domain():
    """Else: make reference."""
    assert json.loads((folder() / "schema.json").read_text()) == schema()
    JUDGE.check_schema(schema())
    assert set(SpaceFile.model_fields) == {"space", "require", *NAMES}
    assert set(KINDS) <= set(schema()["$defs"])
    defaults = Settings()
    for name in NAMES:
        assert check_setting(name, SpaceFile.model_fields[name].default) == getattr(defaults, name)


RIGHT = [
    GOOD,
    GOOD + "mode: max\nworkers: [1, 4]\nscheduler: {name: asha, grace_period: 1}\ncheckpoints: {keep: 2}\nseed: 7\n"
    "train: tunelight.settings:check_train\ntime_budget: 2h\nbaselines: [{model.lr: 1e-2, model.hidden: 32}]\n",
    GOOD + "checkpoints: false\nresume: force\nmax_concurrent: 2\nrequire: [model.hidden > 32]\nfailures: 2\n",
    "space:\n  a: 1\n  b: {c: {uniform: {lower: 0, upper: 1}}, d: text}\n  e: {fixed: [1], when: {a: 1}}\n",
    "space:\n  a: {randn: []}\n  b: {qrandint: [2, 8]}\n  c: {loguniform: [1e-4, 1]}\n",
]
WRONG = [
    GOOD + "num_sample: 3",
    GOOD + "workers: two",
    GOOD + "progress: seldom",
    GOOD + "model.layers: {randint: [1, 3]}",
    GOOD + "backend: dpp",
    "spaces: {}\n",
    "space: {}\n",
    "space:\n",
    "metric: a\n",
    "space:\n  lr: {unifrom: [0, 1]}",
    "space:\n  lr: {uniform: [0, 1, 2]}",
    "space:\n  lr: {uniform: {lower: 0, uper: 1}}",
    "space:\n  lr: {uniform: [a, 1]}",
    "space:\n  lr: {randint: [0.5, 1]}",
    "space:\n  lr: [1, 2]",
    "space:\n  lr: {choice: []}",
    "space:\n  lr: {choice: [1], wen: {a: 1}}",
]


@pytest.mark.parametrize("text", RIGHT)
def test_schema_and_reader_accept_the_same(write, text):
    path = write(text)
    JUDGE.validate(YamlFile(path).data)
    tl.SearchSpace.load(path)


@pytest.mark.parametrize("text", WRONG)
def test_schema_and_reader_refuse_the_same(write, text):
    path = write(text)
    assert not JUDGE.is_valid(YamlFile(path).data)
    with pytest.raises((SpaceError, SettingsError)):
        tl.SearchSpace.load(path)


def test_the_schema_accepts_whatever_is_described():
    described = tl.SearchSpace(ALL | {"k": 3, "o": tl.ordinal([1, 2]), "m": {"n": {"fixed": [1], "when": {"k": 3}}}})
    JUDGE.validate({"space": described.describe()})


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("space:\n  model:\n    lr: {unifrom: [0, 1]}", "3:10", "model.lr: there is no domain 'unifrom'"),
        ("space:\n  lr: {uniform: [1, 0]}", "2:8", "lr: uniform's lower bound"),
        ("space:\n  a: 1\n  lr: {fixed: 1, when: {a: 1, b: 2}}", "3:31", "lr: its `when`: the search space has no key"),
        ("space:\n  lr: {fixed: 1, when: 3}", "2:18", "lr: `when` maps"),
        ("space: {a: 1}\nrequire: b > 3", "2:1", "`require: b > 3`, character 1: b is no key"),
        ("space: {a: 1}\nrequire:\n  - a > 0\n  - b > 3", "4:5", "`require: b > 3`"),
        ("space: {a: 1}\nnum_sample: 3", "2:1", "there is no key 'num_sample'. Did you mean 'num_samples'"),
        ("space: {a: 1}\ncheckpoints: {keep: 1, evry: 2}", "2:24", "checkpoints has no 'evry'. Did you mean 'every'"),
        ("space: {a: 1, a: 2}", "1:15", "the key 'a' is there twice"),
        ("space:\n  a: {choice: [1}\n  b: 2", "2:15", "this is not valid YAML: while parsing a flow"),
        ("space:\n  a:\n    choice: [1, 2\nnum_samples: 3", "3:13", "this is not valid YAML: while parsing a flow"),
        ("space:\n  a: 'b\n  c: 1", "2:6", "this is not valid YAML: while scanning a quoted scalar"),
        ("space:\n  a 1\n  b: 2", "3:4", "this is not valid YAML: mapping values"),
        ("space:\n\ta: 1", "2:1", "this is not valid YAML"),
        ("space:\n  a: {loguniform: [1e-4 1e-1]}", "2:7", "a: commas stand between arguments: {loguniform: "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_line_and_column(write, text, place, message):
    path = write(text)
    with pytest.raises((SpaceError, SettingsError)) as caught:
        tl.SearchSpace.load(path)
    assert str(caught.value).startswith(f"{path}:{place}: {message}")


def test_what_only_shows_in_the_whole_sweep_is_told_with_its_place(write):
    text = "space: {a: {uniform: [0, 1]}}\nmetric: loss\n"
    told = Settings(train=print, metric="loss")
    with pytest.raises(SpaceError, match=r"space\.yaml:3:1: None of 2,000 draws"):
        check_settings(tl.SearchSpace.load(write(f"{text}require: a > 2")), told)
    space = tl.SearchSpace.load(write(f"{text}baselines:\n- {{a: 1}}\n- {{b: 1}}"))
    with pytest.raises(SettingsError, match=r"space\.yaml:5:3: baselines\[1\] holds 'b'"):
        check_settings(space, Settings(**space.settings, train=print))
    with pytest.raises(SettingsError, match=r"^baselines\[0\] holds 'b'"):
        check_settings(space, Settings(train=print, metric="loss", baselines=[{"b": 1}]))


def test_all_mistakes_of_an_outline_are_told_at_once(write):
    with pytest.raises(SettingsError) as caught:
        tl.SearchSpace.load(write(GOOD + "mode: least\nworkers: two\nnum_sample: 3\n"))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0].partition("space.yaml:")[2] for line in lines] == ["5:1", "6:1", "7:1"]


def test_all_spaces_that_come_along_are_found_by_name_and_listed_for_an_unknown_one(monkeypatch, tmp_path):
    assert names() == SHIPPED
    monkeypatch.chdir(tmp_path)
    assert tl.SearchSpace.of("digits_mlp").source == folder() / "digits_mlp.yaml"
    (tmp_path / "digits_mlp").write_text("space: {a: 1}")
    assert list(tl.SearchSpace.of("digits_mlp").domains) == ["a"], "a file of the user's own comes first"
    (tmp_path / "mine.yaml").write_text("space: {a: 1}")
    with pytest.raises(SpaceError, match=r"no search space 'digits_mpl'. Did you mean 'digits_mlp'.*: cifar10"):
        tl.SearchSpace.of("digits_mpl")
    with pytest.raises(SpaceError, match=r"no search space 'mine'. Did you mean 'mine.yaml'"):
        tl.SearchSpace.of("mine")
    with pytest.raises(SpaceError, match="no search space file folder/digits_mlp"):
        tl.SearchSpace.of("folder/digits_mlp")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_space_is_a_whole_sweep_whose_models_can_be_built(name):
    space = tl.SearchSpace.of(name)
    settings = Settings(**space.settings)
    check_settings(space, settings)
    check_model(settings.model, settings.data)
    JUDGE.validate(YamlFile(folder() / f"{name}.yaml").data)
    text = (folder() / f"{name}.yaml").read_text().splitlines()
    assert text[0] == "# yaml-language-server: $schema=schema.json"
    assert text[1].startswith("# ")
    size, channels = {"cifar10_vit": (32, 3), "mnist_mlp": (28, 1)}.get(name, (8, 1))
    for seed in range(3):
        config = space.sample(rng(seed))
        with torch.device("meta" if name == "cifar10_vit" else "cpu"):
            model = settings.model(**{k.removeprefix("model."): v for k, v in config.items() if k.startswith("model.")})
            assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)
        assert len(model.configure_optimizers().param_groups) >= 1
