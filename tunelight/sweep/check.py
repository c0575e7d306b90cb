"""Look at a sweep before it runs: whether all of it is right, its gang fits, and one batch goes through."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunelight.cluster.connect import check_runtime_env, nodes_of
from tunelight.data.server import check_sources
from tunelight.errors import ResourceError
from tunelight.resources import Reservation, fitted, reserve
from tunelight.settings import NAMES, Settings, check_model, check_picklable, check_train
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.sweep.run import run

_WHEN = ("epoch", "training_iteration", "timestamp")
_NOT_REHEARSED = ("baselines", "callbacks", "time_budget", "max_concurrent", "warm_start")
"""Settings of many trials that say nothing of one batch."""


@dataclass(frozen=True)
class Checked:
    """A sweep in which nothing is wrong but, perhaps, its size.

    ``nodes``: what the nodes hold that it was looked up for, ``cluster`` which they are; ``misfit``: why its gang can
    never start there, or None.
    """

    space: SearchSpace
    settings: Settings
    reservation: Reservation
    samples: Sequence[Mapping[str, Any]]
    cluster: str
    nodes: Sequence[Mapping[str, float]]
    misfit: str | None


def check(space: SearchSpace, overrides: Mapping[str, Any], samples: int = 5) -> Checked:
    """Check all of a sweep that can be without training, and draw some configurations of it.

    ``told`` are settings beside the space's own. Raises: subclasses of TunelightError. Runs on: driver; connects to a
    Ray cluster only where an address, or RAY_ADDRESS, names one.
    """
    settings = Settings(**{**space.settings, **overrides})
    check_settings(space, settings)
    with space.placing(settings, "train" if settings.model is None else "model"):
        if settings.train is not None:
            check_train(settings.train)
        else:
            check_model(settings.model, settings.data)
    for what in ("train", "model", "data", "trainer_args"):
        if (code := getattr(settings, what)) is not None:
            with space.placing(settings, what):
                check_picklable(code, what)
    from tunelight.schedulers.choose import build_scheduler, check_company  # imports Ray Tune
    from tunelight.searchers.choose import build_searcher

    with space.placing(settings, "scheduler"):
        check_company(build_scheduler(settings, space.domains), settings)
    with space.placing(settings, "searcher"):
        build_searcher(space, settings)
    with space.placing(settings, "resources_per_trial"):
        reservation = reserve(
            settings.workers, settings.cpus_per_worker, settings.gpus_per_worker, settings.resources_per_trial
        )
    with space.placing(settings, "datasets"):
        check_sources(settings.datasets, reservation.least or reservation.workers)
    if settings.runtime_env:
        with space.placing(settings, "runtime_env"):
            check_runtime_env(settings.runtime_env)
    cluster, nodes = nodes_of(settings.address)
    misfit = None
    try:
        fitted(reservation, nodes, data_cpus=settings.room_for_data)
    except ResourceError as error:
        misfit = str(error)
    return Checked(space, settings, reservation, draw(space, samples, settings.seed or 0), cluster, nodes, misfit)


def draw(space: SearchSpace, count: int, seed: int) -> list[dict[str, Any]]:
    """Return configurations of the space; of a grid, its first points."""
    rng = np.random.RandomState(seed)
    return [space.sample(rng, grid_index=index % space.grid_size) for index in range(count)]


@dataclass(frozen=True)
class DryRun:
    """What one batch came to: what was reported, or ``error``, the trial's."""

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    error: str | None


def dry_run(checked: Checked) -> DryRun:
    """Train a batch of the first sample on a gang of the wanted size, in a sweep that leaves nothing behind.

    A ``model=`` sweep trains and validates one batch (Lightning's ``fast_dev_run``), a train function runs until its
    first report. No checkpoint is written. Runs on: driver; starts Ray, or uses the one that there is.
    """
    from tunelight.schedulers.until import Until  # imports Ray Tune

    settings, config = checked.settings, checked.samples[0]
    overrides = {name: getattr(settings, name) for name in NAMES if name not in _NOT_REHEARSED}
    if settings.model is not None:
        overrides["trainer_args"] = {**(settings.trainer_args or {}), "fast_dev_run": True}
    with tempfile.TemporaryDirectory(prefix="tunelight-check-") as folder:
        overrides |= {"storage": folder, "name": "check", "num_samples": 1, "scheduler": Until(1), "searcher": "random"}
        overrides |= {"checkpoints": None, "resume": False, "failures": replace(settings.failures, give_up_after=0)}
        overrides |= {"progress": False, "max_epochs": None if settings.model is not None else settings.max_epochs}
        results = run(checked.space.fixed(checked.space.dotted(config)), **overrides)
        trial = results.trials[0]
        report = dict(trial.history[0]) if trial.history else {}
        error = trial.error or (None if report else f"it ended as {trial.state} without a report")
        return DryRun(config, {name: report[name] for name in report if name not in _WHEN}, error)
