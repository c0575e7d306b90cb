"""Clusters: Ray Client, whose driver is connected from outside, and one that Ray's autoscaler lets grow."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.programs import PROGRAM_S, held, python
from tests.kit.waiting import until

DRIVE_LIMIT_S = 400.0
"""Several times what two cores need; a loaded machine takes its time."""


def process(role: str, port: int, folder: Path) -> AbstractContextManager[Any]:
    """Run a process of tests.integration.client; what it prints and its errors are in a file."""
    words = ("-m", "tests.integration.client", role, str(port), folder)
    return held(sys.executable, *words, log=folder / f"{role}.txt", stdin=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.timeout(DRIVE_LIMIT_S + 150)
def test_a_driver_that_is_connected_from_outside_has_fits_on_the_cluster_and_no_sweep(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with process("head", port, tmp_path) as head:
        until(lambda: "ready\n" in (tmp_path / "head.txt").read_text(), 120)
        with process("drive", port, tmp_path) as driver:
            driver.wait(DRIVE_LIMIT_S)
        said = (tmp_path / "drive.txt").read_text()
        assert driver.returncode == 0, said[-4000:]
        head.stdin.close()  # it then shuts its Ray down
        head.wait(30)
    found = json.loads(next(line for line in said.splitlines() if line.startswith('{"connected"')))
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


HEAD, HEAD_KIND = "f" * 56, "ray.head.default"
"""What Ray's provider of played machines calls its head, and the head's type."""
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
SWEEP = """
import sys
import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

space = {"model.lr": tl.loguniform(1e-3, 1e-1)}
results = tl.run(
    space, model=DigitsClassifier, data=DigitsData, max_epochs=1, metric="val_loss", num_samples=2, workers=2,
    address=sys.argv[1], storage="runs",
)
print("ended:", [trial.state for trial in results])
"""


def configuration(port: int) -> dict[str, object]:
    """Describe a cluster whose head has no CPU, and which may have one more node, of three."""
    kinds = {
        HEAD_KIND: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "workers": {"resources": {"CPU": 3}, "node_config": {}, "min_workers": 0, "max_workers": 1},
    }
    machines = {
        "type": "external", "module": PROVIDER, "gcs_address": f"127.0.0.1:{port}", "head_node_id": HEAD,
        "launch_multiple": True,
    }  # fmt: skip
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {f"{name}_commands": [] for name in commands} | {
        "cluster_name": "played", "max_workers": 1, "upscaling_speed": 10, "idle_timeout_minutes": 1,
        "provider": machines, "head_node_type": HEAD_KIND, "available_node_types": kinds, "auth": {},
        "file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False,
        "rsync_exclude": [], "rsync_filter": [],
    }  # fmt: skip


@pytest.fixture
def environment() -> dict[str, str]:
    """Variables with a token, without which nobody uses the cluster."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture
def address(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Start a head with an autoscaler, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "cluster.json").write_text(json.dumps(configuration(port)))
    version = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
    played = {
        "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }  # fmt: skip
    files, log = tempfile.mkdtemp(prefix="ray-", dir="/tmp"), tmp_path / "ray.log"
    with held(
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=0",
        "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={files}", "--include-dashboard=false",
        "--disable-usage-stats", f"--autoscaling-config={tmp_path / 'cluster.json'}",
        log=log, env=environment | version | played,
    ) as head:  # fmt: skip
        until(lambda: "This command will now block" in log.read_text(), 90)
        yield f"127.0.0.1:{port}"
        os.killpg(head.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
    shutil.rmtree(files, ignore_errors=True)


@pytest.mark.timeout(PROGRAM_S + 120)
@pytest.mark.apart
def test_a_gang_that_fits_no_node_waits_for_the_one_that_rays_autoscaler_starts(address, environment, tmp_path):
    done = python("-c", SWEEP, address, cwd=tmp_path, **environment)
    assert done.stdout.splitlines()[-1:] == ["ended: ['FINISHED', 'FINISHED']"], (done.stdout, done.stderr)
    assert "together 2 CPU (there are 0)" in done.stderr
    assert "The cluster may grow: waiting for it." in done.stderr
