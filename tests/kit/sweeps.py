"""Sweeps: small ones that train, and recorded ones that never ran, with curves, pauses, faults and all ways to end."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.record import write_sweep_file
from tunelight.results import SweepResults

RUNGS = {"by": "training_iteration", "at": [1, 4, 16]}


def run(space: Any, train: Any, storage: Path | str, configs: Any = 2, **settings: Any) -> SweepResults:
    """Train these configurations, or so many that are drawn, in gangs of two workers without early stops."""
    count, baselines = (configs, []) if isinstance(configs, int) else (len(configs), configs)
    given: dict[str, Any] = {
        "metric": "loss", "num_samples": count, "baselines": baselines, "workers": 2, "seed": 7, "scheduler": "fifo",
        "storage": storage, "name": "s", "progress": False,
    }  # fmt: skip
    return tl.run(space, train, **(given | settings))


def record(folder: Path, trials: int = 12, epochs: int = 16, gangs: int = 3, **told: Any) -> SweepResults:
    """Record a sweep of gangs of two workers on two nodes; every way to end occurs, conditional keys and NaN too."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep_file(folder, {"scheduler": "asha", "searcher": "random", "seed": 1, "num_samples": trials, **told})
    sweep = Sweep(folder, rungs=RUNGS, num_samples=trials, workers=2, max_epochs=epochs)
    chance, free, used = random.Random(0), [0.0] * gangs, [0] * gangs
    for number in range(trials):
        config, curve, end = _plan(number, chance, epochs)
        slot = min(range(gangs), key=free.__getitem__)
        sweep.clock.now = 1000.0 + free[slot]
        trial = sweep.add(**config)
        sweep.step()
        sweep.start(trial)
        _train(sweep, trial, curve, slot, warm=used[slot] > 0)
        _end(sweep, trial, end)
        free[slot] = sweep.clock.now - 1000.0
        used[slot] += 1
    sweep.clock.now = 1000.0 + max(free)
    sweep.end()
    return SweepResults.load(folder)


def _plan(number: int, chance: random.Random, epochs: int) -> tuple[dict[str, Any], list[float], str]:
    lr, opt = 10 ** chance.uniform(-4, -1), chance.choice(["sgd", "adam"])
    config: dict[str, Any] = {"model": {"lr": lr, "hidden": chance.choice([32, 64, 128])}, "opt": opt}
    if opt == "sgd":
        config["momentum"] = chance.uniform(0, 0.99)
    end = ("FINISHED", "STOPPED", "STOPPED", "ERROR", "DIVERGED", "PAUSED")[number % 6]
    length = epochs if end == "FINISHED" else max(1, epochs // 4)
    worth = abs(math.log10(lr) + 2.5) + 0.2 * (opt == "adam")
    curve = [worth * 0.2 + math.exp(-0.2 * n) + chance.uniform(0, 0.02) for n in range(length)]
    if end == "DIVERGED":
        curve[-1] = math.nan
    return config, curve, end


def _train(sweep: Sweep, trial: Any, curve: list[float], slot: int, *, warm: bool) -> None:
    begin = sweep.clock.now
    sweep.clock.now += 0.3 if warm else 6.0
    nodes = [f"node{slot % 2}#a1b2c3"] * 2
    gang = {"gang": f"g{slot}", "nodes": nodes, "warm": warm, "began": begin, "ready": sweep.clock.now}
    for number, value in enumerate(curve, start=1):
        sweep.clock.now += 1.0
        own = {"gang": gang if number == 1 else None}
        sweep.report(trial, number, value, own=own, seconds_an_epoch=1.0, timestamp=sweep.clock.now)


def _end(sweep: Sweep, trial: Any, end: str) -> None:
    if end == "ERROR":
        sweep.callback.note("failed on rank 1 (ActorDiedError: gone); going on from report 1", trial.trial_id)
        sweep.fail(trial, message="<script>alert('error')</script>")
    elif end == "DIVERGED":
        sweep.fail(trial, type_name="Divergence", message="loss is nan", state="DIVERGED")
    elif end == "PAUSED":
        trial.status = "PAUSED"
        sweep.step()
        sweep.clock.now += 2.0
        sweep.start(trial)
        sweep.clock.now += 1.0
        sweep.report(trial, len(sweep.state.trials[trial.trial_id].history) + 1, 0.5, done=True)
        sweep.complete(trial)
    elif end == "STOPPED":
        trial.last_result["done"] = False
        trial.status = "PAUSED"  # ended by the scheduler while it did not report
        sweep.complete(trial)
    else:
        sweep.end_by_itself(trial)
