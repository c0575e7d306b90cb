"""Faults on a GPU: too little memory, a process killed while a kernel runs, an error that CUDA does not get over."""

from __future__ import annotations

import pytest

import tunelight as tl
from tests.gpu.conftest import Sweep
from tests.gpu.device import Device
from tests.gpu.training import EPOCHS, HELD, asserting, killed, needy
from tests.kit.training import notes


def test_a_trial_without_enough_memory_ends_and_the_next_one_trains(sweep: Sweep, device: Device) -> None:
    space = {"lr": tl.uniform(0, 1), "need": tl.uniform(0, 9), "device": tl.choice([device.kind])}
    configs = [{"lr": 0.01, "need": need, "device": device.kind} for need in (0.1, 1.5, 0.1)]  # times its memory
    results = sweep(space, needy, configs)
    assert [trial.state for trial in results.trials] == ["FINISHED", "OOM", "FINISHED"]


def test_a_process_killed_in_a_kernel_frees_its_memory_and_the_trial_goes_on(sweep, device, figure):
    space = {"lr": tl.uniform(0, 1), "device": tl.choice([device.kind])}
    results = sweep(space, killed, [{"lr": 0.01, "device": device.kind}])
    (trial,) = results.trials
    assert trial.state == "FINISHED", trial.error
    assert [report["training_iteration"] for report in trial.history] == list(range(1, EPOCHS + 1))
    first, second = notes(trial, "began")[0]
    (end,) = notes(trial, "killed")[0]
    assert first["pid"] == end["pid"] != second["pid"]
    at_first, again = notes(trial, "free")[0]
    assert again["used"] <= at_first["used"] + HELD / 4
    gone_on, free = second["time"] - end["time"], again["time"] - end["time"]
    figure(f"killed in a kernel: the trial went on after {gone_on:.2f} s; the GPU's memory was free after {free:.2f} s")


@pytest.mark.gpu(cpus=False)
@pytest.mark.parametrize("when", ["start", "step"])
def test_an_error_that_cuda_does_not_get_over_replaces_the_process(sweep, figure, when):
    """In a step NCCL's watchdog may see it first, and end the process, so that the trial is tried again."""
    results = sweep({"breaks": tl.choice([when, ""])}, asserting, [{"breaks": when}, {"breaks": ""}])
    assert [trial.state for trial in results.trials] == ["ERROR", "FINISHED"]
    failed, trained = (notes(trial, "began")[0] for trial in results.trials)
    assert trained[-1]["pid"] not in {start["pid"] for start in failed}
    said = str(results.trials[0].error).partition("\n")[0]
    if when == "start":
        assert "device-side assert" in said
    figure(f"device-side assert, {when}: after {len(failed)} start(s) the trial's error was {said!r}")
