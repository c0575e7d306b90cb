"""Settings: each wrong value is an error that says what was wanted, before Ray starts."""

from __future__ import annotations

import functools
import inspect
import re
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np
import pytest
from ray import tune

import tunelight as tl
from tunelight.errors import ImportPathError, SettingsError, TrainFunctionError
from tunelight.gang.meeting.rendezvous import group_for
from tunelight.settings import (
    NAMES,
    SETTINGS,
    Checkpoints,
    Settings,
    backends,
    check_model,
    check_train,
    import_path,
    load_object,
)
from tunelight.settings.backends import BACKENDS, Backend, BackendInfo, check_backend
from tunelight.settings.checks import plain_setting
from tunelight.settings.values import Repeats
from tunelight.space.check import check_settings


def test_run_takes_and_explains_every_setting_and_gang_trainable_has_its_defaults():
    parameters = [*inspect.signature(tl.run).parameters]
    assert parameters == ["search_space", *NAMES]
    explained = re.findall(r"^ {4}(?: {4})?(\w+(?:, \w+)*): ", inspect.getdoc(tl.run) or "", re.MULTILINE)
    assert [name for names in explained for name in names.split(", ")] == parameters
    shared = {name: one for name, one in inspect.signature(tl.gang_trainable).parameters.items() if name in NAMES}
    for name in shared.keys() - {"train", "seed"}:  # a plain Tuner's trials have no sweep that draws a seed
        assert shared[name].default == SETTINGS[name].default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 1.5}, "workers must be a whole number"),
        ({"workers": (4, 1)}, r"workers=\(4, 1\): .*4 is more than 1. Say workers=\(1, 4\)"),
        ({"workers": (1, 2, 3)}, r"one whole number, or \(least, wanted\)"),
        ({"workers": (0, 2)}, "workers must be a whole number of 1 or more, not 0"),
        ({"failures": {"hang_timeout_s": -1}}, "hang_timeout_s must be seconds, more than 0, not -1"),
        ({"failures": {"backof_s": 1}}, "failures has no 'backof_s'. Did you mean 'backoff_s'"),
        ({"failures": "3"}, "failures must be FailurePolicy"),
        ({"evaluation": "padded"}, "evaluation must be 'ddp' .* 'exact' .* or None .*, not 'padded'"),
        ({"failures": -2}, "max_failures must be a whole number of -1 .always. or more"),
        ({"failures": {"give_up_after": -1}}, r"give_up_after must be a whole number of 0 \(never\) or more"),
        ({"failures": {"give_up_after": True}}, r"give_up_after must be a whole number of 0 \(never\) or more"),
        ({"failures": {"give_up_after": 2.5}}, r"give_up_after must be a whole number of 0 \(never\) or more"),
        ({"cpus_per_worker": 0}, "cpus_per_worker must be more than 0, not 0"),
        ({"cpus_per_worker": float("nan")}, "cpus_per_worker must be a number"),
        ({"gpus_per_worker": -1}, "gpus_per_worker must be 0 or more"),
        ({"gpus_per_worker": 2}, "gpus_per_worker must be 0, 1 or a part of one, not 2: .* give it as many workers"),
        ({"backend": "horovid"}, "There is no backend 'horovid'. Did you mean 'horovod'?"),
        ({"backend": ["ddp"]}, r"There is no backend \['ddp'\]"),
        ({"resume": "always"}, "resume must be True"),
        ({"reuse_gangs": "no"}, "reuse_gangs must be true or false, not 'no'"),
        ({"trainer_args": ["x"]}, "trainer_args must be a dict"),
        ({"metric": 3}, "metric must be text"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"storage": None}, "storage must be the path"),
        ({"checkpoints": 3}, "checkpoints must be Checkpoints"),
        ({"checkpoints": {"share": 5}}, "share must be 1 or less"),
        ({"checkpoints": {"every_s": -1}}, "every_s must be 0 or more"),
        ({"checkpoints": {"keep": 0}}, "checkpoints: keep must be a whole number of 1"),
        ({"baselines": {"lr": 1}}, "baselines must be a list"),
        ({"baselines": [3]}, r"baselines\[0\] must be a configuration"),
        ({"callbacks": tune.Callback()}, "callbacks must be a list"),
        ({"callbacks": [3]}, "callbacks takes objects of ray.tune.Callback, and 3"),
        ({"time_budget": timedelta(0)}, "time_budget must be more than 0"),
    ],
)
def test_a_wrong_value_says_what_was_wanted(given, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), (0.5, 0.5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h 30m", 5400),
     ("1d", 86400), (timedelta(minutes=1), 60), (None, None)],
)  # fmt: skip
def test_a_time_budget_in_seconds(given, seconds):
    assert Settings(time_budget=given).budget_s == seconds


def test_checkpoints_callbacks_and_numbers_in_every_spelling_and_what_is_recorded_of_gpus():
    callbacks = Settings(callbacks=[tune.Callback, tune.Callback(), "ray.tune:Callback"]).callbacks
    assert all(isinstance(callback, tune.Callback) for callback in callbacks)
    numbers = Settings(num_samples=np.int64(3), cpus_per_worker=np.float32(0.5))  # type: ignore[arg-type]
    assert (type(numbers.num_samples), type(numbers.cpus_per_worker)) == (int, float)
    assert Settings(checkpoints={"keep": 3}).checkpoints == Checkpoints(keep=3, every=1)  # type: ignore[arg-type]
    assert Settings(checkpoints=None).checkpoints is None
    assert Settings(checkpoints=False).checkpoints is None  # type: ignore[arg-type]
    with_gpus = Settings(metric="loss", cpus_per_worker=4, gpus_per_worker=0.5).recorded
    assert (with_gpus["cpus_per_worker"], with_gpus["gpus_per_worker"]) == (4, 0.5)
    assert "cpus_per_worker" not in Settings(metric="loss", cpus_per_worker=4).recorded


def test_a_lightning_callback_is_sent_to_the_trainer():
    module = "pytorch_lightning.callbacks"
    lightning = type("Mine", (), {"__module__": module, "on_validation_end": lambda *_: None})
    for given in (lightning, lightning()):
        with pytest.raises(SettingsError, match=r"Mine, a Lightning callback.*Trainer.*trainer_args"):
            Settings(callbacks=[given])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": "loss"}, "nothing to train"),
        ({"metric": "loss", "train": print, "data": print}, "data= is given without model="),
        ({"metric": "loss", "train": print, "trainer_args": {}}, "trainer_args= is given without model="),
        ({"train": print, "metric": "loss", "baselines": [{"lrr": 1}]}, r"'lrr'.* Did you mean 'lr'"),
    ],
)
def test_what_contradicts_says_how(given, message):
    with pytest.raises(SettingsError, match=message):
        check_settings(tl.SearchSpace({"lr": {"uniform": [0, 1]}}), Settings(**given))


@pytest.mark.parametrize(
    ("given", "taken", "plain"),
    [
        (3, Repeats(3), {"repeats": 3, "top": 5}),
        ({"top": 2, "repeats": 4}, Repeats(4, top=2), {"repeats": 4, "top": 2}),
        (tl.Folds(5), Repeats(5, folds=True), {"folds": 5, "top": 5}),
        ({"folds": 5, "top": 3}, Repeats(5, top=3, folds=True), {"folds": 5, "top": 3}),
    ],
)
def test_each_form_is_taken_and_kept_as_plain_data_that_is_taken_again(given: Any, taken: Repeats, plain: Any) -> None:
    settings = Settings(repeats=given)
    assert settings.repeats == taken
    assert plain_setting(settings.repeats) == plain
    assert Settings(repeats=plain).repeats == taken
    assert settings.folds == (taken.repeats if taken.folds else None)
    assert settings.recorded["repeats"] == plain


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1, "repeats must be a whole number of 2 or more, not 1"),
        (True, "of 2 or more, not True"),
        ("3", r"as in 3, \{'top': 5, 'repeats': 3\} or tl.Folds\(5\), not '3'"),
        ({"top": 0, "repeats": 2}, "repeats: top must be a whole number of 1 or more, not 0"),
        ({"top": 5}, "must say either repeats .* or folds"),
        ({"repeats": 2, "folds": 2}, "must say either"),
        ({"tops": 5, "repeats": 2}, "repeats has no 'tops'. Did you mean 'top'"),
        ({"folds": 1}, "repeats: folds must be a whole number of 2 or more, not 1"),
    ],
)
def test_what_is_no_number_of_repeats_is_refused(value: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(repeats=value)
    with pytest.raises(SettingsError, match=r"Folds: folds must be .* 2 or more"):
        tl.Folds(1)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_names_its_strategy_and_the_group_that_connects_its_ranks(name):
    required = BACKENDS[name].requires
    strategy = BACKENDS[name].load_strategy()
    assert strategy.backend == name
    assert getattr(tl, BACKENDS[name].strategy_name) is strategy
    if required is not None and find_spec(required) is None:
        pytest.skip(BACKENDS[name].how_to_get)
    group = group_for(BACKENDS[name].collectives or "gloo")
    assert type(group) is BACKENDS[name].load_group()
    methods = ("host", "join", "leave", "close", "tidy", "lost_peer")
    assert [method for method in methods if not inspect.ismethod(getattr(group, method, None))] == []


def test_a_backend_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    assert check_backend("backend", "ddp") == "ddp"
    assert get_args(Backend) == tuple(BACKENDS)  # for type checkers
    assert BackendInfo.of_collectives("nccl") is BackendInfo.of_collectives("gloo") is BACKENDS["ddp"]
    with pytest.raises(SettingsError, match=r"backend='horovod': Horovod is not installed.*make horovod"):
        check_backend("backend", "horovod")


def lightning_class(name: str, module: str = "pytorch_lightning.core") -> type:
    base = type(name, (), {"__module__": module})
    return type("Mine", (base,), {})


def test_both_spellings_of_an_import_path():
    assert load_object("tunelight.settings:Settings") is Settings
    assert load_object("tunelight.settings.Settings") is Settings
    assert load_object("tunelight.space:SearchSpace.describe") is tl.SearchSpace.describe
    assert import_path(tl.SearchSpace.describe) == "tunelight.space.space:SearchSpace.describe"
    assert import_path(3) == "builtins:int"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("digits", "no import path. Write package.module:Name"),
        ("tunelight.extras.digits:", "no import path"),
        ("tunelite.digits:X", "no module 'tunelite'"),
        ("tunelight.setings:X", "no module 'setings' in 'tunelight'. Did you mean 'settings'"),
        (
            "tunelight.settings:Setings",
            "module 'tunelight.settings' has no 'Setings'. Did you mean 'Settings'",
        ),
        ("tunelight.space:SearchSpace.describ", "class 'SearchSpace' has no 'describ'. Did you mean 'describe'"),
    ],
)
def test_an_import_path_that_fails_says_which_part(path, message):
    with pytest.raises(ImportPathError, match=message):
        load_object(path)


def test_a_module_that_raises_is_no_missing_module(tmp_path, monkeypatch):
    (tmp_path / "raising_module.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportPathError, match=r"was found, but raised ModuleNotFoundError.*not_installed_anywhere"):
        load_object("raising_module:X")


async def coroutine(config):
    """Never run."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: None, r"<lambda>\(\) cannot be called so"),
        (lambda config, extra: None, r"<lambda>\(config, extra\) cannot be called so.*'extra'"),
        (lambda config, *, lr: None, r"'lr'"),
        (3, "must be a function of one configuration.*not 3"),
        (dict, "not the class dict"),
        (lightning_class("LightningModule"), "Did you mean model=Mine"),
        (coroutine, "async or generator"),
    ],
)
def test_a_train_function_of_the_wrong_kind(given, message):
    with pytest.raises(TrainFunctionError, match=message):
        check_train(given)


class Trains:
    def __call__(self, config):
        """Do nothing."""

    def method(self, config):
        """Do nothing."""


@pytest.mark.parametrize(
    "given",
    [lambda config: None, lambda config, extra=1: None, lambda *args: None, Trains(), Trains().method,
     functools.partial(lambda config, data: None, data=1)],
)  # fmt: skip
def test_anything_that_one_argument_fills_is_a_train_function(given):
    check_train(given)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (lightning_class("LightningModule")(), None, "model= must be a LightningModule class.*not an object"),
        (lightning_class("LightningModule"), 3, "data= must be a LightningDataModule class"),
        (dict, None, "model=dict is no LightningModule"),
        (type("LightningModule", (lightning_class("Callback"),), {}), None, "is no LightningModule"),
        (lightning_class("LightningModule"), lightning_class("LightningModule"), "no LightningDataModule"),
    ],
)
def test_a_model_that_cannot_be_built_on_workers(model, data, message):
    with pytest.raises(TrainFunctionError, match=message):
        check_model(model, data)
