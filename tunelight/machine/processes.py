"""Other processes of this machine."""

from __future__ import annotations

import os


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
