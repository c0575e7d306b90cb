"""Programs in processes of their own: run to their end, or held while a test looks at them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests import flavours

ROOT = Path(__file__).parents[2]
PROGRAM_S = 540.0
"""How long a program with a Ray of its own may take. Alone it takes half a minute, and minutes on a busy machine."""


def run(
    *command: str | Path, cwd: Path = ROOT, limit_s: float = PROGRAM_S, env: Any = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in an environment (None: a user's) with these variables; it has to exit with 0."""
    env = {**(flavours.as_a_user() if env is None else env), **variables}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done


def python(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's to its end; see :func:`run`."""
    return run(sys.executable, *words, **how)


def printed_by(code: str, *words: str, env: Mapping[str, str] = os.environ) -> str:
    """Return what Python prints that runs this code with these words, at the root of the repository."""
    return python("-c", code, *words, limit_s=100, env=env).stdout


@contextlib.contextmanager
def held(
    *command: str | Path,
    cwd: Path = ROOT,
    log: Path | None = None,
    stdin: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, which is killed at the end. What it prints goes to ``log``, or a pipe.

    ``env``: variables beside those of this process.
    """
    with contextlib.nullcontext(subprocess.PIPE) if log is None else log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **(env or {})}, text=True, stdin=stdin, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()


def family(pid: int) -> list[psutil.Process]:
    """Return a driver's processes: its children, and the workers that a server has forked for the Ray it started."""
    logs = f"_{pid}/logs/"  # the name of Ray's session ends with the id of who started it
    workers = [one for one in psutil.process_iter(["name", "open_files"]) if one.info["name"].startswith("ray::")]
    forked = [one for one in workers if any(logs in file.path for file in one.info["open_files"] or ())]
    return list({*psutil.Process(pid).children(recursive=True), *forked})


def over(members: list[psutil.Process]) -> bool:
    """Tell whether all have ended; who inherited them may not have collected them yet."""
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)


def trains(member: psutil.Process) -> bool:
    """Tell whether a process is a worker or a head; Ray's own ones end in time."""
    line = " ".join(member.cmdline())
    return "ray::" in line and "Agent" not in line
