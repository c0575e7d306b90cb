"""Drivers really get signals here: Ctrl-C, once and twice, and SIGTERM with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.waiting import until
from tests.processes import family, over

SCRIPT = """
import sys, time
import tunelight as tl

def train(config):
    for number in range(1000):
        time.sleep(0.05)
        tl.report({"loss": config["x"] / (number + 1)})

if __name__ == "__main__":
    results = tl.run({"x": tl.uniform(0, 1)}, train, metric="loss", num_samples=8, workers=2, scheduler="fifo",
                     storage=sys.argv[1], name="s", callbacks=[], address="local")
    print("RESULTS", len(results.trials), results.counts["INTERRUPTED"], results.best.value is not None, flush=True)
    if len(sys.argv) > 2:
        time.sleep(60)
"""


def _start(tmp_path: Path, **how: Any) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, **how,
    )  # fmt: skip
    record = tmp_path / "s" / "record.jsonl"
    until(lambda: record.exists() and record.read_text().count('"report"') > 5, 240)
    return process


@pytest.mark.apart
def test_ctrl_c_keeps_what_was_reported_and_returns_it_and_leaves_no_process(tmp_path: Path) -> None:
    process = _start(tmp_path)
    members = family(process.pid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=40)
    stopping, ended = output.find("Stopping:"), output.find("Sweep s ended")
    assert 0 <= stopping < ended, output  # said at once, not when it is over
    assert "ends at once" in output
    assert process.returncode == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("RESULTS")]
    trials, interrupted, has_best = line.split()[1:]
    assert int(interrupted) >= 1
    assert int(trials) >= 1
    assert has_best == "True"
    assert "Traceback" not in output
    until(lambda: over(members), 20)


@pytest.mark.slow
def test_a_signal_to_the_whole_process_group_ends_the_driver_soon_with_the_true_reason(tmp_path: Path) -> None:
    process = _start(tmp_path, start_new_session=True)
    members = family(process.pid)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=40)
    assert time.monotonic() - began < 10
    assert "SIGTERM has ended Ray together with the sweep" in output
    assert process.returncode == 75
    until(lambda: over(members), 20)
    assert tl.SweepResults.load(tmp_path / "s").best.history


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    process = _start(tmp_path)
    members = family(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=40)
    assert time.monotonic() - began < 15
    until(lambda: over(members), 20)
    assert tl.SweepResults.load(tmp_path / "s").best.history
