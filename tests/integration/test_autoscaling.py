"""Ray's autoscaler, version 2: a gang that fits no node of the cluster waits for the one that it starts."""

from __future__ import annotations

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
from pathlib import Path

import pytest

from tests import flavours
from tests.kit.waiting import PROGRAM_S, until

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
    return {**flavours.as_a_user(), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture
def address(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Start a head with an autoscaler, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "cluster.json").write_text(json.dumps(configuration(port)))
    version = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
    played = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    variables = {**environment, **version, **played}
    files = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with (tmp_path / "ray.log").open("w") as log:
        head = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=0",
                "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={files}", "--include-dashboard=false",
                "--disable-usage-stats", f"--autoscaling-config={tmp_path / 'cluster.json'}",
            ],
            env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: "This command will now block" in (tmp_path / "ray.log").read_text(), 90)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait(10)
        shutil.rmtree(files, ignore_errors=True)


@pytest.mark.timeout(PROGRAM_S + 120)
@pytest.mark.apart
def test_a_gang_that_fits_no_node_waits_for_the_one_that_rays_autoscaler_starts(address, environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, address],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["ended: ['FINISHED', 'FINISHED']"], (done.stdout, done.stderr)
    assert "together 2 CPU (there are 0)" in done.stderr
    assert "The cluster may grow: waiting for it." in done.stderr
