"""A first search space for a script: domains around the defaults of its options, and the others as comments."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError
from tunelight.extras.scripts.options import Read
from tunelight.extras.scripts.style import Option
from tunelight.settings.code import script_code

_RATES: Final = ("lr", "wd", "learning_rate", "learningrate", "weight_decay")
_SHARES: Final = {"dropout": 0.5, "drop": 0.5, "momentum": 0.99}
"""What goes from 0 up to this, or to a larger default."""
_SIZES: Final = ("hidden", "batch", "dim", "size", "width", "channels", "units")
_LEFT: Final = (
    "epoch epochs steps iterations seed seeds worker workers device devices gpu gpus cuda cpu mps node nodes "
    "rank port interval every patience log logs logging verbose debug resume save test eval evaluate dry "
    "download overwrite wandb version pin progress profile config checkpoint ckpt trainer classes everything "
    "deterministic quiet completion"
)
"""Words in the names of options that say how a script runs, and not what it learns."""
_MAXIMISED: Final = ("acc", "auc", "f1", "score", "precision", "recall", "iou", "dice", "map", "r2", "bleu", "psnr")
_HELP = 80


def draft_of(script: Path, read: Read) -> str:
    """Return the text of a search space file for a script. Raises: SettingsError where there is nothing to search."""
    if read.options is None:
        raise SettingsError(
            f"{script.name} {read.why}, so that its options are not known. Write space.yaml by hand: tunelight init "
            "my-sweep writes one to start from."
        )
    searched, others = [], []
    for option in {option.key: option for option in read.options}.values():
        if (domain := _domain(option)) is not None:
            searched.append(f"  {_key(option.key)}: {domain}{_comment(option, default=True)}")
        elif not option.key.startswith("trainer.") and option.key != "config":
            others.append(f"  # {_key(option.key)}:{_comment(option)}".rstrip(":"))
    if not searched:
        raise SettingsError(
            f"{script.name} has no option to search: none has choices, or a number as its default. It has: "
            f"{', '.join(option.key for option in read.options) or 'none'}."
        )
    required = [max(one.names, key=len) for one in read.options if one.required and _domain(one) is None]
    metric, mode, seen = _metric(script)
    asked = f"    # the script requires {', '.join(required)}" if required else ""
    lines = [
        "# What is searched, and how. Look at it: tunelight check space.yaml      Run it: tunelight run space.yaml",
        "space:",
        *searched,
        *others,
        "",
        f"script: {_text(script.name)}",
        f"args: [{read.command}]{asked}",
        f"metric: {_text(metric)}{'' if seen else '    # what the script logs or reports'}",
        f"mode: {mode}",
        "num_samples: 20",
        "workers: 1    # processes that train one trial together",
        "",
    ]
    return "\n".join(lines)


# --- domains ----------------------------------------------------------------------------------------------


def _domain(option: Option) -> str | None:
    """Return the domain of an option, as YAML; None for one that is not searched."""
    name = option.key.lower()
    words = set(re.split(r"[._\-]+", name))
    if words & {*_LEFT.split()} or option.kind in ("many", "again", "count"):
        return None
    default = option.default
    if option.choices:
        return _choice(option.choices) if len(option.choices) > 1 else None
    if option.kind in ("flag", "off", "both") or isinstance(default, bool):
        if option.kind == "value" and not option.spoken.get("False"):
            return None  # type=bool: every word but the empty one is true
        return _choice((True, False)) if default is None or isinstance(default, bool) else None
    if isinstance(default, bool) or not isinstance(default, int | float) or not abs(default) < float("inf"):
        return None
    last = name.rpartition(".")[2]
    if words & {*_RATES} or any(rate in last for rate in _RATES if len(rate) > 2):
        return _rate(float(default)) if isinstance(default, float) or option.type == "float" else None
    if (most := next((most for word, most in _SHARES.items() if word in last), None)) is not None:
        return f"{{uniform: [0.0, {_number(max(most, float(default)))}]}}" if 0 <= default <= 1 else None
    if isinstance(default, float) or default < 1:
        return None
    if any(word in last for word in _SIZES) or (default >= 4 and default & (default - 1) == 0):
        return _choice(tuple(dict.fromkeys((max(default // 2, 1), default, default * 2))))
    return None


def _rate(default: float) -> str | None:
    if default < 0:
        return None
    low, high = (default / 10, default * 10) if default > 0 else (1e-6, 1e-2)
    return f"{{loguniform: [{_number(low)}, {_number(high)}]}}" if 0 < low < high < float("inf") else None


def _choice(values: Sequence[Any]) -> str:
    return f"{{choice: [{', '.join(json.dumps(one, ensure_ascii=False) for one in values)}]}}"


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"


# --- text -------------------------------------------------------------------------------------------------


def _key(key: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w.]*", key, re.ASCII) and key.lower() not in ("yes", "no", "on", "off", "y", "n")
    return key if plain and key.lower() not in ("true", "false", "null") else json.dumps(key, ensure_ascii=False)


def _text(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z]\w*(\.py)?", text, re.ASCII) else json.dumps(text, ensure_ascii=False)


def _comment(option: Option, *, default: bool = False) -> str:
    """Return the type, the default and the help of an option, as a comment in one line."""
    known = [] if default or not option.type else [option.type]
    if option.default is not None:
        known.append(f"default {json.dumps(option.default)}")
    elif option.required:
        known.append("required")
    said = "; ".join(filter(None, (", ".join(known), option.help)))
    line = "".join(one for one in " ".join(said.split()) if one.isprintable())
    line = line if len(line) <= _HELP else f"{line[: _HELP - 3]}..."
    return (f"    # {line}" if default else f" {line}") if line else ""


# --- the metric -------------------------------------------------------------------------------------------


def _metric(script: Path) -> tuple[str, str, bool]:
    """Return the metric to search by, its mode, and whether the script's code logs it."""
    names = list(dict.fromkeys(_logged(script)))
    ranked = sorted(names, key=lambda name: (name != "val_loss", "val" not in name, "loss" not in name))
    metric = ranked[0] if ranked else "val_loss"
    best_high = "loss" not in metric and any(word in metric.lower() for word in _MAXIMISED)
    return metric, "max" if best_high else "min", bool(ranked)


def _logged(script: Path) -> Iterator[str]:
    """Yield the names that a script and its modules give to self.log, self.log_dict and report."""
    for file, _ in script_code(str(script)):
        with contextlib.suppress(SyntaxError, ValueError, OSError):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    named = _names_of(node.func.attr, node.args[0])
                    values = [one.value for one in named if isinstance(one, ast.Constant)]
                    yield from (one for one in values if isinstance(one, str) and re.fullmatch(r"[\w/.\-]+", one))


def _names_of(called: str, first: ast.expr) -> Sequence[ast.expr | None]:
    if called == "log":
        return [first]
    return first.keys if called in ("log_dict", "report") and isinstance(first, ast.Dict) else []
