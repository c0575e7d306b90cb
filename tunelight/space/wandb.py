"""Sweep configurations of Weights & Biases.

https://docs.wandb.ai/guides/sweeps/sweep-config-keys
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tunelight.errors import SpaceError, guess

_WANDB = "W&B"
_CALL = ("program", "command")
"""Keys that say which script is run, and how; :func:`script` reads them."""
_OF_OTHERS = ("name", "project", "entity", "description", "controller", "job", "image_uri")
"""Keys that say where W&B keeps a sweep, which tunelight does in its own way."""
WORDS = {
    "space": "parameters",
    "script": "program",
    "args": "command",
    "searcher": "method",
    "scheduler": "early_terminate",
    "num_samples": "run_cap",
    "mode": "metric",
}
"""What W&B calls settings of tunelight's."""
_METHODS = ("random", "grid", "bayes")
_MODES = {"minimize": "min", "maximize": "max"}

_BOUNDED = {
    "uniform": "uniform",
    "log_uniform_values": "loguniform",
    "q_uniform": "quniform",
    "q_log_uniform_values": "qloguniform",
    "int_uniform": "randint",
}
_NORMAL = {"normal": "randn", "q_normal": "qrandn"}
_KNOWN = ("constant", "categorical", *_BOUNDED, *_NORMAL)


def unreadable(program: str, key: str, what: str, valid: str) -> SpaceError:
    """Return the error for something of another program that tunelight does not support."""
    return SpaceError(f"{key}: tunelight has no equivalent of {program}'s {what}. It reads: {valid}.")


def read(given: Mapping[str, Any], at: Callable[..., str] = lambda *_: "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a sweep configuration, and its metric, searcher, scheduler and number of trials.

    ``at`` returns what errors about the value at a path of keys begin with.
    """
    read_keys = ("method", "metric", "parameters", "early_terminate", "run_cap")
    for key in given:
        if key not in (*read_keys, *_CALL, *_OF_OTHERS):
            raise SpaceError(
                f"{at(key)}tunelight does not read the key {key!r} of a {_WANDB} sweep.{guess(key, read_keys)} It "
                f"reads: {', '.join(read_keys)}; and leaves out {', '.join(_OF_OTHERS)}."
            )
    parameters = given.get("parameters")
    if not isinstance(parameters, Mapping):
        raise SpaceError(f"{at()}A {_WANDB} sweep holds `parameters:`, a mapping, not {parameters!r}.")
    method = given.get("method", "random")
    with _placed(at, "method"):
        if method not in _METHODS:
            raise unreadable(_WANDB, "method", repr(method), ", ".join(_METHODS))
    domains = {}
    for key, parameter in parameters.items():
        with _placed(at, "parameters", key):
            domains[key] = _read(str(key), parameter, method == "grid")
    written: dict[str, Any] = {}
    if method == "bayes":
        written["searcher"] = "gp"
    if method == "grid":
        written["num_samples"] = 1
    if "run_cap" in given and method != "grid":
        written["num_samples"] = given["run_cap"]
    elif "run_cap" in given and isinstance(cap := given["run_cap"], int) and cap < (size := _size(parameters)):
        raise SpaceError(
            f"{at('run_cap')}run_cap: the grid has {size} configurations, of which tunelight trains all. Leave run_cap "
            "out, or say method: random."
        )
    with _placed(at, "metric"):
        written |= _metric(given.get("metric"))
    with _placed(at, "early_terminate"):
        written |= _early(given.get("early_terminate"))
    return domains, written


@contextlib.contextmanager
def _placed(at: Callable[..., str], *keys: str) -> Iterator[None]:
    """Begin errors with the place of the value that they are about."""
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"{at(*keys)}{error}") from error


# --- the script -------------------------------------------------------------------------------------------

_MACRO = re.compile(r"\$\{(\w+)(?::(\w+))?\}")
_LAUNCHERS = ("/usr/bin/env", "env", "torchrun", "accelerate", "launch", "-m", "-u")
"""What stands before a program and does not matter here, beside a Python and the options of a launcher."""
_ARGS = ("args", "args_no_hyphens", "args_no_boolean_flags", "args_json")
"""Macros that stand for all hyperparameters; ``tunelight.scripts`` puts them in."""


def script(given: Mapping[str, Any], at: Callable[..., str] = lambda *_: "") -> dict[str, Any]:
    """Return the settings ``script`` and ``args`` that a sweep configuration's program and command say; {} without.

    Raises: SpaceError for a command that does not run a Python script.
    """
    program, command = given.get("program"), given.get("command")
    if isinstance(command, str):
        command = shlex.split(command)
    if command is None:
        return {} if program is None else {"script": str(program)}
    with _placed(at, "command"):
        if not isinstance(command, Sequence):
            raise SpaceError(f"command: a {_WANDB} sweep lists the words of its command, not {command!r}.")
        words = [_filled(str(word), program) for word in command]
        place = next((index for index, word in enumerate(words) if _is_script(word, program)), None)
        if place is None:
            raise SpaceError(
                f"command: none of its words is a Python script: {shlex.join(words)}. Name one as program:, and say "
                "${program} where it stands."
            )
        before = words[:place]
        if other := [word for word in before if not _may_come_first(word)]:
            raise SpaceError(
                f"command: tunelight runs {words[place]} on a trial's workers by itself, and knows no {other[0]!r} "
                "before it. Leave that out; the environment of workers is set by runtime_env."
            )
        return {"script": words[place], "args": words[place + 1 :] or ["${args}"]}


def _filled(word: str, program: Any) -> str:
    def value(found: re.Match[str]) -> str:
        name, variable = found[1], found[2]
        if name == "envvar" and variable:
            if variable not in os.environ:
                raise SpaceError(f"command: {found[0]} names a variable that is not set here. Set {variable}.")
            return os.environ[variable]
        known = {"env": "/usr/bin/env", "interpreter": "python", "program": str(program)}
        if name in known and (name != "program" or program is not None):
            return known[name]
        if name not in _ARGS:
            raise unreadable(
                _WANDB,
                "command",
                found[0],
                "${program}, ${env}, ${interpreter}, ${envvar:NAME}, " + ", ".join(f"${{{one}}}" for one in _ARGS),
            )
        return found[0]

    return _MACRO.sub(value, word)


def _is_script(word: str, program: Any) -> bool:
    return word.endswith(".py") or word == program


def _may_come_first(word: str) -> bool:
    return word in _LAUNCHERS or word.startswith("--") or re.fullmatch(r"(.*/)?python[\d.]*", word) is not None


# --- the rest ---------------------------------------------------------------------------------------------


def _metric(written: Any) -> dict[str, Any]:
    if written is None:
        return {}
    if not isinstance(written, Mapping) or "name" not in written:
        raise SpaceError(f"metric: a {_WANDB} sweep says {{name: ..., goal: minimize}}, not {written!r}.")
    goal = written.get("goal", "minimize")
    if goal not in _MODES:
        raise unreadable(_WANDB, "metric", f"goal {goal!r}", ", ".join(_MODES))
    for key in written:
        if key not in ("name", "goal"):
            raise unreadable(_WANDB, "metric", repr(key), "name, goal")
    return {"metric": written["name"], "mode": _MODES[goal]}


def _early(written: Any) -> dict[str, Any]:
    """Return W&B's Hyperband as ASHA, which stops at the same epochs; where it counts them from the end, it cannot.

    A sweep without early termination trains all its runs to their end.
    """
    if written is None:
        return {"scheduler": "fifo"}
    forms = ({"type", "min_iter", "eta"}, {"type", "max_iter", "s", "eta"})
    given = written if isinstance(written, Mapping) else {}
    eta, first = given.get("eta", 3), given.get("min_iter", 1)
    try:
        if given.get("type") != "hyperband" or not any(given.keys() <= form for form in forms):
            raise KeyError("type")
        if "max_iter" in given:  # its brackets end at max_iter / eta, ..., max_iter / eta**s
            first = max(1, int(given["max_iter"] / eta ** given["s"]))
    except (KeyError, TypeError, ZeroDivisionError, OverflowError) as error:
        readable = "{type: hyperband, min_iter: ..., eta: ...} and {type: hyperband, max_iter: ..., s: ..., eta: ...}"
        raise unreadable(_WANDB, "early_terminate", repr(written), f"{readable}; else say scheduler='asha'") from error
    return {"scheduler": {"name": "asha", "grace_period": first, "reduction_factor": eta}}


def _size(parameters: Mapping[str, Any]) -> int:
    """Return how many configurations the grid over parameters has, which are read already."""
    inner = (each.get("parameters") for each in parameters.values())
    sizes = (len(each.get("values", (0,))) for each in parameters.values())
    return int(math.prod(sizes)) * math.prod(_size(each) for each in inner if each is not None)


def _read(key: str, written: Any, grid: bool) -> Any:
    if not isinstance(written, Mapping):
        raise SpaceError(
            f"{key}: a parameter of a {_WANDB} sweep is a mapping, {{value: ...}} for one, not {written!r}."
        )
    if "parameters" in written:
        if not isinstance(written["parameters"], Mapping):
            raise SpaceError(f"{key}.parameters: a mapping of parameters, not {written['parameters']!r}.")
        return {inner: _read(f"{key}.{inner}", part, grid) for inner, part in written["parameters"].items()}
    kind = written.get("distribution") or _implied(written)
    if kind not in _KNOWN:
        raise unreadable(_WANDB, key, f"distribution {kind!r}", ", ".join(_KNOWN))
    taken = {"constant": ("value",), "categorical": ("values",), **dict.fromkeys(_NORMAL, ("mu", "sigma", "q"))}
    for name in written:
        if name not in ("distribution", *taken.get(kind, ("min", "max", "q"))):
            raise unreadable(_WANDB, key, f"{name!r} of {kind}", ", ".join(taken.get(kind, ("min", "max", "q"))))
    try:
        domain = _domain(kind, written)
    except KeyError as error:
        raise SpaceError(f"{key}: {kind} lacks its {error}.") from error
    return domain if not grid or kind == "constant" else _as_grid(key, kind, written)


def _implied(written: Mapping[str, Any]) -> str | None:
    """Return the distribution that a parameter has which names none."""
    if "value" in written:
        return "constant"
    if "values" in written:
        return "categorical"
    if "min" in written and "max" in written:
        whole = all(isinstance(written[end], int) and not isinstance(written[end], bool) for end in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return None


def _domain(kind: str, written: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "constant":
        return {"fixed": written["value"]}
    if kind == "categorical":
        return {"choice": written["values"]}
    step = [written.get("q", 1)] if kind.startswith("q_") else []
    if kind in _NORMAL:
        return {_NORMAL[kind]: [written.get("mu", 0.0), written.get("sigma", 1.0), *step]}
    upper = written["max"] + 1 if kind == "int_uniform" else written["max"]
    return {_BOUNDED[kind]: [written["min"], upper, *step]}


def _as_grid(key: str, kind: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a grid search."""
    if kind == "categorical":
        return {"grid_search": written["values"]}
    if kind == "int_uniform":
        return {"grid_search": list(range(written["min"], written["max"] + 1))}
    raise unreadable(_WANDB, key, f"grid over {kind}", "grids over constant, categorical, int_uniform")
