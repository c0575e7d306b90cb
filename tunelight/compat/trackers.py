"""Libraries that track experiments: what must not outlive a trial in a warm worker, or start on all ranks at once.

Names that they keep private are as read in wandb 0.31, mlflow 3.17, comet_ml 3.58 and clearml 2.1. None is imported.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STORE_LIMIT_S = 120.0
"""How long a rank waits for another one that makes the tables of a store of MLflow's; it took 4 seconds."""


def _end_wandb(wandb: Any, failed: bool) -> None:
    """Finish the run, and end the service process, which the next run could not use: its connection is per process."""
    run = getattr(wandb, "run", None)
    if run is not None and getattr(run, "_is_attached", False):  # to the run of a driver, which goes on
        wandb.sdk.lib.module.unset_globals()
    elif run is not None:
        wandb.finish(exit_code=int(failed))
    wandb.teardown(exit_code=int(failed))


def _end_mlflow(mlflow: Any, failed: bool) -> None:
    while mlflow.active_run() is not None:  # they may be nested
        mlflow.end_run("FAILED" if failed else "FINISHED")


def _end_comet(comet_ml: Any, failed: bool) -> None:
    experiment = comet_ml.get_running_experiment()
    if experiment is not None:
        if failed:
            experiment.add_tag("failed")  # it has no status that one could set
        experiment.end()


def _end_clearml(clearml: Any, failed: bool) -> None:
    task = clearml.Task._Task__main_task  # current_task() would make one where a parent process has one
    if task is not None:
        if failed:
            task.mark_failed(status_reason="the trial failed")
        task.close()


_ENDS: dict[str, Callable[[Any, bool], None]] = {
    "mlflow": _end_mlflow,
    "wandb": _end_wandb,
    "comet_ml": _end_comet,
    "clearml": _end_clearml,
}


def end_runs(*, failed: bool, limit_s: float) -> tuple[str, ...]:
    """End the runs that training code has begun and not ended, with the trial's outcome; wait until they are uploaded.

    Call it in the thread of the training code: MLflow's runs belong to a thread. Returns: what has not ended within
    ``limit_s`` seconds. What goes wrong is printed. Runs on: worker, between two trials.
    """
    late = []
    for name, end in _ENDS.items():
        if (module := sys.modules.get(name)) is None:
            continue
        ending = functools.partial(_end, name, end, module, failed)
        if name == "mlflow":  # each of its requests has a limit of its own
            ending()
            continue
        thread = threading.Thread(target=ending, name=f"tunelight-ends-{name}", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            late.append(f"a run of {name} that had not ended within {limit_s:.0f} s")
    return tuple(late)


def _end(name: str, end: Callable[[Any, bool], None], module: Any, failed: bool) -> None:
    try:
        end(module, failed)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of a library; wandb exits where its service does
        print(f"tunelight: ending the run of {name}: {type(error).__name__}: {error}")  # noqa: T201 - the trial's log


def make_stores_in_turns(logger: type, folder: Path) -> None:
    """Let the processes of this machine make loggers of MLflow one after another.

    Whoever opens a new database makes its tables, and fails where another process does the same. A lock in ``folder``
    is held meanwhile.
    """
    from filelock import FileLock, Timeout

    make: Any = logger.__init__  # type: ignore[misc]
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def in_turns(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(Timeout, OSError):  # better without the lock than not at all
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(folder / "mlflow.lock", timeout=_STORE_LIMIT_S))
            make(self, *args, **kwargs)

    logger.__init__ = in_turns  # type: ignore[misc]
