"""Other processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path


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


@contextlib.contextmanager
def collector_resting() -> Iterator[None]:
    """Import within this: the collector would walk the growing heap again and again, and find nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
