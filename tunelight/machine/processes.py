"""Other processes of this machine."""

from __future__ import annotations

import os
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
