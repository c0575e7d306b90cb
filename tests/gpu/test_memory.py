"""GPU memory from trial to trial: it does not grow, and a trial that keeps some is noticed."""

from __future__ import annotations

import pytest

import tunelight as tl
from tests.gpu.conftest import Sweep
from tests.gpu.training import leaking, measured
from tests.kit.training import notes
from tunelight.record import read_record


@pytest.mark.timeout(500)
def test_trials_that_asha_stops_leave_the_gpu_as_it_was(sweep, device, figure):
    space = {"lr": tl.loguniform(1e-4, 3e-2), "megabytes": tl.randint(1, device.number(4000, 20))}
    results = sweep(
        {**space, "device": tl.choice([device.kind])}, measured, device.number(60, 8),
        scheduler={"name": "asha", "grace_period": 1, "reduction_factor": 2, "max_t": 3},
    )  # fmt: skip
    states = [trial.state for trial in results.trials]
    assert set(states) == {"FINISHED", "STOPPED"}
    began = [notes(trial, "began")[0][0] for trial in results.trials]
    assert len({one["pid"] for one in began}) == 1
    used = [one["used"] for one in began][5:]  # the first trials load libraries that stay
    assert all(now <= 1.01 * used[0] for now in used), used
    figure(
        f"memory: {len(states)} trials, {states.count('STOPPED')} stopped by ASHA; MB in use before a trial, from the "
        f"sixth on: {used[0] / 1e6:.0f} at first, at most {max(used) / 1e6:.0f}, {used[-1] / 1e6:.0f} at the end"
    )


@pytest.mark.gpu(cpus=False)
def test_a_trial_that_keeps_memory_is_noticed_and_its_worker_replaced(sweep: Sweep) -> None:
    results = sweep({"x": tl.uniform(0, 1)}, leaking, 4)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 4
    first, second, third, fourth = (notes(trial, "began")[0][0]["pid"] for trial in results.trials)
    assert first == second != third == fourth  # the limit is 5 %
    said = str(read_record(results.folder).notes)
    assert "more than the limit" in said
    assert "tests.gpu.training.KEPT" in said
