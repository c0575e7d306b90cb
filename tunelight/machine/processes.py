"""Other processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tunelight.messages import Text


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine exists, whoever's it is."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # asks, and sends nothing; macOS has no /proc
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def has_children() -> bool:
    """Tell whether this process may have child processes; True where the system does not say."""
    try:
        return any(thread.joinpath("children").read_text() for thread in Path("/proc/self/task").iterdir())
    except OSError:  # no /proc, a kernel without these files, or a thread that has just ended
        return True


def environ_of_child(name: str) -> dict[str, str] | None:
    """Return the environment of this process's child of that name; None without one."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return next((child.environ() for child in psutil.Process().children() if child.name() == name), None)
    return None


@functools.cache
def process_table() -> str:
    """Return a name of the table that this process's id is from: that of a container, on a kernel since its start.

    Where it is the same, an id means the same process.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # macOS, which has no containers
        return socket.gethostname()


def born(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine's start; 0 if it has ended; None if that is not known."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return 0 if state in "ZX" else int(fields[18])  # a zombie waits for its parent to ask
    except (OSError, IndexError, ValueError):  # others' may be hidden, and macOS has no /proc
        return None if is_running(pid) else 0


def memory_is_short() -> bool:
    """Tell whether less than a twentieth of the machine's memory is left."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {line.split(":")[0]: int(line.split()[1]) for line in lines[:3]}
        return found["MemAvailable"] * 20 < found["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return False


@contextlib.contextmanager
def collector_resting() -> Iterator[None]:
    """Import or read much within this: the collector would walk the growing heap again and again, and find nothing."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 100, 1000)  # what is new is still looked at: a searcher may make cycles in a replay
    try:
        yield
    finally:
        gc.set_threshold(*before)


# --- This process's standard output: a notebook's, a terminal's, or anything else ------------------


def in_notebook() -> bool:
    """Tell whether this is a notebook's kernel (and not IPython in a terminal)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def is_terminal(stream: object) -> bool:
    """Tell whether a stream is a terminal; whatever stands for one need only write, or may be None."""
    isatty = getattr(stream, "isatty", None)
    if not callable(isatty):
        return False
    try:
        return bool(isatty())
    except ValueError:  # it is closed
        return False


def write(text: Text) -> None:
    """Write text at once to standard output, or to standard error. A stream that is closed is left alone."""
    stream = sys.stderr if text.error else sys.stdout
    with contextlib.suppress(OSError, ValueError):
        print(text.text, end="", file=stream)  # it takes whatever stands for a stream
        if callable(flush := getattr(stream, "flush", None)):
            flush()
