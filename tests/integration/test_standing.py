"""`tunelight up`, programs that find the Ray that it keeps, and `tunelight down`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import flavours
from tests.waiting import PROGRAM_S, until

pytestmark = pytest.mark.apart
ROOT = Path(__file__).parents[2]
SWEEP = """
import json, os, sys, time
import psutil
import sklearn.datasets  # which sets variables of its own
import tunelight as tl

def train(config):
    import edited
    parent = psutil.Process().parent()
    forked = parent is not None and "forkserver" in " ".join(parent.cmdline())
    tl.report({"loss": config["x"], "said": edited.SAID, "forked": forked, "mine": int(os.environ.get("MINE", "0"))})
    time.sleep(edited.SLEEPS)
    tl.report({"loss": config["x"]})

if __name__ == "__main__":
    results = tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", num_samples=1, workers=2, storage=sys.argv[1],
        scheduler="fifo")
    import ray
    (trial,) = results.trials
    print("FOUND", json.dumps({"state": trial.state, "ray": ray.is_initialized(), **trial.history[0]}))
"""


class Machine:
    """A user's shell, with a folder for temporary files of its own."""

    def __init__(self, folder: Path, temporary: str) -> None:
        self.folder, self.temporary = folder, temporary
        self.env = flavours.as_a_user() | {"TMPDIR": temporary, "PYTHONPATH": str(ROOT), "HOME": temporary}
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # of all tests: a user has Ray make a token in the home folder
            del self.env[name]
        (folder / "sweep.py").write_text(SWEEP)
        self.edit(1)

    def edit(self, said: int, sleeps: float = 0) -> None:
        (self.folder / "edited.py").write_text(f"SAID, SLEEPS = {said}, {sleeps}\n")

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, env=self.env | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def says(self, *command: str, **variables: str) -> str:
        out, errors = self.start(*command, **variables).communicate(timeout=PROGRAM_S)
        return out + errors

    def sweep(self, **variables: str) -> tuple[dict[str, Any], str]:
        """Return what the sweep found, and all that it said."""
        said = self.says("sweep.py", "runs", **variables)
        found = re.search("^FOUND (.*)$", said, re.MULTILINE)
        assert found is not None, said
        return json.loads(found[1]), said

    @property
    def servers(self) -> int:
        """How many environments workers are forked with."""
        return len(list(Path(self.temporary).glob("tunelight-*/fork-*")))

    @property
    def processes(self) -> list[str]:
        """What runs with this folder in its command or its environment."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            try:
                mine = (
                    process.info["status"] != psutil.STATUS_ZOMBIE and process.environ().get("TMPDIR") == self.temporary
                )
            except psutil.Error:
                continue
            if mine:
                found.append(f"{process.pid} {' '.join(process.info['cmdline'] or ())[:150]}")
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    temporary = tempfile.mkdtemp(prefix="tl-", dir="/tmp")  # paths of sockets are short
    one = Machine(tmp_path, temporary)
    yield one
    one.says("-m", "tunelight", "down")
    for line in one.processes:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    shutil.rmtree(temporary, ignore_errors=True)


def test_programs_start_on_it_and_nothing_is_left_of_it(machine: Machine) -> None:
    assert "Ray is ready (process" in machine.says("-m", "tunelight", "up")
    assert "Ray was ready (process" in machine.says("-m", "tunelight", "up")

    first, said = machine.sweep()
    assert "Using the Ray of `tunelight up`." in said
    assert first["state"] == "FINISHED"
    assert (first["said"], first["mine"], first["forked"]) == (1, 0, True)
    assert not first["ray"], "the program is connected to it no longer"

    machine.edit(22)
    again, _ = machine.sweep()
    assert (again["said"], again["forked"]) == (22, True)

    assert machine.servers == 1, "what libraries set in a driver starts no other server"

    changed, _ = machine.sweep(MINE="7")
    assert (changed["mine"], changed["forked"]) == (7, True)
    assert machine.servers == 2

    address = json.loads(machine.says("-m", "tunelight", "up", "--json"))["address"]
    refused = machine.says("sweep.py", "runs", RAY_ADDRESS=address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert f"The Ray cluster at {address} asks for a token, and this process has none, or another one." in refused

    machine.edit(3, sleeps=60)
    driver = machine.start("sweep.py", "killed")
    assert driver.stdout is not None
    until(lambda: any("GangWorker" in line for line in machine.processes), 60, every_s=0.1)
    driver.kill()
    driver.communicate(timeout=100)
    machine.edit(4)
    after, _ = machine.sweep()
    assert (after["state"], after["said"]) == ("FINISHED", 4)

    assert "Ray has ended." in machine.says("-m", "tunelight", "down")
    assert "There was no Ray to end." in machine.says("-m", "tunelight", "down")
    until(lambda: not machine.processes, 20, every_s=0.1)
    alone, said = machine.sweep()
    assert "tunelight up" not in said
    assert alone["ray"], "it has started a Ray of its own"
