"""The options of a script's parser, read by running the script up to where it parses its command line."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tunelight.errors import last_line
from tunelight.extras.scripts.style import Option, parsers_of
from tunelight.settings.code import script_code

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
        refused: what the parser says against the arguments themselves; empty where they are well.
    """

    options: tuple[Option, ...] | None
    why: str = ""
    strict: bool = True
    abbreviates: bool = False
    command: str = ""
    refused: str = ""


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


def parses(file: Path) -> bool:
    """Tell whether a script, or a module beside it, imports a library whose options can be read."""
    return bool(parsers_of(str(file)).keys() - {"hydra"})


@functools.lru_cache(maxsize=64)
def _read(file: str, module: str | None, args: tuple[str, ...], limit_s: float, _files: Any, _cwd: str) -> Read:
    with tempfile.TemporaryDirectory(prefix="tunelight-options-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({"file": file, "module": module, "args": args, "path": sys.path}))
        with Path(folder, "output").open("w+b") as output:
            code = _run(
                [sys.executable, "-P", str(Path(__file__).with_name("probe.py")), str(request)], output, limit_s
            )
            said = _end_of(output)
        if not answer.is_file():
            if code is None:
                return Read(None, f"did not parse its command line within {limit_s:g} s")
            return Read(None, f"ended with exit code {code} before it parsed its command line{said and f': {said}'}")
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


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(size - _LAST_BYTES, 0))
    return last_line(output.read().decode(errors="replace"))
