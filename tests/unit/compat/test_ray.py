"""The private names of Ray and those that differ between versions, as tunelight uses them; what older torch lacks.

Tests of Ray hold for every version in `TESTED`.
"""

from __future__ import annotations

import ast
import functools
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

import tunelight
from tunelight.compat import ray as names
from tunelight.compat.torch import store_on, use_gpu
from tunelight.machine.network import listening

PACKAGE = Path(tunelight.__file__).parent


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
    assert users == {"tunelight/compat/ray.py"}


@pytest.mark.parametrize("version", ["2.61.0", "2.42.1", "3.0.0.dev0", "2.600.0"])
def test_a_version_that_was_not_tested_is_told_once_a_process(monkeypatch, version):
    monkeypatch.setattr("ray.__version__", version)
    monkeypatch.setattr(names, "check_version", functools.cache(names.check_version.__wrapped__))
    told = f"not tested with Ray {version.rsplit('.', version.count('.') - 1)[0]}; tested: 2.43 to 2.60"
    assert names.untested() == told
    with pytest.warns(UserWarning, match=f"^tunelight was {re.escape(told)}.$"):
        names.check_version()
    names.check_version()  # where a second warning would be an error


def test_an_actor_is_dead_once_ray_says_so(monkeypatch):
    known = {"one": {"State": "DEAD"}, "other": {"State": "ALIVE"}}
    monkeypatch.setattr("ray._private.state.actors", lambda actor_id=None: known.get(actor_id, {}))
    assert [names.is_dead(actor) for actor in ("one", "other", "unknown")] == [True, False, False]


@pytest.mark.parametrize(
    ("status", "version_2", "may_grow"),
    [
        (None, None, False),
        (b'{"autoscaler_report": {}}', b"0", False),
        (b'{"autoscaler_report": {"active_nodes": {"local.cluster.node": 1, "node_af3": 2}}}', None, False),
        (b'{"autoscaler_report": {"active_nodes": {"workers": 1}}}', None, True),
        (None, b"1", True),  # it reports its node types nowhere
    ],
)
def test_an_autoscaler_is_known_by_the_keys_of_its_version(monkeypatch, status, version_2, may_grow):
    from ray import _raylet  # without types
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS

    held = {
        (DEBUG_AUTOSCALING_STATUS, None): status,
        tuple(getattr(_raylet, f"GCS_AUTOSCALER_{name}") for name in ("V2_ENABLED_KEY", "STATE_NAMESPACE")): version_2,
    }
    monkeypatch.setattr(
        "ray.experimental.internal_kv._internal_kv_get", lambda key, *, namespace=None: held[key, namespace]
    )
    assert names.has_autoscaler() is may_grow


def test_variables_of_the_environment():
    from ray._private.runtime_env import constants
    from ray.tune.constants import TUNE_ENV_VARS

    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == names.JOB_VARIABLE
    assert constants.RAY_RUNTIME_ENV_PLUGINS_ENV_VAR == names.PLUGINS_VARIABLE
    assert {name for name in names.TUNE_ENVIRONMENT if name.startswith("TUNE")} <= set(TUNE_ENV_VARS)


@pytest.mark.parametrize("interrupted", [False, True])
def test_at_the_end_heads_may_finish_writing_unless_a_signal_has_come(interrupted):
    once, _ = names._mended()
    controller, waited, killed = object.__new__(once), list[int](), list[Any]()
    since = time.monotonic() - 60
    heads = SimpleNamespace(
        next=lambda **limit: waited.append(limit["timeout"]),
        is_actor_started=lambda tracked_actor: len(waited) < 3,
        remove_actor=lambda tracked_actor, kill: killed.append((tracked_actor, kill)),
    )
    vars(controller).update(
        _stopping_actors={"head": since}, _earliest_stopping_actor=since, _actor_cleanup_timeout=600,
        _actor_manager=heads, _scheduler_alg=SimpleNamespace(interrupted=lambda: interrupted),
    )  # fmt: skip
    controller._cleanup_stopping_actors(force_all=True)
    assert (waited, killed) == (([], [("head", True)]) if interrupted else ([1, 1, 1], []))


@pytest.mark.parametrize(
    ("version", "libuv"), [("2.4.0", False), ("2.7.1+cpu", False), ("2.8.0", True), ("2.13.0+cpu", True)]
)
def test_a_store_takes_over_the_socket_that_holds_its_port(version, libuv, monkeypatch):
    if libuv and torch.__version__ < "2.8":
        pytest.skip("this torch's libuv takes no socket")
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with listening("127.0.0.1") as listener:
        port = int(listener.getsockname()[1])
        store = store_on(listener, "127.0.0.1", 10.0)
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    client.set("key", "value")
    assert store.get("key") == b"value"
    found: bool = vars(type(store))["libuvBackend"].fget(store)
    assert found is libuv


def test_a_gpu_is_chosen_at_once_where_cuda_is_in_use_and_else_once_it_is(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    use_gpu(1)
    assert not chosen
    (call, _) = torch.cuda._queued_calls[0]  # CUDA is initialised
    call()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    use_gpu(2)
    assert chosen == [1, 2]
