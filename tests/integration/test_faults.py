"""A train function that raises on one rank: whose fault it was, how soon, and what comes after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, trainer


def fragile(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    context = tl.get_context()
    if config["bad"] == "start" and context.rank == 1:
        raise ZeroDivisionError("rank 1 cannot start")
    if config["bad"] == "collective":
        if context.rank == 1:
            time.sleep(0.5)  # rank 0 waits inside all_reduce by now
            raise ZeroDivisionError("rank 1 fails while rank 0 waits")
        dist.all_reduce(torch.ones(1))
    trainer(2).fit(Line(config["lr"]), datamodule=LineData())


def sweep(tmp_path: Path, name: str, bads: list[str]) -> tl.SweepResults:
    configs = [{"lr": 0.01 * (index + 1), "bad": bad} for index, bad in enumerate(bads)]
    space = {"lr": tl.uniform(0, 1), "bad": tl.choice(["", "start", "collective"])}
    return run(space, fragile, tmp_path, configs, max_concurrent=1, name=name)


def test_a_trial_fails_with_rank_1s_traceback_and_the_next_is_as_on_a_fresh_gang(ray4: Any, tmp_path: Path) -> None:
    bads = ["", "start", "", "collective", ""]
    undisturbed, results = sweep(tmp_path, "undisturbed", [""] * 5), sweep(tmp_path, "failing", bads)
    assert [trial.state for trial in results.trials] == ["ERROR" if bad else "FINISHED" for bad in bads]
    for failed in results.errors:
        assert failed.error is not None
        assert "rank 1 " in failed.error.splitlines()[0]
        assert "ZeroDivisionError" in failed.error
        assert "in fragile" in failed.error
        assert failed.seconds < 5
        assert "[1] ZeroDivisionError" in (failed.path / "log.txt").read_text()
    for index in (0, 2, 4):
        mine, theirs = ([r["loss"] for r in s.trials[index].history] for s in (results, undisturbed))
        assert mine == theirs


def infeasible(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    context = tl.get_context()
    tl.report({"loss": float("nan") if config["bad"] == "nan at once" else 1.0})
    if config["bad"] == "cuda" and context.rank == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB.")
    if config["bad"] == "memory" and context.rank == 0:
        raise MemoryError
    dist.barrier()
    for number in range(3):
        tl.report({"loss": float("nan") if config["bad"] == "nan" else 0.5 / (number + 1)})


def test_divergence_and_memory_are_infeasible_and_the_sweep_goes_on(ray4: Any, tmp_path: Path) -> None:
    bads = ["nan", "nan at once", "cuda", "memory", ""]
    configs = [{"bad": bad} for bad in bads]
    results = run({"bad": tl.choice(bads)}, infeasible, tmp_path, configs, max_concurrent=1, failures=2)
    assert [trial.state for trial in results.trials] == ["DIVERGED", "DIVERGED", "OOM", "OOM", "FINISHED"]
    assert (results.counts["DIVERGED"], results.counts["OOM"], results.counts["ERROR"], results.errors) == (2, 2, 0, [])
    assert [len(trial.history) for trial in results.trials] == [2, 1, 1, 1, 4]
    assert "loss is nan at report 2" in str(results.trials[0].error)
    assert "rank 1 " in str(results.trials[2].error)
    assert results.best.index == 4
