"""Sweeps on virtual time, to which everything happens; `python -m tests.world` runs as many others as one likes."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.kit import way
from tests.kit.programs import ROOT, python
from tests.world.mutants import mutants


def world(*options: str) -> str:
    """Run tests.world, and return what it printed."""
    return python("-m", "tests.world", *options, limit_s=280).stdout


def first_seed() -> int:
    """Return a seed of this commit, so that each looks at other sweeps, and shows the same again."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(asked.stdout[:6] or "3", 16) * 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(8))
def test_sweeps_to_which_everything_happens_keep_all_reports_and_come_to_their_end(part: int) -> None:
    assert "20 sweeps, " in world("--sweeps", "20", "--seed", str(first_seed() + 20 * part))


def test_a_seed_replays_what_happened() -> None:
    first, second = (world("--replay", "330").rpartition(";")[0] for _ in range(2))  # the rest is how fast it was
    assert first == second
    assert "FAULT SIGTERM" in first


FOUND = sorted(path.stem for path in ROOT.glob("tests/world/found/*.json"))


@pytest.mark.parametrize("names", [FOUND[part::3] for part in range(3)])
def test_what_once_went_wrong_holds(names: list[str]) -> None:
    assert f"{len(names)} sweeps, " in world("--found", *names)


def test_each_mutant_has_one_place_in_the_package() -> None:
    package = ROOT / "tunelight"
    places = {name: (package / one.path).read_text().count(one.old) for name, one in mutants().items()}
    assert {name: count for name, count in places.items() if count != 1} == {}
    assert len(places) >= 24


def test_a_configuration_and_a_report_take_the_way_that_the_page_shows() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text()
    stations = re.findall(r"^\| \d+ \| `([a-z_/]+\.py:[\w.]+)` \|", page, re.MULTILINE)
    assert 10 <= len(stations) <= 14
    assert {station: way.lines(station) for station in stations if way.lines(station) > 60} == {}
    assert python("-m", "tests.kit.way", *stations, limit_s=120).stdout.splitlines() == stations
