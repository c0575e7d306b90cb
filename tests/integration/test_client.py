"""Ray Client (`ray://`): a Trainer's gang is the cluster's, and its driver is connected from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 90.0
DRIVE_LIMIT_S = 400.0
"""Both are several times what two cores need; a loaded machine takes its time."""

pytestmark = [pytest.mark.timeout(START_LIMIT_S + DRIVE_LIMIT_S + 60), pytest.mark.slow]


def process(role: str, port: int, folder: Path, **pipes: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.client", role, str(port), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes)


def end(started: subprocess.Popen[str]) -> None:
    """End a process, and what it started in its session."""
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait(10)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start a cluster of its own with a Ray Client server; return the server's port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("head")
    with (folder / "errors.txt").open("w") as errors:
        started = process("head", port, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert started.stdin is not None
        assert started.stdout is not None
        watch = threading.Timer(START_LIMIT_S, end, args=(started,))
        watch.start()
        try:
            lines = iter(started.stdout.readline, "")
            assert any(line.strip() == "ready" for line in lines), (folder / "errors.txt").read_text()[-2000:]
            watch.cancel()
            yield port
            started.stdin.close()  # it then shuts its Ray down
            started.wait(30)
        finally:
            watch.cancel()
            watch.join()
            end(started)
            started.stdin.close()
            started.stdout.close()


@pytest.fixture(scope="module")
def found(head: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a driver that is connected by Ray Client; return what it found."""
    driver = process("drive", head, tmp_path_factory.mktemp("drive"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = driver.communicate(timeout=DRIVE_LIMIT_S)
    except subprocess.TimeoutExpired:
        end(driver)
        said = driver.communicate()[0]
    finally:
        end(driver)
    assert driver.returncode == 0, said[-4000:]
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert told["connected"]
    return told


@pytest.mark.parametrize("backend", ["ddp", "horovod", "sharded"])
def test_a_fit_through_the_client_brings_everything_back_and_ends_its_workers(backend: str, found: Any) -> None:
    told = found[backend]
    assert told["right"] > 0.8
    assert told["right"] == pytest.approx(told["tested"])
    assert told["workers"] == 2
    assert told["predictions equal the driver's"]
    assert told["checkpoint"]
    assert told["states"] == 4  # two layers, each with weights and a bias
    assert (told["alive"], told["idle"]) == (0, 0)
    assert found["placement groups"] == 0


def test_ctrl_c_through_the_client_ends_a_fit_within_seconds(found: dict[str, Any]) -> None:
    assert found["interrupted"]["error"] == "SystemExit"  # Lightning's own way out
    assert found["interrupted"]["seconds"] < 12


def test_a_gang_that_the_cluster_cannot_hold_is_refused_through_the_client(found: dict[str, Any]) -> None:
    assert "together 9 CPU (there are 4)" in found["too many"]


def test_a_sweep_through_the_client_is_refused_with_the_command_to_use(found: dict[str, Any]) -> None:
    assert "ray job submit -- python your_script.py" in found["sweep"]
