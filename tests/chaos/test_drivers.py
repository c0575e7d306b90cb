"""Drivers really get signals here and are killed, as heads of clusters are; then the sweep goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback
from ray.tune.experiment import Trial

import tunelight as tl
from tests.kit.programs import family, held, over, trains
from tests.kit.waiting import until
from tunelight.cluster.gcs_watch import EXIT_CODE
from tunelight.errors import PreemptedError
from tunelight.schedulers import ASHA
from tunelight.searchers import RandomSearcher

SCRIPT = """
import sys, time
from pathlib import Path
import tunelight as tl
from tunelight.cluster import gcs_watch

gcs_watch.LOST_S, gcs_watch.GRACE_S = 4.0, 6.0
storage, address, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
asha = {"name": "asha", "max_t": 8, "reduction_factor": 2}

def train(config):
    folder = Path(tl.get_context().trial_dir)
    for number in range(count):
        while number == 4 and folder.name == "trial_00001" and folder.parent.with_name("hold").exists():
            time.sleep(0.05)  # in the middle of the second trial
        time.sleep(0.02)
        tl.report({"loss": config["x"] / (number + 1)})

if __name__ == "__main__":
    results = tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", num_samples=4, workers=1 if count == 8 else 2,
                     max_concurrent=1, scheduler=asha if count == 8 else "fifo", storage=storage, name="s", resume=True,
                     seed=3, address=address, callbacks=[])
    assert not {"mlflow", "wandb"} & sys.modules.keys()  # Tune would import both, to count callbacks
    print("DONE", results.counts["INTERRUPTED"], len(results.trials), results.best.value is not None, flush=True)
"""


def start(folder: Path, address: str = "local", count: int = 8) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the script, or another driver of its sweep, whose trials make so many reports."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return held(sys.executable, script, str(folder), address, str(count), cwd=folder)


def wait_for_reports(folder: Path, count: int) -> None:
    record = folder / "s" / "record.jsonl"
    until(lambda: record.exists() and record.read_bytes().count(b'"report"') >= count, 240)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver whose trials report; when the test is over, no process of its is left."""
    with start(tmp_path, count=1000) as process:
        wait_for_reports(tmp_path, 6)
        members = family(process.pid)
        yield process
        until(lambda: over(members), 20)
    assert tl.SweepResults.load(tmp_path / "s").best.history


@pytest.mark.apart
def test_ctrl_c_keeps_what_was_reported_and_returns_it_and_leaves_no_process(driver: subprocess.Popen[str]) -> None:
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=40)
    stopping, ended = output.find("Stopping:"), output.find("Sweep s ended")
    assert 0 <= stopping < ended, output  # said at once, not when it is over
    assert "ends at once" in output
    assert driver.returncode == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("DONE")]
    interrupted, trials, has_best = line.split()[1:]
    assert int(interrupted) >= 1
    assert int(trials) >= 1
    assert has_best == "True"
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_signal_to_the_whole_process_group_ends_the_driver_soon_with_the_true_reason(driver) -> None:
    began = time.monotonic()
    os.killpg(driver.pid, signal.SIGTERM)
    output, _ = driver.communicate(timeout=40)
    assert time.monotonic() - began < 10
    assert "SIGTERM has ended Ray together with the sweep" in output
    assert driver.returncode == 75


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_process(driver: subprocess.Popen[str]) -> None:
    driver.send_signal(signal.SIGINT)
    time.sleep(0.3)
    driver.send_signal(signal.SIGINT)
    began = time.monotonic()
    driver.communicate(timeout=40)
    assert time.monotonic() - began < 15


def check_resumed(folder: Path, address: str = "local") -> None:
    """Run the same command again, to its end: the sweep has to be the uninterrupted one."""
    (folder / "hold").unlink()
    with start(folder, address) as process:
        output, _ = process.communicate(timeout=80)
    assert process.returncode == 0, output
    assert "DONE 0" in output
    assert [
        (trial.id, trial.state, trial.config, [(r["training_iteration"], r["loss"]) for r in trial.history])
        for trial in tl.SweepResults.load(folder / "s").trials
    ] == uninterrupted()


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


def test_a_second_signal_leaves_nothing_of_a_sweep_in_a_ray_that_is_kept(tmp_path: Path, ray4: Any) -> None:
    class Signals(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Trial, result: Any, **info: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    def train(config: Any) -> None:
        for number in range(4):
            tl.report({"loss": number})

    with pytest.raises(PreemptedError):
        tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", workers=2, callbacks=[Signals()], storage=tmp_path)


@pytest.mark.apart
def test_a_killed_driver_is_resumed_by_the_same_command_and_a_second_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with start(tmp_path) as first:
        wait_for_reports(tmp_path, 12)
        with start(tmp_path) as second:  # while the first one lives
            output, _ = second.communicate(timeout=60)
        assert second.returncode == 1
        assert f"is run by another driver already: process {first.pid} on " in output
        assert "Started a local Ray" not in output
        members = [member for member in family(first.pid) if trains(member)]
        first.kill()
        first.communicate(timeout=40)
        assert [trial.state for trial in tl.SweepResults.load(tmp_path / "s").trials] == ["FINISHED", "RUNNING"]
        check_resumed(tmp_path)
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
def test_a_lost_head_ends_the_driver_with_a_sentence_and_the_sweep_goes_on_elsewhere(tmp_path, clusters) -> None:
    lost = clusters()
    (tmp_path / "hold").touch()
    with start(tmp_path, lost.address) as process:
        wait_for_reports(tmp_path, 12)
        lost.head_node.all_processes["gcs_server"][0].process.kill()
        began = time.monotonic()
        output, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode in (1, EXIT_CODE), output  # 1: by an exception; else it hung in Ray
    assert "has not answered for 4 s" in output
    assert "resume=True goes on" in output
    check_resumed(tmp_path, clusters().address)
