"""examples/vit_cifar10.py: one process and gangs of every kind take the same steps, and the program runs as it is."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import flavours

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit_cifar10.py"
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program = tmp_path_factory.mktemp("program") / EXAMPLE.name
    program.write_text(flavours.written(EXAMPLE.read_text()))
    return SimpleNamespace(**runpy.run_path(str(program)))


@pytest.fixture(scope="module")
def job(vit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("vit")
    images = vit.generate_cifar10(folder / "generated", train=1280, test=64)
    return vit.Job(replace(vit.SIZES["tiny"], epochs=2), images, folder)


@pytest.fixture(scope="module")
def alone(vit: Any, job: Any) -> list[dict[str, float]]:
    """Return the curve of one process."""
    epochs: list[dict[str, float]] = vit.one_process(replace(job, runs=job.runs / "alone")).epochs
    return epochs


@pytest.mark.parametrize("backend", ["ddp", pytest.param("horovod", marks=slow), pytest.param("sharded", marks=slow)])
def test_a_gang_s_curve_is_that_of_one_process(ray4: Any, vit: Any, job: Any, alone: Any, backend: str) -> None:
    curve = vit.gang(replace(job, runs=job.runs / backend, backend=backend)).epochs
    assert [set(epoch) for epoch in curve] == [{"train_loss", "val_loss", "val_acc"}] * 2
    for ours, theirs in zip(curve, alone, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert alone[1]["train_loss"] < alone[0]["train_loss"] - 0.1, "a model that learns nothing proves nothing"
    assert {path.name for path in (job.runs / backend / "step-2").iterdir()} >= {"last.ckpt"}


@slow
@pytest.mark.timeout(400)
def test_the_program_takes_its_steps_and_says_that_its_images_are_generated(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--size", "tiny", "--storage", str(tmp_path)]
    environment = {**flavours.as_a_user(), "PYTHONPATH": str(EXAMPLE.parents[1])}
    run = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    assert "the images are GENERATED" in run.stdout
    assert re.findall(r"--- (step \d)", run.stdout) == [f"step {number}" for number in (1, 2, 3, 4)]
    assert len(re.findall(r"^epoch \d: ", run.stdout, re.MULTILINE)) == 4
    gangs = re.findall(r"^\[0\] epoch \d: train_loss ([\d.]+)", run.stdout, re.MULTILINE)
    assert len(gangs) == 8
    assert float(gangs[7]) < float(gangs[4]) - 0.3, "the gang that Ray Data feeds trains in every epoch"
    found = re.search(r"Accuracy on the test images: ([\d.]+)", run.stdout)
    assert found is not None, run.stdout
    assert float(found[1]) > 0.4, "ten classes: a guess is 0.1"
    (runs,) = tmp_path.glob("vit-*")
    assert {path.name for path in runs.iterdir()} >= {"best.yaml", "best.ckpt", "best.safetensors", "step-4"}
