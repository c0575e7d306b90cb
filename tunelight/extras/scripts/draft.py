"""A first search space for a script: domains around the defaults of its options, and the others as comments."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from tunelight.errors import SettingsError, last_line
from tunelight.extras.scripts.style import Option, script_code

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
    required = [max(opt.names, key=len) for opt in read.options if opt.required and _domain(opt) is None]
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
    if words & {*_LEFT.split()} or option.kind in ("many", "again"):
        return None
    default = option.default
    if option.choices:
        return _choice(option.choices) if len(option.choices) > 1 else None
    if option.kind in ("flag", "off", "both") or isinstance(default, bool):
        if option.kind == "value" and not option.reads_truth:
            return None  # to many a type every word but the empty one is true
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
    return f"{{choice: [{', '.join(json.dumps(value, ensure_ascii=False) for value in values)}]}}"


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
    about = "; ".join(filter(None, (", ".join(known), option.help)))
    line = "".join(char for char in " ".join(about.split()) if char.isprintable())
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
                    values = [const.value for const in named if isinstance(const, ast.Constant)]
                    yield from (name for name in values if isinstance(name, str) and re.fullmatch(r"[\w/.\-]+", name))


def _names_of(called: str, first: ast.expr) -> Sequence[ast.expr | None]:
    if called == "log":
        return [first]
    return first.keys if called in ("log_dict", "report") and isinstance(first, ast.Dict) else []


# --- The options of a script's parser, read by running the script up to where it parses its command line ---


LIMIT_S = 60.0
"""How long a script may take until it parses: it imports torch first."""
_LAST_BYTES = 8000


class Read(NamedTuple):
    """What is known of a script's parser.

    Attributes:
        options: its options; None where they could not be read.
        why: why not, as the end of a sentence that begins with the script; empty otherwise.
        strict: whether the parser refuses what is none of its options.
        abbreviates: whether it takes the beginning of an option's name for the option.
        command: the subcommand whose options they are, where the arguments name none: LightningCLI's fit.
    """

    options: tuple[Option, ...] | None
    why: str = ""
    strict: bool = True
    abbreviates: bool = False
    command: str = ""


def read_options(file: Path, module: str | None, args: Sequence[str], limit_s: float = LIMIT_S) -> Read:
    """Return the options of a script's parser. Runs on: driver.

    The script runs in a process of its own, as ``__main__``, with ``args`` as its arguments and nothing to read from
    standard input, until it first parses its command line, or trains. Whatever goes wrong is in ``why``; nothing is
    raised. A script whose files are the same is run once in this process.
    """
    try:
        files = tuple((str(path), path.stat().st_mtime_ns) for path, _ in script_code(str(file)))
        return _read(str(file), module, tuple(map(str, args)), limit_s, files, str(Path.cwd()))
    except Exception as error:  # noqa: BLE001 - nothing is known then, and the sweep goes on
        return Read(None, f"could not be read: {last_line(error) or type(error).__name__}")


@functools.lru_cache(maxsize=64)
def _read(file: str, module: str | None, args: tuple[str, ...], limit_s: float, _files: Any, _cwd: str) -> Read:
    with tempfile.TemporaryDirectory(prefix="tunelight-options-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({"file": file, "module": module, "args": args, "path": sys.path}))
        with Path(folder, "output").open("w+b") as output:
            code = _run(
                [sys.executable, "-P", str(Path(__file__).with_name("probe.py")), str(request)], output, limit_s
            )
            output.seek(max(output.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            end = last_line(output.read().decode(errors="replace"))
        if not answer.is_file():
            if code is None:
                return Read(None, f"did not parse its command line within {limit_s:g} s")
            return Read(None, f"ended with exit code {code} before it parsed its command line{end and f': {end}'}")
        found = json.loads(answer.read_text())
    if "options" not in found:
        return Read(None, str(found["why"]))
    return Read(tuple(map(Option.of, found.pop("options"))), **found)


def _run(command: list[str], output: IO[bytes], limit_s: float) -> int | None:
    """Run a command with what it starts; return its exit code, None for one that the limit has ended."""
    process = subprocess.Popen(  # noqa: S603 - this Python, and a script of the user's that is to run anyway
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
