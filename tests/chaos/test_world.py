"""Sweeps on virtual time, to which everything happens: other ones for each commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def world(*options: str) -> str:
    """Run tests.world, and return what it printed."""
    command = [sys.executable, "-m", "tests.world", *options]
    ended = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.timeout(300)
def test_sweeps_to_which_everything_happens_keep_all_reports_and_come_to_their_end() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    seed = int(head.stdout.strip() or "0", 16) % 10**6
    said = world("--sweeps", "40", "--seed", str(seed))
    assert "40 sweeps, " in said


def test_a_seed_replays_what_happened() -> None:
    first, second = (world("--replay", "23").rpartition(";")[0] for _ in range(2))  # the rest is how fast it was
    assert first == second
    assert "FAULT kill" in first
