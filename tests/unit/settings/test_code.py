"""The code that a sweep trains: import paths, kinds of functions and classes, what can be pickled."""

from __future__ import annotations

import functools

import pytest

import tunelight as tl
from tunelight.errors import ImportPathError, TrainFunctionError
from tunelight.settings import (
    Settings,
    check_model,
    check_train,
    import_path,
    load_object,
)


def train(config):
    """Do nothing."""


def lightning_class(name: str, module: str = "pytorch_lightning.core") -> type:
    base = type(name, (), {"__module__": module})
    return type("Mine", (base,), {})


# --- import paths -----------------------------------------------------------------------------------------


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
        ("tunelight.digits:", "no import path"),
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


# --- the train function -----------------------------------------------------------------------------------


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
    [train, lambda config, extra=1: None, lambda *args: None, Trains(), Trains().method,
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


@pytest.mark.parametrize("package", ["pytorch_lightning.core", "lightning.pytorch.core"])
def test_a_model_by_class_and_by_function(package):
    check_model(lightning_class("LightningModule", package), lightning_class("LightningDataModule", package))
    check_model(lambda lr: None)
