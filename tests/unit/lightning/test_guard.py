"""The guard: what it adds to a gang's Trainers, and that it costs everybody else nothing."""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests import flavours
from tests.kit.programs import ROOT, printed_by
from tests.kit.training import QUIET
from tunelight.compat.lightning import FABRIC, flavour, pl
from tunelight.errors import StrategyError

other = import_module(flavours.other())


def factories() -> dict[str, EntryPoint]:
    """Return what this tree registers, by the group: an environment may have been made from another tree."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {group: EntryPoint("tunelight", entries["tunelight"], group) for group, entries in told.items()}


def test_both_names_of_lightning_find_the_guard() -> None:
    """The groups are those that each package's own Trainer looks into."""
    for group in FABRIC:
        connector = import_module(f"{group}.trainer.connectors.callback_connector")
        assert f'"{group}.callbacks_factory"' in Path(str(connector.__file__)).read_text()
        assert f"{group}.callbacks_factory" in factories()


@pytest.mark.parametrize("group", factories())
def test_outside_of_a_trial_nothing_is_added_and_nothing_imported(group: str) -> None:
    """A script on a Lightning that tunelight does not know has its Trainers all the same."""
    entry = factories()[group]
    code = f"""
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
assert EntryPoint("tunelight", {entry.value!r}, {group!r}).load()() == []
heavy = ("torch", "pytorch_lightning", "lightning.", "lightning_fabric", "ray", "numpy", "tunelight.lightning.st")
found = [name for name in sys.modules if name.startswith(heavy)]
assert not found, found
"""
    printed_by(code)


def test_a_trainer_of_a_lightning_that_tunelight_does_not_know_is_left_alone() -> None:
    """It finds the guard by itself, as installed."""
    printed_by("""
import lightning.pytorch
import pytorch_lightning
for package in (pytorch_lightning, lightning.pytorch):
    package.__version__ = "2.2.5"
    package.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
""")


def test_a_class_that_derives_from_the_other_trainer_is_known(join: Any) -> None:
    join(rank=0)
    (guard,) = factories()[f"{flavours.other()}.callbacks_factory"].load()()
    derived = type("Trainer", (other.Trainer,), {"__module__": "library"})
    with pytest.raises(StrategyError, match=f"is of {flavours.other()}, and"):
        guard.setup(derived(**QUIET), None, "fit")


def test_in_a_gang_of_one_a_trainer_of_the_other_lightning_trains(join: Any) -> None:
    one = join(rank=0, size=1)
    guards = factories()[f"{flavours.other()}.callbacks_factory"].load()
    boring = import_module(f"{flavours.other()}.demos.boring_classes").BoringModel
    begun: list[bool] = []

    def fit(model: Any, steps: int) -> None:
        other.Trainer(**QUIET, callbacks=guards(), max_steps=steps).fit(model)

    class Net(boring):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, *_: Any) -> None:
            fit(boring(), 1)
            begun.append(bool(one.progress.begun))

    fit(Net(), 3)
    assert begun == [True] * 3, "a Trainer that runs in a hook leaves the outer one watched"
    assert one.progress.batches >= 3
    assert not one.progress.begun, "what follows is not watched"


def test_a_trainer_without_a_strategy_is_refused_in_a_gang(join: Any) -> None:
    join(rank=0)
    guard, _recovery = factories()[f"{flavour()}.callbacks_factory"].load()()
    own = type("Own", (pl.strategies.SingleDeviceStrategy,), {"backend": "ddp", "parts": None})  # as tunelight's have
    for strategy in ("auto", own()):
        with pytest.raises(StrategyError, match=r"each of the gang's 2 workers.*strategy=tunelight\.RayStrategy\(\)"):
            guard.setup(pl.Trainer(**QUIET, strategy=strategy), None, "fit")
