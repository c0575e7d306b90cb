"""Strategies by name: in both packages of Lightning, whichever is imported first, on drivers and in gangs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import tunelight as tl
from tests import flavours
from tests.marks import needs_horovod
from tunelight.compat.lightning import FABRIC, pl
from tunelight.errors import SettingsError
from tunelight.settings.checks import check_trainer_argument


def trainer(name: str, package: Any = pl) -> Any:
    return package.Trainer(strategy=name, accelerator="cpu", logger=False, enable_checkpointing=False)


@pytest.mark.both
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ray", "RayStrategy"),
        ("ray_find_unused_parameters_true", "RayStrategy"),
        pytest.param("ray_horovod", "HorovodRayStrategy", marks=needs_horovod),
        ("ray_sharded", "RayShardedStrategy"),
        ("tunelight.RayStrategy", "RayStrategy"),  # as LightningCLI passes it on
    ],
)
def test_a_trainer_takes_a_strategy_by_its_name(name: str, kind: str) -> None:
    strategy = trainer(name).strategy
    assert type(strategy) is getattr(tl, kind)
    assert getattr(strategy, "_ddp_kwargs", {}) == ({"find_unused_parameters": True} if name.endswith("_true") else {})


def test_a_trainer_of_the_other_package_gets_none() -> None:
    with pytest.raises(SettingsError, match=f"This Trainer is of {flavours.other()}, and this process works with"):
        trainer("ray", import_module(flavours.other()))


IMPORTED_LATER = """
import sys
from importlib import import_module
import tunelight
assert not [name for name in sys.modules if name.partition(".")[0] in ("torch", "pytorch_lightning", "lightning")]
trainer = import_module(sys.argv[1]).Trainer(strategy="ray", accelerator="cpu", logger=False)
assert type(trainer.strategy) is tunelight.RayStrategy
"""


@pytest.mark.parametrize("package", FABRIC)
def test_a_lightning_that_is_imported_after_tunelight_knows_the_names(package: str) -> None:
    command = [sys.executable, "-c", IMPORTED_LATER, package]
    environment = flavours.as_a_user()
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_sweep_s_trainer_may_have_a_strategy_by_name() -> None:
    check_trainer_argument("strategy", "ray_sharded", workers=2, gpus_per_worker=0, resources_per_trial=None)
