"""Programs whose outcomes once differed from those of Lightning's DDP, and new ones, train as by it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.differential import grammar
from tests.differential.__main__ import Plan, drawn, prepare, run, unexplained
from tests.differential.ways import WAYS
from tunelight.compat.lightning import flavour

HERE = Path(__file__).parent
PART = 6
"""So many programs are trained by one sweep."""


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back afterwards what a driver's programs set."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)


def planned() -> Plan:
    """Return found/ in its ways, and five that are drawn by the commit's hash, each as a trial and in one of those."""
    plan: Plan = {"trial": []}
    for path in sorted(HERE.glob("found/*.json")):
        program, ways = grammar.read(path)
        for way in {"trial": None, **dict.fromkeys(ways)}:  # with whose reports those of others are compared
            plan.setdefault(way, []).append(program)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    rng = random.Random(head.stdout.strip())
    for way, programs in drawn([grammar.draw(rng) for _ in range(5)], list(plan), 2).items():
        plan[way] += programs
    return plan


PLAN = planned()
CASES = [
    pytest.param(way, programs[start : start + PART], id=f"{way}-{start}")
    for way, programs in PLAN.items()
    for start in range(0, len(programs), PART)
]
"""Those of trials come first, for reports are compared with theirs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all programs by Lightning, in one process, and return their folder."""
    made = tmp_path_factory.mktemp("programs")
    prepare(PLAN, made, flavour())
    return made


def test_lightning_trains_them_all(folder: Path) -> None:
    trained = {path.parents[1].name for path in folder.glob("*/*/done-0")}
    assert trained >= {grammar.digest(one) for one in PLAN["trial"] if WAYS["trial"].allows(one)}


@pytest.mark.parametrize(("way", "programs"), CASES)
def test_programs_that_were_found_and_new_ones_train_as_by_lightning(ray4, folder, way, programs) -> None:
    left = unexplained(programs, run({way: programs}, folder, flavour()))
    titles = {digest: (folder / digest / f"program_{digest}.py").read_text().splitlines()[0] for digest in left}
    assert {titles[digest]: ways for digest, ways in left.items()} == {}


def test_every_program_that_is_drawn_is_valid_and_shrinks_to_the_plainest() -> None:
    rng = random.Random(1)
    for _ in range(50):
        program = grammar.draw(rng)
        assert grammar.invalid(program) is None
        steps = 0
        while plainer := grammar.smaller(program):
            program = plainer[0]
            steps += 1
            assert steps < 100
        assert grammar.reached(program) == set()
