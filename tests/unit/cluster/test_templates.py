"""The templates of cluster/: what Ray, KubeRay and Slurm would make of them, as far as can be told without them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "cluster"


@pytest.mark.parametrize(
    "path",
    [*CLUSTER.glob("*"), ROOT / "docs" / "from-zero.md"],
    ids=lambda path: path.name,
)
def test_versions_are_those_of_this_checkout(path: Path) -> None:
    import tunelight

    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    known = {**dict(pins), "tunelight": tunelight.__version__}
    named = re.findall(r"(tunelight|ray|torch|pytorch-lightning)(?:\[\w+\])?(?:==|:)(\d[\d.]*\d)", path.read_text())
    assert not [(name, version) for name, version in named if known[name] != version]


# --- Slurm: srun and ray are played by scripts that write down how they were called

PLAYED = {
    "srun": """#!/usr/bin/env bash
echo "srun $*" >>"$LOG"
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
    "ray": """#!/usr/bin/env bash
echo "ray $* cpus=$SRUN_CPUS_PER_TASK token=${#RAY_AUTH_TOKEN}" >>"$LOG"
if [[ $* == *--head* ]]; then
  exec python3 -c 'if True:
    import os, socket, time
    head = socket.create_server(("127.0.0.1", int(os.environ["RAY_PORT"])))
    print(os.getpid(), file=open(os.environ["LOG"] + ".head", "w"), flush=True)
    time.sleep(60)'
fi
exec sleep 60
""",
    "scontrol": """#!/usr/bin/env bash
if [[ $1 == requeue ]]; then echo "scontrol $*" >>"$LOG"; else printf 'n1\\nn2\\nn3\\n'; fi
""",
    "hostname": "#!/usr/bin/env bash\necho '127.0.0.1 10.0.0.7'\n",
}


@pytest.fixture
def slurm(tmp_path: Path) -> Any:
    """Return a function that starts the script with its command, among played programs; and where they write."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PLAYED.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    log = tmp_path / "log"
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LOG": str(log), "RAY_PORT": str(port),
        "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4",
    }  # fmt: skip
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, restarts: str = "0") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(CLUSTER / "slurm.sh"), *command],
            env={**environment, "SLURM_RESTART_COUNT": restarts},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start, log, port
    for process in started:
        process.kill()
        process.communicate()


def test_slurm_starts_a_head_then_the_other_nodes_then_the_sweep(slurm: Any) -> None:
    start, log, port = slurm
    until = "until grep -q -- --address= $LOG; do sleep 0.05; done"
    process = start("bash", "-c", f"{until}; echo driver $RAY_ADDRESS; exit 3")
    output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1:] == [f"driver 127.0.0.1:{port}"], output
    assert process.returncode == 3  # the sweep's own
    calls = log.read_text().splitlines()
    (head,) = [line for line in calls if line.startswith("ray start --head")]
    assert f"--node-ip-address=127.0.0.1 --port={port}" in head
    (others,) = [line for line in calls if line.startswith("srun") and f"ray start --address=127.0.0.1:{port}" in line]
    assert "--nodes=2 --ntasks=2" in others
    assert "--exclude=n1" in others
    for line in calls:
        if line.startswith("ray"):
            assert "--num-cpus=4" in line
            assert "cpus=4" in line.split("--num-cpus=4")[1]  # of srun, which does not take them from sbatch
            assert line.endswith("token=64")  # nobody else's jobs may use it
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)  # the head has ended with the script


WAITS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to leave", flush=True), sys.exit(75)))
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""
LOSE = "until kill $(<$LOG.head); do sleep 0.05; done; while kill -0 $(<$LOG.head); do sleep 0.05; done"


@pytest.mark.parametrize(
    ("number", "said", "code", "again"),
    [(signal.SIGUSR1, "told to leave", 75, True), (signal.SIGTERM, "told to leave", 75, False),
     (signal.SIGINT, "interrupted", 0, False)],
    ids=["the end of its time", "scancel", "ctrl-c"],
)  # fmt: skip
def test_slurms_signals_are_passed_on_and_the_job_whose_time_is_over_is_queued_again(  # noqa: PLR0917 - a row each
    slurm: Any, tmp_path: Path, number: signal.Signals, said: str, code: int, again: bool
) -> None:
    start, log, _ = slurm
    process = start("python3", "-c", WAITS, str(tmp_path / "ready"))
    until((tmp_path / "ready").exists, 20)
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert said in output
    assert (process.returncode, "scontrol requeue 7" in log.read_text()) == (code, again)


@pytest.mark.parametrize(
    ("command", "code", "restarts", "again"),
    [("exit 75", 75, "3", True), ("exit 75", 75, "100", False), ("exit 1", 1, "0", False),
     (f"{LOSE}; exit 1", 1, "0", True), (f"{LOSE}; exit 0", 0, "0", False)],
    ids=["to be run again", "often enough", "a failure", "the head was lost", "the head was lost, and all was done"],
)  # fmt: skip
def test_a_job_whose_ray_was_lost_is_queued_again_some_times(slurm, command, code, restarts, again):
    start, log, _ = slurm
    process = start("bash", "-c", command, restarts=restarts)
    process.communicate(timeout=30)
    assert (process.returncode, "scontrol requeue 7" in log.read_text()) == (code, again)
