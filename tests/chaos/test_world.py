"""Sweeps on virtual time, to which everything happens; `python -m tests.world` runs as many others as one likes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world.mutants import mutants

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
    assert "20 sweeps, " in world("--sweeps", "20", "--seed", "300")


def test_a_seed_replays_what_happened() -> None:
    first, second = (world("--replay", "324").rpartition(";")[0] for _ in range(2))  # the rest is how fast it was
    assert first == second
    assert "FAULT SIGTERM" in first


def test_what_once_went_wrong_holds() -> None:
    assert world("--found").rstrip()


def test_each_mutant_has_one_place_in_the_package() -> None:
    package = ROOT / "tunelight"
    places = {name: (package / one.path).read_text().count(one.old) for name, one in mutants().items()}
    assert {name: count for name, count in places.items() if count != 1} == {}
    assert len(places) >= 24
