"""Examples: loops of others train on gangs as they are, are stopped, killed and resumed; a ViT, and search spaces.

The first test that needs Accelerate or transformers is skipped where they are missing
(``pip install -r examples/without_lightning/requirements.txt``).
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.programs import ROOT, python
from tests.kit.sweeps import run
from tests.kit.training import note, notes
from tests.unit.extras.zoo.test_zoo import cifar, mnist

EXAMPLES = ROOT / "examples"
NEEDS = {"ddp_loop": (), "fabric_loop": (), "accelerate_loop": ("accelerate",),
         "transformers_trainer": ("accelerate", "transformers")}  # fmt: skip
OTHER_KEYS = {"ddp_loop": {"hidden": 16}, "fabric_loop": {"hidden": 16}, "accelerate_loop": {"accumulate": 1},
              "transformers_trainer": {"warmup": 0}}  # fmt: skip

slow = pytest.mark.slow


@pytest.fixture(params=[pytest.param(name, marks=[slow, pytest.mark.timeout(400)]) for name in NEEDS])
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for library in NEEDS[request.param]:
        pytest.importorskip(library, exc_type=ImportError)
    monkeypatch.syspath_prepend(str(EXAMPLES / "without_lightning"))
    return importlib.import_module(request.param)


def sweep(train: Callable[..., None], tmp_path: Path, example: Any, rates: list[float], **settings: Any) -> Any:
    configs = [{"lr": lr, **OTHER_KEYS[example.__name__]} for lr in rates]
    space = {name: tl.choice([value]) for name, value in OTHER_KEYS[example.__name__].items()}
    settings = {"max_epochs": example.EPOCHS, "max_concurrent": 1, **settings}
    return run({"lr": tl.loguniform(1e-6, 10), **space}, train, tmp_path, configs, **settings)


def noting(train: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Train, and note the number of this rank's last report, however it ends."""
    try:
        train(config)
    finally:
        note("start", last=tl.get_context().number)


def test_asha_stops_all_ranks_at_one_report_and_the_gang_stays_warm(ray4: Any, tmp_path: Path, example: Any) -> None:
    rates = [3e-3, 1e-6, 1e-6]
    results = sweep(partial(noting, example.train), tmp_path, example, rates, scheduler="asha")
    assert not results.errors
    assert [trial.state for trial in results.trials].count("STOPPED") >= 1
    assert results.trials[0].state == "FINISHED"
    for trial in results.trials:
        assert [rank[0]["last"] for rank in notes(trial, "start")] == [len(trial.history)] * 2
    assert (
        len({tuple(rank[0]["pid"] for rank in notes(trial, "start")) for trial in results.trials}) == 1
    )  # the same processes


def second_is_killed(train: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Train with one seed for all trials; in the second, rank 1 is killed once it has made two reports."""
    import torch

    me, mark = tl.get_context(), Path(tl.get_context().trial_dir, "killed")

    def kill() -> None:
        while me.number < 2:
            time.sleep(0.001)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    if me.rank == 1 and me.trial_id.endswith("1") and not mark.exists():
        threading.Thread(target=kill, daemon=True).start()
    torch.manual_seed(0)
    noting(train, config)


def test_after_a_killed_rank_training_goes_on_as_if_nothing_had_been(ray4: Any, tmp_path: Path, example: Any) -> None:
    results = sweep(partial(second_is_killed, example.train), tmp_path, example, [3e-3, 3e-3])
    assert not results.errors
    whole, killed = results.trials
    assert Path(killed.path, "killed").exists()
    assert len(notes(killed, "start")[0]) == 2  # rank 0 started twice
    assert len(whole.history) == len(killed.history) == example.EPOCHS
    losses = [[row["loss"] for row in trial.history] for trial in (whole, killed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@slow
@pytest.mark.timeout(400)
def test_the_program_takes_its_steps_and_says_that_its_images_are_generated(tmp_path: Path) -> None:
    words = ("--size", "tiny", "--storage", tmp_path)
    printed = python(EXAMPLES / "vit_cifar10.py", *words, limit_s=380, PYTHONPATH=str(ROOT)).stdout
    assert "the images are GENERATED" in printed
    assert re.findall(r"--- (step \d)", printed) == [f"step {number}" for number in (1, 2, 3, 4)]
    assert len(re.findall(r"^epoch \d: ", printed, re.MULTILINE)) == 4
    gangs = re.findall(r"^\[0\] epoch \d: train_loss ([\d.]+)", printed, re.MULTILINE)
    assert len(gangs) == 8
    assert float(gangs[7]) < float(gangs[4]) - 0.3, "the gang that Ray Data feeds trains in every epoch"
    found = re.search(r"Accuracy on the test images: ([\d.]+)", printed)
    assert found is not None, printed
    assert float(found[1]) > 0.4, "ten classes: a guess is 0.1"
    (runs,) = tmp_path.glob("vit-*")
    assert {path.name for path in runs.iterdir()} >= {"best.yaml", "best.ckpt", "best.safetensors", "step-4"}


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
