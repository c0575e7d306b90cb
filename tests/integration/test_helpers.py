"""Processes that libraries start for themselves, on one warm worker: no later trial fails for want of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.sweeps import run

_kept: Any = None


def helped(config: dict[str, Any]) -> None:
    """Use processes of joblib's, of torch's sharing by files, of inductor's, or of a manager that a module keeps."""
    import multiprocessing
    import os

    import joblib  # type: ignore[import-untyped]  # it has no types
    import torch

    global _kept  # noqa: PLW0603 - as modules of users keep such things
    value, pool = -1.0, 0
    if config["by"] == "joblib":
        value = max(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-number) for number in range(4)))
    elif config["by"] == "files":
        torch.multiprocessing.set_sharing_strategy("file_system")
        value = float(torch.full((4,), 3.0).share_memory_()[0])
    elif config["by"] == "inductor":  # as the first kernel of a shape does
        from torch._inductor.async_compile import AsyncCompile

        compiling: Any = AsyncCompile.process_pool()
        pool = compiling.process.pid
        value = 3.0 * (compiling.submit(os.getppid).result(timeout=60) == pool)
    else:
        if _kept is None:
            _kept = multiprocessing.get_context("fork").Manager().list()
        _kept.append(3.0)
        value = _kept[0]
    sharing = torch.multiprocessing.get_sharing_strategy()
    tl.report({"loss": value, "pid": os.getpid(), "pool": pool, "sharing": sharing})


def test_a_worker_keeps_known_helpers_and_is_replaced_with_unknown_ones(ray4: Any, tmp_path: Path) -> None:
    kinds = ["joblib", "files", "inductor", "files", "joblib", "files", "inductor", "joblib", "module", "module"]
    space, configs = {"by": tl.choice(sorted(set(kinds)))}, [{"by": kind} for kind in kinds]
    results = run(space, helped, tmp_path, configs, workers=1, max_concurrent=1)
    assert [(trial.state, trial.error) for trial in results.trials] == [("FINISHED", None)] * len(kinds)
    reports = [trial.history[0] for trial in results.trials]
    assert [report["loss"] for report in reports] == [3.0] * len(kinds)
    assert len({report["pid"] for report in reports[:9]}) == 1
    assert reports[9]["pid"] != reports[8]["pid"]
    assert reports[2]["pool"] == reports[6]["pool"]
    assert reports[0]["sharing"] == reports[4]["sharing"] == "file_descriptor"
