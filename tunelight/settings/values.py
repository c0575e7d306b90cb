"""Every setting of a sweep: the fields of ``Settings``, each with its default, check, JSON type and help.

The keywords of SearchSpace, the keys of a YAML file and its JSON Schema, and ``--set`` of the command line follow from
it; ``tunelight.run`` spells the names out for editors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

from tunelight.checkpoints.policy import Checkpoints
from tunelight.compat.lightning import Flavour
from tunelight.errors import ArgumentError, SettingsError, refuse_unknown
from tunelight.messages import Evaluation
from tunelight.policies import FailurePolicy
from tunelight.settings import checks
from tunelight.settings.backends import BACKENDS, Backend, check_backend
from tunelight.settings.code import Style, find_flavour

# ruff: noqa: RUF009 - the calls return dataclass fields


# --- The objectives of a sweep: one metric with its mode, or several --------------------------------------

Mode = Literal["min", "max"]
MODES: tuple[Mode, ...] = ("min", "max")
_NEAR = {
    **dict.fromkeys(("minimize", "minimise", "minimum", "lower", "less"), "min"),
    **dict.fromkeys(("maximize", "maximise", "maximum", "higher", "more", "greater"), "max"),
}


def paired(metric: str | Sequence[str] | None, mode: Mode | Sequence[Mode] | None) -> tuple[tuple[str, Mode], ...]:
    """Return (metric, mode) of each objective; trials are judged by the first. Empty without a metric.

    A single mode (None: "min") applies to all metrics. ``metric`` and ``mode`` are as in ``tunelight.run`` or
    sweep.yaml.
    """
    metrics = (metric,) if isinstance(metric, str) else tuple(metric or ())
    modes: Sequence[Mode] = (mode or "min",) * len(metrics) if mode is None or isinstance(mode, str) else mode
    return tuple(zip(metrics, modes, strict=True))


def check_metric(name: str, value: Any) -> str | list[str]:
    """Return a metric's name, or a list of names. Raises: SettingsError."""
    metrics = list(value) if isinstance(value, list | tuple) else [value]
    for metric in metrics:
        if not isinstance(metric, str) or not metric:
            raise SettingsError(f"{name} must be text, or a list of texts, not {value!r}.")
    if wrong := [metric for metric in metrics if metric in (*MODES, *_NEAR) and len(metrics) > 1]:
        raise SettingsError(
            f"{name}={value!r} names {len(metrics)} metrics, and {wrong[0]!r} looks like a mode. Say "
            f"metric={metrics[0]!r}, mode={_NEAR.get(wrong[0], wrong[0])!r}."
        )
    if not metrics or len(set(metrics)) < len(metrics):
        raise SettingsError(f"{name} must be one metric, or a list of different ones, not {value!r}.")
    return metrics if isinstance(value, list | tuple) else metrics[0]


def check_mode(name: str, value: Any) -> str | list[str]:
    """Return a mode, or a list of modes. Raises: SettingsError."""
    modes = list(value) if isinstance(value, list | tuple) else [value]
    for mode in modes or [value]:
        if mode not in MODES:
            near = _NEAR.get(str(mode).lower()) or next(iter(get_close_matches(str(mode), MODES, n=1)), None)
            hint = f" Did you mean {near!r}?" if near else ""
            raise SettingsError(f"{name} must be 'min' (less is better) or 'max', not {mode!r}.{hint}")
    return modes if isinstance(value, list | tuple) else modes[0]


def check_paired(metric: Any, mode: Any) -> None:
    """Raise SettingsError for a list of modes that has not one for each metric."""
    if not isinstance(mode, str) and (isinstance(metric, str) or len(metric or ()) != len(mode)):
        raise SettingsError(
            f"mode={mode!r} has to hold 'min' or 'max' for each metric, and metric={metric!r}. Give as many modes as "
            "metrics, in their order, or one for all."
        )


# --- The setting ``repeats``: how often the best configurations are trained again, with other seeds or on other folds

_FORMS: Final = "3, {'top': 5, 'repeats': 3} or tl.Folds(5)"
_KEYS: Final = ("top", "repeats", "folds")


@dataclass(frozen=True)
class Folds:
    """Folds for cross-validation, as a sweep's ``repeats=``: each training of a configuration gets a fold of its own.

    Training code reads its fold from ``tl.get_context()``: ``fold`` (from 0) of ``folds``. The trials of the search
    train on fold 0; the ``top`` best configurations are then trained on the others.

    Args:
        folds: how many (2 or more).
        top: how many configurations are trained on all of them (5).

    Raises: SettingsError.
    """

    folds: int
    top: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "folds", checks.whole("Folds: folds", self.folds, least=2))
        object.__setattr__(self, "top", checks.whole("Folds: top", self.top))


@dataclass(frozen=True)
class Repeats:
    """How the best configurations are trained again, once the search is over."""

    repeats: int
    """How many trainings each of them has in all, its trial of the search included."""
    top: int = 5
    """How many configurations."""
    folds: bool = False
    """Whether each training has a fold of its own."""

    @classmethod
    def of(cls, name: str, value: Any) -> Repeats:
        """Return a user's value as Repeats. Raises: SettingsError."""
        if isinstance(value, Repeats):
            return value
        if isinstance(value, Folds):
            return cls(value.folds, value.top, folds=True)
        if not isinstance(value, Mapping):
            if isinstance(value, str | float | list | tuple):
                raise SettingsError(f"{name} must be a whole number of 2 or more, as in {_FORMS}, not {value!r}.")
            return cls(checks.whole(name, value, least=2))
        refuse_unknown(f"{name} has no", value, _KEYS)
        if ("repeats" in value) == ("folds" in value):
            raise SettingsError(
                f"{name} must say either repeats (how often each configuration is trained in all) or folds, and is "
                f"{dict(value)!r}. Say {_FORMS}."
            )
        count = "folds" if "folds" in value else "repeats"
        return cls(
            checks.whole(f"{name}: {count}", value[count], least=2),
            checks.whole(f"{name}: top", value.get("top", 5), least=0 if count == "folds" else 1),
            folds=count == "folds",
        )

    def plain(self) -> dict[str, int]:
        """Return the setting as plain data."""
        return {"folds" if self.folds else "repeats": self.repeats, "top": self.top}


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
        None, checks.datasets, "Data of Ray Data by name: {train: {parquet: path}}."
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
        if self.script is not None:
            from tunelight.extras.scripts.style import script_code

            code |= {file.name: found for file, found in script_code(self.script)}
        return find_flavour(code)

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
    refuse_unknown("There is no setting", names, [*also, *SETTINGS], kind=ArgumentError)


def check_setting(name: str, value: Any) -> Any:
    """Return a setting's value as a sweep uses it. Raises: SettingsError, ImportPathError."""
    check_names([name])
    setting = SETTINGS[name]
    return None if value is None and setting.default is None else setting.check(name, value)


# --- Arguments of Lightning's Trainer that a sweep sets itself: strategy, accelerator and devices ---

_ON_CPUS = ("auto", "cpu")
_ON_GPUS = (*_ON_CPUS, "gpu", "cuda")


def check_trainer_argument(name: str, value: Any, settings: Settings) -> None:
    """Raise SettingsError for a Trainer argument that contradicts the sweep's workers."""
    words = settings.resources_per_trial or {}
    gpus = bool(settings.gpus_per_worker or words.get("extra_gpu"))
    alone = settings.workers in (None, 1) and not (words.get("extra_cpu") or words.get("extra_gpu"))
    if name == "strategy" and not (_is_ours(value) or (alone and not isinstance(value, str))):
        text = value if isinstance(value, str) else type(value).__name__
        replacing = (name for name, spec in BACKENDS.items() if text.lower().startswith(spec.replaces))
        backend = next(replacing, "ddp")
        raise SettingsError(
            f"The Trainer gets strategy={value!r}, but the Trainer of a sweep with model= trains on its trial's "
            f"workers. Leave it out, and say backend={backend!r}; for arguments of a strategy give one of tunelight's, "
            "tl.RayStrategy(find_unused_parameters=True) for example, in a file its class_path with init_args."
        )
    if name == "accelerator" and isinstance(value, str) and value.lower() not in (_ON_GPUS if gpus else _ON_CPUS):
        if value.lower() == "mps":
            if alone and not gpus:
                return  # an Apple GPU, which Ray does not count
            wanted = "an Apple GPU trains one worker alone. Say workers=1, or leave it out: more workers train on CPUs"
        elif value.lower() in _ON_GPUS:
            wanted = "no worker holds a GPU. Say gpus_per_worker=1, and leave the accelerator out"
        else:
            wanted = "workers train on CPUs, or with gpus_per_worker=1 on GPUs. Leave it out"
        raise SettingsError(f"The Trainer gets accelerator={value!r}, but {wanted}.")
    if name in ("devices", "num_nodes") and value not in (1, "1", -1, "-1", "auto"):
        raise SettingsError(
            f"The Trainer gets {name}={value!r}, but each worker of a trial is one process with a device of its own. "
            "Leave it out, and say workers=, the number of workers that train one trial."
        )


def _is_ours(value: Any) -> bool:
    if isinstance(value, Mapping):
        return str(value.get("class_path")).rpartition(".")[2] in {spec.strategy_name for spec in BACKENDS.values()}
    return any(base.__module__.startswith("tunelight.lightning.strategies") for base in type(value).__mro__)
