"""The ways in which tunelight trains a program: in trials, by a driver's strategy, disturbed and not."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ray import tune

import tunelight as tl
from tests.differential import disturbances
from tests.differential.grammar import Program, plainest
from tests.differential.observe import Observer, Recorder, maker, observed
from tests.differential.reference import load
from tests.kit.programs import python
from tunelight.compat.lightning import Callback
from tunelight.errors import PreemptedError
from tunelight.settings.backends import BACKENDS


@dataclass(frozen=True)
class Way:
    """How to train programs, which of them it allows, and the tolerance of the numbers that come of it."""

    train: Callable[[Sequence[Path], Path], None]
    """Takes their folders and one for sweeps; outcomes go to the way's folder in each."""
    reference: str = "wanted"
    """The folder to compare with: "wanted" is that of Lightning's DDP with two processes, "one" with one, "process" of
    a Trainer without a strategy, others are ways."""
    on: str = "ranks"
    """What is compared: "ranks" is everything on each rank, "driver" what a program has on rank 0, "end" only the
    state that a disturbed training comes to."""
    allows: Callable[[Program], bool] = lambda program: True
    tolerance: float = 1e-6


def by_lightning(folders: Mapping[str, Sequence[Path]], package: str) -> None:
    """Train the programs of each reference by Lightning; see :mod:`tests.differential.reference`."""
    command, limit_s = ("-m", "tests.differential.reference"), 60 + 60 * sum(map(len, folders.values()))
    words, more = json.dumps(folders, default=str), {"TUNELIGHT_LIGHTNING": package, "OMP_NUM_THREADS": "1"}
    python(*command, words, limit_s=limit_s, env=os.environ, **more)


def _options(backend: str, unused: bool) -> dict[str, Any]:
    """Return a strategy's arguments. ``unused``: whether the module leaves parameters unused."""
    known: dict[str, dict[str, Any]] = {"ddp": {"find_unused_parameters": unused}, "sharded": {"min_sharded": 1}}
    return known.get(backend, {})


class Report(tl.TuneReportCheckpointCallback):
    """Reports and saves each epoch of training, with the metric that the sweep asks for."""

    def __init__(self) -> None:
        super().__init__(on="train_epoch_end")

    def _read(self, trainer: Any, session: Any) -> dict[str, Any]:
        return {**super()._read(trainer, session), "outcome": 0.0}


def _trial(config: dict[str, Any]) -> None:
    """Train a program as one trial of a sweep."""
    program, way = Path(config["program"]), config["way"]
    here, backend = program / ("stopped" if config["stopped"] else way), tl.get_context().backend
    here.mkdir(exist_ok=True)

    def strategy(unused: bool) -> dict[str, Any]:
        if way.startswith("single"):
            return {"devices": 1}
        return {"strategy": BACKENDS[backend].load_strategy()(**_options(backend, unused))}

    def extra() -> list[Callback]:
        disturbs = {"killed": disturbances.Kill, "left": disturbances.Leave}.get(way.rpartition("_")[2])
        return [Report()] if disturbs is None else [disturbs(program), Report()]

    raised = observed(load(program).main, maker(here, strategy, extra), here, lambda: tl.get_context().rank)
    if raised is not None:
        raise raised
    tl.report({"outcome": 1.0})


def by_trials(
    way: str,
    scheduler: Any = "fifo",
    callback: Any = None,
    *,
    after_stopped: bool = False,
    failures: int = 0,
    **settings: Any,
) -> Callable[[Sequence[Path], Path], None]:
    """Return what trains programs as the trials of one sweep, one after another on one gang.

    Args:
        way: the outcome's folder.
        scheduler: "fifo", or what makes a scheduler.
        callback: makes a callback of Tune's for each sweep, if given.
        after_stopped: train each program twice, and stop the first time.
        failures: how often a trial may fail.
        settings: more of tunelight.run's.
    """

    def train(folders: Sequence[Path], storage: Path) -> None:
        trials = [
            {"program": str(folder), "stopped": stopped}
            for folder in folders
            for stopped in ((True, False) if after_stopped else (False,))
        ]
        arguments: dict[str, Any] = {
            "metric": "outcome", "mode": "max", "num_samples": len(trials), "baselines": trials,
            "workers": 1 if way.startswith("single") else 2,
            "scheduler": scheduler if isinstance(scheduler, str) else scheduler(), "storage": storage, "name": way,
            "failures": tl.FailurePolicy(max_failures=failures, hang_timeout_s=60, give_up_after=0), "seed": 1,
            "progress": False, "max_concurrent": 1, **settings,
        }  # fmt: skip
        if callback is not None:
            arguments["callbacks"] = [callback()]
        names = [str(folder) for folder in folders]
        space = {"program": tl.choice(names), "stopped": tl.choice([False, True]), "way": way}
        results = _run(space, arguments)
        while results.counts["INTERRUPTED"] or len(results) < len(trials):
            results = _run(space, {**arguments, "resume": True})
        for trial in results.trials:
            if not trial.config["stopped"]:
                _write_reports(Path(trial.config["program"], way), trial.history)

    return train


def _run(space: dict[str, Any], arguments: dict[str, Any]) -> tl.SweepResults:
    try:
        return tl.run(space, _trial, **arguments)
    except PreemptedError as error:
        return error.results or tl.SweepResults.load(Path(arguments["storage"], arguments["name"]))


def _write_reports(folder: Path, history: Sequence[dict[Any, Any]]) -> None:
    """Write the metrics of reports: a plain Tuner adds its own, and NaN where a report lacks one of another's."""
    others = ("_tunelight", "time", "epoch", "config")  # what begins like this is no metric of the program
    kept = [
        {
            key: value
            for key, value in report.items()
            if not key.startswith(others) and isinstance(value, float) and not math.isnan(value)
        }
        for report in history
    ]
    folder.mkdir(exist_ok=True)
    (folder / "reports.json").write_text(json.dumps(kept))


def by_tune(folders: Sequence[Path], storage: Path) -> None:
    """Train programs as trials of a plain Tuner."""
    space = {"program": tune.grid_search([str(folder) for folder in folders]), "stopped": False, "way": "tune"}
    tuner = tune.Tuner(
        tl.gang_trainable(_trial, workers=2, failures=0, metric="outcome"),
        param_space=space,
        tune_config=tune.TuneConfig(metric="outcome", mode="max", max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(storage), name="tune", verbose=0),
    )
    grid = tuner.fit()
    for result in (grid[number] for number in range(len(grid))):
        frame = result.metrics_dataframe
        history = [] if frame is None else frame.to_dict("records")
        _write_reports(Path((result.config or {})["program"], "tune"), history)


def by_parts(folders: Sequence[Path], storage: Path) -> None:
    """Train a program's model and data as they are given to tunelight.run, each by a sweep of one trial."""
    for folder in folders:
        here = folder / "parts"
        (here / "files").mkdir(parents=True, exist_ok=True)
        module = load(folder)
        settings = module.settings(str(here / "files"))
        tl.run(
            {"model.lr": tl.choice([0.05])}, model=module.made, data=module.Data, metric="val_loss", num_samples=1,
            workers=2, scheduler="fifo", storage=storage, name=f"parts-{folder.name}", progress=False, failures=0,
            trainer_args={
                "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, **settings,
                "default_root_dir": here / "files", "logger": [*settings.get("logger", ()), Recorder()],
                "callbacks": [*settings["callbacks"], Observer(str(here), 1)],
            },
        )  # fmt: skip


def _has_parts(program: Program) -> bool:
    plain = program["runs"] == "fit" and program["val_loaders"] == 1
    return bool(plain and program["data_as"] != "loaders" and program["net"] != "unused")


def by_driver(way: str, backend: str = "ddp", *, workers: int = 2) -> Callable[[Sequence[Path], Path], None]:
    """Return what trains programs on warm workers of this driver; outcomes go to the folder ``way``."""

    def made(unused: bool) -> dict[str, Any]:
        whole = {"save_distributed_checkpoint": False} if backend == "sharded" else {}  # as it is compared
        options = {**_options(backend, unused), **whole}
        return {"strategy": BACKENDS[backend].load_strategy()(num_workers=workers, **options)}

    def train(folders: Sequence[Path], storage: Path) -> None:
        for folder in folders:
            here = folder / way
            here.mkdir(exist_ok=True)
            observed(load(folder).main, maker(here, made), here, lambda: 0)

    return train


def _plain_sums(program: Program) -> bool:
    """Tell whether a program has nothing that DDP alone brings: buffers of rank 0, or parameters left out."""
    return program["net"] not in ("batchnorm", "buffer", "unused")


def _asks_no_torch(program: Program) -> bool:
    """Tell whether a program asks nothing of torch.distributed, which Horovod does without."""
    data = (program["train_data"], program["val_data"])
    return _plain_sums(program) and program["gather"] != "collective" and "splitting" not in data


def _shardable(program: Program) -> bool:
    """Tell whether a program can be sharded: not double precision, or copies of modules."""
    return (
        _plain_sums(program)
        and program["precision"] != "64-true"
        and all(program[feature] == plainest()[feature] for feature in ("weights", "pruning", "finetuning", "tuner"))
    )


def _resizable(program: Program) -> bool:
    """Tell whether a program learns the same on one worker.

    Not where ranks draw, keep, gather or return something of their own, or where the batch cannot be split
    (docs/faults.md).
    """
    return (
        program["net"] not in ("batchnorm", "buffer", "dropout", "encoder")
        and program["precision"] != "bf16-mixed"
        and program["use_distributed_sampler"]
        and program["train_data"] == "map"
        and program["sampler"] in (None, "shuffle")
        and program["optimization"] == "automatic"
        and program["gather"] not in ("validation_step", "validation_end")
        and program["runs"] != "predict"
    )


WAYS: Final = {
    "trial": Way(by_trials("trial")),
    "driver": Way(by_driver("driver"), on="driver"),
    "killed": Way(by_trials("killed", failures=1), on="end"),
    "warm": Way(by_trials("warm", disturbances.StopFirst, after_stopped=True)),
    "paused": Way(by_trials("paused", disturbances.Pause), on="end"),
    "left": Way(by_trials("left", callback=disturbances.OrderToLeave), on="end"),
    "resumed": Way(by_trials("resumed", callback=disturbances.Cut), on="end"),
    "adopted": Way(by_trials("adopted", disturbances.AdoptOwn)),
    "tune": Way(by_tune),
    "single": Way(by_trials("single"), reference="process"),
    "single_killed": Way(by_trials("single_killed", failures=1), reference="process", on="end"),
    "parts": Way(by_parts, allows=_has_parts),
    "alone": Way(by_driver("alone", workers=1), reference="one", on="driver"),
    "horovod": Way(by_driver("horovod", "horovod"), on="driver", allows=_asks_no_torch),
    "horovod_left": Way(
        by_trials("horovod_left", callback=disturbances.OrderToLeave, backend="horovod"),
        on="end", allows=_asks_no_torch,
    ),
    "sharded": Way(by_driver("sharded", "sharded"), on="driver", allows=_shardable, tolerance=1e-5),
    "sharded_left": Way(
        by_trials("sharded_left", callback=disturbances.OrderToLeave, backend="sharded"),
        on="end", allows=_shardable, tolerance=1e-5,
    ),
    "elastic": Way(by_trials("elastic", workers=(1, 2)), reference="elastic"),
    "resized": Way(
        by_trials("resized", disturbances.ShrinkAndGrow, workers=(1, 2)),
        reference="elastic", on="end", allows=_resizable, tolerance=1e-5,
    ),
}  # fmt: skip
"""Name -> way."""
