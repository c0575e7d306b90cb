"""The training of turnaround.py's peers, and the events by which they are timed.

All peers call :func:`train_one` with their own strategy: model, data, Trainer settings, seeds, thread count
and callbacks are the same for all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from events import THREADS, write_event

J = TypeVar("J")
ATTEMPTS = 4
"""Starts of ddp_spawn, whose processes may die of a signal."""


@dataclass(frozen=True)
class Job:
    """One peer's work. ``repeats`` makes an epoch longer; events and storage are in ``folder``."""

    configs: list[dict[str, Any]]
    epochs: int
    ranks: int
    repeats: int
    grace_period: int
    reduction_factor: int
    folder: str

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Read a job that :meth:`save` wrote."""
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))


def make_configs(trials: int, seed: int, hidden: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return ``trials`` configurations, the same for the same seed; ``index`` numbers them."""
    rng = random.Random(seed)
    return [{"index": index, "lr": 10 ** rng.uniform(-4, -1), "hidden": rng.choice(hidden)} for index in range(trials)]


def train_one(  # one trial, in whatever process the peer calls it
    job: Job,
    config: dict[str, Any],
    *,
    rank: int = 0,
    reporters: Iterable[Any] = (),
    prepare: Callable[[Any], Any] | None = None,
    **trainer_args: Any,
) -> Any:
    """Train one configuration and return its Trainer. Runs on: each worker (driver where the peer spawns).

    ``reporters`` are the peer's own callbacks that report; ``prepare`` is applied to the Trainer.
    """
    import torch
    from lightning_parts import Reported, Timeline, build_data

    from tunelight.compat.lightning import pl  # of the flavour that TUNELIGHT_LIGHTNING names
    from tunelight.digits import DigitsClassifier

    trial = config["index"]
    write_event(job.folder, rank, trial, "enter")
    try:
        torch.set_num_threads(THREADS)
        pl.seed_everything(1000 + trial, verbose=False)
        trainer = pl.Trainer(
            max_epochs=job.epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Timeline(job.folder, trial), *reporters, Reported(job.folder, trial)],
            **trainer_args,
        )
        if prepare is not None:
            trainer = prepare(trainer)
        model = DigitsClassifier(lr=config["lr"], hidden=config["hidden"])
        trainer.fit(model, datamodule=build_data(job.repeats))
    finally:
        write_event(job.folder, rank, trial, "exit")
    return trainer


def collect(folder: str | Path) -> list[dict[str, Any]]:
    """Return one dict a trial from the events of all ranks, in the order in which the trials started."""
    trials: dict[int, dict[str, Any]] = {}
    for path in sorted(Path(folder).glob("events-*.jsonl")):
        rank = int(path.stem.split("-")[1])
        for line in path.read_text().splitlines():
            event = json.loads(line)
            trial = trials.setdefault(
                event["trial"],
                {
                    "trial": event["trial"],
                    "threads": {},
                    "pids": {},
                    "validated": [],
                    "reported": [],
                    "loss": [],
                },
            )
            _note(trial, rank, event)
    for trial in trials.values():
        trial["epochs"] = len(trial["validated"])
        # A peer may kill a trial that it stops: then its last event is its end.
        trial["end"] = trial.get("exit") or max([trial["enter"], *trial["validated"]])
        trial["first_report"] = (trial["reported"] or trial["validated"] or [None])[0]
    return sorted(trials.values(), key=lambda trial: trial.get("enter", 0.0))


def _note(trial: dict[str, Any], rank: int, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "setup":
        trial["threads"][str(rank)] = event["threads"]
        trial["omp"] = event["omp"]
        trial["pids"][str(rank)] = event["pid"]
    elif rank == 0 and kind in {"enter", "first_batch", "exit"}:
        trial[kind] = event["time"]
    elif rank == 0:
        trial[kind].append(event["time"])
        if kind == "validated":
            trial["loss"].append(event["loss"])
            trial["acc"] = max(trial.get("acc", 0.0), event["acc"])


def run_peer(run: Callable[[Job, argparse.Namespace], None], parser: argparse.ArgumentParser | None = None) -> None:
    """Run a peer of turnaround.py from its command line."""
    run_job(run, Job.load, lambda job: collect(job.folder), parser)


def run_job(
    run: Callable[[J, argparse.Namespace], None],
    load: Callable[[str], J],
    gather: Callable[[J], list[dict[str, Any]]],
    parser: argparse.ArgumentParser | None = None,
) -> None:
    """Run a peer from its command line: do the job, then write what was measured to ``--out``."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--config-file", required=True, help="the job, as JSON")
    parser.add_argument("--out", required=True, help="where to write the measurements, as JSON")
    args = parser.parse_args()
    job = load(args.config_file)
    called = time.time()
    run(job, args)
    done = time.time()
    Path(args.out).write_text(json.dumps({"called": called, "done": done, "trials": gather(job)}, indent=1))
