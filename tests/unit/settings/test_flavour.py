"""The package of Lightning that a sweep's code is written with."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest

from tunelight.compat import lightning
from tunelight.errors import SettingsError, TrainFunctionError
from tunelight.settings.code import find_flavour

PL, OTHER = "pytorch_lightning", "lightning.pytorch"


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be chosen for this process."""
    monkeypatch.delenv(lightning.VARIABLE, raising=False)
    monkeypatch.setattr(lightning, "_process", lightning._Process())


def package(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.Trainer = type("Trainer", (), {"__module__": f"{name}.trainer"})  # type: ignore[attr-defined]
    return module


def defined(source: str, **variables: Any) -> Any:
    """Return the function ``train`` that some code defines."""
    exec(source, variables)
    return variables["train"]


def ways(name: str) -> list[Any]:
    """Return train functions that use a package, each in another way."""
    used = package(name)
    return [
        defined("def train(config): pl.Trainer()", pl=used),
        defined("def train(config): Trainer()", Trainer=used.Trainer),
        defined("def train(config): (lambda: Trainer())()", Trainer=used.Trainer),
        defined("def train(config): Model()", Model=type("M", (used.Trainer,), {})),
        defined(f"def train(config): import {name} as pl"),
        defined(f"def train(config): from {name} import Trainer"),
        defined("def make(x):\n def train(c): x()\n return train\ntrain = make(T)", T=used.Trainer),
        functools.partial(defined("def train(config, x): pl.Trainer()", pl=used), x=1),
    ]


@pytest.mark.parametrize("name", [PL, OTHER])
def test_code_that_names_a_package_is_written_with_it(name):
    assert [find_flavour({"train": train}) for train in ways(name)] == [name] * 8
    assert find_flavour({"train": defined("def train(c): L.Trainer()", L=package("lightning"))}) == OTHER


def test_code_that_says_nothing_gets_what_is_imported(monkeypatch):
    for name in (PL, OTHER):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_flavour({"train": lambda config: None}) == PL
    monkeypatch.setitem(sys.modules, OTHER, types.ModuleType(OTHER))
    assert find_flavour({"train": lambda config: None}) == OTHER
    monkeypatch.setitem(sys.modules, PL, types.ModuleType(PL))
    assert find_flavour({"train": lambda config: None}) == PL


def test_a_relative_import_is_of_the_users_own_module():
    for line in ("from .lightning import Net", "from . import lightning", "from ..pytorch_lightning.x import y"):
        assert find_flavour({"train": defined(f"def train(c):\n    {line}\n    import lightning.pytorch")}) == OTHER
    assert find_flavour({"train": defined("def train(c):\n    from . import x\n    import pytorch_lightning")}) == PL


def test_what_a_function_takes_along_may_be_of_any_kind(monkeypatch):
    class Raising(dict[str, Any]):
        __module__ = "mine"

        def items(self) -> Any:
            raise RuntimeError("interpolation")

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise ReferenceError("the object is gone")

    monkeypatch.setitem(sys.modules, OTHER, types.ModuleType(OTHER))
    monkeypatch.delitem(sys.modules, PL, raising=False)
    nameless = defined("def train(c): return data", data=Raising(a=1))
    nameless.__module__ = None
    assert find_flavour({"train": nameless}) == OTHER


def mixed() -> Any:
    return defined("def train(c): a.Trainer(), b.Trainer()", a=package(PL), b=package(OTHER))


def test_code_that_uses_both_says_where_and_how_to_choose():
    with pytest.raises(
        TrainFunctionError, match=r"(?s)uses pytorch_lightning.*uses lightning\.pytorch.*tunelight\.use"
    ):
        find_flavour({"train": mixed()})
    model = type("Mine", (package(PL).Trainer,), {})
    with pytest.raises(TrainFunctionError, match=r"model uses pytorch_lightning and data uses"):
        find_flavour({"model": model, "data": type("Data", (package(OTHER).Trainer,), {})})


def test_code_that_uses_the_other_package_than_this_process_says_what_to_do(monkeypatch):
    from tunelight.lightning.callbacks import TuneReportCallback

    ours = lightning.flavour_of(TuneReportCallback)
    assert ours is not None
    other = OTHER if ours == PL else PL
    lightning.decide(ours, "")
    train = defined("def train(c): pl.Trainer(callbacks=[Report()])", pl=package(other), Report=TuneReportCallback)
    with pytest.raises(
        SettingsError,
        match=rf"train uses {other}, and this process works with {ours}\..*start a new one.*"
        rf"tunelight\.use\('{other.partition('.')[0]}'\)",
    ):
        find_flavour({"train": train})
    assert find_flavour({"train": ways(ours)[0]}) == find_flavour({"train": lambda config: None}) == ours
    with pytest.raises(TrainFunctionError, match=r"tunelight\.use"):
        find_flavour({"train": mixed()})


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    monkeypatch.setattr(lightning, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="the package lightning is not installed"):
        find_flavour({"train": defined("def train(c): L.Trainer()", L=package("lightning"))})
