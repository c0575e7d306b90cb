"""examples/without_lightning/: loops of others train on a gang as they are, are stopped, killed and resumed.

The first test that needs Accelerate or transformers is skipped where they are missing
(``pip install -r examples/without_lightning/requirements.txt``).
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.sweeps import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "without_lightning"
NEEDS = {"ddp_loop": (), "fabric_loop": (), "accelerate_loop": ("accelerate",),
         "transformers_trainer": ("accelerate", "transformers")}  # fmt: skip
OTHER_KEYS = {"ddp_loop": {"hidden": 16}, "fabric_loop": {"hidden": 16}, "accelerate_loop": {"accumulate": 1},
              "transformers_trainer": {"warmup": 0}}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(params=list(NEEDS))
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for library in NEEDS[request.param]:
        pytest.importorskip(library, exc_type=ImportError)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(request.param)


def sweep(train: Callable[..., None], tmp_path: Path, example: Any, rates: list[float], **settings: Any) -> Any:
    configs = [{"lr": lr, **OTHER_KEYS[example.__name__]} for lr in rates]
    space = {name: tl.choice([value]) for name, value in OTHER_KEYS[example.__name__].items()}
    settings = {"max_epochs": example.EPOCHS, "max_concurrent": 1, **settings}
    return run({"lr": tl.loguniform(1e-6, 10), **space}, train, tmp_path, configs, **settings)


def noting(train: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Train, and note this rank's process and the number of its last report, however it ends."""
    me = tl.get_context()
    try:
        train(config)
    finally:
        with Path(me.trial_dir, f"rank-{me.rank}.txt").open("a") as file:
            print(os.getpid(), me.number, file=file)


def notes(trial: Any) -> list[list[list[int]]]:
    """Return what each rank noted, one [pid, last report] for each start."""
    files = sorted(Path(trial.path).glob("rank-*.txt"))
    return [[[int(word) for word in line.split()] for line in file.read_text().splitlines()] for file in files]


def test_asha_stops_all_ranks_at_one_report_and_the_gang_stays_warm(ray4: Any, tmp_path: Path, example: Any) -> None:
    rates = [3e-3, 1e-6, 1e-6]
    results = sweep(partial(noting, example.train), tmp_path, example, rates, scheduler="asha")
    assert not results.errors
    assert [trial.state for trial in results.trials].count("STOPPED") >= 1
    assert results.trials[0].state == "FINISHED"
    for trial in results.trials:
        first, second = notes(trial)
        assert first[0][1] == second[0][1] == len(trial.history)
    assert len({tuple(rank[0][0] for rank in notes(trial)) for trial in results.trials}) == 1  # the same processes


def second_is_killed(train: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Train with one seed for all trials; in the second, rank 1 is killed once it has made two reports."""
    import torch

    me, mark = tl.get_context(), Path(tl.get_context().trial_dir, "killed")

    def kill() -> None:
        while me.number < 2:
            time.sleep(0.001)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    if me.rank == 1 and me.trial_id.endswith("1") and not mark.exists():
        threading.Thread(target=kill, daemon=True).start()
    torch.manual_seed(0)
    noting(train, config)


def test_after_a_killed_rank_training_goes_on_as_if_nothing_had_been(ray4: Any, tmp_path: Path, example: Any) -> None:
    results = sweep(partial(second_is_killed, example.train), tmp_path, example, [3e-3, 3e-3])
    assert not results.errors
    whole, killed = results.trials
    assert Path(killed.path, "killed").exists()
    assert len(notes(killed)[0]) == 2  # rank 0 started twice
    assert len(whole.history) == len(killed.history) == example.EPOCHS
    losses = [[row["loss"] for row in trial.history] for trial in (whole, killed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
