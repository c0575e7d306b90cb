"""Ray Client (`ray://`): a Trainer's gang is the cluster's, and its driver is connected from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DRIVE_LIMIT_S = 400.0
"""Several times what two cores need; a loaded machine takes its time."""


@contextlib.contextmanager
def process(role: str, port: int, folder: Path) -> Iterator[Any]:
    """Run a process of tests.integration.client in a session of its own, which ends with it; its errors are beside."""
    command = [sys.executable, "-m", "tests.integration.client", role, str(port), str(folder)]
    with (
        (folder / f"{role}.txt").open("w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, text=True, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors,
        ) as started,
    ):  # fmt: skip
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(DRIVE_LIMIT_S + 150)
def test_a_driver_that_is_connected_from_outside_has_fits_on_the_cluster_and_no_sweep(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with process("head", port, tmp_path) as head:
        assert any(line == "ready\n" for line in head.stdout), (tmp_path / "head.txt").read_text()[-2000:]
        with process("drive", port, tmp_path) as driver:
            said, _ = driver.communicate(timeout=DRIVE_LIMIT_S)
        assert driver.returncode == 0, (tmp_path / "drive.txt").read_text()[-4000:]
        head.stdin.close()  # it then shuts its Ray down
        head.wait(30)
    found = json.loads(said.splitlines()[-1])
    assert found["connected"]
    for backend in ("ddp", "horovod", "sharded"):
        told = found[backend]
        assert told["right"] > 0.8
        assert told["right"] == pytest.approx(told["tested"])
        assert told["workers"] == 2
        assert told["predictions equal the driver's"]
        assert told["checkpoint"]
        assert told["states"] == 4  # two layers, each with weights and a bias
        assert (told["alive"], told["idle"]) == (0, 0)
    assert found["interrupted"]["error"] == "SystemExit"  # after Ctrl-C: Lightning's own way out
    assert found["interrupted"]["seconds"] < 12
    assert found["placement groups"] == 0
    assert "together 9 CPU (there are 4)" in found["too many"]
    assert "ray job submit -- python your_script.py" in found["sweep"]
