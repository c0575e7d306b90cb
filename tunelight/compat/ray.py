"""Names of Ray that are private, undocumented, or differ between versions: the only place in tunelight that uses them.

Each function imports what it stands on, and says in which version of Ray that was read, and where versions differ. What
an extra alone uses of a part of Ray is there: ``extras/data/ray_data.py``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tunelight.compat import replaced

TESTED: Final = ("2.43", "2.60")
"""The oldest and the newest minor version of Ray that tunelight's tests were run with."""

LOCAL_RAY: Final[Mapping[str, Any]] = {
    "_node_ip_address": "127.0.0.1",
    "_system_config": {"prestart_worker_first_driver": False},
}
"""Arguments of ``ray.init`` for a Ray of tunelight's own: no idle task workers, and the loopback's address, for which
Ray 2.54 and 2.60 take the machine's own: there its token keeps others out. Undocumented; read in 2.60.0."""

TUNE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # tunelight keeps its own record
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last result of a failed trial holds no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # Tune's own snapshot is not what a sweep is resumed from
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # tunelight's own handler says at once that the sweep stops
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Settings that Tune reads from the environment only. Read in 2.60.0."""

JOB_VARIABLE: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set in the driver of a job from ``ray job submit``, which sends the working directory itself. Read in 2.60.0."""

PLUGINS_VARIABLE: Final = "RAY_RUNTIME_ENV_PLUGINS"
"""Names plugins that add fields to ``runtime_env``. Read in 2.60.0."""

DEFAULT_METRIC: Final = "_metric"
DONE: Final = "done"
RESULT_DUPLICATE: Final = "__duplicate__"
SHOULD_CHECKPOINT: Final = "should_checkpoint"
TRAINING_ITERATION: Final = "training_iteration"
"""Keys of Tune's results: ``ray.tune.result``, undocumented, read in 2.60.0."""


# --- the installed version --------------------------------------------------------------------------------

_ANNOUNCED: Final = "tunelight_announced"


@functools.cache
def check_version() -> None:
    """Warn, once a process, of a Ray that tunelight was not tested with. Its version is read in 2.43.0 and 2.60.0."""
    if (note := untested()) is not None:
        warnings.warn(f"tunelight was {note}.", stacklevel=3)


def untested() -> str | None:
    """Return "not tested with Ray 2.61; ..." where the installed version is outside of ``TESTED``, else None."""
    import ray

    version = ".".join(ray.__version__.split(".")[:2])
    if _numbers(TESTED[0]) <= _numbers(version) <= _numbers(TESTED[1]):
        return None
    return f"not tested with Ray {version}; tested: {TESTED[0]} to {TESTED[1]}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# --- the cluster ------------------------------------------------------------------------------------------


def actors() -> dict[str, dict[str, Any]]:
    """Return Ray's facts of each actor ("State", "Pid", ...), by id, without its dashboard. Read in 2.60.0."""
    from ray._private.state import actors

    return dict(actors())


def is_dead(actor_id: str) -> bool:
    """Tell whether an actor has ended. Read in 2.60.0."""
    from ray._private.state import actors

    return bool(actors(actor_id).get("State") == "DEAD")


def draining_nodes() -> dict[str, int]:
    """Return each drained node's id and deadline (ms since the epoch; 0: none). Read in 2.60.0."""
    from ray._private.state import state

    return dict(state.get_draining_nodes())


def has_autoscaler() -> bool:
    """Tell whether an autoscaler may add nodes: version 1 reports their types, 2 that it is there. Read in 2.60.0."""
    from ray.experimental.internal_kv import _internal_kv_get

    if _internal_kv_get("__autoscaler_v2_enabled", namespace="__autoscaler") == b"1":
        return True
    report = json.loads(_internal_kv_get("__autoscaling_status") or b"{}").get("autoscaler_report") or {}
    return any(not str(kind).startswith(("local", "node_")) for kind in report.get("active_nodes") or {})


def announce(name: str, value: bytes) -> None:
    """Tell this job's driver a value, between two results of Tune's. Read in 2.43.0 and 2.60.0."""
    if (store := _store()) is not None:
        store._internal_kv_put(f"{_job()}/{name}", value, namespace=_ANNOUNCED)


def announced(prefix: str) -> dict[str, bytes]:
    """Return what processes of this driver's job have announced under a prefix since the last call, by names.

    Read in 2.43.0 and 2.60.0.
    """
    if (store := _store()) is None:
        return {}
    prefix = f"{_job()}/{prefix}/"
    found: dict[str, bytes] = {}
    for key in store._internal_kv_list(prefix, namespace=_ANNOUNCED):
        value = store._internal_kv_get(key, namespace=_ANNOUNCED)
        store._internal_kv_del(key, namespace=_ANNOUNCED)
        if value is not None:
            found[bytes(key).decode().removeprefix(prefix)] = bytes(value)
    return found


def _store() -> Any:
    """Return the module of Ray's key-value store; None without a Ray, which it would start. Read in 2.60.0."""
    import ray
    from ray.experimental import internal_kv

    if not ray.is_initialized():
        return None
    if not internal_kv._internal_kv_initialized():  # ray.cluster_utils ends every connection's store with its cluster
        internal_kv._initialize_internal_kv(ray._private.worker.global_worker.gcs_client)  # type: ignore[attr-defined]
    return internal_kv


def _job() -> str:
    """Return the id of this process's job. Read in 2.60.0."""
    import ray

    return str(ray.get_runtime_context().get_job_id())


def own_versions() -> tuple[str, str]:
    """Return the versions of Ray and Python of this process, as Ray records those of a cluster. Read in 2.60.0."""
    import ray

    return str(ray.__version__), ".".join(map(str, sys.version_info[:3]))


def cluster_versions(address: str) -> tuple[str, str] | None:
    """Return the versions of Ray and Python that the cluster at ``host:port`` was started with; None if unknown.

    Raises: PermissionError where it asks for another token. The key is of ``ray._common.usage.usage_lib``; 2.43.0 and
    2.60.0 read each other's.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of Cython, without types

    try:
        client = GcsClient(address=address)
        metadata = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=5.0))
        return str(metadata["ray_version"]), str(metadata["python_version"])
    except Exception as error:  # it only makes an error clearer, and what differs between versions fails anyhow
        if type(error).__name__ == "AuthenticationError":
            raise PermissionError(str(error)) from error
        return None


def is_client() -> bool:
    """Tell whether this process is connected by Ray Client. Read in 2.60.0."""
    import ray

    return bool(ray.util.client.ray.is_connected())


def local_cpus() -> int:
    """Return how many CPUs a Ray that is started here has: in a container, its share of them. Read in 2.60.0."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus(override_docker_cpu_warning=True))


def local_gpus() -> int:
    """Return how many GPUs a Ray that is started here has: those of any maker that this process may use.

    ``ray._private.accelerators.get_accelerator_manager_for_resource``, read in 2.60.0.
    """
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager: Any = get_accelerator_manager_for_resource("GPU")
    count, visible = manager.get_current_node_num_accelerators(), manager.get_current_process_visible_accelerator_ids()
    return int(count if visible is None else min(count, len(visible)))


@contextlib.contextmanager
def setup_worker(script: Path) -> Iterator[None]:
    """Let a Ray that is started meanwhile set up its workers by another script of the name of Ray's own.

    Ray joins a name to its folder; a path takes the folder's place. Read in ``ray._private.node`` of 2.43.0 and 2.60.0.
    """
    from ray._private import ray_constants

    known = getattr(ray_constants, "SETUP_WORKER_FILENAME", None) == script.name
    with replaced(ray_constants, **({"SETUP_WORKER_FILENAME": str(script)} if known else {})):
        yield


def task_on(node_id: str, function: Callable[..., Any]) -> Any:
    """Return a function as a task of one node, without resources, which is not tried again where that is lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=affinity)


def session_folder() -> str:
    """Return this node's folder of the running Ray. Read in 2.60.0."""
    from ray._private import worker

    node: Any = worker._global_node
    return str(node.get_session_dir_path())


def set_process_title(title: str) -> None:
    """Set what this process is called in lists of processes, as Ray does: 2.60.0 itself, 2.43.0 by its own copy."""
    for name in ("ray._raylet", "setproctitle"):
        with contextlib.suppress(ImportError):
            if (rename := getattr(importlib.import_module(name), "setproctitle", None)) is not None:
                rename(title)
                return


def runtime_env_fields() -> frozenset[str]:
    """Return the fields of a ``runtime_env``. Read in 2.60.0."""
    from ray.runtime_env import RuntimeEnv

    return frozenset(RuntimeEnv.known_fields)


# --- Tune's trials and controller -------------------------------------------------------------------------


def trial_actor(trial: Any) -> Any:
    """Return the actor of a Tune trial; None while it has none. Read in 2.60.0."""
    return getattr(trial.temporary_state, "ray_actor", None)


def set_last_result(trial: Any, result: dict[str, Any]) -> None:
    """Set a Tune trial's last result without its statistics; its next head gets the number. Read in 2.60.0."""
    trial.run_metadata.last_result = result
    pass_to_heads(trial, heard=max(result.get(TRAINING_ITERATION, 0), passed_to_head(trial.storage).get("heard", 0)))


def pass_to_heads(trial: Any, **facts: Any) -> None:
    """Give a Tune trial's heads facts about it, by the only object that Tune passes to them unread: its storage."""
    if getattr(trial, "storage", None) is not None:  # a stub has none
        trial.storage.tunelight = {**passed_to_head(trial.storage), **facts}


def passed_to_head(storage: Any) -> dict[str, Any]:
    """Return the facts that :func:`pass_to_heads` gave; none under a plain Tuner."""
    return getattr(storage, "tunelight", {})


def forget_default_result(trial: Any) -> None:
    """Drop the first answer of a trial's new actor, an unread reference that Ray would warn of. Read in 2.60.0."""
    from ray import ObjectRef

    if isinstance(trial._default_result_or_future, ObjectRef):
        trial._default_result_or_future = None


def stub_trial(trial_id: str, config: dict[str, Any]) -> Any:
    """Return a Tune trial that is never run. Read in 2.60.0."""
    from ray.tune.experiment import Trial

    return Trial("recorded", stub=True, trial_id=trial_id, config=config)


def flattened(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as Tune hands it to schedulers: nested keys joined by "/". Read in 2.60.0."""
    from ray.tune.utils import flatten_dict

    return dict(flatten_dict(dict(result)) if dict in map(type, result.values()) else result)


def cluster_size(controller: Any) -> tuple[float, float] | None:
    """Return the cluster's CPUs and GPUs as Tune's controller knows them; None from another one. Read in 2.60.0."""
    updater = getattr(controller, "_resource_updater", None)
    return None if updater is None else (float(updater.get_num_cpus()), float(updater.get_num_gpus()))


def end_cached_actors(controller: Any) -> None:
    """End the actors that Tune's controller (in a scheduler's wrapper, or bare) keeps for reuse. Read in 2.60.0."""
    if (end := getattr(_bare(controller), "_cleanup_cached_actors", None)) is not None:
        end(force_all=True)


def kill_actors(controller: Any) -> None:
    """Kill all actors of Tune's controller, and give back what they had reserved. Read in 2.43.0 and 2.60.0."""
    _bare(controller)._actor_manager.cleanup()


@contextlib.contextmanager
def without_hints_on_deaths() -> Iterator[None]:
    """Leave out Ray's advice for each worker that dies: tunelight's own names the worker. Read in 2.43.0 and 2.60.0."""
    from ray._private import worker

    hidden = ("A worker died or was killed", "[mutex.cc : ")  # the second: traces of a lock, as a worker ends
    original = worker.print_to_stdstream

    def pass_on(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if not str(data["lines"][0] if data["lines"] else "").startswith(hidden):
            original(data, *args, **kwargs)

    with replaced(worker, print_to_stdstream=pass_on):
        yield


def uncounted_callbacks() -> contextlib.AbstractContextManager[None]:
    """Keep Tune from importing wandb and mlflow, if installed, to count the callbacks. Read in 2.43.0 and 2.60.0."""
    return replaced(importlib.import_module("ray.tune.tune").air_usage, tag_callbacks=lambda _: False)


def silent_callback() -> Any:
    """Return what Tune takes in place of its own callback that prints each trial's end. Read in 2.43.0 and 2.60.0."""
    from ray.tune.progress_reporter import TrialProgressCallback

    class Silent(TrialProgressCallback):
        def log_result(self, *_: Any, **__: Any) -> None:
            """Print nothing."""

        on_trial_complete = log_result

    return Silent(metric=None)


def schedulers_by_name() -> Mapping[str, Any]:
    """Return Tune's schedulers by name: classes, or functions that import them. Read in 2.60.0."""
    from ray.tune.schedulers import SCHEDULER_IMPORT

    return dict(SCHEDULER_IMPORT)


def in_function_trainable() -> bool:
    """Tell whether this process runs a function trainable of Tune. Read in 2.60.0."""
    from ray.tune.trainable.trainable_fn_utils import _in_tune_session

    return bool(_in_tune_session())


def nothing_saved(metrics: Mapping[str, Any]) -> Any:
    """Return the result of ``Trainable.save`` without a new checkpoint, which Tune ignores. Read in 2.60.0."""
    from ray.tune.trainable.trainable import _TrainingResult

    return _TrainingResult(checkpoint=None, metrics=dict(metrics))


# --- Tune's controller, mended where that costs sweeps of gangs a trial or time ---------------------------

_KEPT_S: Final = 1.0
"""How long a reservation is kept for the next trial that asks for one like it."""


def mend(controller: Any) -> None:
    """Have Tune's controller handle the death of an actor once, and keep reservations that trials no longer need.

    An actor that is gone when Tune resets it for a trial fails twice, by the same error: as an actor, whose trial Tune
    queues again, and by its task, for which Tune then ends that trial as failed. Besides, Tune goes on to wait for the
    reset. A trial that waits has a placement group of its own requested, which Tune removes once the trial gets an
    idle actor; the next trial requests the same again. At the end of a sweep Tune gives heads 10 s to end, where the
    last trials may still write a checkpoint: they get as long as during the sweep, but after a signal. Nothing happens
    with a controller of another class. Read in 2.43.0 and 2.60.0.
    """
    from ray.air.execution import PlacementGroupResourceManager
    from ray.tune.execution.tune_controller import TuneController

    inner = _bare(controller)
    if type(inner) is TuneController:
        once, keeping = _mended()
        inner.__class__ = once
        manager = inner._actor_manager._resource_manager
        if type(manager) is PlacementGroupResourceManager:
            manager.__class__ = keeping
            vars(manager)["kept"] = defaultdict(list)


def add_trial(controller: Any, trial: Any) -> None:
    """Add a trial now: Tune asks for another one only where none waits. Read in 2.43.0 and 2.60.0."""
    _bare(controller).add_trial(trial)


def park(controller: Any, trial: Any) -> bool:
    """Let a pending trial of Tune's controller wait, without a reservation.

    Return whether it does: not one that is just being given an idle actor. Read in 2.43.0 and 2.60.0.
    """
    inner = _bare(controller)
    if trial in inner._resetting_trials:
        return False
    requested = inner._trial_to_actor.pop(trial, None)
    if requested is not None:
        inner._actor_to_trial.pop(requested)
        inner._remove_actor(tracked_actor=requested)
    if trial in inner._staged_trials:
        inner._unstage_trial_with_resources(trial)
    inner._set_trial_status(trial, "PAUSED")
    return True


def _bare(controller: Any) -> Any:
    """Return Tune's controller itself, also where a scheduler was given its wrapper. Read in 2.60.0."""
    return getattr(controller, "_tune_controller", controller)


@functools.cache
def _mended() -> tuple[Any, Any]:
    from ray.air.execution import PlacementGroupResourceManager
    from ray.tune.execution.tune_controller import TuneController

    base: Any = TuneController

    class OnceController(base):  # type: ignore[misc]
        @property
        def _actor_force_cleanup_timeout(self) -> int:
            """Seconds; the scheduler is a ``SweepScheduler``."""
            return 10 if self._scheduler_alg.interrupted() else self._actor_cleanup_timeout

        def _process_trial_failure(self, trial: Any, exception: Any) -> None:
            self._resetting_trials.discard(trial)
            if getattr(exception, "failed_trial", None) != trial.trial_id:
                exception.failed_trial = trial.trial_id  # no more than that: Tune pickles the exception
                super()._process_trial_failure(trial, exception)

    class KeepingResourceManager(PlacementGroupResourceManager):
        kept: dict[Any, list[float]]
        """When the kept placement groups of each request were no longer needed."""
        clock: Callable[[], float] = time.monotonic

        def request_resources(self, resource_request: Any) -> None:
            if self.kept[resource_request]:
                self.kept[resource_request].pop()
            else:
                super().request_resources(resource_request)

        def cancel_resource_request(self, resource_request: Any) -> None:
            self.kept[resource_request].append(self.clock())

        def get_resource_futures(self) -> list[Any]:  # in each step of Tune's
            for request, since in self.kept.items():
                while since and self.clock() - since[0] > _KEPT_S:
                    since.pop(0)
                    super().cancel_resource_request(request)
            return super().get_resource_futures()

        def clear(self) -> None:
            super().clear()  # type: ignore[no-untyped-call,unused-ignore]
            self.kept = defaultdict(list)

    return OnceController, KeepingResourceManager
