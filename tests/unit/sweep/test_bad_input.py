"""Bad input of every kind is told before anything runs: what was wanted, what came, what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import optuna
import pytest
import ray
import yaml
from ray import tune
from torch import nn

import tunelight as tl
from tunelight.errors import (
    DataError,
    ImportPathError,
    ResourceError,
    SettingsError,
    SpaceError,
    TrainFunctionError,
    TunelightError,
)
from tunelight.extras.digits import DigitsClassifier
from tunelight.extras.optuna import make_sampler
from tunelight.record import to_yaml
from tunelight.resources import fitted, reserve
from tunelight.settings import Settings
from tunelight.space.check import check_settings
from tunelight.space.files import Loader, read_value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: {a\0b: 1}", "not valid YAML"),
        ("space: {a: !!int three}", "not what its tag says"),
        ("space: {a: !!bool 7}", "not what its tag says"),
        ("space: {a: !!timestamp soon}", "not what its tag says"),
        (f"space: {{a: {'9' * 5000}}}", "too long"),
        ("space: &all\n  model: *all", "2:1.*repeats what it stands in|:1:8.*repeats what it stands in"),
        ("space:\n  a: {choice: &all [1, *all]}", "2:15: an alias in here repeats what it stands in"),
        ("space:\n  b: {choice: 16, 32}", r"2:3: b: a list stands in brackets: {choice: \[16, 32\]}, not {choice: 16,"),
        ("space:\n  b: {uniform: 0, 1}", r"a list stands in brackets: {uniform: \[0, 1\]}"),
        ("space:\n  b: {values: [1, 2]}", "there is no domain 'values'. There are: "),
        ("space:\n  b: {int: [1, 2]}", "there is no domain 'int'. Did you mean 'randint'"),
        # Sweeps of W&B
        ("parameters:\n  a: {distribution: int_uniform, min: 1, max: '3'}", "a: max of int_uniform must be a number"),
        ("parameters:\n  a: {parameters: 3}", r"a\.parameters: a mapping"),
        ("parameters:\n  a: {values: [1], probabilities: 3}", "no sweep as W&B writes it: TypeError"),
        ("parameters: {lr: {min: a, max: 1}}", "lr"),
        ("parameters: {lr: {min: 0, max: 1.5, distribution: q_uniform, q: []}}", "lr"),
        ("parameters: {lr: {values: 5}}", "lr"),
        ("parameters: {lr: {distribution: [uniform]}}", "lr"),
        ("parameters: {1: {value: 2}, [a]: {value: 3}}", "yaml"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(write: Any, text: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        tl.SearchSpace.load(write(text))


def test_a_value_that_is_no_yaml_is_a_value_error() -> None:
    for text in ("!!int three", "[1", "a: b: c", "&all [*all", "\0"):
        with pytest.raises(ValueError, match=r"."):
            read_value(text)


def test_a_file_in_another_encoding_says_which_is_wanted_and_a_name_that_no_file_can_have_is_unknown(tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes("space: {größe: 1}".encode("latin-1"))
    with pytest.raises(SpaceError, match="Save it as text in UTF-8"):
        tl.SearchSpace.load(path)
    with pytest.raises(SpaceError, match="There is no search space"):
        tl.SearchSpace.of("a" * 300)


def test_text_that_looks_like_a_number_stays_text_in_yaml_of_both_versions() -> None:
    texts = ["1e-4", "1E5", "0o17", "1.", ".5", "-.5e3", "12:30", "no", "1_000", "~", "+1"]
    written = to_yaml({"a": texts, "b": 1e-5, "c": 3})
    for loader in (yaml.SafeLoader, Loader):
        assert yaml.load(written, loader) == {"a": texts, "b": 1e-5, "c": 3}


@pytest.mark.parametrize(
    ("domain", "never", "holds"),
    [
        ({"randint": [1, 4]}, 4, 3),
        ({"randint": [1, 4]}, 1.5, 1),
        ({"lograndint": [1, 4]}, 4, 3),
        ({"qrandint": [2, 8, 2]}, 3, 8),
        ({"quniform": [0, 1, 0.25]}, 0.3, 0.75),
        ({"quniform": [0, 1, 0.1]}, 0.35, 0.3),
        ({"choice": [16, 32]}, "16", 16),
        ({"choice": [16, 32]}, [], 32),
    ],
)
def test_a_condition_that_never_holds_is_refused(domain: dict[str, Any], never: Any, holds: Any) -> None:
    with pytest.raises(SpaceError, match=r"never is|names no value"):
        tl.SearchSpace({"a": domain, "b": {"uniform": [0, 1], "when": {"a": never}}})
    tl.SearchSpace({"a": domain, "b": {"uniform": [0, 1], "when": {"a": holds}}})


def test_a_baseline_gives_numbers_where_they_are() -> None:
    space = tl.SearchSpace({"lr": {"loguniform": [1e-4, 1e-1]}})
    space.check_baselines([{"lr": 5.0}])  # a value outside of the space may be known to be good
    with pytest.raises(SettingsError, match=r"baselines\[0\] holds lr='abc', which must be a number"):
        space.check_baselines([{"lr": "abc"}])


def test_a_mistyped_number_of_workers_is_told_at_once() -> None:
    node = {"CPU": 8.0}
    with pytest.raises(ResourceError, match=r"1e\+09 CPU \(there are 8\)"):
        fitted(reserve(10**9), [node])
    assert fitted(reserve((1, 10**9)), [node, node]).workers == 16


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("space:\n  trainer.max_epohcs: 3\n", r"yaml:2:\d+: .*Trainer takes no .*Did you mean 'max_epochs'"),
        ("trainer_args: {max_epohcs: 3}\n", r"yaml:1:\d+: .*Trainer takes no .*Did you mean 'max_epochs'"),
        ("trainer_args:\n  strategy: ddp\n", "yaml:2:3: The Trainer gets strategy='ddp'"),
    ],
)
def test_an_argument_that_the_trainer_is_not_to_have_is_told_with_its_place(write, lines, says) -> None:
    rest = "model: tunelight.extras.digits:DigitsClassifier\nmetric: loss\n"
    space = tl.SearchSpace.load(write(lines + rest + "space: {model.lr: 0.1}\n" * ("space" not in lines)))
    with pytest.raises(TunelightError, match=says):
        check_settings(space, Settings(**space.settings))


def mistyped(make: Any, *args: Any, **kwargs: Any) -> Callable[[], object]:
    """Return a call that no checker of types looks at."""
    return functools.partial(make, *args, **kwargs)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (mistyped(tl.uniform, "1e-4", "1"), "tl.uniform: uniform's lower must be a number, not '1e-4'"),
        (mistyped(tl.loguniform, "1e-4", "1"), "loguniform's lower must be a number, not '1e-4'"),
        (mistyped(tl.quniform, 0, 1, 0), "quniform's q must be more than 0"),
        (mistyped(tl.choice, "abc"), r"tl.choice takes a list of values, not the text 'abc'"),
        (mistyped(tl.choice, 3), "choice takes a list of one value or more, not 3"),
        (mistyped(tl.choice, 1, 2), r"Give the values as one list: tl.choice\(\[1, 2\]\)"),
        (mistyped(tl.uniform, 1), "missing a required argument: 'upper'. It takes: lower, upper"),
        (mistyped(tl.sample_from, 3), "sample_from takes a function, not 3"),
        (mistyped(tl.TuneReportCallback, metrics=3), "metrics must be the name of a metric"),
        (mistyped(tl.TuneReportCallback, on="validaton_end"), "Did you mean 'on_validation_end'"),
        (mistyped(tl.use, "lightening"), "no package of Lightning named 'lightening'.*Did you mean 'lightning'"),
        (mistyped(tl.cached, 3), "takes the function that loads"),
        (mistyped(tl.get_tune_resources, num_workers="2"), "num_workers must be a whole number"),
        (mistyped(tl.SearchSpace.of, "train.py"), "is a Python file, and a search space is a YAML file"),
        (mistyped(Settings, seed=2**32), "from 0 to 4294967295"),
        (mistyped(Settings, verbose=9), "from 0 to 2"),
        (mistyped(tl.run, print, {"x": tl.uniform(0, 1)}, metric="loss"), "search space comes first.* Swap them"),
        (mistyped(make_sampler, "tpe", {"n_startup_trials": "ten"}, 0, 1), "searcher 'tpe' does not take"),
        (mistyped(make_sampler, "gp", {"seed": "a"}, 0, 1), "searcher 'gp' does not take"),
        (mistyped(reserve, resources_per_trial={"cpu": "a"}), "resources_per_trial: "),
        (mistyped(reserve, resources_per_trial={"extra_cpu": -1}), "resources_per_trial: "),
        (mistyped(reserve, resources_per_trial={"custom_resources": {"x": "a"}}), "resources_per_trial: "),
    ],
)
def test_a_mistyped_value_is_told_where_it_is_given(make: Callable[[], object], says: str) -> None:
    with pytest.raises(TunelightError, match=says):
        make()


@pytest.mark.parametrize("domain", ["{min: 0, max: 1}", "{distribution: uniform, low: 0, high: 1}"])
def test_two_fixed_values_that_look_like_bounds_are_warned_about_and_nested_keys_are_still_keys(write, domain) -> None:
    with pytest.warns(UserWarning, match=r"2:3: b: .* is read as fixed values. A domain .* is {uniform: \[0, 1\]}"):
        space = tl.SearchSpace.load(write(f"space:\n  b: {domain}\n"))
    assert tl.SearchSpace(space.describe()).describe() == space.describe()  # as a record is read back, without a word
    text = "space:\n  a: {min: {fixed: 0}, max: {uniform: [0, 1]}}\n  b: {low: 1, other: 2}\n  c: {max: 3}\n"
    assert list(tl.SearchSpace.load(write(text)).domains) == ["a.min", "a.max", "b.low", "b.other", "c.max"]


# --- what tl.run refuses before Ray starts, and leaves no folder for


MODEL = {"model": DigitsClassifier}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"scheduler": {"name": "asha", "grace_perid": 2}}, SettingsError, "Did you mean 'grace_period'"),
        ({"scheduler": tl.ASHA}, SettingsError, r"scheduler=ASHA is a class. Make an object of it: scheduler=ASHA\(\)"),
        ({"scheduler": tune.schedulers.ASHAScheduler}, SettingsError, "AsyncHyperBandScheduler is a class"),
        ({"scheduler": optuna.pruners.MedianPruner()}, SettingsError, "scheduler must be a name"),
        ({"scheduler": "pbt"}, SettingsError, "hyperparam_mutations.*scheduler='gang_pbt'"),
        ({"scheduler": "pbt_replay"}, SettingsError, "policy_file.*'gang_pbt'"),
        ({"scheduler": "bohb"}, SettingsError, "Did you mean 'hb_bohb'"),
        ({"scheduler": "hb_bohb"}, SettingsError, "works with Ray Tune's TuneBOHB"),
        ({"scheduler": "resource_changing"}, SettingsError, "reuse_gangs=False, or.*'elastic_asha'"),
        ({"scheduler": "gang_pbt", "repeats": 2}, SettingsError, "GangPBT trials .*Leave repeats out, or choose"),
        ({"scheduler": {"name": "hyperband", "max_tt": 3}}, SettingsError, "has no 'max_tt'. Did you mean 'max_t'"),
        ({"searcher": tl.OptunaSearcher}, SettingsError, r"searcher=OptunaSearcher is a class. Make an object"),
        ({"searcher": optuna.samplers.TPESampler}, SettingsError, r"searcher=TPESampler is a class. Make an object"),
        ({"searcher": optuna.create_study()}, SettingsError, "or an Optuna sampler, not"),
        ({"workers": 2, "resources_per_trial": {"extra_cpu": 3}}, SettingsError, "hold 2 together"),
        ({"resources_per_trial": {"cpu": 1, "gpu": 1}}, SettingsError, "the head trains nothing"),
        ({"datasets": {"train": "nowhere"}}, DataError, "there is no such file or folder"),
        ({"metric": ("loss", "max")}, SettingsError, "Say metric='loss', mode='max'"),
        ({"runtime_env": {"env_var": {}}}, SettingsError, "Did you mean 'env_vars'"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, SettingsError, "must be text, not int. Quote it"),
        ({"train": "train.py"}, ImportPathError, "is a file, not an import path.* 'train:train'"),
        ({"train": None, "model": nn.Linear}, TrainFunctionError, "model=Linear is no LightningModule"),
        ({"train": None, **MODEL, "metric": None}, SettingsError, "No metric is given"),
        (MODEL, SettingsError, "train and model= are given"),
        ({"train": None, **MODEL, "search_space": {"model.learning_rate": 0.1}}, SpaceError, "Did you mean 'lr'?"),
        ({"train": None, **MODEL, "search_space": {"modle.lr": 0.1}}, SpaceError, "Did you mean 'model'?"),
        ({"search_space": {}}, SpaceError, "The search space is empty. Give it one domain or more"),
        ({"search_space": [1, 2]}, SpaceError, "a dict of domains, the path of a YAML file"),
        ({"resources_per_trial": {"cpus": 2}}, SettingsError, "'cpus'. Did you mean 'cpu'"),
        ({"mode": "maximum"}, SettingsError, r"mode must be 'min' \(less is better\) or 'max'"),
        ({"address": "127.0.0.1:1"}, ResourceError, "does not answer"),
    ],
)
def test_it_is_refused_with_a_sentence(tmp_path, given, error, says) -> None:
    folder, space = tmp_path / "new" / "folder", {"x": tl.uniform(0, 1)}
    settings: dict[str, Any] = {"search_space": space, "train": print, "metric": "loss", "storage": folder, **given}
    with pytest.raises(error, match=says):
        tl.run(**settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "more", "says"),
    [
        ({"strategy": "ddp"}, {}, "strategy='ddp'.*say backend='ddp'"),
        ({"strategy": "fsdp"}, {"workers": 2}, "say backend='sharded'"),
        ({"strategy": nn.Identity()}, {"workers": 2}, "strategy=Identity.*say backend='ddp'"),
        ({"accelerator": "gpu"}, {}, "no worker holds a GPU. Say gpus_per_worker=1"),
        ({"accelerator": "tpu"}, {"gpus_per_worker": 1}, "workers train on CPUs, or with gpus_per_worker=1 on GPUs"),
        ({"accelerator": "mps"}, {"workers": 2}, "an Apple GPU trains one worker alone. Say workers=1"),
        ({"devices": 2}, {}, "devices=2.*say workers="),
        ({"num_nodes": 2}, {}, "num_nodes=2.*say workers="),
    ],
)
def test_a_trainer_that_is_told_what_its_workers_are_not(tmp_path, args, more, says) -> None:
    told: dict[str, Any] = {"model": DigitsClassifier, "metric": "loss", "storage": tmp_path / "new", **more}
    with pytest.raises(SettingsError, match=says):
        tl.run({"model.lr": tl.uniform(0, 1)}, trainer_args=args, **told)
    name, value = next(iter(args.items()))
    with pytest.raises(SettingsError, match=says):
        tl.run({"model.lr": tl.uniform(0, 1), f"trainer.{name}": tl.choice([value])}, **told)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_that_is_told_what_its_workers_are() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"accelerator": "cpu", "devices": 1, "num_nodes": 1}, {"workers": 2}),
        ({"accelerator": "gpu"}, {"gpus_per_worker": 1}),
        ({"accelerator": "mps"}, {"workers": 1}),
        ({"accelerator": "cuda"}, {"resources_per_trial": {"extra_gpu": 2}, "gpus_per_worker": 1}),
        ({"strategy": nn.Identity()}, {}),
        ({"strategy": tl.RayStrategy(static_graph=True)}, {"workers": 2}),
    ]
    for args, more in cases:
        settings = Settings(model=DigitsClassifier, metric="loss", trainer_args=args, **more)
        check_settings(tl.SearchSpace({"model.lr": tl.uniform(0, 1)}), settings)


def test_a_folder_that_was_there_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", mock.Mock(side_effect=ConnectionError("no")))
    (tmp_path / "old").mkdir()
    with pytest.raises(ResourceError, match="does not answer"):
        tl.run({"x": tl.uniform(0, 1)}, print, metric="loss", storage=tmp_path / "old", address="auto")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
