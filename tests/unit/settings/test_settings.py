"""Settings: each wrong value is an error that says what was wanted, before Ray starts."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import cloudpickle
import numpy as np
import pytest
from ray import tune

import tunelight as tl
from tunelight.errors import ImportPathError, SettingsError, SpaceError, TunelightError
from tunelight.settings import NAMES, SETTINGS, Checkpoints, Settings, check_train
from tunelight.space.check import check_settings

SPACE = tl.SearchSpace({"lr": {"uniform": [0, 1]}})
PARTS = tl.SearchSpace({"model.lr": {"uniform": [0, 1]}})


def train(config):
    """Do nothing."""


# --- values -----------------------------------------------------------------------------------------------


def test_defaults_are_valid():
    settings = Settings()
    assert (settings.mode, settings.num_samples, settings.workers) == ("min", 10, None)
    assert settings.checkpoints == Checkpoints(keep=1, every=1)


def test_run_takes_and_explains_every_setting():
    parameters = [*inspect.signature(tl.run).parameters]
    assert parameters == ["search_space", *NAMES]
    explained = re.findall(r"^ {4}(?: {4})?(\w+(?:, \w+)*): ", inspect.getdoc(tl.run) or "", re.MULTILINE)
    assert [name for names in explained for name in names.split(", ")] == parameters


def test_gang_trainable_has_the_defaults_of_a_sweep():
    shared = {name: one for name, one in inspect.signature(tl.gang_trainable).parameters.items() if name in NAMES}
    for name in shared.keys() - {"train", "seed"}:  # a plain Tuner's trials have no sweep that draws a seed
        assert shared[name].default == SETTINGS[name].default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 1.5}, "workers must be a whole number"),
        ({"workers": True}, "workers must be a whole number"),
        ({"workers": (4, 1)}, r"workers=\(4, 1\): .*4 is more than 1. Say workers=\(1, 4\)"),
        ({"workers": (1, 2, 3)}, r"one whole number, or \(least, wanted\)"),
        ({"workers": (0, 2)}, "workers must be a whole number of 1 or more, not 0"),
        ({"failures": {"hang_timeout_s": -1}}, "hang_timeout_s must be seconds, more than 0, not -1"),
        ({"failures": {"backof_s": 1}}, "failures has no 'backof_s'. Did you mean 'backoff_s'"),
        ({"failures": "3"}, "failures must be FailurePolicy"),
        ({"evaluation": "padded"}, "evaluation must be 'ddp' .* 'exact' .* or None .*, not 'padded'"),
        ({"max_epochs": 0}, "max_epochs must be a whole number of 1 or more"),
        ({"failures": -2}, "max_failures must be a whole number of -1 .always. or more"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"cpus_per_worker": 0}, "cpus_per_worker must be more than 0, not 0"),
        ({"cpus_per_worker": float("nan")}, "cpus_per_worker must be a number"),
        ({"gpus_per_worker": -1}, "gpus_per_worker must be 0 or more"),
        ({"gpus_per_worker": 2}, "gpus_per_worker must be 0, 1 or a part of one, not 2: .* give it as many workers"),
        ({"backend": "horovid"}, "There is no backend 'horovid'. Did you mean 'horovod'?"),
        ({"backend": ["ddp"]}, r"There is no backend \['ddp'\]"),
        ({"backend": {"name": "ddp"}}, "There is no backend {'name': 'ddp'}"),
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
        ({"baselines": "known"}, "baselines must be a list"),
        ({"baselines": [3]}, r"baselines\[0\] must be a configuration"),
        ({"callbacks": tune.Callback()}, "callbacks must be a list"),
        ({"callbacks": [3]}, "callbacks takes objects of ray.tune.Callback, and 3"),
        ({"time_budget": 0}, "time_budget must be more than 0"),
        ({"time_budget": timedelta(0)}, "time_budget must be more than 0"),
    ],
)
def test_a_wrong_value_says_what_was_wanted(given, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), (0.5, 0.5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h 30m", 5400), ("1.5h", 5400),
     ("1d", 86400), (timedelta(minutes=1), 60), (None, None)],
)  # fmt: skip
def test_a_time_budget_in_seconds(given, seconds):
    assert Settings(time_budget=given).budget_s == seconds


def test_checkpoints_in_every_spelling():
    assert Settings(checkpoints={"keep": 3}).checkpoints == Checkpoints(keep=3, every=1)  # type: ignore[arg-type]
    assert Settings(checkpoints=None).checkpoints is None
    assert Settings(checkpoints=False).checkpoints is None  # type: ignore[arg-type]


def test_numpy_numbers_are_numbers():
    settings = Settings(num_samples=np.int64(3), cpus_per_worker=np.float32(0.5))  # type: ignore[arg-type]
    assert type(settings.num_samples) is int
    assert type(settings.cpus_per_worker) is float


def test_settings_can_be_replaced_and_pickled():
    settings = replace(Settings(callbacks=[tune.Callback()], time_budget="2h"), seed=3)
    assert cloudpickle.loads(cloudpickle.dumps(replace(settings, callbacks=()))).seed == 3


def test_a_grace_that_no_trial_outlives_is_an_error():
    with pytest.raises(SettingsError, match=r"grace_period=9 is larger than max_epochs=8"):
        Settings(scheduler={"name": "asha", "grace_period": 9}, max_epochs=8)
    Settings(scheduler={"name": "asha", "grace_period": 9}, max_epochs=9)


def test_a_lightning_callback_is_sent_to_the_trainer():
    module = "pytorch_lightning.callbacks"
    lightning = type("Mine", (), {"__module__": module, "on_validation_end": lambda *_: None})
    for given in (lightning, lightning()):
        with pytest.raises(SettingsError, match=r"Mine, a Lightning callback.*Trainer.*trainer_args"):
            Settings(callbacks=[given])


def test_callbacks_by_class_object_and_path():
    given = [tune.Callback, tune.Callback(), "ray.tune:Callback"]
    assert all(isinstance(callback, tune.Callback) for callback in Settings(callbacks=given).callbacks)


# --- settings against each other --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": "loss"}, "nothing to train"),
        ({"metric": "loss", "train": train, "data": train}, "data= is given without model="),
        ({"metric": "loss", "train": train, "trainer_args": {}}, "trainer_args= is given without model="),
        ({"train": train, "metric": "loss", "baselines": [{"lrr": 1}]}, r"'lrr'.* Did you mean 'lr'"),
    ],
)
def test_what_contradicts_says_how(given, message):
    with pytest.raises(SettingsError, match=message):
        check_settings(SPACE, Settings(**given))


def test_what_fits_together_is_silent():
    check_settings(SPACE, Settings(train=train, metric="loss", baselines=[{"lr": 0.5}]))
    check_settings(PARTS, Settings(model=lambda lr: lr, metric="loss"))


def test_a_model_needs_keys_that_name_their_part():
    with pytest.raises(SpaceError, match=r"lr: with model=.*Did you mean 'model.lr'"):
        check_settings(SPACE, Settings(model=train, metric="loss"))


def test_settings_import_what_they_name():
    assert Settings(train="tunelight.settings:check_train").train is check_train


def test_settings_import_neither_ray_nor_torch():
    code = (
        "import sys, tunelight.settings as s; s.Settings(train=lambda config: None); "
        "sys.exit(bool({'ray', 'torch', 'pytorch_lightning'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_error_is_one_of_ours():
    assert all(issubclass(error, TunelightError) for error in (SettingsError, ImportPathError, SpaceError))


def test_the_record_says_what_workers_with_gpus_have():
    with_gpus = Settings(metric="loss", cpus_per_worker=4, gpus_per_worker=0.5).recorded
    assert (with_gpus["cpus_per_worker"], with_gpus["gpus_per_worker"]) == (4, 0.5)
    assert "cpus_per_worker" not in Settings(metric="loss", cpus_per_worker=4).recorded
