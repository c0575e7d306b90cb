"""Programs whose outcomes once differed from those of Lightning's DDP train as by it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.differential import grammar
from tests.differential.__main__ import run, unexplained
from tunelight.compat.lightning import flavour

FOUND = sorted(Path(__file__).parent.glob("found/*.json"))


@pytest.mark.timeout(280)
def test_programs_that_were_found_train_as_by_lightning(
    ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # put back afterwards: a driver's programs set them
        monkeypatch.delenv(name)
    programs = [{**grammar.plainest(), **json.loads(path.read_text())} for path in FOUND]
    found = run(dict.fromkeys(("trial", "driver", "killed"), programs), tmp_path, flavour())
    assert unexplained(programs, found) == {}


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
