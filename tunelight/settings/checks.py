"""Checks of single settings: each takes a setting's name and a value, and returns the value as a sweep uses it.

All raise SettingsError, which says what was wanted and what came.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import timedelta
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, cast, get_args

import yaml

from tunelight import stores
from tunelight.checkpoints.policy import Checkpoints
from tunelight.errors import SettingsError, number, refuse_unknown, whole
from tunelight.messages import Evaluation
from tunelight.policies import FailurePolicy
from tunelight.settings.code import Style, import_path, load_object, tune_callback

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# --- numbers, text, collections -----------------------------------------------------------------------------


def anything(_name: str, value: Any) -> Any:
    """Accept any value."""
    return value


def gpus(name: str, value: Any) -> float:
    """Check the GPUs of a worker: none, one, or a part of one."""
    amount = number(name, value, zero=True)
    if amount > 1:
        raise SettingsError(
            f"{name} must be 0, 1 or a part of one, not {value!r}: a worker is one process that trains on one GPU, and "
            "others would stay idle. To train a trial on several GPUs give it as many workers, with one GPU each."
        )
    return amount


def text(name: str, value: Any) -> str:
    """Check text that is not empty."""
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{name} must be text, not {value!r}.")
    return value


def flag(name: str, value: Any) -> bool:
    """Check True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be true or false, not {value!r}.")
    return value


def flag_or_names(name: str, value: Any) -> bool | tuple[str, ...]:
    """Check True, False, or names in a list."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise SettingsError(f"{name} must be true, false or a list of names, not {value!r}.")
    return tuple(value)


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Check a dict."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} must be a dict of names and values, not {value!r}.")
    return value


def _list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SettingsError(f"{name} must be a list, not {value!r}.")
    return tuple(value)


def _check_keys(name: str, keys: Iterable[Any], kind: type[Any]) -> None:
    """Check that keys are arguments of a dataclass."""
    refuse_unknown(f"{name} has no", keys, [entry.name for entry in fields(kind)])


# --- gangs and failures -------------------------------------------------------------------------------------


def workers(name: str, value: Any) -> int | tuple[int, int]:
    """Check a number of workers, or the least and the wanted number of an elastic gang."""
    if not isinstance(value, tuple | list):
        return whole(name, value)
    if len(value) != 2:
        raise SettingsError(f"{name} must be one whole number, or (least, wanted) of an elastic gang, not {value!r}.")
    least, most = (whole(name, count) for count in value)
    if least > most:
        raise SettingsError(
            f"{name}={value!r}: an elastic gang's least number of workers comes first, and {least} is more than "
            f"{most}. Say {name}=({most}, {least})."
        )
    return (least, most)


def failures(name: str, value: Any) -> FailurePolicy:
    """Return a FailurePolicy, also from its arguments or a number of failures."""
    if isinstance(value, FailurePolicy):
        return value
    if isinstance(value, Mapping):
        _check_keys(name, value, FailurePolicy)
        return FailurePolicy(**value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingsError(
            f"{name} must be FailurePolicy(max_failures=3, ...), a dict of its arguments, or a number of failures, not "
            f"{value!r}."
        )
    return FailurePolicy(int(value))


def evaluation(name: str, value: Any) -> Evaluation:
    """Check how validation, test and prediction are divided."""
    if value not in get_args(Evaluation):
        raise SettingsError(
            f"{name} must be 'ddp' (padded shards and values of Lightning's DDP), 'exact' (one process's batches and "
            f"values, for any number of workers) or None (by the gang), not {value!r}."
        )
    return cast("Evaluation", value)


# --- checkpoints and time -----------------------------------------------------------------------------------


def checkpoints(name: str, value: Any) -> Checkpoints | None:
    """Return Checkpoints, also from its arguments or True; None from None and False."""
    if isinstance(value, Checkpoints):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return Checkpoints()
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} must be Checkpoints(keep=1, every=1), or None for none, not {value!r}.")
    _check_keys(name, value, Checkpoints)
    return Checkpoints(**value)


def time_budget(_name: str, value: Any) -> Any:
    """Check a duration, and leave it as it was given."""
    seconds(value)
    return value


def seconds(value: Any, name: str = "time_budget") -> float:
    """Return a duration in seconds: of a number of them, a timedelta, or text such as "2h" and "1h 30m"."""
    if isinstance(value, str):
        compact = value.replace(" ", "").lower()
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", compact)
        if not parts or "".join(map("".join, parts)) != compact:
            raise SettingsError(
                f"{name} must be seconds, a timedelta, or text such as '90s', '30m', '2h', '1h 30m' or "
                f"'1d', not {value!r}."
            )
        value = sum(float(count) * _UNITS[unit] for count, unit in parts)
    return float(number(name, value.total_seconds() if isinstance(value, timedelta) else value))


# --- folders and names --------------------------------------------------------------------------------------


def folder_name(name: str, value: Any) -> str:
    """Check the name of one folder."""
    if not isinstance(value, str) or value in ("", ".", "..") or value != Path(value).name or "\\" in value:
        raise SettingsError(f"{name} must be one folder name, but is {value!r}. Put folders before it into storage=.")
    return value


def storage(name: str, value: Any) -> str | os.PathLike[str]:
    """Check a folder's path, or the URL of a store that can be reached."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SettingsError(f"{name} must be the path of a folder, or a URL such as s3://bucket/sweeps, not {value!r}.")
    if "://" in os.fspath(value):
        stores.check(os.fspath(value))
    elif not isinstance(value, str) and re.match(r"[a-z0-9]+:/", os.fspath(value)):
        raise SettingsError(f"{name} must be given as text where it is a URL: a path has one slash only, {value!r}.")
    else:
        stores.check_folder(value)
    return value


def folders(name: str, value: Any) -> tuple[Path, ...]:
    """Check one or several folders of sweeps; return their absolute paths."""
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(stores.working(storage(name, path)).absolute() for path in given)


def resume(name: str, value: Any) -> Any:
    """Check True, False or "force"."""
    if not isinstance(value, bool) and value != "force":
        raise SettingsError(
            f"{name} must be True (go on with the sweep of that name, if there is one), 'force' (also where what "
            f"is searched or trained has changed) or False, not {value!r}."
        )
    return value


# --- code and configurations --------------------------------------------------------------------------------


def code(_name: str, value: Any) -> Any:
    """Return a function or class, imported where it is given by its path. Also raises: ImportPathError."""
    return load_object(value) if isinstance(value, str) else value


def script(name: str, value: Any) -> str:
    """Check a training script, by its path or its module, and compile it; return its absolute path if it has one."""
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(f"{name} must be the path of a script, 'train.py', or the name of a module, not {value!r}.")
    from tunelight.extras.scripts.style import script_code

    found = os.fspath(value)
    next(script_code(found))
    return str(Path(found).absolute()) if Path(found).is_file() else found


def arguments(name: str, value: Any) -> tuple[str, ...]:
    """Return a script's arguments as text."""
    if isinstance(value, str):
        raise SettingsError(f"{name} must be a list of arguments, {shlex.split(value)!r}, not a text.")
    for item in _list(name, value):
        if isinstance(item, bool) or not isinstance(item, str | int | float | os.PathLike):
            raise SettingsError(f"{name} must be a list of texts and numbers, and holds {item!r}.")
    return tuple(str(item) for item in value)


def style(name: str, value: Any) -> str:
    """Check how a script reads its arguments."""
    refuse_unknown(f"There is no {name}", [value], get_args(Style))
    return str(value)


def callbacks(name: str, value: Any) -> tuple[Any, ...]:
    """Return Ray Tune callbacks, also from classes and their import paths. Also raises: ImportPathError."""
    return tuple(tune_callback(code(name, entry)) for entry in _list(name, value))


def datasets(name: str, value: Any) -> dict[str, Any]:
    """Check datasets by name: Ray Data's, or where to read them."""
    from tunelight.extras.data.server import check_datasets

    return check_datasets(name, value)


def baselines(name: str, value: Any) -> Any:
    """Check a list of configurations."""
    for index, config in enumerate(_list(name, value)):
        if not isinstance(config, Mapping):
            raise SettingsError(f"{name}[{index}] must be a configuration, a dict, not {config!r}.")
    return tuple(dict(config) for config in value)


def scheduler(_name: str, value: Any) -> Any:
    """Accept any scheduler; None is "fifo", as for Ray Tune and Optuna."""
    return "fifo" if value is None else value


def check_grace(grace: Any, time_attr: str | None, max_epochs: int | None) -> None:
    """Raise SettingsError where a scheduler's grace period is longer than a trial, both counted in epochs."""
    counts_epochs = time_attr in (None, "training_iteration", "epoch")
    if max_epochs is not None and counts_epochs and isinstance(grace, Real) and float(grace) > max_epochs:
        raise SettingsError(
            f"The scheduler's grace_period={grace!r} is larger than max_epochs={max_epochs}, so no trial would ever be "
            f"stopped early. Set grace_period to {max_epochs} or less, or raise max_epochs."
        )


# --- Settings as plain data for sweep.yaml --------------------------------------------------------


def plain_setting(value: Any) -> Any:
    """Return a setting's value as plain data: code as its import path, and what has a method ``plain`` as by that."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_setting(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_setting(item) for item in value]
    if isinstance(value, Checkpoints | FailurePolicy):
        return asdict(value)
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, type) or callable(value):
        return import_path(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {"object": import_path(type(value))}


# --- PyYAML's safe loader, which refuses text whose aliases stand for far more than it holds ------

_MOST: Final = 10_000


class BoundedLoader(yaml.SafeLoader):
    """A safe loader of files that others may have written.

    Anchors and aliases in 400 bytes of YAML can stand for a million values, each of which a reader would look at.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Return the document's node. Raises: yaml.YAMLError where aliases stand for more than 10,000 nodes."""
        node = super().get_single_node()
        if node is not None:
            sizes: dict[int, int] = {}
            if _size(node, sizes) - len(sizes) > _MOST:
                raise yaml.MarkedYAMLError(
                    problem=f"its aliases stand for more than {_MOST:,} values", problem_mark=node.start_mark
                )
        return node


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many nodes a node stands for; what an alias repeats counts each time, a cycle once."""
    if id(node) not in sizes:
        sizes[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]


# --- Configurations by dotted key: {"model": {"lr": 0.1}} has the key "model.lr" ------------------


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested configuration by dotted key; an empty mapping is a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            values.update(flatten(value, f"{prefix}{key}."))
        else:
            values[f"{prefix}{key}"] = value
    return values


def holder_of(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the dict that holds a dotted key, and the last part of the key: ``holder[last]`` is its value."""
    head, dot, rest = key.partition(".")
    inner = config.get(head) if dot and key not in config else None
    return holder_of(inner, rest) if isinstance(inner, dict) else (config, key)
