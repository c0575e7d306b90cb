"""The training of turnaround.py's peers, and the events by which they are timed.

All peers call :func:`train_one` with their own strategy: model, data, Trainer settings, seeds, thread count
and callbacks are the same for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jobs import QUIET, THREADS, Work


@dataclass(frozen=True, kw_only=True)
class Job(Work):
    """One peer's work. ``repeats`` makes an epoch longer."""

    configs: list[dict[str, Any]]
    epochs: int
    repeats: int
    grace_period: int
    reduction_factor: int

    def collect(self) -> list[dict[str, Any]]:
        """Return one dict a trial from the events of all ranks, in the order in which the trials started."""
        trials: dict[int, dict[str, Any]] = {}
        for event in self.events():
            empty: dict[str, Any] = {"threads": {}, "validated": [], "reported": [], "loss": []}
            trial = trials.setdefault(event["trial"], {"trial": event["trial"], **empty})
            kind = event["event"]
            if kind == "setup":
                trial["threads"][str(event["rank"])] = event["threads"]
                trial["omp"] = event["omp"]
            elif event["rank"] == 0 and kind in {"enter", "first_batch", "exit"}:
                trial[kind] = event["time"]
            elif event["rank"] == 0:
                trial[kind].append(event["time"])
                if kind == "validated":
                    trial["loss"].append(event["loss"])
                    trial["acc"] = max(trial.get("acc", 0.0), event["acc"])
        for trial in trials.values():
            trial["epochs"] = len(trial["validated"])
            # A peer may kill a trial that it stops: then its last event is its end.
            trial["end"] = trial.get("exit") or max([trial["enter"], *trial["validated"]])
            trial["first_report"] = (trial["reported"] or trial["validated"] or [None])[0]
        return sorted(trials.values(), key=lambda trial: trial.get("enter", 0.0))


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
    from tunelight.extras.digits import DigitsClassifier

    trial = config["index"]
    job.tell(rank, trial, "enter")
    try:
        torch.set_num_threads(THREADS)
        pl.seed_everything(1000 + trial, verbose=False)
        callbacks = [Timeline(job, trial), *reporters, Reported(job, trial)]
        trainer = pl.Trainer(max_epochs=job.epochs, callbacks=callbacks, **QUIET, **trainer_args)
        if prepare is not None:
            trainer = prepare(trainer)
        model = DigitsClassifier(lr=config["lr"], hidden=config["hidden"])
        trainer.fit(model, datamodule=build_data(job.repeats))
    finally:
        job.tell(rank, trial, "exit")
    return trainer
