"""Libraries around Lightning in a gang: some copy what they are given, some bring a Lightning of their own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests import flavours
from tests.integration import library
from tests.kit.training import Line, LineData, trainer
from tunelight.compat.lightning import TorchCheckpointIO


def train(config: dict[str, Any]) -> None:
    """Be a library that copies its arguments, makes a Trainer for each call, and may train by itself."""
    if config["trains_by_itself"]:
        tl.report({"loss": float(library.fit())})
        return
    given: dict[str, Any] = {"strategy": tl.RayStrategy(), "plugins": [TorchCheckpointIO()]}
    model, data = Line(config["lr"]), LineData()
    trainer(1, **given).fit(model, datamodule=data)
    kept: dict[str, Any] = copy.deepcopy(given)
    trainer(1, **kept).fit(model, datamodule=data)
    trainer(1, **kept).validate(model, datamodule=data, verbose=False)
    for again in (copy.copy(given["strategy"]), pickle.loads(pickle.dumps(given["strategy"])), kept["strategy"]):
        assert again.world_size == 2
        assert again.num_cpus_per_worker == 1


@pytest.fixture(scope="module")
def sweep(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> tl.SweepResults:
    configs = [{"lr": 0.01, "trains_by_itself": itself} for itself in (False, True)]
    return tl.run(
        {"lr": tl.uniform(0, 1), "trains_by_itself": tl.choice([False, True])}, train, metric="loss", baselines=configs,
        num_samples=2, workers=2, seed=1, max_concurrent=1, scheduler="fifo", storage=tmp_path_factory.mktemp("sweep"),
        name="libraries", progress=False,
    )  # fmt: skip


def test_a_strategy_is_copied_in_a_gang_used_or_not(sweep: tl.SweepResults) -> None:
    first = sweep.trials[0]
    assert first.error is None
    assert first.state == "FINISHED"


def test_a_trainer_of_the_other_lightning_ends_with_what_to_do_on_all_ranks(sweep: tl.SweepResults) -> None:
    """It trained each rank alone, and finished as if nothing were wrong."""
    (failed,) = sweep.errors
    assert failed.index == 1
    log = Path(failed.path, "log.txt").read_text()
    for rank in (0, 1):
        assert f"[{rank}] tunelight.errors.StrategyError: This Trainer is of {flavours.other()}" in log
    assert failed.error is not None
    assert f"Choose {flavours.other()} before the sweep" in failed.error
