"""The driver that stays after a command for the next one, which finds its Ray ready, and nothing that has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tunelight as tl
from tests.conftest import APART_S
from tests.kit.programs import family, over, run, trains
from tests.kit.waiting import until
from tunelight.record.lease import Owners

pytestmark = [pytest.mark.apart, pytest.mark.timeout(APART_S)]
PROGRAM = """
import atexit, os, pathlib, time
import tunelight as tl
VALUE = {value}
@atexit.register
def end():
    pathlib.Path(f"{folder}/ended-{{os.getpid()}}").touch()
def train(config):
    for number in range(config["reports"]):
        tl.report({{"loss": number, "value": VALUE, "given": float(os.environ.get("GIVEN", 0))}})
        time.sleep(0.1 if number else 0)
"""
SPACE = "space: {reports: 1}\ntrain: program:train\nmetric: loss\nnum_samples: 1\nworkers: 2\nscheduler: fifo\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a sweep, whose driver stays; it is ended with the test."""
    monkeypatch.setenv("TUNELIGHT_KEEP", "1")
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "program.py").write_text(PROGRAM.format(value=1, folder=tmp_path))
    with tempfile.TemporaryDirectory(prefix="stay-", ignore_cleanup_errors=True) as short:  # Ray's sockets are there
        monkeypatch.setenv("TMPDIR", short)
        yield tmp_path
        run(*COMMAND, "down", cwd=tmp_path, env=os.environ)


COMMAND = [sys.executable, "-m", "tunelight"]


def swept(project: Path, name: str, **variables: str) -> tuple[psutil.Process, Any]:
    """Run a sweep in a command; return its driver, which has stayed, and the last report."""
    done = run(*COMMAND, "run", "space.yaml", "--name", name, cwd=project, env={**os.environ, **variables})
    assert "Ray stays ready for 5 minutes, for the next command; `tunelight down` ends it." in done.stderr
    return driver(project, name), tl.SweepResults.load(project / "tunelight_runs" / name).best.metrics


def driver(project: Path, name: str) -> psutil.Process:
    return psutil.Process(Owners(project / "tunelight_runs" / name).read(1).pid)


def rays(process: psutil.Process) -> set[int]:
    return {child.pid for child in process.children(recursive=True) if child.name() == "raylet"}


def suspended(client: Any, process: psutil.Process) -> Any:
    client.send_signal(signal.SIGTSTP)
    until(lambda: process.status() == psutil.STATUS_STOPPED, 10)
    return client


def test_the_next_command_trains_on_the_same_ray_what_the_code_says_now_and_another_environment_ends_it(
    project,
) -> None:
    first, metrics = swept(project, "first")
    ray = rays(first)
    assert ray
    assert metrics["value"] == 1
    (project / f"ended-{first.pid}").unlink()  # by what the code has registered for the end of its process
    (project / "program.py").write_text(PROGRAM.format(value=2, folder=project))
    second, metrics = swept(project, "second", COLUMNS="200")  # in which nothing is imported
    assert second == first
    assert rays(second) == ray
    assert metrics["value"] == 2
    members = family(first.pid)
    third, metrics = swept(project, "third", GIVEN="3")
    assert metrics["given"] == 3
    assert third != first
    until(lambda: over([first, *members]), 40)
    assert run(*COMMAND, "down", cwd=project, env=os.environ).stdout == "Ray has ended.\n"
    until(lambda: over([third]), 40)
    assert run(*COMMAND, "down", cwd=project, env=os.environ).stdout == "No Ray is kept ready.\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda client, process: client.send_signal(signal.SIGINT), 130),
        (lambda client, process: client.kill(), -signal.SIGKILL),
        (lambda client, process: suspended(client, process).kill(), -signal.SIGKILL),
        (lambda client, process: process.kill(), -signal.SIGKILL),
    ],
    ids=["ctrl-c", "client killed", "client killed while suspended", "driver killed"],
)
def test_a_sweep_ends_with_its_command_and_a_command_with_its_driver(
    project: Path, end: Callable[[Any, Any], None], code: int
) -> None:
    (project / "space.yaml").write_text(SPACE.replace("reports: 1", "reports: 9999"))
    client = subprocess.Popen([*COMMAND, "run", "space.yaml", "--name", "long"], cwd=project, stderr=subprocess.PIPE)
    record = project / "tunelight_runs" / "long" / "record.jsonl"
    until(lambda: record.exists() and b'"report"' in record.read_bytes(), 240)
    process = driver(project, "long")
    assert process.pid != client.pid
    members = [member for member in family(process.pid) if trains(member)]
    end(client, process)
    output = client.communicate(timeout=60)[1].decode()
    assert client.returncode == code, output
    until(lambda: over([process, *members]), 120)
    assert len(tl.SweepResults.load(project / "tunelight_runs" / "long").best.history) >= 1
