"""Gangs on GPUs learn what one process learns, with each backend and precision, also compiled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

import tunelight as tl
from tests.gpu.conftest import Sweep
from tests.gpu.device import Device
from tests.gpu.training import asserting, compiling, in_a_trial
from tests.kit.programs import python
from tests.kit.training import notes

PRECISIONS = ["32-true", "bf16-mixed", "16-mixed"]


def config_of(device: Device, precision: str = "32-true", compiler: str = "") -> dict[str, Any]:
    return {"device": device.kind, "precision": precision, "compiler": compiler, "lr": 0.01}


def space(device: Device) -> dict[str, Any]:
    return {
        "lr": tl.uniform(0, 1), "precision": tl.choice(PRECISIONS), "device": tl.choice([device.kind]),
        "compiler": tl.choice(["", "inductor", "aot_eager"]),
    }  # fmt: skip


def configs_of(device: Device) -> list[dict[str, Any]]:
    """Return the configurations; the first two are for all gangs, and the last one is compiled."""
    precisions = PRECISIONS if device.is_gpu else PRECISIONS[:2]  # CPUs have no 16-mixed
    compiled = config_of(device, compiler="inductor" if device.is_gpu else "aot_eager")
    return [*(config_of(device, precision) for precision in precisions), compiled]


@dataclass(frozen=True)
class Plain:
    """The losses of a process that trains the configurations without a gang, and what it said."""

    losses: dict[int, list[float]]
    said: str

    def check(self, results: tl.SweepResults, configs: list[dict[str, Any]], rel: float, first: int = 0) -> None:
        """Check that trials have learned what it has from ``first`` on; ``rel`` is for numbers of full precision."""
        assert [trial.state for trial in results.trials] == ["FINISHED"] * len(configs), results.trials[0].error
        for number, (trial, config) in enumerate(zip(results.trials, configs, strict=True), first):
            assert number in self.losses, self.said
            losses = self.losses[number]
            found = [report["loss"] for report in trial.history]
            tolerance = rel if config["precision"] == "32-true" else max(rel, 0.02)
            assert found == pytest.approx(losses, rel=tolerance), config
            assert losses[-1] < losses[0]  # something was learned


@pytest.fixture(scope="module")
def plain(device: Device) -> Plain:
    done = python("-m", "tests.gpu.training", json.dumps(configs_of(device)), limit_s=300)
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("LOSSES")]
    return Plain(dict(found), done.stdout[-1000:] + done.stderr[-3000:])


@pytest.mark.parametrize(
    ("workers", "backend", "share"),
    [
        pytest.param(1, "ddp", 1, id="a GPU of its own"),
        pytest.param(2, "ddp", 0.5, id="halves of a GPU"),
        pytest.param(1, "sharded", 1, id="sharded parameters"),
        pytest.param(2, "ddp", 1, id="two GPUs", marks=pytest.mark.multi),
        pytest.param(2, "sharded", 1, id="two GPUs, sharded", marks=pytest.mark.multi),
    ],
)
def test_a_gang_learns_what_a_plain_process_does(sweep, device, plain, workers, backend, share):  # noqa: PLR0917 - a gang each
    alone = (workers, backend) == (1, "ddp")
    configs = configs_of(device)[: -1 if alone else 2]
    results = sweep(space(device), in_a_trial, configs, workers=workers, backend=backend, **device.each(share))
    plain.check(results, configs, rel=1e-5 if alone else 1e-4)
    group = "nccl" if device.is_gpu and share == 1 else "gloo"
    for trial in results.trials:
        ranks = [seen for (seen,) in notes(trial, "seen")]
        assert [(one["device"], one["group"]) for one in ranks] == [(device.kind, group)] * workers
        assert (ranks[0]["parameters"] == ["DTensor"]) is (backend == "sharded")


def test_so_does_a_compiled_model(sweep: Sweep, device: Device, plain: Plain) -> None:
    configs = configs_of(device)
    results = sweep(space(device), in_a_trial, configs[-1:])
    plain.check(results, configs[-1:], rel=1e-5, first=len(configs) - 1)
    assert results.trials[0].compiled


@pytest.mark.gpu(cpus=False)  # on CPUs inductor compiles in threads
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_later_trials_compile_kernels_for_other_shapes(sweep: Sweep, mode: str) -> None:
    """Inductor compiles in processes of its own, which have to outlive the trial that started them.

    With "reduce-overhead" it records CUDA graphs, which torch keeps for the thread of that trial.
    """
    configs = [{"width": width, "mode": mode} for width in (256, 320, 384, 256)]
    results = sweep({"width": tl.choice([256, 320, 384]), "mode": tl.choice([mode])}, compiling, configs)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 4, results.trials[1].error
    assert len({notes(trial, "compiled")[0][0]["pid"] for trial in results.trials}) == 1


@pytest.mark.multi
def test_an_error_of_one_of_two_ranks_is_told_and_the_next_trial_trains(sweep: Sweep, device: Device) -> None:
    """The other rank waits in a collective of NCCL's, in which nothing but its end frees it."""
    configs = [{"breaks": "one rank"}, {"breaks": ""}]
    results = sweep({"breaks": tl.choice(["one rank", ""])}, asserting, configs, workers=2)
    assert [trial.state for trial in results.trials] == ["ERROR", "FINISHED"]
    assert "only this rank" in str(results.trials[0].error)
