"""What a sweep shows on the terminal of a program that has started Ray itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import PROGRAM_S

SCRIPT = """
import os, signal, sys
from pathlib import Path

import ray

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

def train(config):
    for number in range(tl.get_context().number, 3):
        if number == 1 and tl.get_context().rank == 1 and not (flag := Path(config["folder"], "killed")).exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        tl.report({"loss": 1.0})

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    tl.run(
        {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=DigitsClassifier, data=DigitsData, max_epochs=1,
        metric="val_loss", num_samples=2, workers=2, storage=sys.argv[1], name="s",
    )
    for stream in (sys.stdout, sys.stderr):
        print("the next sweep", file=stream, flush=True)
    tl.run({"folder": sys.argv[1]}, train, metric="loss", num_samples=1, workers=2, storage=sys.argv[1], name="t")
    ray.shutdown()
"""


@pytest.mark.apart
def test_a_sweep_shows_its_own_lines_and_none_of_ray_s_or_lightning_s_also_of_a_fault_that_was_survived(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", tmp_path], capture_output=True, text=True, cwd=tmp_path, timeout=PROGRAM_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (out, after), (errors, later) = (text.split("the next sweep\n") for text in (done.stdout, done.stderr))
    # Not counted: a step that takes its time, and the line of each minute, as `s  0/2 done  1m 00s`.
    own = [line for line in out.splitlines() if line and not line.endswith(" ...") and not line.startswith("s  ")]
    assert len(own) == 3, out
    assert own[-1].startswith("Sweep s ended after")
    # Ray's own start, which the program asked for: how it authenticates, and that it is up.
    rays_start = ("authentication_token_setup.py", "worker.py")
    others = [line for line in errors.splitlines() if line and not any(name in line for name in rays_start)]
    assert not others, errors
    log = (tmp_path / "s" / "trial_00000" / "log.txt").read_text()
    assert "[0] `Trainer.fit` stopped: `max_epochs=1` reached." in log
    assert "litlogger" not in log
    assert "entry point" not in log
    assert (tmp_path / "killed").exists()
    assert "trial 00000 finished" in after
    assert "worker died" not in after + later
