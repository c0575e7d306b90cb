"""examples/vit_cifar10.py runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import flavours

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit_cifar10.py"
slow = pytest.mark.slow


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
