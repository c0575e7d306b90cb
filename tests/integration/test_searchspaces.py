"""The search spaces that come along, each trained shortly on a gang of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.unit.extras.zoo.test_zoo import cifar, mnist

slow = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "digits_mlp",
        pytest.param("digits_cnn", marks=slow),
        pytest.param("digits_vit", marks=slow),
        pytest.param("mnist_mlp", marks=slow),
        pytest.param("cifar10_vit", marks=slow),
    ],
)
def test_a_shipped_space_trains(ray4: Any, name: str, tmp_path: Path) -> None:
    """Two epochs, and one more; MNIST and CIFAR-10 by files of a few images in their own formats."""
    space = tl.SearchSpace.of(name)
    if name == "mnist_mlp":
        space = space.fixed({"data.root": str(mnist(tmp_path))})
    if name == "cifar10_vit":
        small = {"model.hidden": 48, "model.layers": 1, "model.heads": 4, "model.mlp": 48, "data.batch_size": 4}
        space = space.fixed({"data.root": str(cifar(tmp_path)), **small})
    results = tl.run(
        space, num_samples=2, max_epochs=2, workers=2, scheduler="fifo", storage=tmp_path / "runs", seed=3,
        baselines=[] if name == "cifar10_vit" else space.settings.get("baselines", []), progress=False,
    )  # fmt: skip
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 2, results.errors
    assert all(len(trial.history) == 2 for trial in results.trials)
    for trial in results.trials:
        assert space.broken(space.dotted(trial.config)) is None
    longer = tl.resume(results.folder, max_epochs=3, progress=False)
    assert [trial.config for trial in longer.trials] == [trial.config for trial in results.trials]
    for trial, before in zip(longer.trials, results.trials, strict=True):
        assert trial.history[:2] == before.history  # it goes on from its checkpoint
        assert [report["epoch"] for report in trial.history] == [0, 1, 2]
