"""Programs of a few lines, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.doors import PACKAGE


def printed_by(code: str, *words: str, **given: Any) -> str:
    """Return what Python prints that runs this code with these words, at the root of the repository; it must end well.

    ``given``: of ``subprocess.run``, an environment say.
    """
    command = [sys.executable, "-c", code, *words]
    given = {"cwd": PACKAGE.parent, "capture_output": True, "text": True, "timeout": 100, **given}
    done = subprocess.run(command, check=False, **given)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
