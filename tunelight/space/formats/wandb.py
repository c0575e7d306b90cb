"""Sweep configurations of Weights & Biases.

https://docs.wandb.ai/guides/sweeps/sweep-config-keys
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunelight.errors import SpaceError, guess
from tunelight.space.formats.common import Described, Entry, refuse, refuse_constraints, unreadable

_WANDB = "W&B"
_OF_OTHERS = ("name", "program", "command", "project", "entity", "description", "controller", "job", "image_uri")
"""Keys that say how and where W&B runs a sweep, which tunelight does in its own way."""
_SEARCHERS = {"random": "random", "grid": "random", "bayes": "gp"}
_MODES = {"minimize": "min", "maximize": "max"}

_BOUNDED = {
    "uniform": "uniform",
    "log_uniform_values": "loguniform",
    "q_uniform": "quniform",
    "q_log_uniform_values": "qloguniform",
    "int_uniform": "randint",
}
_NORMAL = {"normal": "randn", "q_normal": "qrandn"}
_PLAIN = {"fixed": "value", "choice": "values", "grid_search": "values"}
_KNOWN = ("constant", "categorical", *_BOUNDED, *_NORMAL)


# --- reading ----------------------------------------------------------------------------------------------


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a sweep configuration, and its metric, searcher, scheduler and number of trials."""
    read_keys = ("method", "metric", "parameters", "early_terminate", "run_cap")
    for key in given:
        if key not in (*read_keys, *_OF_OTHERS):
            raise SpaceError(
                f"tunelight has no word for the key {key!r} of a {_WANDB} sweep.{guess(key, read_keys)} It reads: "
                f"{', '.join(read_keys)}; and leaves out {', '.join(_OF_OTHERS)}."
            )
    parameters = given.get("parameters")
    if not isinstance(parameters, Mapping):
        raise SpaceError(f"A {_WANDB} sweep holds `parameters:`, a mapping, not {parameters!r}.")
    method = given.get("method", "random")
    if method not in _SEARCHERS:
        raise unreadable(_WANDB, "method", repr(method), ", ".join(_SEARCHERS))
    domains = {key: _read(str(key), told, method == "grid") for key, told in parameters.items()}
    told: dict[str, Any] = {}
    if method == "bayes":
        told["searcher"] = _SEARCHERS[method]
    if method == "grid":
        told["num_samples"] = 1
    if "run_cap" in given and method != "grid":
        told["num_samples"] = given["run_cap"]
    return domains, {**told, **_metric(given.get("metric")), **_early(given.get("early_terminate"))}


def _metric(told: Any) -> dict[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, Mapping) or "name" not in told:
        raise SpaceError(f"metric: a {_WANDB} sweep says {{name: ..., goal: minimize}}, not {told!r}.")
    goal = told.get("goal", "minimize")
    if goal not in _MODES:
        raise unreadable(_WANDB, "metric", f"goal {goal!r}", ", ".join(_MODES))
    for key in told:
        if key not in ("name", "goal"):
            raise unreadable(_WANDB, "metric", repr(key), "name, goal")
    return {"metric": told["name"], "mode": _MODES[goal]}


def _early(told: Any) -> dict[str, Any]:
    """Return W&B's Hyperband as ASHA, which stops at the same epochs; where it counts them from the end, it cannot."""
    if told is None:
        return {}
    known = ("type", "min_iter", "eta")
    if not isinstance(told, Mapping) or told.get("type") != "hyperband" or not told.keys() <= set(known):
        readable = "{type: hyperband, min_iter: ..., eta: ...}; else leave it out, and say scheduler='asha'"
        raise unreadable(_WANDB, "early_terminate", repr(told), readable)
    return {
        "scheduler": {
            "name": "asha",
            "grace_period": told.get("min_iter", 1),
            "reduction_factor": told.get("eta", 3),
        }
    }


def _read(key: str, told: Any, grid: bool) -> Any:
    if not isinstance(told, Mapping):
        raise SpaceError(f"{key}: a parameter of a {_WANDB} sweep is a mapping, {{value: ...}} for one, not {told!r}.")
    if "parameters" in told:
        return {inner: _read(f"{key}.{inner}", part, grid) for inner, part in told["parameters"].items()}
    kind = told.get("distribution") or _implied(told)
    if kind not in _KNOWN:
        raise unreadable(_WANDB, key, f"distribution {kind!r}", ", ".join(_KNOWN))
    taken = {"constant": ("value",), "categorical": ("values",), **dict.fromkeys(_NORMAL, ("mu", "sigma", "q"))}
    for name in told:
        if name not in ("distribution", *taken.get(kind, ("min", "max", "q"))):
            raise unreadable(_WANDB, key, f"{name!r} of {kind}", ", ".join(taken.get(kind, ("min", "max", "q"))))
    try:
        domain = _domain(kind, told)
    except KeyError as error:
        raise SpaceError(f"{key}: {kind} lacks its {error}.") from error
    return domain if not grid or kind == "constant" else _as_grid(key, kind, told)


def _implied(told: Mapping[str, Any]) -> str | None:
    """Return the distribution that a parameter has which names none."""
    if "value" in told:
        return "constant"
    if "values" in told:
        return "categorical"
    if "min" in told and "max" in told:
        whole = all(isinstance(told[end], int) and not isinstance(told[end], bool) for end in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return None


def _domain(kind: str, told: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "constant":
        return {"fixed": told["value"]}
    if kind == "categorical":
        return {"choice": told["values"]}
    step = [told.get("q", 1)] if kind.startswith("q_") else []
    if kind in _NORMAL:
        return {_NORMAL[kind]: [told.get("mu", 0.0), told.get("sigma", 1.0), *step]}
    upper = told["max"] + 1 if kind == "int_uniform" else told["max"]
    return {_BOUNDED[kind]: [told["min"], upper, *step]}


def _as_grid(key: str, kind: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a grid search goes through."""
    if kind == "categorical":
        return {"grid_search": told["values"]}
    if kind == "int_uniform":
        return {"grid_search": list(range(told["min"], told["max"] + 1))}
    raise unreadable(_WANDB, key, f"grid over {kind}", "grids over constant, categorical, int_uniform")


# --- writing ----------------------------------------------------------------------------------------------


def write(space: Described) -> dict[str, Any]:
    """Return a space as a sweep configuration, with its metric. Raises: SpaceError for what W&B has no word for."""
    refuse_constraints(_WANDB, space)
    found = space.entries
    grids = [key for key, entry in found.items() if entry.name == "grid_search"]
    drawn = [key for key, entry in found.items() if entry.name not in ("grid_search", "fixed")]
    if grids and drawn:
        raise refuse(
            _WANDB, grids[0], f"a grid beside what is drawn ({drawn[0]})", "Make it a choice, or the others grids."
        )
    told: dict[str, Any] = {"method": "grid" if grids else "random"}
    if metric := space.settings.get("metric"):
        if not isinstance(metric, str):
            raise refuse(_WANDB, "metric", "several metrics", "Give one.")
        goal = next(goal for goal, mode in _MODES.items() if mode == space.settings.get("mode", "min"))
        told["metric"] = {"name": metric, "goal": goal}
    told["parameters"] = _nested(space.written({key: _Leaf(_write(entry)) for key, entry in found.items()}))
    return told


class _Leaf:
    """Marks a parameter among the mappings that it is nested in."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.told if isinstance(value, _Leaf) else {"parameters": _nested(value)} for key, value in given.items()
    }


def _write(entry: Entry) -> dict[str, Any]:
    key, name, arguments = entry.key, entry.name, entry.arguments
    if entry.around is not None:
        raise refuse(_WANDB, key, "around", "Leave it out.")
    if name in _PLAIN:
        return {_PLAIN[name]: arguments}
    for kind, ours in (_BOUNDED | _NORMAL).items():
        if ours == name:
            if kind in _NORMAL:
                ends = {"mu": arguments[0], "sigma": arguments[1]}
            else:
                low, high, _ = entry.bounds()
                ends = {"min": low, "max": high}
            return {"distribution": kind, **ends, **({"q": arguments[2]} if len(arguments) == 3 else {})}
    raise refuse(_WANDB, key, name, "Make it a choice." if name == "ordinal" else "")
