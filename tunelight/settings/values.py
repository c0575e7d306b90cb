# ruff: noqa: RUF009 - the calls return dataclass fields
"""Every setting of a sweep: the fields of ``Settings``, each with its default, check, JSON type and help.

The keywords of SearchSpace, the keys of a YAML file and its JSON Schema, and ``--set`` of the command line follow from
it; ``tunelight.run`` spells the names out for editors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from tunelight.checkpoints.policy import Checkpoints
from tunelight.compat.lightning import Flavour
from tunelight.errors import ArgumentError, unknown
from tunelight.messages import Evaluation
from tunelight.policies import FailurePolicy
from tunelight.settings import checks
from tunelight.settings.backends import Backend, check_backend
from tunelight.settings.checks import check_datasets
from tunelight.settings.code import Style, find_flavour, script_code
from tunelight.settings.objectives import Mode, check_metric, check_mode, check_paired, paired
from tunelight.settings.repeats import Repeats

PARTS: tuple[str, ...] = ("model", "data", "trainer")
"""What the keys of a ``model=`` sweep's search space begin with."""
_MAX_SEED = 2**32 - 1
"""As NumPy's and Lightning's."""
_not_negative = partial(checks.number, zero=True)


@dataclass(frozen=True)
class Setting:
    """What is known of one setting."""

    default: Any
    """As a user would write it."""
    check: Callable[[str, Any], Any]
    """Called with the setting's name and a value; returns the value as a sweep uses it."""
    help: str


def _setting(default: Any, check: Callable[[str, Any], Any], about: str) -> Any:
    """Return a field of :class:`Settings`."""
    return field(default=default, metadata={"setting": Setting(default, check, about)})


@dataclass(frozen=True)
class Settings:
    """All settings of a sweep: one field for each keyword of ``tunelight.run`` but the search space.

    Each value is checked here; ``space.check.check_settings`` checks them against each other and a search space. Import
    paths are imported, ``checkpoints`` may be a mapping. Raises: SettingsError, ImportPathError. Runs on: driver.
    """

    train: Any = _setting(None, checks.code, "The train function, package.module:function.")
    model: Any = _setting(None, checks.code, "The LightningModule's class.")
    data: Any = _setting(None, checks.code, "The LightningDataModule's class.")
    trainer_args: Mapping[str, Any] | None = _setting(
        None, checks.mapping, "More arguments of Lightning's Trainer; objects as class_path and init_args."
    )
    script: str | None = _setting(None, checks.script, "A training script that is run as it is, train.py, or a module.")
    args: Sequence[str] = _setting((), checks.arguments, "The script's arguments, the same for every trial.")
    style: Style | None = _setting(
        None, checks.style, "How the script reads hyperparameters: argparse, fire, lightning (LightningCLI) or hydra."
    )
    datasets: Mapping[str, Any] | None = _setting(
        None, check_datasets, "Data of Ray Data by name: {train: {parquet: path}}."
    )
    data_cpus: float | None = _setting(
        None, _not_negative, "CPUs kept free of trials, to preprocess datasets: 1 where there are any."
    )
    cache: bool = _setting(False, checks.flag, "Read datasets once, before the trials.")
    metric: str | Sequence[str] | None = _setting(
        None, check_metric, "The logged metric that trials are judged by; a list for several objectives."
    )
    mode: Mode | Sequence[Mode] = _setting(
        "min", check_mode, "Whether less or more is better; a list for several objectives."
    )
    num_samples: int = _setting(10, checks.whole, "Trials in all; of grid_search axes: how often they are searched.")
    repeats: Repeats | None = _setting(
        None,
        Repeats.of,
        "How often the best 5 configurations are trained in all, with other seeds: 3, {top: 5, repeats: 3}, or on "
        "folds: {folds: 5}.",
    )
    max_epochs: int | None = _setting(None, checks.whole, "Epochs of a model='s Trainer; max_t of a scheduler.")
    scheduler: Any = _setting("asha", checks.scheduler, "Which trials are stopped early: asha, elastic_asha, fifo, ...")
    searcher: Any = _setting(None, checks.anything, "Where configurations come from: random, auto, tpe, gp, cmaes, ...")
    workers: int | tuple[int, int] | None = _setting(
        None, checks.workers, "Workers of a trial; [1, 4] is an elastic gang of one to four."
    )
    cpus_per_worker: float = _setting(1, checks.number, "CPUs of each worker.")
    gpus_per_worker: float = _setting(0, checks.gpus, "GPUs of each worker: 0, 1, or a part of one.")
    resources_per_trial: Mapping[str, Any] | None = _setting(
        None, checks.mapping, "The same in Ray Tune's older terms: {cpu: 1, extra_cpu: 4}."
    )
    backend: Backend = _setting("ddp", check_backend, "How the workers of a trial train together.")
    reuse_gangs: bool | None = _setting(
        None, checks.flag, "Keep workers warm from trial to trial (a script's only if true), and Ray from run to run."
    )
    checkpoints: Checkpoints | None = _setting(
        True, checks.checkpoints, "Which checkpoints are kept: {keep: 1, every: 1}; false: none with model= or script=."
    )
    max_concurrent: int | None = _setting(None, checks.whole, "Trials that run at once, at most.")
    time_budget: float | str | timedelta | None = _setting(
        None, checks.time_budget, "After which the sweep ends: seconds, or 2h, 1h 30m."
    )
    storage: str | os.PathLike[str] = _setting("tunelight_runs", checks.storage, "The folder of sweeps, or its URL.")
    name: str | None = _setting(None, checks.folder_name, "The sweep's name, which is that of its folder.")
    resume: bool | Literal["force"] = _setting(
        False, checks.resume, "Go on with the sweep of that name, if there is one."
    )
    seed: int | None = _setting(
        None, partial(checks.whole, least=0, most=_MAX_SEED), "Seeds configurations and trials."
    )
    baselines: Sequence[Mapping[str, Any]] = _setting((), checks.baselines, "Configurations to try first.")
    warm_start: Sequence[Path] = _setting(
        (), checks.folders, "Earlier sweeps for the searcher to learn from, or folders of sweeps."
    )
    callbacks: Sequence[Any] = _setting((), checks.callbacks, "Ray Tune callbacks, package.module:Class.")
    failures: FailurePolicy = _setting(3, checks.failures, "How many lost workers and hangs a trial survives.")
    evaluation: Evaluation | None = _setting(
        None,
        checks.evaluation,
        "How validation and test are divided: ddp, as by Lightning's DDP, or exact, as in one process.",
    )
    address: str | None = _setting(None, checks.text, "The address of a Ray cluster.")
    runtime_env: Mapping[str, Any] | None = _setting(None, checks.mapping, "Ray's runtime environment for the workers.")
    progress: bool | Sequence[str] = _setting(
        True, checks.flag_or_names, "Show the live table, with the columns of a list."
    )
    web: bool = _setting(False, checks.flag, "Serve a live page of the sweep, and print its address.")
    verbose: int = _setting(0, partial(checks.whole, least=0, most=2), "How much is printed: 0, 1 or 2.")

    def __post_init__(self) -> None:
        for name in SETTINGS:
            object.__setattr__(self, name, check_setting(name, getattr(self, name)))
        if isinstance(self.scheduler, Mapping):
            checks.check_grace(self.scheduler.get("grace_period"), self.scheduler.get("time_attr"), self.max_epochs)
        check_paired(self.metric, self.mode)

    @cached_property
    def lightning(self) -> Flavour:
        """The package of Lightning that the code is written with. Raises: TrainFunctionError if that is unclear."""
        code = {name: getattr(self, name) for name in ("model", "data", "train")}
        files = () if self.script is None else script_code(self.script)
        return find_flavour({**code, **{file.name: found for file, found in files}})

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """Metric and mode of each objective; trials are judged by the first."""
        return paired(self.metric, self.mode)

    @property
    def judged_by(self) -> dict[str, Any]:
        """The ``metric`` and ``mode`` of the first objective."""
        return dict(zip(("metric", "mode"), (*self.objectives, (None, self.mode))[0], strict=True))

    @property
    def recorded(self) -> dict[str, Any]:
        """What the record says of how trials are judged, and of what workers with GPUs have.

        ``metric`` and ``mode`` are those of the first objective; ``further`` and ``repeats`` are there if they are set,
        and ``cpus_per_worker`` and ``gpus_per_worker`` where workers have GPUs.
        """
        further = [list(pair) for pair in self.objectives[1:]]
        repeats = {} if self.repeats is None else {"repeats": self.repeats.plain()}
        names = ("cpus_per_worker", "gpus_per_worker") if self.gpus_per_worker else ()
        each = {name: getattr(self, name) for name in names}
        return {**self.judged_by, **({"further": further} if further else {}), **repeats, **each}

    @property
    def folds(self) -> int | None:
        """How many folds there are, where each training of a configuration has its own."""
        return self.repeats.repeats if self.repeats is not None and self.repeats.folds else None

    @property
    def budget_s(self) -> float | None:
        """The time budget in seconds."""
        return None if self.time_budget is None else checks.seconds(self.time_budget)

    @property
    def room_for_data(self) -> float:
        """How many CPUs trials leave free for preprocessing datasets."""
        return 0.0 if not self.datasets else 1.0 if self.data_cpus is None else self.data_cpus


SETTINGS: Mapping[str, Setting] = {entry.name: entry.metadata["setting"] for entry in fields(Settings)}
"""Every setting by name, in the order of ``tunelight.run``."""
NAMES: tuple[str, ...] = tuple(SETTINGS)


def check_names(names: Iterable[str], also: Sequence[str] = ()) -> None:
    """Raise SettingsError unless every name is that of a setting, or in ``also``."""
    for name in names:
        if name not in SETTINGS and name not in also:
            raise ArgumentError(unknown("There is no setting", name, [*also, *SETTINGS]))


def check_setting(name: str, value: Any) -> Any:
    """Return a setting's value as a sweep uses it. Raises: SettingsError, ImportPathError."""
    check_names([name])
    setting = SETTINGS[name]
    return None if value is None and setting.default is None else setting.check(name, value)
