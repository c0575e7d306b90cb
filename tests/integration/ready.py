"""Runs of one process on the Ray that it keeps: what stays, and what does not. `python -m tests.integration.ready DIR`.

Prints a line of JSON for each run: Ray's session, the workers' processes and those that started them, and what a module
of the user's said.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil

import tunelight as tl
from tests.kit.sweeps import run
from tunelight.compat.ray import session_folder


def forked() -> bool:
    """Tell whether this process was forked by a server."""
    parent = psutil.Process().parent()
    return parent is not None and "extras/forks" in " ".join(parent.cmdline())


def train(config: dict[str, Any]) -> None:
    import edited  # type: ignore[import-not-found]

    edited.seen.append(1)  # what a module keeps must be gone in the next run
    tl.report({
        "loss": config["x"], "said": edited.SAID, "seen": len(edited.seen), "pid": os.getpid(),
        "forked": forked(), "niceness": os.nice(0),
        "variable": int(os.environ.get("MY_VARIABLE", "0")),
    })  # fmt: skip


def once(folder: Path, what: str, **settings: Any) -> None:
    """Run a sweep of one trial, and print what its workers were."""
    import ray

    results = run({"x": tl.uniform(0, 1)}, train, folder / "runs", 1, name=what, **settings)
    (trial,) = results.trials
    assert trial.state == "FINISHED", trial.error
    kept = ray.is_initialized()
    session = session_folder() if kept else None
    sys.stdout.write(json.dumps({"what": what, "kept": kept, "session": session, **trial.history[-1]}) + "\n")
    sys.stdout.flush()


def main(folder: Path) -> None:
    """Run, again, with an edited module, with another environment, and without what is kept."""
    import ray

    module = folder / "edited.py"
    module.write_text("SAID = 1\nseen = []\n")
    sys.path.insert(0, str(folder))
    once(folder, "first")
    once(folder, "again")
    module.write_text("SAID = 22\nseen = []\n")
    once(folder, "edited")
    os.environ["MY_VARIABLE"] = "7"
    once(folder, "environment")
    once(folder, "alone", reuse_gangs=False)
    once(folder, "after")
    tl.shutdown()
    sys.stdout.write(json.dumps({"what": "shutdown", "kept": ray.is_initialized()}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
