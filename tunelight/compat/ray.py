"""Names of Ray that are private or undocumented: the only place in tunelight that uses them.

Each function says what it stands on and in which version of Ray that was read; tests/unit/compat/test_ray.py checks
the installed Ray for every one of them, so that an upgrade fails there first. Ray is imported by the functions, not by
this module. Classes that derive from one of Tune's (`GangTrainable`, `SweepTrial`, the schedulers, the simulator's
controller) override and read its protected names where they stand; the same test checks those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

LOCAL_RAY: Final[Mapping[str, Any]] = {
    "_node_ip_address": "127.0.0.1",
    "_system_config": {"prestart_worker_first_driver": False},
}
"""Arguments of ``ray.init`` for a Ray of tunelight's own: it listens on this machine only, and starts no idle task
workers, since a sweep has actors only. Undocumented; read in 2.60.0."""

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
TRAINING_ITERATION: Final = "training_iteration"
TRIAL_ID: Final = "trial_id"
"""Keys of Tune's results: ``ray.tune.result``, undocumented, read in 2.60.0."""


# --- the cluster ------------------------------------------------------------------------------------------


def actors() -> dict[str, dict[str, Any]]:
    """Return what Ray knows of every actor ("State", "Pid", "ActorClassName"), by id.

    ``ray._private.state.actors``, read in 2.60.0; the public state API needs Ray's dashboard.
    """
    from ray._private.state import actors as of_cluster

    known: dict[str, dict[str, Any]] = of_cluster()
    return known


def is_dead(actor_id: str) -> bool:
    """Tell whether an actor has ended. ``ray._private.state.actors``, read in 2.60.0."""
    from ray._private.state import actors as of_cluster

    return bool(of_cluster(actor_id).get("State") == "DEAD")


def draining_nodes() -> dict[str, int]:
    """Return the ids of nodes that are drained, each with its deadline (ms since the epoch; 0: none).

    ``ray._private.state.state.get_draining_nodes``, read in 2.60.0.
    """
    from ray._private.state import state

    deadlines: dict[str, int] = state.get_draining_nodes()
    return deadlines


def free_resources() -> dict[str, dict[str, float]]:
    """Return what is free on each node, by its id. ``ray._private.state.available_resources_per_node``, 2.60.0."""
    from ray._private.state import available_resources_per_node

    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def autoscaler_status() -> dict[str, Any]:
    """Return the autoscaler's last report; empty where no autoscaler runs.

    The key ``__autoscaling_status`` of ``ray.experimental.internal_kv``, read in 2.60.0.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    status: dict[str, Any] = json.loads(_internal_kv_get("__autoscaling_status") or b"{}")
    return status


def is_client() -> bool:
    """Tell whether this process is connected by Ray Client. ``ray.util.client.ray.is_connected``, read in 2.60.0."""
    import ray

    return bool(ray.util.client.ray.is_connected())


def local_cpus() -> int:
    """Return how many CPUs a Ray that is started here has: in a container, its share of the machine's.

    ``ray._private.utils.get_num_cpus``, read in 2.60.0.
    """
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus(override_docker_cpu_warning=True))


def session_folder() -> str:
    """Return this node's folder of the running Ray. ``ray._private.worker._global_node``, read in 2.60.0."""
    from ray._private import worker

    node: Any = worker._global_node
    return str(node.get_session_dir_path())


def runtime_env_fields() -> frozenset[str]:
    """Return the fields of a ``runtime_env``. ``RuntimeEnv.known_fields``, undocumented, read in 2.60.0."""
    from ray.runtime_env import RuntimeEnv

    return frozenset(RuntimeEnv.known_fields)


def object_store_bytes(address: str, port: int) -> int:
    """Return how much of a node's object store is in use. ``ray._private.internal_api.node_stats``, read in 2.60.0."""
    from ray._private.internal_api import node_stats

    return int(node_stats(address, port, include_memory_info=False).store_stats.object_store_bytes_used)


# --- Tune's trials and controller -------------------------------------------------------------------------


def trial_actor(trial: Any) -> Any:
    """Return the actor of a Tune trial; None while it has none. ``Trial.temporary_state``, read in 2.60.0."""
    return getattr(trial.temporary_state, "ray_actor", None)


def set_last_result(trial: Any, result: dict[str, Any]) -> None:
    """Set a Tune trial's last result without its statistics. ``Trial.run_metadata``, read in 2.60.0."""
    trial.run_metadata.last_result = result


def forget_default_result(trial: Any) -> None:
    """Drop what a trial's new actor said first, a reference that nobody reads and Ray would warn of.

    ``Trial._default_result_or_future``, read in 2.60.0.
    """
    from ray import ObjectRef

    if isinstance(trial._default_result_or_future, ObjectRef):
        trial._default_result_or_future = None


def stub_trial(trial_id: str, config: dict[str, Any]) -> Any:
    """Return a Tune trial that is never run. The argument ``stub`` of ``Trial``, undocumented, read in 2.60.0."""
    from ray.tune.experiment import Trial

    return Trial("recorded", stub=True, trial_id=trial_id, config=config)


def flattened(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as Tune hands it to schedulers: nested keys joined by "/".

    ``ray.tune.utils.flatten_dict``, undocumented, read in 2.60.0.
    """
    from ray.tune.utils import flatten_dict

    flat: dict[str, Any] = flatten_dict(dict(result))
    return flat


def cluster_size(controller: Any) -> tuple[float, float] | None:
    """Return the CPUs and GPUs of the cluster as Tune's controller knows them; None from a controller that does not.

    ``TuneController._resource_updater``, which the controller that schedulers are handed passes on, read in 2.60.0.
    """
    updater = getattr(controller, "_resource_updater", None)
    return None if updater is None else (float(updater.get_num_cpus()), float(updater.get_num_gpus()))


def end_cached_actors(controller: Any) -> None:
    """End the actors that Tune keeps for a next trial. Nothing happens with a controller that keeps none.

    ``TuneController._cleanup_cached_actors``; schedulers are handed a wrapper with the controller in
    ``_tune_controller``. Read in 2.60.0.
    """
    inner = getattr(controller, "_tune_controller", controller)
    if (end := getattr(inner, "_cleanup_cached_actors", None)) is not None:
        end(force_all=True)


def schedulers_by_name() -> Mapping[str, Any]:
    """Return Tune's schedulers by the names of `ray.tune.create_scheduler`: classes, or functions that import them.

    ``ray.tune.schedulers.SCHEDULER_IMPORT``, undocumented, read in 2.60.0.
    """
    from ray.tune.schedulers import SCHEDULER_IMPORT

    known: dict[str, Any] = SCHEDULER_IMPORT
    return known


def in_function_trainable() -> bool:
    """Tell whether this process runs a function trainable of Tune.

    ``ray.tune.trainable.trainable_fn_utils._in_tune_session``, read in 2.60.0.
    """
    from ray.tune.trainable.trainable_fn_utils import _in_tune_session

    return bool(_in_tune_session())


# --- Ray Data ---------------------------------------------------------------------------------------------


def split_coordinator(shard: Any) -> Any:
    """Return the actor behind the iterators of ``Dataset.streaming_split``.

    ``StreamSplitDataIterator._coord_actor``, read in 2.60.0.
    """
    return shard._coord_actor


def set_execution_index(context: Any, index: int) -> None:
    """Set how often Ray Data takes a dataset for executed already, which it mixes into its seeds.

    ``DataContext._execution_idx``, read in 2.60.0.
    """
    context._execution_idx = index


def is_materialized(dataset: Any) -> bool:
    """Tell whether a dataset's blocks are all in the object store.

    ``ray.data.dataset.MaterializedDataset``, which ``ray.data`` does not export, read in 2.60.0.
    """
    from ray.data.dataset import MaterializedDataset

    return isinstance(dataset, MaterializedDataset)
