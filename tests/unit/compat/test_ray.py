"""The names of Ray that are private or undocumented: each is in the installed Ray, and looks as tunelight uses it."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import Trainable
from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

import tunelight
from tunelight.compat import ray as names

PACKAGE = Path(tunelight.__file__).parent


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


# --- one place ---------------------------------------------------------------------------------------------


def test_only_this_module_imports_private_modules_of_ray():
    private = re.compile(r"ray\._|ray\.experimental|ray\.[\w.]*\._|ray\.tune\.(result|utils)\b|ray\.util\.client")
    users = set()
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ray":
                named = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute):
                named = [ast.unparse(node)]
            else:
                continue
            if any(private.match(name) for name in named):
                users.add(path.relative_to(PACKAGE.parent).as_posix())
    assert users - {"tunelight/simulation/controller.py"} == {"tunelight/compat/ray.py"}


def test_every_name_says_in_which_version_it_was_read():
    functions = [one for one in vars(names).values() if inspect.isfunction(one) and one.__module__ == names.__name__]
    assert len(functions) > 20
    assert [one.__name__ for one in functions if not re.search(r"2\.\d\d\.\d", one.__doc__ or "")] == []


def test_the_module_itself_imports_no_ray():
    code = "import sys, tunelight.compat.ray; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


# --- the cluster --------------------------------------------------------------------------------------------


def test_the_state_of_actors_and_nodes():
    from ray._private.state import actors, available_resources_per_node, state

    assert parameters(actors)[0] == "actor_id"
    assert parameters(available_resources_per_node) == []
    assert parameters(state.get_draining_nodes) == []


def test_an_actor_is_dead_once_ray_says_so(monkeypatch):
    known = {"one": {"State": "DEAD"}, "other": {"State": "ALIVE"}}
    monkeypatch.setattr("ray._private.state.actors", lambda actor_id=None: known.get(actor_id, {}))
    assert [names.is_dead(actor) for actor in ("one", "other", "unknown")] == [True, False, False]


def test_the_autoscaler_reports_under_the_key_that_is_asked(monkeypatch):
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS

    held = {DEBUG_AUTOSCALING_STATUS: b'{"autoscaler_report": {}}'}
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_get", held.get)
    assert names.autoscaler_status() == {"autoscaler_report": {}}
    held.clear()
    assert names.autoscaler_status() == {}


def test_the_node_of_a_process_has_a_session_folder(monkeypatch):
    from ray._private import worker
    from ray._private.node import Node

    assert parameters(Node.get_session_dir_path) == ["self"]
    monkeypatch.setattr(worker, "_global_node", SimpleNamespace(get_session_dir_path=lambda: "/tmp/session"))
    assert names.session_folder() == "/tmp/session"


def test_this_machine_and_this_process():
    from ray._private.internal_api import node_stats

    assert 1 <= names.local_cpus() <= (os.cpu_count() or 1)
    assert names.is_client() is False
    assert {"pip", "env_vars", "working_dir", "py_modules", "excludes"} <= names.runtime_env_fields()
    assert parameters(node_stats)[:2] == ["node_manager_address", "node_manager_port"]
    assert "include_memory_info" in parameters(node_stats)


def test_ray_takes_what_a_local_one_is_started_with():
    import ray
    from ray._private import worker

    documented = inspect.getdoc(ray.init) or ""
    assert all(name in documented for name in names.LOCAL_RAY)
    assert Path(worker.__file__).read_text().count('kwargs.pop("_system_config"') == 1


def test_variables_of_the_environment():
    from ray._private.runtime_env import constants
    from ray.tune.constants import TUNE_ENV_VARS

    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == names.JOB_VARIABLE
    assert constants.RAY_RUNTIME_ENV_PLUGINS_ENV_VAR == names.PLUGINS_VARIABLE
    assert {name for name in names.TUNE_ENVIRONMENT if name.startswith("TUNE")} <= set(TUNE_ENV_VARS)


# --- Tune ---------------------------------------------------------------------------------------------------


def test_keys_of_results():
    from ray.tune import result

    keys = ("DEFAULT_METRIC", "DONE", "RESULT_DUPLICATE", "TRAINING_ITERATION", "TRIAL_ID")
    assert {key: getattr(names, key) for key in keys} == {key: getattr(result, key) for key in keys}


def test_a_trial():
    trial: Trial = names.stub_trial("00001", {"x": 1})
    assert (trial.trial_id, trial.config) == ("00001", {"x": 1})
    assert names.trial_actor(trial) is None
    actor: Any = object()
    trial.temporary_state.ray_actor = actor
    assert names.trial_actor(trial) is actor
    names.set_last_result(trial, {"loss": 2.0})
    assert trial.last_result["loss"] == 2.0
    assert hasattr(trial, "_default_result_or_future")


def test_only_a_reference_is_forgotten():
    import ray

    trial = names.stub_trial("00001", {})
    trial._default_result_or_future = {"node_ip": "127.0.0.1"}
    names.forget_default_result(trial)
    assert trial._default_result_or_future == {"node_ip": "127.0.0.1"}
    trial._default_result_or_future = ray.ObjectRef.nil()
    names.forget_default_result(trial)
    assert trial._default_result_or_future is None


def test_the_controller_that_schedulers_are_handed():
    from ray.tune.utils.resource_updater import _ResourceUpdater

    assert "force_all" in parameters(TuneController._cleanup_cached_actors)
    ended: list[bool] = []
    updater = SimpleNamespace(get_num_cpus=lambda: 4, get_num_gpus=lambda: 1)
    inner: Any = SimpleNamespace(
        _resource_updater=updater, _cleanup_cached_actors=lambda *, force_all: ended.append(force_all)
    )
    handed: Any = TrialRunnerWrapper(inner, None, {"_resource_updater"})
    assert names.cluster_size(handed) == (4, 1)
    names.end_cached_actors(handed)
    assert ended == [True]
    assert {"get_num_cpus", "get_num_gpus"} <= vars(_ResourceUpdater).keys()


def test_a_controller_that_stands_in_for_tunes_knows_nothing():
    assert names.cluster_size(object()) is None
    names.end_cached_actors(object())


def test_schedulers_results_and_sessions():
    assert {"async_hyperband", "fifo", "pbt"} <= names.schedulers_by_name().keys()
    assert names.flattened({"a": {"b": 1}, "c": 2}) == {"a/b": 1, "c": 2}
    assert names.in_function_trainable() is False


@pytest.mark.parametrize(
    ("base", "own"),
    [
        (Trial, ("create_placement_group_factory", "update_last_result", "get_json_state", "set_config")),
        (TrialScheduler, ("_supports_buffered_results",)),
        (Trainable, ("reset_config", "load_checkpoint", "save_checkpoint", "cleanup", "logdir", "trial_id")),
    ],
)
def test_what_tunelights_classes_override_or_read_is_there(base, own):
    assert [name for name in own if not hasattr(base, name)] == []


def test_attributes_that_instances_have():
    assert hasattr(names.stub_trial("00001", {}), "_default_placement_group_factory")
    assert {"_storage", "_iteration"} <= set(re.findall(r"self\.(\w+)\b", inspect.getsource(Trainable.__init__)))


# --- Ray Data -----------------------------------------------------------------------------------------------


def test_names_of_ray_data():
    pytest.importorskip("pyarrow")
    from ray.data import DataContext, Dataset
    from ray.data._internal.iterator.stream_split_iterator import StreamSplitDataIterator
    from ray.data.dataset import MaterializedDataset

    shard: Any = object.__new__(StreamSplitDataIterator)
    shard._coord_actor = actor = object()
    assert "self._coord_actor = " in inspect.getsource(StreamSplitDataIterator.__init__)
    assert names.split_coordinator(shard) is actor

    assert "self._execution_idx = 0" in inspect.getsource(DataContext)
    context: Any = SimpleNamespace()
    names.set_execution_index(context, 3)
    assert context._execution_idx == 3

    assert issubclass(MaterializedDataset, Dataset)
    assert names.is_materialized(object()) is False
