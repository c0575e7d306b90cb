"""Three raylets on one machine, two CPUs each.

``python -m tests.cluster.three MODULE ARGUMENT...`` runs a driver there. The address of the
cluster becomes the driver's first argument.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit.programs import ROOT, held


def environment() -> dict[str, str]:
    """Return this process's environment, with this checkout first on the way to imports."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def on_three_nodes(*arguments: str, **variables: str) -> str:
    """Run a driver on three raylets, in processes of its own; return what it printed.

    All but the head hold the resource "away". UNLIKE="NAME=VALUE ..." sets variables for the last of them.
    """
    return finished(sys.executable, "-m", "tests.cluster.three", *arguments, limit_s=240.0, code=0, **variables)


def another(folder: Path, *packages: str) -> str:
    """Make what a node has to import first, to have version 9.9.9 of packages installed; return its PYTHONPATH."""
    for name in packages:
        about = folder / f"{name.replace('-', '_')}-9.9.9.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9.9\n")
    return os.pathsep.join([str(folder), environment()["PYTHONPATH"]])


def finished(*command: str, limit_s: float, code: int = 0, **variables: str) -> str:
    """Run a command in a session of its own, which ends with it; return what it printed.

    Raises: AssertionError where it takes longer, or ends with another ``code``.
    """
    with held(*command, env=environment() | variables) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            process.send_signal(signal.SIGINT)  # it takes down what it started, if it still can
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            raise AssertionError(f"not finished within {limit_s:.0f} s:\n{error.stdout!r}") from None
    assert process.returncode == code, output
    return output


if __name__ == "__main__":
    import importlib

    from ray.cluster_utils import Cluster

    name, *rest = sys.argv[1:]
    unlike: Any = dict(one.split("=", 1) for one in os.environ.pop("UNLIKE", "").split())
    quick = {"prestart_worker_first_driver": False}  # idle task workers would only take processor time
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": quick}
    started = Cluster(initialize_head=True, head_node_args=head)
    try:
        for variables in (None, unlike):
            started.add_node(num_cpus=2, resources={"away": 2}, env_vars=variables)
        importlib.import_module(name).main(started.address, *rest)
    finally:
        started.shutdown()
