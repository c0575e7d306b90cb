"""Fixtures of the GPU tests: what they run on, a sweep there, and figures for the end of the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.gpu.device import Device, on_cpus
from tests.kit.sweeps import run

Sweep = Callable[..., tl.SweepResults]

_figures: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark these tests; on CPUs leave out those that make no sense there."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    left_out = []
    for item in here:
        if item.get_closest_marker("gpu") is None:
            item.add_marker("gpu")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))  # a cold disk has CUDA's libraries, and kernels are compiled
        on_gpus_only = any(marker.kwargs.get("cpus") is False for marker in item.iter_markers("gpu"))
        if on_cpus() and (on_gpus_only or item.get_closest_marker("multi")):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures that tests have measured."""
    if _figures:
        terminalreporter.section("figures" + (" (of CPUs: they say nothing about GPUs)" if on_cpus() else ""))
        for line in _figures:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def device() -> Device:
    """Return what to train on."""
    return Device("cpu" if on_cpus() else "cuda")


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Return a function that takes a line for the end of the output."""
    return _figures.append


@pytest.fixture
def sweep(ray4: Any, device: Device, tmp_path: Path) -> Sweep:
    """Return a function that runs a sweep of one trial at a time, on whole GPUs where nothing else is said."""

    def swept(space: Any, train: Any, configs: list[dict[str, Any]] | int, **settings: Any) -> tl.SweepResults:
        given = {"workers": 1, "max_concurrent": 1, "seed": 3, **device.each()}
        return run(space, train, tmp_path, configs, **given | settings)

    return swept
