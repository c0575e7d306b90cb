"""Sweep configurations of Weights & Biases.

https://docs.wandb.ai/guides/sweeps/sweep-config-keys
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunelight.errors import SpaceError, guess

_WANDB = "W&B"
_OF_OTHERS = ("name", "program", "command", "project", "entity", "description", "controller", "job", "image_uri")
"""Keys that say how and where W&B runs a sweep, which tunelight does in its own way."""
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


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a sweep configuration, and its metric, searcher, scheduler and number of trials."""
    read_keys = ("method", "metric", "parameters", "early_terminate", "run_cap")
    for key in given:
        if key not in (*read_keys, *_OF_OTHERS):
            raise SpaceError(
                f"tunelight does not read the key {key!r} of a {_WANDB} sweep.{guess(key, read_keys)} It reads: "
                f"{', '.join(read_keys)}; and leaves out {', '.join(_OF_OTHERS)}."
            )
    parameters = given.get("parameters")
    if not isinstance(parameters, Mapping):
        raise SpaceError(f"A {_WANDB} sweep holds `parameters:`, a mapping, not {parameters!r}.")
    method = given.get("method", "random")
    if method not in _METHODS:
        raise unreadable(_WANDB, "method", repr(method), ", ".join(_METHODS))
    domains = {key: _read(str(key), written, method == "grid") for key, written in parameters.items()}
    written: dict[str, Any] = {}
    if method == "bayes":
        written["searcher"] = "gp"
    if method == "grid":
        written["num_samples"] = 1
    if "run_cap" in given and method != "grid":
        written["num_samples"] = given["run_cap"]
    return domains, {**written, **_metric(given.get("metric")), **_early(given.get("early_terminate"))}


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
    """Return W&B's Hyperband as ASHA, which stops at the same epochs; where it counts them from the end, it cannot."""
    if written is None:
        return {}
    known = ("type", "min_iter", "eta")
    if not isinstance(written, Mapping) or written.get("type") != "hyperband" or not written.keys() <= set(known):
        readable = "{type: hyperband, min_iter: ..., eta: ...}; else leave it out, and say scheduler='asha'"
        raise unreadable(_WANDB, "early_terminate", repr(written), readable)
    return {
        "scheduler": {
            "name": "asha",
            "grace_period": written.get("min_iter", 1),
            "reduction_factor": written.get("eta", 3),
        }
    }


def _read(key: str, written: Any, grid: bool) -> Any:
    if not isinstance(written, Mapping):
        raise SpaceError(
            f"{key}: a parameter of a {_WANDB} sweep is a mapping, {{value: ...}} for one, not {written!r}."
        )
    if "parameters" in written:
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
