"""What is said of GPUs that idle: only what the numbers speak for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunelight.record.gpu_use import BUSY, LEAST_SAMPLES, GpuUse, causes, energy_wh, gpu_use, idle_gpus
from tunelight.record.state import TrialState

IDLE = GpuUse(busy=0.31, samples=200, cpu=2.0, cpus=4, memory=40_000, memory_total=80_000, gpus=1)
"""GPUs that idle, for which the numbers show no cause."""


def trial(index: int = 0, state: str = "FINISHED", **told: Any) -> TrialState:
    made = TrialState(f"{index:05d}", index, state=state, workers=2, seconds=100.0, trained=90.0, history=[{}])
    for name, value in told.items():
        setattr(made, name, value)
    return made


def peak(busy: float, samples: int = 100, **more: float) -> dict[str, float]:
    return {"cpu": 9.0, "memory": 600, "gpu": 1.0, "mean_gpu": busy, "samples": samples, **more}


# --- the sentence -------------------------------------------------------------------------------------------


ALL = "loading data or other Python code takes all CPUs"
MORE = "more cpus_per_worker=, and as many num_workers= in the DataLoaders"
ONE = "one process does all work and also loads the data"
WAIT = "workers wait for storage, the network or one another"
SMALL = "batches or the model are small"
LITTLE = "at most 6.2 of 80.0 GB of GPU memory in use"


@pytest.mark.parametrize(
    ("more", "why", "numbers", "advice"),
    [
        ({"cpu": 3.9}, ALL, "a worker uses 3.9 of its 4 CPUs", MORE),
        ({"cpu": 1.02, "cpus": 1}, ALL, "a worker uses 1.0 of its 1 CPU", MORE),
        ({"cpu": 1.0}, ONE, "a worker uses 1.0 of its 4 CPUs", "num_workers= in the DataLoaders"),
        (
            {"cpu": 0.2}, WAIT, "a worker uses 0.2 of its 4 CPUs",
            "data on a local disk or in memory, or fewer workers for each trial",
        ),
        ({"memory": 6200}, SMALL, LITTLE, "larger batches, or gpus_per_worker=0.5 for twice as many trials on a GPU"),
        (
            {"memory": 6200, "gpus": 0.5}, SMALL, LITTLE,
            "larger batches, or gpus_per_worker=0.25 for twice as many trials on a GPU",
        ),
        ({"memory": 6200, "gpus": 4}, SMALL, LITTLE, "larger batches, or fewer GPUs for each worker"),
        ({"memory": 6200, "gpus": None}, SMALL, LITTLE, "larger batches"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_likely_cause_with_its_numbers(
    more: dict[str, Any], why: str, numbers: str, advice: str
) -> None:
    said = f"GPUs 31 % busy, likely because {why} ({numbers}): try {advice}"
    assert idle_gpus(replace(IDLE, **more)) == said


@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        ({}, "a worker uses 2.0 of its 4 CPUs, at most 40.0 of 80.0 GB of GPU memory in use"),
        ({"cpus": None, "cpu": 1.0, "memory": None}, "a worker uses 1.0 CPUs"),
    ],
)
def test_numbers_that_speak_for_no_cause_are_said_to(more: dict[str, Any], numbers: str) -> None:
    assert idle_gpus(replace(IDLE, **more)) == f"GPUs 31 % busy ({numbers}; that shows no likely cause)"


def test_time_outside_of_training_is_said_beside_the_cause() -> None:
    alone = replace(IDLE, cpu=None, memory=None)
    assert idle_gpus(alone) == "GPUs 31 % busy"
    assert idle_gpus(replace(alone, outside=0.35)) == (
        "GPUs 31 % busy. Beside that, 35 % of the time went into starts and waiting, outside of training"
    )
    assert idle_gpus(replace(alone, outside=0.19)) == "GPUs 31 % busy"


def test_of_two_causes_both_are_said() -> None:
    said = idle_gpus(replace(IDLE, cpu=1.0, memory=6200)) or ""
    assert ONE in said
    assert f"; or because {SMALL} ({LITTLE})" in said


@pytest.mark.parametrize(
    "use",
    [None, replace(IDLE, busy=BUSY, cpu=4.0), replace(IDLE, samples=LEAST_SAMPLES - 1, cpu=4.0)],
    ids=["no GPU", "busy", "too few samples"],
)
def test_nothing_is_said_of_gpus_that_are_busy_or_not_known_well_enough(use: GpuUse | None) -> None:
    assert idle_gpus(use) is None
    assert use is None or causes(use) == []


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"cpu": 3.4}, 1),
        ({"cpu": 3.3}, 0),
        ({"cpu": 1.3}, 1),
        ({"cpu": 1.4}, 0),
        ({"cpu": 0.6}, 0),
        ({"cpu": 1.0, "cpus": 1.5}, 0),
        ({"memory": 15_999}, 1),
        ({"memory": 16_000}, 0),
        ({"memory": 1, "memory_total": None}, 0),
        ({"memory": 1, "memory_total": 0}, 0),
    ],
)
def test_a_cause_is_likely_up_to_its_limit(more: dict[str, Any], found: int) -> None:
    assert len(causes(replace(IDLE, **more))) == found


# --- from trials to numbers ---------------------------------------------------------------------------------


def test_trials_count_by_their_samples_and_the_fullest_gpu_counts() -> None:
    peaks = [
        peak(0.2, 300, mean_cpu=3.0, gpu_memory=8000, gpu_memory_total=80_000),
        peak(0.6, 100, mean_cpu=1.0, gpu_memory=30_000, gpu_memory_total=80_000),
        {"cpu": 1.0, "memory": 100},  # failed before it was sampled
        {},
    ]
    told = {"cpus_per_worker": 4, "gpus_per_worker": 0.5}
    use = gpu_use(peaks, told)
    assert use is not None
    assert use.busy == pytest.approx(0.3)
    expected = GpuUse(busy=0.0, samples=400, cpu=2.5, cpus=4, memory=30_000, memory_total=80_000, gpus=0.5)
    assert replace(use, busy=0.0) == expected


@pytest.mark.parametrize("peaks", [[], [{}], [{"cpu": 1.0, "memory": 5, "gpu_memory": 9, "gpu_memory_total": 90}]])
def test_without_a_known_utilisation_there_is_nothing_to_judge(peaks: list[dict[str, float]]) -> None:
    assert gpu_use(peaks, {"cpus_per_worker": 4}) is None


def test_time_outside_of_training_is_that_of_trials_that_came_to_their_end() -> None:
    trials = [
        trial(0, trained=40.0),
        trial(1, state="STOPPED", trained=60.0),
        trial(2, state="ERROR", trained=0.0),
        trial(3, state="RUNNING", trained=1.0),
        trial(4, history=[], trained=0.0),
    ]
    use = gpu_use([peak(0.3)], {}, trials)
    assert use is not None
    assert use.outside == pytest.approx(0.5)
    assert (gpu_use([peak(0.3)], {}, trials[2:]) or IDLE).outside is None


# --- energy -------------------------------------------------------------------------------------------------


def test_energy_is_mean_power_times_workers_times_time() -> None:
    assert energy_wh(trial(peak={"mean_gpu_power": 360.0}), {"gpus_per_worker": 1}) == pytest.approx(2 * 9.0)


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({"peak": {}}, 1),
        ({}, 0.5),
        ({}, None),
        ({"workers": None}, 1),
        ({"gangs": [{"nodes": ["a"]}, {"nodes": ["a", "b"]}]}, 1),
    ],
    ids=["no power", "shared GPUs", "GPUs unknown", "never reported", "resized"],
)
def test_energy_is_unknown_where_it_does_not_follow(more: dict[str, Any], gpus: float | None) -> None:
    assert energy_wh(trial(**{"peak": {"mean_gpu_power": 360.0}, **more}), {"gpus_per_worker": gpus}) is None
