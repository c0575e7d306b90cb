"""Warm gangs: nothing of one trial is seen in the next, but helpers of libraries and what tl.cached keeps."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.util import placement_group_table

import tunelight as tl
from tests.integration import test_strategies
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, note, notes, trainer


def messy(config: dict[str, Any]) -> None:
    """Change all that a training script may change, and be stopped in the middle of an epoch."""
    import gc
    import os
    import threading
    import warnings

    import psutil
    import torch

    from tunelight.compat.lightning import Callback, pl

    if config["kind"] == "plain":
        gc.collect()
        state = {
            "cwd": os.getcwd(),  # noqa: PTH109 - as scripts write it
            "dtype": str(torch.get_default_dtype()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
            "precision": torch.get_float32_matmul_precision(),
            "anomaly": torch.is_anomaly_enabled(),
            "threads": torch.get_num_threads(),
            "mine": os.environ.get("MINE", ""),
            "grad": torch.is_grad_enabled(),
            "children": len(psutil.Process().children(recursive=True)),
            "trainers": sum(isinstance(thing, pl.Trainer) for thing in gc.get_objects()),
        }
        tl.report({"loss": 1.0, **state})
        trainer(2).fit(Line(0.05), datamodule=LineData())
        return
    pl.seed_everything(99, workers=True)
    os.environ["MINE"] = "left"
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("medium")
    torch.autograd.set_detect_anomaly(True)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    warnings.simplefilter("ignore")
    threading.Thread(target=lambda: None).start()

    class Middle(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                tl.report({"loss": 9.0})  # a stop arrives here

    report = tl.TuneReportCallback({"loss": "val_loss"}, on="validation_end")
    fit = trainer(
        9, report, [Middle()], deterministic=True, precision="bf16-mixed", num_sanity_val_steps=0, benchmark=True,
        logger=True,
    )  # fmt: skip
    fit.fit(Line(0.05), datamodule=LineData(num_workers=1))


class StopMessy(FIFOScheduler):
    """Stops every messy trial at its first report."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(TrialScheduler.STOP if trial.config["kind"] == "messy" else TrialScheduler.CONTINUE)


def sweep(tmp_path: Path, name: str, kinds: list[str], **kwargs: Any) -> tl.SweepResults:
    made: Any = StopMessy
    configs = [{"kind": kind} for kind in kinds]
    settings = {"max_concurrent": 1, "name": name, "scheduler": made(), **kwargs}
    return run({"kind": tl.choice(["messy", "plain"])}, messy, tmp_path, configs, **settings)


def test_a_plain_trial_after_a_messy_stopped_one_is_as_on_a_fresh_gang(ray4: Any, tmp_path: Path) -> None:
    messy, warm = sweep(tmp_path, "warm", ["messy", "plain"]).trials
    assert messy.state == "STOPPED", messy.error
    assert len(messy.history) == 1
    _, cold = sweep(tmp_path, "fresh", ["plain", "plain"], reuse_gangs=False).trials
    assert len(cold.history) == 3
    assert _comparable(warm) == _comparable(cold)
    first = warm.history[0]
    assert (first["children"], first["trainers"], first["mine"], first["deterministic"]) == (0, 0, "", False)


def _comparable(trial: tl.TrialResult) -> list[dict[str, Any]]:
    return [{key: value for key, value in report.items() if key != "timestamp"} for report in trial.history]


EDITED = """
from tests.integration.test_strategies import Small

class Edited(Small):
    def on_train_start(self):
        print("trains version", VERSION)
"""


@pytest.mark.usefixtures("warm_gangs")
def test_a_module_that_was_edited_and_reloaded_trains_as_it_is_now(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for version in ("1", "1", "'two'"):
        (tmp_path / "edited_model.py").write_text(EDITED.replace("VERSION", version))
        importlib.invalidate_caches()
        module = importlib.import_module("edited_model")
        importlib.reload(module)
        test_strategies.trainer(tl.RayStrategy(num_workers=1)).fit(module.Edited(), test_strategies.data())
    del sys.modules["edited_model"]
    lines = [line for line in capsys.readouterr().out.splitlines() if "trains version" in line]
    assert lines == ["[0] trains version 1", "[0] trains version 1", "[0] trains version two"]


def test_sweeps_of_one_name_that_begin_in_the_same_second_train_in_the_folders_that_they_record(
    ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.tune.utils.date_str", lambda: "2026-01-01_00-00-00")
    for storage in ("one", "other"):
        (trial,) = run({"lr": tl.uniform(0, 1)}, noted, tmp_path / storage, 1, workers=1)
        assert notes(trial, "trained")


def noted(config: dict[str, Any]) -> None:
    note("trained")
    tl.report({"loss": 1.0})


def test_a_trial_that_gets_an_idle_gang_leaves_its_reservation_to_the_next(ray4: Any, tmp_path: Path) -> None:
    before = set(placement_group_table())
    results = run({"lr": tl.uniform(0, 1)}, noted, tmp_path, 12)
    assert not results.errors
    groups = {name: group["state"] for name, group in placement_group_table().items() if name not in before}
    assert set(groups.values()) == {"REMOVED"}
    assert len(groups) < 8, "without that, each trial requests one"


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


def keeping(config: dict[str, Any]) -> None:
    """Load a tensor; write down in which file in memory this worker has it."""
    import secrets

    import torch

    from tunelight.extras.data.cached import _kept

    place, size = tl.get_context(), config["size"]

    @tl.cached
    def load(folder: str, size: int) -> Any:
        Path(folder, f"{size}-{secrets.token_hex(4)}").touch()
        return torch.arange(size)

    got = load(config["folder"], size)
    got += place.rank  # a rank's own copy of the pages that it writes to
    assert int(got.sum()) == size * (size - 1) // 2 + size * place.rank
    assert int(load(config["folder"], size)[0]) == 0
    (*_, file) = _kept.values()
    note("kept", file=os.fstat(file.fileno()).st_ino)
    tl.report({"loss": 0.0})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_workers_of_a_node_share_one_load_in_memory(ray4: Any, tmp_path: Path) -> None:
    space = {"size": tl.choice([1000, 2000]), "folder": str(tmp_path)}
    configs = [{"size": size} for size in (1000, 1000, 2000, 1000)]  # on two gangs at once
    results = run(space, keeping, tmp_path / "runs", configs)
    assert not results.errors, results.errors[0].error
    assert Counter(path.name.partition("-")[0] for path in tmp_path.glob("?000-*")) == {"1000": 1, "2000": 1}
    files = [{rank[0]["file"] for rank in notes(trial, "kept")} for trial in results.trials]
    first, second, other, last = files
    assert first == second == last
    assert len(first) == len(other) == 1
    assert first != other
