"""What the Trainer of a model= sweep gets: strategy, accelerator, and objects that a file describes."""

from __future__ import annotations

from typing import Any

import pytest

import tunelight as tl
from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError
from tunelight.extras.check import check
from tunelight.extras.digits import DigitsClassifier
from tunelight.lightning.recipe import built, with_device


@pytest.mark.parametrize(
    ("given", "on_gpu", "expected"),
    [
        ({}, False, {"strategy": "ours", "accelerator": "cpu"}),
        ({}, True, {"strategy": "ours"}),
        ({"accelerator": "auto"}, False, {"strategy": "ours", "accelerator": "cpu"}),
        ({"accelerator": "gpu"}, True, {"strategy": "ours", "accelerator": "gpu"}),
        ({"accelerator": "mps"}, False, {"strategy": "auto", "accelerator": "mps"}),
        ({"strategy": "another"}, False, {"strategy": "another"}),
    ],
)
def test_a_worker_s_device_decides(given: dict[str, Any], on_gpu: bool, expected: dict[str, Any]) -> None:
    assert with_device(given, lambda: "ours", on_gpu=on_gpu) == expected


@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_where_lightning_sees_an_apple_gpu_a_sweep_trains_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning refuses its DDP family wherever it would choose MPS by itself."""
    seen = f"{pl.accelerators.MPSAccelerator.__module__}.MPSAccelerator.is_available"
    monkeypatch.setattr(seen, staticmethod(lambda: True))
    ddp = pl.strategies.DDPStrategy
    with pytest.raises(ValueError, match="MPS"):
        pl.Trainer(strategy=ddp(), logger=False)
    args = with_device({"logger": False}, ddp, on_gpu=False)
    assert type(pl.Trainer(**args).accelerator).__name__ == "CPUAccelerator"


STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 2}}


def test_objects_are_built_from_their_class_path_as_lightningcli_does() -> None:
    csv = {"class_path": f"{pl.__name__}.loggers.CSVLogger", "init_args": {"save_dir": "logs"}}
    own = pl.callbacks.Timer()
    described = {"callbacks": [STOPPING, own], "logger": csv, "max_epochs": 3, "precision": "32"}
    built(described, make=False)  # a check leaves it for the workers to build
    args = built(described)
    stopping, timer = args["callbacks"]
    assert isinstance(stopping, pl.callbacks.EarlyStopping)
    assert (stopping.monitor, stopping.patience) == ("val_loss", 2)
    assert timer is own
    assert isinstance(args["logger"], pl.loggers.CSVLogger)
    assert (args["max_epochs"], args["precision"]) == (3, "32")
    assert set(args) == {"callbacks", "logger", "max_epochs", "precision"}


@pytest.mark.parametrize(
    ("described", "why"),
    [
        (
            {**STOPPING, "init_args": {"monitor": "loss", "patienc": 2}},
            r"callbacks cannot be built: .*\Wpatienc\W",  # jsonargparse's words, which differ between its versions
        ),
        ({"class_path": "EarlyStopping"}, 'required: monitor|"monitor" is required'),
        ({"class_path": f"{pl.__name__}.callbacks.EarlyStoping"}, "has no attribute 'EarlyStoping'"),
        ({"class_path": f"{pl.__name__}.loggers.CSVLogger"}, "not correspond to a subclass of .*Callback"),
    ],
)
def test_what_cannot_be_built_is_refused_before_ray_starts(described: Any, why: str) -> None:
    space = tl.SearchSpace({"model.lr": tl.uniform(0, 1)})
    with pytest.raises(SettingsError, match=why):
        check(space, {"model": DigitsClassifier, "metric": "val_loss", "trainer_args": {"callbacks": [described]}})
