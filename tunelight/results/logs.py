"""The end of a trial's log, from the trial's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tunelight.stores.masking import masked

LOG: Final = "log.txt"


def log_end(folder: Path, lines: int = 30, size: int = 4096) -> str:
    """Return the last lines that a trial's ranks printed; empty if its log is not on this machine.

    Passwords and tokens in addresses are masked.

    Args:
        folder: the trial's (``TrialResult.path``). Of a sweep in a store nothing is fetched.
        lines: how many at most.
        size: bytes at most; where these do not suffice, the text begins within a line.
    """
    try:
        with (folder / LOG).open("rb") as file:
            end = file.seek(0, 2)
            # Further back than needed: a secret that begins before the cut must be seen in full to be masked.
            file.seek(max(0, end - 2 * size))
            text = file.read(2 * size).decode("utf-8", errors="replace")
    except OSError:
        return ""
    kept = "\n".join(masked(text).splitlines()[-lines:]).encode()[-size:]
    return kept.decode("utf-8", errors="ignore")
