"""What a sweep can be told: every setting, its default and its check."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunelight import stores
from tunelight.compat.arguments import known_fields, replacement
from tunelight.errors import ArgumentError, SettingsError, guess, unknown
from tunelight.messages import OnResize
from tunelight.policies import FailurePolicy
from tunelight.settings.backends import Backend, check_backend
from tunelight.settings.code import check_model, load_object, tune_callback
from tunelight.settings.data import Fed, check_datasets
from tunelight.settings.objectives import Judged, Mode, check_metric, check_mode, check_paired

if TYPE_CHECKING:
    from tunelight.space import SearchSpace

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@known_fields("checkpoints")
@dataclass(frozen=True)
class Checkpoints:
    """Which checkpoints are kept, and when one is written.

    Args:
        keep: how many of the best are kept (1), beside the last and the one before it.
        every: one is written every ``every`` reports (1);
        every_s: but not sooner than so many seconds after the last one (0);
        share: nor where they would block training for more than this share of the time (0.05).
    """

    keep: int = 1
    every: int = 1
    every_s: float = 0.0
    share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("keep", "every"):
            object.__setattr__(self, name, _whole(f"checkpoints: {name}", getattr(self, name)))
        object.__setattr__(self, "every_s", _number("checkpoints: every_s", self.every_s, zero=True))
        object.__setattr__(self, "share", _number("checkpoints: share", self.share))
        if self.share > 1:
            raise SettingsError(f"checkpoints: share must be 1 or less (0.05: a twentieth), not {self.share!r}.")


PARTS: tuple[str, ...] = ("model", "data", "trainer")
"""What the keys of a ``model=`` sweep's search space begin with."""


@dataclass(frozen=True)
class Settings(Judged, Fed):
    """All that a sweep can be told beside its search space: one field for each keyword of ``tunelight.run``.

    The same names are keywords of SearchSpace and keys of a YAML file. Values are checked one by one here
    and against each other in :meth:`check`; import paths are imported, ``checkpoints`` may be a mapping.
    Raises: SettingsError, ImportPathError. Runs on: driver.
    """

    train: Any = None
    model: Any = None
    data: Any = None
    trainer_args: Mapping[str, Any] | None = None
    datasets: Mapping[str, Any] | None = None
    data_cpus: float | None = None
    cache: bool = False
    metric: str | Sequence[str] | None = None
    mode: Mode | Sequence[Mode] = "min"
    num_samples: int = 10
    max_epochs: int | None = None
    scheduler: Any = "asha"
    searcher: Any = None
    workers: int | tuple[int, int] | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    resources_per_trial: Mapping[str, Any] | None = None
    backend: Backend = "ddp"
    reuse_gangs: bool = True
    checkpoints: Checkpoints | None = field(default_factory=Checkpoints)
    max_concurrent: int | None = None
    time_budget: float | str | timedelta | None = None
    storage: str | os.PathLike[str] = "tunelight_runs"
    name: str | None = None
    resume: bool | Literal["force"] = False
    seed: int | None = None
    baselines: Sequence[Mapping[str, Any]] = ()
    warm_start: Sequence[str | os.PathLike[str]] = ()
    callbacks: Sequence[Any] = ()
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    on_resize: OnResize = field(default_factory=OnResize)
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    progress: bool = True
    verbose: int = 0

    def __post_init__(self) -> None:
        for name in NAMES:
            object.__setattr__(self, name, check_setting(name, getattr(self, name)))
        _check_grace(self.scheduler, self.max_epochs)
        check_paired(self.metric, self.mode)

    @property
    def budget_s(self) -> float | None:
        """The time budget in seconds."""
        return None if self.time_budget is None else _seconds(self.time_budget)

    def check(self, space: SearchSpace) -> None:
        """Raise SettingsError or SpaceError where settings contradict each other or ``space``."""
        if self.train is None and self.model is None:
            raise SettingsError(
                "There is nothing to train. Give a train function, tl.run(space, train), or model= and data=."
            )
        if self.train is not None and self.model is not None:
            raise SettingsError(
                "Both train and model= are given, and a sweep trains one of them. Leave one out (where the "
                "search space holds it: pass train=None or model=None)."
            )
        for name in ("data", "trainer_args") if self.model is None else ():
            if getattr(self, name) is not None:
                raise SettingsError(
                    f"{name}= is given without model=: only a sweep that builds the Trainer itself can use "
                    "it. Give model=, or build it inside the train function."
                )
        if self.resume and self.name is None:
            raise SettingsError(
                "resume= is given without name=, so which sweep is to go on is not known. Give the sweep a name in "
                "its first call already: name='digits', resume=True starts it, and goes on with it ever after."
            )
        if self.metric is None:
            raise SettingsError(
                "No metric is given, so no trial could be judged. Say metric='val_loss' (and mode='max' "
                "where more is better) in tl.run, in SearchSpace, or as `metric:` in the YAML file."
            )
        if self.model is not None:
            with space.placing(self, "model"):
                check_model(self.model, self.data)
            space.check_parts(self.model, self.data, self.trainer_args)
            space.check_trainer(self)
        space.check_constraints()
        space.check_baselines(self.baselines)


# --- single values ----------------------------------------------------------------------------------------


def check_names(names: Iterable[str], also: Sequence[str] = ()) -> None:
    """Raise SettingsError unless every name is that of a setting, or in ``also``."""
    for name in names:
        if name not in NAMES and name not in also:
            valid = [*also, *NAMES]
            raise ArgumentError(unknown("There is no setting", name, valid, replacement(name, valid)))


def check_setting(name: str, value: Any) -> Any:
    """Return a setting's value as a sweep uses it. Raises: SettingsError, ImportPathError."""
    check_names([name])
    if value is None and _DEFAULTS[name] is None:
        return None
    return _CHECKS.get(name, _as_it_is)(name, value)


def _as_it_is(_name: str, value: Any) -> Any:
    return value


def _whole(name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        wanted = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
        raise SettingsError(f"{name} must be a whole number {wanted}, not {value!r}.")
    return int(value)


def _number(name: str, value: Any, zero: bool = False) -> float:
    wanted = "0 or more" if zero else "more than 0"
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SettingsError(f"{name} must be a number, {wanted}, not {value!r}.")
    if value < 0 or (value == 0 and not zero):
        raise SettingsError(f"{name} must be {wanted}, not {value!r}.")
    return int(value) if isinstance(value, Integral) else float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{name} must be text, not {value!r}.")
    return value


def _name(name: str, value: Any) -> str:
    if _text(name, value) in (".", "..") or value != Path(value).name or "\\" in value:
        raise SettingsError(f"{name} must be one folder name, but is {value!r}. Put folders before it into storage=.")
    return str(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be true or false, not {value!r}.")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} must be a dict of names and values, not {value!r}.")
    return value


def _workers(name: str, value: Any) -> int | tuple[int, int]:
    if not isinstance(value, tuple | list):
        return _whole(name, value)
    if len(value) != 2:
        raise SettingsError(f"{name} must be one whole number, or (least, wanted) of an elastic gang, not {value!r}.")
    least, wanted = (_whole(name, number) for number in value)
    if least > wanted:
        raise SettingsError(
            f"{name}={value!r}: an elastic gang's least number of workers comes first, and {least} is more than "
            f"{wanted}. Say {name}=({wanted}, {least})."
        )
    return (least, wanted)


def _failures(name: str, value: Any) -> FailurePolicy:
    if isinstance(value, FailurePolicy):
        return value
    if isinstance(value, Mapping):
        valid = [entry.name for entry in fields(FailurePolicy)]
        for key in value:
            if key not in valid:
                raise SettingsError(unknown(f"{name} has no", key, valid, replacement(key, valid, "failures")))
        return FailurePolicy(**value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingsError(
            f"{name} must be FailurePolicy(max_failures=3, ...), a dict of its arguments, or a number of failures, not "
            f"{value!r}."
        )
    return FailurePolicy(int(value))


_KEEPS: dict[str, Literal["batch", "linear"]] = {"keep_global_batch": "batch", "scale_lr": "linear"}


def _on_resize(name: str, value: Any) -> OnResize:
    if isinstance(value, OnResize):
        return value
    if isinstance(value, str):
        if value not in _KEEPS:
            raise SettingsError(f"There is no {name}={value!r}.{guess(value, _KEEPS)} There are: {', '.join(_KEEPS)}.")
        return OnResize(keep=_KEEPS[value])
    told = dict(_mapping(name, value))
    rule, steps = told.pop("scale_lr", "linear"), told.pop("warmup_steps", 0)
    if told:
        raise SettingsError(f"{name} has no {next(iter(told))!r}. There are: scale_lr, warmup_steps.")
    if rule not in ("linear", "sqrt"):
        raise SettingsError(f"{name}: scale_lr must be 'linear' or 'sqrt', not {rule!r}.")
    return OnResize(keep=rule, warmup_steps=_whole(f"{name}: warmup_steps", steps, 0))


def _checkpoints(_name: str, value: Any) -> Checkpoints | None:
    if isinstance(value, Checkpoints):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return Checkpoints()
    if not isinstance(value, Mapping):
        raise SettingsError(f"checkpoints must be Checkpoints(keep=1, every=1), or None for none, not {value!r}.")
    valid = [entry.name for entry in fields(Checkpoints)]
    for key in value:
        if key not in valid:
            raise SettingsError(unknown("checkpoints has no", key, valid, replacement(key, valid, "checkpoints")))
    return Checkpoints(**value)


def _budget(_name: str, value: Any) -> Any:
    _seconds(value)
    return value


def _seconds(value: Any) -> float:
    """Return a duration in seconds: a number of them, a timedelta, or text as "2h", "1h 30m"."""
    if isinstance(value, str):
        text = value.replace(" ", "").lower()
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if not parts or "".join(map("".join, parts)) != text:
            raise SettingsError(
                f"time_budget must be seconds, a timedelta, or text such as '90s', '30m', '2h', '1h 30m' or "
                f"'1d', not {value!r}."
            )
        value = sum(float(count) * _UNITS[unit] for count, unit in parts)
    return float(_number("time_budget", value.total_seconds() if isinstance(value, timedelta) else value))


def _storage(name: str, value: Any) -> str | os.PathLike[str]:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SettingsError(f"{name} must be the path of a folder, or a URL such as s3://bucket/sweeps, not {value!r}.")
    if "://" in os.fspath(value):
        stores.check(os.fspath(value))
    elif not isinstance(value, str) and re.match(r"[a-z0-9]+:/", os.fspath(value)):
        raise SettingsError(f"{name} must be given as text where it is a URL: a path has one slash only, {value!r}.")
    else:
        stores.check_folder(value)
    return value


def _resume(name: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "force":
        raise SettingsError(
            f"{name} must be True (go on with the sweep of that name, if there is one), 'force' (also where what "
            f"is searched or trained has changed) or False, not {value!r}."
        )
    return value


def _scheduler(_name: str, value: Any) -> Any:
    return "fifo" if value is None else value  # as Ray Tune and Optuna read None: nothing is stopped


def _list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SettingsError(f"{name} must be a list, not {value!r}.")
    return tuple(value)


def _baselines(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    for index, config in enumerate(_list(name, value)):
        if not isinstance(config, Mapping):
            raise SettingsError(f"baselines[{index}] must be a configuration, a dict, not {config!r}.")
    return tuple(dict(config) for config in value)


def _folders(name: str, value: Any) -> tuple[Path, ...]:
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(stores.working(_storage(name, one)).absolute() for one in given)


def _code(_name: str, value: Any) -> Any:
    return load_object(value) if isinstance(value, str) else value


def _callbacks(name: str, value: Any) -> tuple[Any, ...]:
    return tuple(tune_callback(_code(name, entry)) for entry in _list(name, value))


def _check_grace(scheduler: Any, max_epochs: int | None) -> None:
    """Refuse a grace period that no trial can reach the end of, where both are counted in epochs."""

    def told(*names: str) -> Any:
        if isinstance(scheduler, Mapping):
            return scheduler.get(names[0])
        return next((getattr(scheduler, name) for name in names if hasattr(scheduler, name)), None)

    grace = told("grace_period", "_grace_period", "_grace")
    counted = told("time_attr", "_time_attr") in (None, "training_iteration", "epoch")
    if max_epochs is not None and counted and isinstance(grace, Real) and float(grace) > max_epochs:
        raise SettingsError(
            f"The scheduler's grace_period={grace!r} is larger than max_epochs={max_epochs}, so no trial "
            f"would ever be stopped early. Set grace_period to {max_epochs} or less, or raise max_epochs."
        )


_DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in fields(Settings)}
NAMES: tuple[str, ...] = tuple(_DEFAULTS)
"""Every setting's name, as in ``tunelight.run``."""

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("train", "model", "data"), _code),
    **dict.fromkeys(("trainer_args", "resources_per_trial", "runtime_env"), _mapping),
    "scheduler": _scheduler,
    "name": _name,
    "address": _text,
    "metric": check_metric,
    "datasets": check_datasets,
    **dict.fromkeys(("num_samples", "max_epochs", "max_concurrent"), _whole),
    "seed": functools.partial(_whole, least=0, most=2**32 - 1),  # as NumPy's and Lightning's
    "verbose": functools.partial(_whole, least=0, most=2),
    "failures": _failures,
    "on_resize": _on_resize,
    **dict.fromkeys(("reuse_gangs", "progress", "cache"), _flag),
    "mode": check_mode,
    "workers": _workers,
    "cpus_per_worker": _number,
    **dict.fromkeys(("gpus_per_worker", "data_cpus"), functools.partial(_number, zero=True)),
    "backend": check_backend,
    "checkpoints": _checkpoints,
    "time_budget": _budget,
    "storage": _storage,
    "resume": _resume,
    "baselines": _baselines,
    "warm_start": _folders,
    "callbacks": _callbacks,
}
