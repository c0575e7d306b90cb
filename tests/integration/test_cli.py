"""LightningCLI with tunelight's strategies, by arguments and by YAML, in process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import tunelight as tl
from tests import flavours
from tunelight.extras.digits import DigitsClassifier, DigitsData

pytestmark = pytest.mark.usefixtures("warm_gangs")


@pytest.fixture(autouse=True)
def no_arguments_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let LightningCLI see the arguments of the test alone: it warns where the command line has some too."""
    monkeypatch.setattr(sys, "argv", ["train.py"])


def cli(*args: str, run: bool = True) -> Any:
    return flavours.module("cli").LightningCLI(
        DigitsClassifier, DigitsData, seed_everything_default=False, run=run, args=list(args)
    )


def settings(folder: Path) -> list[str]:
    """Return the arguments that every run here has, beside its strategy."""
    told = {
        "accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": "false", "enable_model_summary": "false",
        "default_root_dir": folder,
    }  # fmt: skip
    return [*(f"--trainer.{name}={value}" for name, value in told.items()), "--model.lr=0.02"]


def accuracy(model: Any, data: Any) -> float:
    """Return a model's accuracy on the validation images, computed in this process."""
    data.setup()
    images, labels = data.val.tensors
    with torch.no_grad():
        return float((model(images).argmax(dim=-1) == labels).double().mean())


def test_a_strategy_by_arguments_trains_the_driver_s_model_and_saves_its_configuration_once(tmp_path: Path) -> None:
    strategy = ["--trainer.strategy=tunelight.RayStrategy", "--trainer.strategy.num_workers=2"]
    done = cli("fit", *strategy, *settings(tmp_path))
    assert isinstance(done.trainer.strategy, tl.RayStrategy)
    assert done.trainer.world_size == 2
    assert float(done.trainer.callback_metrics["val_acc"]) == pytest.approx(accuracy(done.model, done.datamodule))
    assert accuracy(done.model, done.datamodule) > 0.5

    done.trainer.fit_loop.max_epochs = 3
    done.trainer.fit(done.model, datamodule=done.datamodule)  # the callback must not find its own file in the way
    (written,) = tmp_path.rglob("config.yaml")
    told = yaml.safe_load(written.read_text())["trainer"]["strategy"]
    assert told["class_path"] == "tunelight.RayStrategy"
    assert told["init_args"]["num_workers"] == 2


def hook() -> None:
    """Do nothing: a command line names it."""


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        (tl.RayStrategy, ["resources_per_worker={CPU: 0.5}", "use_gpu=false"], {"number": 2, "cpus": 0.5}),
        (tl.HorovodRayStrategy, ["num_hosts=1", "num_slots=2", "compression=fp16"], {"number": 2, "hosts": 1}),
        (tl.RayShardedStrategy, ["min_sharded=1000", "num_cpus_per_worker=2"], {"number": 2, "cpus": 2}),
    ],
)
def test_every_strategy_is_made_of_its_arguments(kind: Any, args: list[str], expected: dict[str, Any]) -> None:
    name = f"tunelight.{kind.__name__}"
    size = [] if "num_slots=2" in args else ["num_workers=2"]
    made = cli(
        f"--trainer.strategy={name}",
        *(f"--trainer.strategy.{arg}" for arg in [*size, *args]),
        f"--trainer.strategy.init_hook={__name__}.hook",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        run=False,
    )
    strategy: Any = made.trainer.strategy
    assert type(strategy) is kind
    wanted = vars(strategy.workers)
    assert {key: wanted[key] for key in expected} == expected
    assert wanted["init_hook"] is hook
