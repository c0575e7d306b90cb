"""Drivers are really killed here, and heads of clusters; then the sweep goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.tune.experiment import Trial

import tunelight as tl
from tests.kit.waiting import until
from tests.processes import family, over
from tunelight.cluster.gcs_watch import EXIT_CODE
from tunelight.schedulers import ASHA
from tunelight.searchers import RandomSearcher

SCRIPT = """
import sys, time
from pathlib import Path
import tunelight as tl
from tunelight.cluster import gcs_watch

gcs_watch.LOST_S, gcs_watch.GRACE_S = 4.0, 6.0

def train(config):
    folder = Path(tl.get_context().trial_dir)
    for number in range(8):
        while number == 4 and folder.name == "trial_00001" and folder.parent.with_name("hold").exists():
            time.sleep(0.05)  # in the middle of the second trial
        time.sleep(0.02)
        tl.report({"loss": config["x"] / (number + 1)})

if __name__ == "__main__":
    storage, address = sys.argv[1:3]
    results = tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", num_samples=4, workers=1, max_concurrent=1,
                     scheduler={"name": "asha", "max_t": 8, "reduction_factor": 2}, storage=storage, name="s",
                     resume=True, seed=3, address=address)
    print("DONE", results.counts["INTERRUPTED"], flush=True)
"""


def start(tmp_path: Path, address: str = "local") -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), address],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
    )  # fmt: skip


def reports(tmp_path: Path, count: int) -> Callable[[], bool]:
    record = tmp_path / "s" / "record.jsonl"
    return lambda: record.exists() and record.read_bytes().count(b'"report"') >= count


def begin(tmp_path: Path, address: str = "local") -> subprocess.Popen[str]:
    """Start the script, and return when its sweep stands still in the middle of the second trial."""
    (tmp_path / "hold").touch()
    process = start(tmp_path, address)
    until(reports(tmp_path, 12), 240)
    return process


def resume(tmp_path: Path, address: str = "local") -> None:
    """Run the same command again, to its end."""
    (tmp_path / "hold").unlink()
    finished(start(tmp_path, address))


def trains(member: psutil.Process) -> bool:
    """Tell whether a process is a worker or a head; Ray's own ones end in time."""
    line = " ".join(member.cmdline())
    return "ray::" in line and "Agent" not in line


def told(folder: Path) -> list[Any]:
    return [
        (trial.id, trial.state, trial.config, [(r["training_iteration"], r["loss"]) for r in trial.history])
        for trial in tl.SweepResults.load(folder).trials
    ]


def uninterrupted() -> list[Any]:
    """Return what the script's sweep comes to, one trial after another: the same searcher and scheduler, no Ray."""
    searcher = RandomSearcher(tl.SearchSpace({"x": tl.uniform(0, 1)}), 3)
    scheduler = ASHA(metric="loss", mode="min", max_t=8, reduction_factor=2)
    nobody: Any = None
    trials = []
    for number in range(4):
        stub = Trial("none", stub=True, trial_id=f"{number:05d}")
        config, history, decision = searcher.suggest(stub.trial_id), list[tuple[int, float]](), "CONTINUE"
        scheduler.on_trial_add(nobody, stub)
        while decision == "CONTINUE" and len(history) < 8:
            history.append((len(history) + 1, config["x"] / (len(history) + 1)))
            report = {"training_iteration": history[-1][0], "loss": history[-1][1]}
            decision = scheduler.on_trial_result(nobody, stub, report)
        trials.append((stub.trial_id, "FINISHED" if decision == "CONTINUE" else "STOPPED", config, history))
    return trials


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=80)
    assert process.returncode == 0, output
    assert "DONE 0" in output
    return output


@pytest.mark.apart
def test_a_killed_driver_is_resumed_by_the_same_command_and_a_second_one_is_refused(tmp_path: Path) -> None:
    first = begin(tmp_path)
    try:
        second = start(tmp_path)  # while the first one lives
        output, _ = second.communicate(timeout=60)
        assert second.returncode == 1
        assert f"is run by another driver already: process {first.pid} on " in output
        assert "Started a local Ray" not in output
        members = [member for member in family(first.pid) if trains(member)]
    finally:
        first.kill()
        first.communicate(timeout=40)
    assert [trial.state for trial in tl.SweepResults.load(tmp_path / "s").trials] == ["FINISHED", "RUNNING"]
    resume(tmp_path)
    assert told(tmp_path / "s") == uninterrupted()
    until(lambda: over(members), 120)  # workers and heads of the killed driver


@pytest.fixture
def clusters() -> Iterator[Callable[[], Any]]:
    """Start clusters of one node, outside of the driver; all are stopped in the end."""
    from ray.cluster_utils import Cluster

    made: list[Any] = []

    def make() -> Any:
        made.append(Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}))
        return made[-1]

    environment = dict(os.environ)
    yield make
    for cluster in made:
        cluster.shutdown()
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]


@pytest.mark.slow
def test_a_lost_head_ends_the_driver_with_a_sentence_and_the_sweep_goes_on_elsewhere(
    tmp_path: Path, clusters: Callable[[], Any]
) -> None:
    lost = clusters()
    process = begin(tmp_path, lost.address)
    lost.head_node.all_processes["gcs_server"][0].process.kill()
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode in (1, EXIT_CODE), output  # 1: by an exception; else it hung in Ray
    assert "has not answered for 4 s" in output
    assert "resume=True goes on" in output
    resume(tmp_path, clusters().address)
    assert told(tmp_path / "s") == uninterrupted()
