"""Check a sweep before it runs: its settings, whether its gang fits the cluster, and one batch of training."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunelight.cluster.connect import check_runtime_env, init_ray, live_nodes
from tunelight.compat.ray import local_cpus, local_gpus
from tunelight.errors import ResourceError
from tunelight.record.view import WHEN
from tunelight.resources import Reservation, fitted
from tunelight.settings import NAMES, Settings
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.sweep.run import build_parts, run

_NOT_TRIED = ("baselines", "callbacks", "time_budget", "max_concurrent", "warm_start")
"""Settings that do not apply to one batch of one trial."""


@dataclass(frozen=True)
class Checked:
    """A sweep whose settings are valid.

    ``cluster`` and ``nodes``: a name for the cluster that was checked, and the resources of its nodes; ``misfit``: why
    the gang can never start there, or None. Of a sweep of a script, ``commands`` has its arguments for each sample, and
    ``about`` says how they are written, and why.
    """

    space: SearchSpace
    settings: Settings
    reservation: Reservation
    samples: Sequence[Mapping[str, Any]]
    cluster: str
    nodes: Sequence[Mapping[str, float]]
    misfit: str | None
    commands: Sequence[Sequence[str]] = ()
    about: str = ""

    @property
    def trials(self) -> int:
        """How many trials the sweep makes."""
        from tunelight.searchers.choose import count_trials  # imports Ray Tune

        return count_trials(self.space, self.settings)


def check(space: SearchSpace, overrides: Mapping[str, Any], samples: int = 5) -> Checked:
    """Check everything of a sweep that can be checked without training, and draw some configurations.

    ``overrides``: settings that override the space's. Raises: subclasses of TunelightError. Runs on: driver; connects
    to a Ray cluster only if an address or RAY_ADDRESS names one.
    """
    settings = Settings(**{**space.settings, **overrides})
    check_settings(space, settings)
    reservation, code = build_parts(space, settings)[:2]
    if settings.runtime_env:
        with space.placing(settings, "runtime_env"):
            check_runtime_env(settings.runtime_env)
    cluster, nodes = nodes_of(settings.address)
    misfit = None
    try:
        fitted(reservation, nodes, data_cpus=settings.room_for_data)
    except ResourceError as error:
        misfit = str(error)
    rng = np.random.RandomState(settings.seed or 0)
    drawn = [space.sample(rng, grid_index=index % space.grid_size) for index in range(samples)]  # a grid's first points
    checked = Checked(space, settings, reservation, drawn, cluster, nodes, misfit)
    if settings.script is None:
        return checked
    script: Any = code
    return replace(checked, commands=[script.command(config) for config in drawn], about=script.about)


def nodes_of(address: str | None = None) -> tuple[str, list[dict[str, float]]]:
    """Return the name of the cluster at ``address`` or RAY_ADDRESS, else of this machine, and each node's resources.

    The Ray of this process is used, if there is one. "auto" is a cluster of which this machine is a node. Raises:
    ResourceError where the address does not answer.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return "this machine", [{"CPU": float(local_cpus()), "GPU": float(local_gpus())}]
    import ray

    ours = not ray.is_initialized()
    try:
        if ours:
            init_ray(address, None, 0)
        known = ray.get_runtime_context().gcs_address if address == "auto" else address
        return f"the cluster at {known}", live_nodes()
    finally:
        if ours:
            ray.shutdown()


@dataclass(frozen=True)
class DryRun:
    """The result of training one batch: the reported metrics, or the trial's ``error``."""

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    error: str | None


def dry_run(checked: Checked) -> DryRun:
    """Train one batch with the first sample on the sweep's gang, in a temporary sweep folder.

    A ``model=`` sweep trains and validates one batch (Lightning's ``fast_dev_run``); a train function runs until its
    first report. No checkpoint is written. Runs on: driver; starts Ray or uses a running one.
    """
    from tunelight.extras.reproduce import Until  # imports Ray Tune

    settings, config = checked.settings, checked.samples[0]
    overrides = {name: getattr(settings, name) for name in NAMES if name not in _NOT_TRIED}
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
        return DryRun(config, {name: report[name] for name in report if name not in WHEN}, error)
