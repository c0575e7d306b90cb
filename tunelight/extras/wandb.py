"""Sweep configurations of Weights & Biases.

https://docs.wandb.ai/guides/sweeps/sweep-config-keys
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from ray.tune.search import sample

from tunelight.errors import SpaceError, guess, placed
from tunelight.space.plain import alike

_WANDB = "W&B"
_CALL = ("program", "command")
"""Keys that say which script is run, and how; :func:`script` reads them."""
_OF_OTHERS = ("name", "project", "entity", "description", "controller", "job", "image_uri", "apiVersion", "kind")
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

_ENDS, _BELL, _SHAPE = ("min", "max"), ("mu", "sigma"), ("a", "b")
_Domain = Mapping[str, Any]
_DISTRIBUTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., _Domain] | None]] = {
    "constant": (("value",), lambda value: {"fixed": value}),
    "categorical": (("values",), lambda values: {"choice": values}),
    "categorical_w_probabilities": (("values", "probabilities"), None),
    "int_uniform": (_ENDS, lambda low, high: {"randint": [low, high + 1]}),
    "uniform": (_ENDS, lambda low, high: {"uniform": [low, high]}),
    "log_uniform": (_ENDS, lambda low, high: {"loguniform": [math.exp(low), math.exp(high)]}),  # of exponents
    "log_uniform_values": (_ENDS, lambda low, high: {"loguniform": [low, high]}),
    "inv_log_uniform": (_ENDS, lambda low, high: {"loguniform": [math.exp(-high), math.exp(-low)]}),
    "inv_log_uniform_values": (_ENDS, lambda low, high: {"loguniform": [low, high]}),
    "q_uniform": ((*_ENDS, "q"), None),
    "q_log_uniform": ((*_ENDS, "q"), None),
    "q_log_uniform_values": ((*_ENDS, "q"), None),
    "normal": (_BELL, lambda mu, sigma: {"randn": [mu, sigma]}),
    "log_normal": (_BELL, None),
    "q_normal": ((*_BELL, "q"), None),
    "q_log_normal": ((*_BELL, "q"), None),
    "beta": (_SHAPE, None),
    "q_beta": ((*_SHAPE, "q"), None),
}
"""What each distribution takes, and the domain of Ray Tune's that is the same; None: :class:`OfWandb` has it."""
_DEFAULTS = {"mu": 0.0, "sigma": 1.0, "q": 1.0, "a": 1, "b": 1}
_POSITIVE = ("sigma", "q", "a", "b")
_FEW = 1000
"""Up to how many reports stopping points are listed where W&B's have no end."""


def unreadable(key: str, what: str, valid: str) -> SpaceError:
    """Return the error for something of W&B's that tunelight does not support."""
    return SpaceError(f"{key}: tunelight has no equivalent of {_WANDB}'s {what}. It reads: {valid}.")


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
    with placed(at("method")):
        if method not in _METHODS:
            raise unreadable("method", repr(method), ", ".join(_METHODS))
    domains = {}
    for key, parameter in _in_order(parameters, sort=method == "grid"):
        with placed(at("parameters", key)):
            domains[key] = _read(str(key), parameter, method == "grid")
    written: dict[str, Any] = {}
    if method == "bayes":
        written["searcher"] = "gp"
    cap = given.get("run_cap")
    if cap is not None:
        written["num_samples"] = cap
    if method == "grid" and (cap is None or not isinstance(cap, int) or cap >= _size(domains)):
        written["num_samples"] = 1
    elif method == "grid":  # its first configurations, in W&B's order
        written["searcher"], domains = "grid", _ungridded(domains)
    with placed(at("metric")):
        written |= _metric(given.get("metric"))
    with placed(at("early_terminate")):
        written |= _early(given.get("early_terminate"))
    return domains, written


# --- the script -------------------------------------------------------------------------------------------

_MACRO = re.compile(r"\$\{(\w+)(?::(\w+))?\}")
_LAUNCHERS = ("/usr/bin/env", "env", "torchrun", "accelerate", "launch", "-m", "-u")
"""What stands before a program and does not matter here, beside a Python and the options of a launcher."""
_ARGS = (
    "args",
    "args_no_equals",
    "args_no_hyphens",
    "args_no_boolean_flags",
    "args_append_hydra",
    "args_override_hydra",
    "args_json",
)
"""Macros that stand for all hyperparameters; ``tunelight.extras.scripts`` puts them in."""
_NONE = "${no_args}"
"""Where a command holds none of these, the script gets none: it reads them from its run's configuration."""


def script(given: Mapping[str, Any], at: Callable[..., str] = lambda *_: "") -> dict[str, Any]:
    """Return the settings ``script``, ``args`` and ``style`` that a sweep's program and command say; {} without these.

    Raises: SpaceError for a command that does not run a Python script.
    """
    program, command = given.get("program"), given.get("command")
    if isinstance(command, str):
        command = shlex.split(command)
    if command is None:
        return {} if program is None else {"script": str(program), "args": ["${args}"], "style": "wandb"}
    with placed(at("command")):
        if not isinstance(command, Sequence):
            raise SpaceError(f"command: a {_WANDB} sweep lists the words of its command, not {command!r}.")
        words = [_filled(str(word), program) for word in command]
        place = next((index for index, word in enumerate(words) if word == program or word.endswith(".py")), None)
        if place is None:
            raise SpaceError(
                f"command: none of its words is a Python script: {shlex.join(words)}. Name one as program:, and say "
                "${program} where it stands."
            )
        before = words[:place]
        takes_next = [False, *(word.startswith("--") and "=" not in word for word in before)]  # the 2 of "--nproc 2"
        if other := [
            word for word, value in zip(before, takes_next, strict=False) if not value and not _may_come_first(word)
        ]:
            raise SpaceError(
                f"command: tunelight runs {words[place]} on a trial's workers by itself, and knows no {other[0]!r} "
                "before it. Leave that out; the environment of workers is set by runtime_env."
            )
        after = words[place + 1 :]
        asked = any(f"${{{name}}}" in after for name in _ARGS)
        return {"script": words[place], "args": after if asked else [*after, _NONE], "style": "wandb"}


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
        if name not in (*_ARGS, "trial_dir"):
            raise unreadable(
                "command",
                found[0],
                "${program}, ${env}, ${interpreter}, ${envvar:NAME}, ${trial_dir}, "
                + ", ".join(f"${{{arg}}}" for arg in _ARGS),
            )
        return found[0]

    return _MACRO.sub(value, word)


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
        raise unreadable("metric", f"goal {goal!r}", ", ".join(_MODES))
    for key in written:
        if key not in ("name", "goal", "impute", "impute_while_running"):
            raise unreadable("metric", repr(key), "name, goal")
    return {"metric": written["name"], "mode": _MODES[goal]}


def _early(written: Any) -> dict[str, Any]:
    """Return W&B's Hyperband as ASHA with its stopping points, where runs are compared by what they reported there.

    A sweep without early termination trains all its runs to their end.
    """
    if written is None:
        return {"scheduler": "fifo"}
    given = written if isinstance(written, Mapping) else {}
    try:
        if given.get("type") != "hyperband" or not given.keys() <= {
            "type",
            "min_iter",
            "max_iter",
            "s",
            "eta",
            "strict",
        }:
            raise KeyError("type")
        bands = _bands(given)
    except (KeyError, TypeError, ZeroDivisionError, OverflowError, ValueError) as error:
        readable = "{type: hyperband, min_iter: ..., eta: ...} and {type: hyperband, max_iter: ..., s: ..., eta: ...}"
        raise unreadable("early_terminate", repr(written), f"{readable}; else say scheduler='asha'") from error
    return {"scheduler": {"name": "asha", "milestones": bands, "reduction_factor": given.get("eta", 3)}}


def _bands(given: Mapping[str, Any]) -> list[int]:
    """Return the reports at which W&B stops runs: its own computation. Raises: ValueError where there is none."""
    eta = given.get("eta", 3)
    if not eta > 1:
        raise ValueError("eta")
    bands: list[int] = []
    if "max_iter" in given:
        band = given["max_iter"]
        for _ in range(int(given["s"])):
            band /= eta
            if band < 1:
                break
            bands.append(int(band))
    else:
        band = given.get("min_iter", 1)
        while not bands or band < _FEW:
            bands.append(int(band))
            band *= eta
    found = sorted({band for band in bands if band >= 1})
    if not found:
        raise ValueError("no band")
    return found


def _size(domains: Mapping[str, Any]) -> int:
    """Return how many configurations the grid over domains has."""
    sizes = (
        len(inner["grid_search"]) if "grid_search" in inner else _size(inner)
        for inner in domains.values()
        if _inner(inner)
    )
    return math.prod(sizes)


def _ungridded(domains: Mapping[str, Any]) -> dict[str, Any]:
    """Return domains with choices for the axes of a grid."""
    return {
        key: {"choice": part["grid_search"]} if "grid_search" in part else _ungridded(part) if _inner(part) else part
        for key, part in domains.items()
    }


def _inner(domain: Mapping[str, Any]) -> bool:
    """Tell whether this is an axis of a grid, or a group of parameters."""
    return "fixed" not in domain


def _read(key: str, written: Any, grid: bool) -> Any:
    if not isinstance(written, Mapping):
        raise SpaceError(
            f"{key}: a parameter of a {_WANDB} sweep is a mapping, {{value: ...}} for one, not {written!r}."
        )
    if "parameters" in written:
        if not isinstance(written["parameters"], Mapping):
            raise SpaceError(f"{key}.parameters: a mapping of parameters, not {written['parameters']!r}.")
        parts = _in_order(written["parameters"], sort=grid)
        return {inner: _read(f"{key}.{inner}", part, grid) for inner, part in parts}
    kind = written.get("distribution") or _implied(written)
    if kind == "categorical" and "probabilities" in written:
        kind = "categorical_w_probabilities"
    if not isinstance(kind, str) or kind not in _DISTRIBUTIONS:
        raise unreadable(key, f"distribution {kind!r}", ", ".join(_DISTRIBUTIONS))
    takes, make = _DISTRIBUTIONS[kind]
    for name in written:
        if name not in ("distribution", *takes):
            raise unreadable(key, f"{name!r} of {kind}", ", ".join(takes))
    try:
        given = {name: written[name] if name in written else _DEFAULTS[name] for name in takes}
    except KeyError as error:
        raise SpaceError(f"{key}: {kind} lacks its {error}.") from error
    _check(key, kind, given)
    if grid and kind != "constant":
        return {"grid_search": _values(key, kind, given)}
    return make(*given.values()) if make else {"wandb_parameter": {"distribution": kind, **given}}


def _in_order(parameters: Mapping[Any, Any], *, sort: bool) -> list[tuple[Any, Any]]:
    """Return parameters as W&B goes through a grid of them, or as they are written."""
    return sorted(parameters.items(), key=lambda parameter: str(parameter[0])) if sort else list(parameters.items())


def _check(key: str, kind: str, given: Mapping[str, Any]) -> None:
    """Raise SpaceError for what W&B refuses, too."""
    numbers = {name: value for name, value in given.items() if name not in ("value", "values", "probabilities")}
    for name, value in (*numbers.items(), *(("probabilities", weight) for weight in given.get("probabilities", ()))):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpaceError(f"{key}: {name} of {kind} must be a number, not {value!r}.")
        if name in _POSITIVE and value <= 0:
            raise SpaceError(f"{key}: {name} of {kind} must be more than 0, not {value!r}.")
    if "min" in given and given["min"] >= given["max"]:
        raise SpaceError(f"{key}: min must be below max, not {given['min']!r} and {given['max']!r}.")
    if kind.endswith("_values") and given["min"] <= 0:
        raise SpaceError(f"{key}: min of {kind} must be more than 0, not {given['min']!r}.")
    if "values" in given and (not isinstance(given["values"], list) or not given["values"]):
        raise SpaceError(f"{key}: values is a list of one or more, not {given['values']!r}.")
    shares = given.get("probabilities", [1.0] * len(given.get("values", "1")))
    if "probabilities" in given and (len(shares) != len(given["values"]) or abs(sum(shares) - 1) > 1e-5):
        raise SpaceError(f"{key}: probabilities are as many as values, and sum up to 1, not {shares!r}.")


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


def _values(key: str, kind: str, given: Mapping[str, Any]) -> list[Any]:
    """Return the values of a grid search."""
    if kind == "categorical":
        return list({alike(value): value for value in given["values"]}.values())
    low, high = given.get("min", 0), given.get("max", 0)
    if kind == "int_uniform":
        return list(range(low, high + 1))
    if kind == "q_uniform":  # without max
        return [low + index * given["q"] for index in range(math.ceil((high - low) / given["q"]))]
    raise unreadable(key, f"grid over {kind}", "grids over constant, categorical, int_uniform, q_uniform")


# --- What W&B draws and no domain of Ray Tune does: by the quantiles of its own package ``sweeps`` --------

_INSIDE: Final = 1e-12
"""How far from 0 and 1 a quantile stays whose value would be infinite."""


class OfWandb(sample.Domain):
    """A parameter of a W&B sweep that no domain of Ray Tune equals, by its own quantiles, as W&B draws it.

    Rounded to multiples of ``q`` (``q_uniform``, ``q_normal``, ...) its values are whole if ``q`` is, and the last ones
    may lie half a step outside of the bounds.
    """

    kind = "wandb_parameter"

    def __init__(self, written: Mapping[str, Any]) -> None:
        self.written = dict(written)
        distribution = str(written["distribution"])
        self._shape = distribution.removeprefix("q_")
        self._step = written.get("q", 1.0) if distribution.startswith("q_") else None
        self._mu, self._sigma = written.get("mu", 0.0), written.get("sigma", 1.0)
        self._low, self._high = written.get("min", 0.0), written.get("max", 1.0)
        if self._shape == "log_uniform_values":
            self._low, self._high = math.log(self._low), math.log(self._high)
        self._shares = list(itertools.accumulate(written.get("probabilities", ())))

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return a value; ``size`` of them, as a list, where that is more than 1."""
        rng = random_state if hasattr(random_state, "uniform") else np.random.default_rng(random_state)
        drawn = [self.value(float(rng.uniform())) for _ in range(size)]
        return drawn if size > 1 else drawn[0]

    def value(self, quantile: float) -> Any:
        """Return the value at a quantile, from 0 to 1."""
        if self._shares:
            place = sum(share <= quantile * self._shares[-1] for share in self._shares)
            return self.written["values"][min(place, len(self._shares) - 1)]
        found = self._real(min(max(quantile, 0.0), 1.0))
        if self._step is None:
            return found
        rounded = round(found / self._step) * self._step
        return int(rounded) if isinstance(self._step, int) else float(rounded)

    def _real(self, quantile: float) -> float:
        inside = min(max(quantile, _INSIDE), 1 - _INSIDE)
        if self._shape in ("normal", "log_normal"):
            found = self._mu + self._sigma * NormalDist().inv_cdf(inside)
        elif self._shape == "beta":
            from scipy.special import betaincinv

            return float(betaincinv(self.written.get("a", 1), self.written.get("b", 1), quantile))
        else:
            found = self._low + quantile * (self._high - self._low)
        return math.exp(found) if self._shape.startswith("log_") else found

    def quantile(self, value: Any) -> float | None:
        """Return the quantile of a value; None where it is none of the values."""
        if self._shares:
            parts = zip(self.written["values"], (0.0, *self._shares), self._shares, strict=False)
            return next(
                ((low + high) / 2 for known, low, high in parts if type(known) is type(value) and known == value), None
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self._shape == "beta":
            from scipy.special import betainc

            return float(betainc(self.written.get("a", 1), self.written.get("b", 1), min(max(value, 0.0), 1.0)))
        if self._shape.startswith("log_"):
            value = math.log(value) if value > 0 else -math.inf
        if self._shape in ("normal", "log_normal"):
            return NormalDist().cdf((value - self._mu) / self._sigma)
        return float(min(max((value - self._low) / (self._high - self._low), 0.0), 1.0))
