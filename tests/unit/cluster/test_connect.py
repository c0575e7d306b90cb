"""Connecting to a cluster, as far as no Ray is needed."""

from __future__ import annotations

import platform

import pytest
import ray
from ray._private.accelerators import NvidiaGPUAcceleratorManager

from tunelight.cluster.connect import _check_versions, nodes_of
from tunelight.errors import ResourceError

HERE = platform.python_version()


@pytest.fixture
def answer(monkeypatch):
    """Return a function that sets the versions that a cluster names."""
    return lambda versions: monkeypatch.setattr("tunelight.cluster.connect.cluster_versions", lambda address: versions)


@pytest.mark.parametrize("versions", [None, (ray.__version__, HERE)])
def test_a_cluster_of_the_same_versions_or_of_unknown_ones_is_tried(answer, versions):
    answer(versions)
    _check_versions("10.0.0.1:6379")


@pytest.mark.parametrize("versions", [("2.10.0", HERE), (ray.__version__, "3.9.1"), (ray.__version__, f"{HERE}1")])
def test_a_cluster_of_another_ray_or_python_is_refused_with_both_versions(answer, versions):
    answer(versions)
    there, here = f"Ray {versions[0]} and Python {versions[1]}", f"Ray {ray.__version__} and Python {HERE}"
    with pytest.raises(ResourceError, match=f"^The Ray cluster at 10.0.0.1:6379 was started with {there}.*has {here}"):
        _check_versions("10.0.0.1:6379")
    _check_versions("auto")  # where the cluster is not known yet


def test_a_patch_of_python_may_differ_where_ray_was_told_so(answer, monkeypatch):
    answer((ray.__version__, f"{HERE}1"))
    monkeypatch.setenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    _check_versions("10.0.0.1:6379")


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("0,3", 2), ("", 0)])
def test_gpus_are_those_that_ray_would_find_and_that_are_not_hidden(monkeypatch, visible, count):
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nodes_of()[1][0]["GPU"] == count
