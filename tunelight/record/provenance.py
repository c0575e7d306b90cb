"""How a sweep was run: versions, command line, and the commit of the code. No environment variables are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tunelight.record.folder import versions
from tunelight.stores.masking import masked_command

_GIT_S: Final = 5.0
"""How long git may take, so that no sweep waits for a slow file system."""


def provenance(file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return ``versions``, and as ``run``: command, cwd, git, and the space's ``file``; for sweep.yaml and the record.

    ``git`` is the state of the working directory: ``commit``, and whether it was ``dirty`` (changed or untracked
    files); None outside of a repository, or where git does not answer.
    """
    run = {
        "command": masked_command(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "file": None if file is None else str(Path(file).absolute()),
        "git": git_state(Path.cwd()),
    }
    return {"versions": versions(), "run": run}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit that is checked out in ``folder``, and whether files differ from it; None if there is none."""
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
