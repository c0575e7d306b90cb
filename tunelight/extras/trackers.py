"""Runs of W&B and MLflow: one a trial, named and grouped by sweep, resumed with the trial and closed at its end.

The calls by which runs are made get defaults; what the user passes, or has set in the environment, stays. They are
wrapped when a tracker is imported, so that none is imported for this. Private names are as read in wandb 0.31
and mlflow 3.17.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, Literal

from tunelight.stores.atomic import write_atomically

Outcome = Literal["finished", "stopped", "paused", "failed"]

_STORE_LIMIT_S = 120.0
"""How long a process waits for another one that makes the tables of a store of MLflow's; it took 4 seconds."""
_STATUS: Final = {"finished": "FINISHED", "stopped": "KILLED", "paused": "SCHEDULED", "failed": "FAILED"}
"""MLflow's words for how a trial ends."""
_NOTE = "trackers.json"


class TrialRuns:
    """The runs of a trial in this process: what they are named, and which of them were made before a restart."""

    def __init__(self, folder: Path, trial_id: str, config: Mapping[str, Any], *, rank: int) -> None:
        self.sweep, self.trial, self.config, self.rank = folder.parent.name, trial_id, dict(config), rank
        self.mlflow: list[tuple[Any, str]] = []
        """The client and the id of each run of MLflow."""
        self._note = folder / _NOTE
        self._counts: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        if rank == 0:
            with contextlib.suppress(OSError, ValueError):
                self._ids = json.loads(self._note.read_text())

    def next_run(self, library: str) -> tuple[str, str, str | None]:
        """Return key and name of the trial's next run, and the id that it had before a restart, if any."""
        number = self._counts[library] = self._counts.get(library, 0) + 1
        key, name = f"{library} {number}", f"{self.sweep}-{self.trial}"
        return key, name if number == 1 else f"{name}-{number}", self._ids.get(key)

    def keep(self, key: str, run_id: str) -> None:
        """Write down which run the key stands for, for a restart."""
        if self.rank or self._ids.get(key) == run_id:
            return
        self._ids[key] = run_id
        with contextlib.suppress(OSError):  # a full disk costs the resumption, and not the run
            self._note.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._note, json.dumps(self._ids))


_trial: TrialRuns | None = None


def begin(folder: str, trial_id: str, config: Mapping[str, Any], *, rank: int) -> None:
    """Let the runs that are made from here on be those of a trial. Runs on: worker, which resets the environment."""
    global _trial  # noqa: PLW0603 - a process trains one trial at a time
    _trial = TrialRuns(Path(folder), trial_id, config, rank=rank)
    if "MLFLOW_EXPERIMENT_ID" not in os.environ:
        os.environ.setdefault("MLFLOW_EXPERIMENT_NAME", _trial.sweep)
    os.environ.setdefault("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")  # of 15 s, which a killed worker would lose


# --- how runs are made ------------------------------------------------------------------------------------


def _wandb_init(init: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(init).bind(*args, **kwargs)
    given, trial, wandb = bound.arguments, _trial, sys.modules["wandb"]
    if trial is None or (wandb.run is not None and given.get("reinit") in (None, "return_previous", "default")):
        return init(*args, **kwargs)
    settings = given.get("settings") or {}
    settings = settings if isinstance(settings, dict) else vars(settings)

    def is_free(name: str, variable: str, setting: str = "") -> bool:
        return given.get(name) is None and variable not in os.environ and not settings.get(setting or name)

    if trial.rank:
        if given.get("mode") is None and is_free("group", "WANDB_RUN_GROUP", "run_group"):
            given["mode"] = "disabled"  # who wants a run of every rank names their group
        return init(*bound.args, **bound.kwargs)
    key, name, run_id = trial.next_run("wandb")
    if is_free("id", "WANDB_RUN_ID", "run_id") and not (given.get("resume_from") or given.get("fork_from")):
        # Ids are unique in a project, which may have had a sweep of the same name.
        given["id"] = run_id or f"{name}-{secrets.token_hex(4)}"
        trial.keep(key, given["id"])  # before anything can fail
        if is_free("resume", "WANDB_RESUME"):
            given["resume"] = "allow"
    for argument, variable, value in (
        ("name", "WANDB_NAME", name),
        ("group", "WANDB_RUN_GROUP", trial.sweep),
        ("tags", "WANDB_TAGS", ["tunelight"]),
    ):
        if is_free(argument, variable, f"run_{argument}"):
            given[argument] = value
    return init(*bound.args, **bound.kwargs)


def _mlflow_client(make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Make a client as the only process of this machine that does.

    Whoever opens a new database makes its tables, and fails where another process does the same.
    """
    if str((args[1:] or [kwargs.get("tracking_uri")])[0] or "") in _opened:
        make(*args, **kwargs)
        return
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Timeout, OSError):  # better without the lock than not at all
            _locks.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(_locks / "mlflow.lock", timeout=_STORE_LIMIT_S))
        make(*args, **kwargs)
    _opened.add(str(args[0].tracking_uri))


_opened: set[str] = set()
"""Stores that this process has opened."""
_locks = Path()
"""Where processes of this machine keep their locks."""


def _mlflow_experiment(create: Callable[..., Any], client: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return create(client, name, *args, **kwargs)
    except Exception:
        existing = None if _trial is None else client.get_experiment_by_name(name)
        if existing is None:
            raise
        return existing.experiment_id  # another trial has made the sweep's in the same moment


def _mlflow_run(create: Callable[..., Any], client: Any, *args: Any, **kwargs: Any) -> Any:
    trial = _trial
    if trial is None:
        return create(client, *args, **kwargs)
    given = inspect.signature(create).bind(client, *args, **kwargs)
    values = given.arguments
    key, name, run_id = trial.next_run("mlflow")
    run = None
    if run_id is not None:
        with contextlib.suppress(Exception):  # of any kind of store, where the run is gone
            run = client.get_run(run_id)
    if run is None or run.info.lifecycle_stage == "deleted":
        tags = values.get("tags") or {}
        values["tags"] = {"tunelight.sweep": trial.sweep, "tunelight.trial": trial.trial, **tags}
        if not values.get("run_name") and "mlflow.runName" not in tags:
            values["tags"]["mlflow.runName"] = name
        run = create(*given.args, **given.kwargs)
    else:
        client.update_run(run_id, status="RUNNING")  # a pause or a fault has ended it
    trial.mlflow.append((client, run.info.run_id))
    trial.keep(key, run.info.run_id)
    return run


_SEAMS: Final[dict[str, tuple[tuple[str, str, Callable[..., Any]], ...]]] = {
    "wandb": (("", "init", _wandb_init),),
    "mlflow.tracking.client": (
        ("MlflowClient", "__init__", _mlflow_client),
        ("MlflowClient", "create_experiment", _mlflow_experiment),
        ("MlflowClient", "create_run", _mlflow_run),
    ),
}
"""Module -> class (or none), the call that makes a run, and what to do in its place."""


class _Seams(MetaPathFinder):
    """Wraps the calls that make runs as soon as a tracker has been imported."""

    of_tunelight = True

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in _SEAMS:
            return None
        others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if not hasattr(finder, "of_tunelight"))
        spec = next((spec for find in others if find and (spec := find(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                _wrap(module)

            spec.loader.exec_module = exec_module
        return spec


def _wrap(module: Any) -> None:
    for kind, name, instead in _SEAMS[module.__name__]:
        home = getattr(module, kind, None) if kind else module
        call = getattr(home, name, None)
        if call is not None and not hasattr(call, "of_tunelight"):
            setattr(home, name, _instead(call, instead))


def _instead(call: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return instead(call, *args, **kwargs)

    wrapped.of_tunelight = True  # type: ignore[attr-defined]
    return wrapped


def install(locks: Path) -> None:
    """Wrap the calls of trackers in this process, once; their processes on a machine share ``locks``."""
    global _locks  # noqa: PLW0603 - of this process
    _locks = locks
    if not any(hasattr(finder, "of_tunelight") for finder in sys.meta_path):
        sys.meta_path.insert(0, _Seams())
    for name in _SEAMS.keys() & sys.modules.keys():
        _wrap(sys.modules[name])


# --- how they end -----------------------------------------------------------------------------------------


def _end_wandb(wandb: Any, outcome: Outcome, trial: TrialRuns | None) -> None:
    """Finish the run, and end the service process, which the next run could not use: its connection is per process."""
    run, failed = getattr(wandb, "run", None), outcome == "failed"
    if run is not None and getattr(run, "_is_attached", False):  # to the run of a driver, which goes on
        wandb.sdk.lib.module.unset_globals()
    elif run is not None:
        if trial is not None and not dict(run.config):
            run.config.update(trial.config)
        run.summary["tunelight.state"] = outcome  # it has no state but finished and failed
        wandb.finish(exit_code=int(failed))
    wandb.teardown(exit_code=int(failed))


def _end_mlflow(mlflow: Any, outcome: Outcome, trial: TrialRuns | None) -> None:
    status = _STATUS[outcome]
    while mlflow.active_run() is not None:  # they may be nested
        mlflow.end_run(status)
    for number, (client, run_id) in enumerate([] if trial is None else trial.mlflow):
        run = client.get_run(run_id)
        if run.info.status == "RUNNING" or (number == 0 and run.info.status != status):
            client.set_terminated(run_id, status)  # Lightning has ended it with its fit
        if trial is not None and number == 0 and not run.data.params:
            for key, value in trial.config.items():
                client.log_param(run_id, key, value)


def end_runs(outcome: Outcome, *, limit_s: float) -> tuple[str, ...]:
    """End the runs that training code has begun and not ended, with the trial's outcome; wait until they are uploaded.

    Call it in the thread of the training code: MLflow's runs belong to a thread. Returns: what has not ended within
    ``limit_s`` seconds. What goes wrong is printed. Runs on: worker, between two trials.
    """
    global _trial
    trial, _trial = _trial, None
    _end("mlflow", _end_mlflow, outcome, trial)  # each of its requests has a limit of its own
    if "wandb" not in sys.modules:
        return ()
    arguments = ("wandb", _end_wandb, outcome, trial)
    ending = threading.Thread(target=_end, args=arguments, name="tunelight-ends-wandb", daemon=True)
    ending.start()
    ending.join(limit_s)
    return (f"a run of wandb that had not ended within {limit_s:.0f} s",) if ending.is_alive() else ()


def _end(name: str, end: Callable[..., None], outcome: Outcome, trial: TrialRuns | None) -> None:
    try:
        if (module := sys.modules.get(name)) is not None:
            end(module, outcome, trial)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of a library; wandb exits where its service does
        print(f"tunelight: ending the run of {name}: {type(error).__name__}: {error}")  # noqa: T201 - the trial's log
