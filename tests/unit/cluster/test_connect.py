"""Connecting to a cluster, as far as no Ray is needed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.accelerators import NvidiaGPUAcceleratorManager

from tunelight.cluster.connect import _check_versions
from tunelight.cluster.local import for_job, for_workers
from tunelight.errors import ResourceError
from tunelight.extras.check import nodes_of

HERE = platform.python_version()


@pytest.fixture
def answer(monkeypatch):
    """Return a function that sets the versions that a cluster names."""
    return lambda versions: monkeypatch.setattr("tunelight.cluster.connect.cluster_versions", lambda address: versions)


def test_a_cluster_of_another_ray_or_python_is_refused_with_both_versions(answer, monkeypatch):
    for versions in (None, (ray.__version__, HERE)):
        answer(versions)
        _check_versions("10.0.0.1:6379")
    for versions in (("2.10.0", HERE), (ray.__version__, "3.9.1"), (ray.__version__, f"{HERE}1")):
        answer(versions)
        _check_versions("auto")  # where the cluster is not known yet
        there, here = f"Ray {versions[0]} and Python {versions[1]}", f"Ray {ray.__version__} and Python {HERE}"
        with pytest.raises(ResourceError, match=f"^The Ray cluster at 10.0.0.1:6379 .* with {there}.*has {here}"):
            _check_versions("10.0.0.1:6379")
    monkeypatch.setenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")  # a patch of Python may differ
    _check_versions("10.0.0.1:6379")


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("0,3", 2), ("", 0)])
def test_gpus_are_those_that_ray_would_find_and_that_are_not_hidden(monkeypatch, visible, count):
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nodes_of()[1][0]["GPU"] == count


INTERFACES = {"lo": ("127.0.0.1",), "eth0": ("10.0.0.1",)}


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    return tmp_path


def test_the_drivers_folder_goes_to_another_machine_without_its_sweeps(cwd):
    told = for_job({"env_vars": {"A": "1"}}, "10.0.0.9:6379", Path("tunelight_runs"), INTERFACES)
    assert told == {"env_vars": {"A": "1"}, "working_dir": str(cwd), "excludes": ["/tunelight_runs"]}
    assert for_job(None, "10.0.0.9:6379", Path("/shared"), INTERFACES)["excludes"] == []


def test_nothing_is_sent_on_this_machine_or_where_a_folder_was_named_or_sent_with_the_job(cwd, monkeypatch):
    for address in ("10.0.0.1:6379", "127.0.0.1:6379", "localhost:6379", "auto"):
        assert for_job(None, address, cwd, INTERFACES) == {}
    named = {"working_dir": "elsewhere"}
    assert for_job(named, "10.0.0.9:6379", cwd, INTERFACES) == named
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert for_job(None, "10.0.0.9:6379", cwd, INTERFACES) == {}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, None),
        ({"working_dir": ".", "excludes": ["data"]}, None),
        ({"working_dir": "s3://code.zip", "pip": ["x"]}, {"working_dir": "s3://code.zip", "pip": ["x"]}),
        ({"py_modules": ["mine"], "env_vars": {"A": "1"}}, {"env_vars": {"A": "1"}}),
    ],
)
def test_workers_are_not_given_what_ray_sends_with_the_job(given: Any, left: Any) -> None:
    assert for_workers(given) == left
