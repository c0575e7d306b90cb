"""What a sweep was run with: versions, command line, and the state of the code. Nothing of the environment is kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tunelight.storage.files import versions

_GIT_S: Final = 5.0
"""How long git may take: a sweep does not wait for a slow file system."""
_SECRET: Final = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key)$"
)
_IN_ADDRESS: Final = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def provenance(file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return ``versions``, and as ``run``: command, cwd, git, and the space's ``file``; for sweep.yaml and the record.

    ``git`` is that of the working directory: ``commit`` and whether it was ``dirty`` (files that are tracked had
    changed, or others lay there untracked); None outside of a repository, or where git does not answer.
    """
    run = {
        "command": masked(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "file": None if file is None else str(Path(file).absolute()),
        "git": git_state(Path.cwd()),
    }
    return {"versions": versions(), "run": run}


def masked(command: list[str]) -> list[str]:
    """Return a command line with the values of what is called a password, token or key, and those in URLs, masked."""
    shown: list[str] = []
    hide = False
    for word in command:
        names = word.split("=")[:-1]  # --set=model.token=... has two
        secret = next((index for index, name in enumerate(names, start=1) if _SECRET.search(name)), None)
        if hide:
            shown.append("***")
        elif secret is not None:
            shown.append(f"{'='.join(names[:secret])}=***")
        else:
            shown.append(_IN_ADDRESS.sub(r"\1:***@", word))
        hide = not hide and not names and word.startswith("-") and bool(_SECRET.search(word))
    return shown


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit that ``folder`` stands at, and whether files differ from it; None outside of a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-C", str(folder), *words],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
