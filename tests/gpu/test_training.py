"""Gangs on GPUs learn what one process learns, with each backend and precision, also compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.gpu.conftest import Sweep
from tests.gpu.device import Device
from tests.gpu.training import in_a_trial

ROOT = Path(__file__).parents[2]
PRECISIONS = ["32-true", "bf16-mixed", "16-mixed"]


def config_of(device: Device, precision: str = "32-true", compiler: str = "", lr: float = 0.01) -> dict[str, Any]:
    return {"device": device.kind, "precision": precision, "compiler": compiler, "lr": lr}


def space(device: Device) -> dict[str, Any]:
    return {
        "lr": tl.uniform(0, 1), "precision": tl.choice(PRECISIONS), "device": tl.choice([device.kind]),
        "compiler": tl.choice(["", "inductor", "aot_eager"]),
    }  # fmt: skip


def configs_of(device: Device) -> list[dict[str, Any]]:
    precisions = PRECISIONS if device.is_gpu else PRECISIONS[:2]  # CPUs have no 16-mixed
    compiled = config_of(device, compiler="inductor" if device.is_gpu else "aot_eager")
    return [*(config_of(device, precision) for precision in precisions), compiled]


@pytest.fixture(scope="module")
def plain(device: Device) -> list[list[float]]:
    """Return the losses of a process that trains the configurations without a gang."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.plain", json.dumps(configs_of(device))], cwd=ROOT, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("LOSSES")]
    assert found, done.stdout[-1000:] + done.stderr[-3000:]
    losses: list[list[float]] = json.loads(found[0][len("LOSSES ") :])
    return losses


def seen(trial: tl.TrialResult) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(trial.path.glob("seen-*.json"))]


def check(results: tl.SweepResults, plain: list[list[float]], configs: list[dict[str, Any]], rel: float) -> None:
    """Check that trials have learned what the plain process has; ``rel`` is for numbers of full precision."""
    assert [trial.state for trial in results.trials] == ["FINISHED"] * len(configs), results.trials[0].error
    for trial, losses, config in zip(results.trials, plain, configs, strict=False):  # it may have trained more
        found = [report["loss"] for report in trial.history]
        tolerance = rel if config["precision"] == "32-true" else max(rel, 0.02)
        assert found == pytest.approx(losses, rel=tolerance), config
        assert losses[-1] < losses[0]  # something was learned


@pytest.mark.timeout(400)
def test_a_rank_with_a_gpu_of_its_own_learns_what_a_plain_process_does(
    sweep: Sweep, device: Device, plain: list[list[float]]
) -> None:
    configs = configs_of(device)
    results = sweep(space(device), in_a_trial, configs)
    check(results, plain, configs, rel=1e-5)
    for trial in results.trials:
        (one,) = seen(trial)
        assert (one["device"], one["group"]) == (device.kind, "nccl" if device.is_gpu else "gloo")
    assert results.trials[-1].compiled


@pytest.mark.timeout(400)
def test_two_ranks_on_halves_of_a_gpu_learn_what_one_on_the_whole_does(
    sweep: Sweep, device: Device, plain: list[list[float]]
) -> None:
    configs = configs_of(device)[:2]
    results = sweep(space(device), in_a_trial, configs, workers=2, **device.each(0.5))
    check(results, plain, configs, rel=1e-4)
    for trial in results.trials:
        assert [(one["device"], one["group"]) for one in seen(trial)] == [(device.kind, "gloo")] * 2


@pytest.mark.timeout(400)
def test_sharded_parameters_learn_the_same(sweep: Sweep, device: Device, plain: list[list[float]]) -> None:
    configs = configs_of(device)[:2]
    results = sweep(space(device), in_a_trial, configs, backend="sharded")
    check(results, plain, configs, rel=1e-4)
    for trial in results.trials:
        (one,) = seen(trial)
        assert (one["device"], one["parameters"]) == (device.kind, ["DTensor"])


@pytest.mark.multi
@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", ["ddp", "sharded"])
def test_two_ranks_on_two_gpus_learn_what_one_does(
    sweep: Sweep, device: Device, plain: list[list[float]], backend: str
) -> None:
    configs = configs_of(device)[:2]
    results = sweep(space(device), in_a_trial, configs, workers=2, backend=backend)
    check(results, plain, configs, rel=1e-4)
    for trial in results.trials:
        assert [(one["device"], one["group"]) for one in seen(trial)] == [("cuda", "nccl")] * 2
