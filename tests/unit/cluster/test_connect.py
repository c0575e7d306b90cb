"""Connecting to a cluster, as far as no Ray is needed."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from tunelight.cluster import connect
from tunelight.cluster.connect import _amd_gpus, _check_versions, _nvidia_gpus, nodes_of
from tunelight.errors import ResourceError

HERE = platform.python_version()


def answer(monkeypatch: pytest.MonkeyPatch, versions: tuple[str, str] | None) -> None:
    monkeypatch.setattr("tunelight.cluster.connect.cluster_versions", lambda address: versions)


@pytest.mark.parametrize("versions", [None, (ray.__version__, HERE)])
def test_a_cluster_of_the_same_versions_or_of_unknown_ones_is_tried(monkeypatch, versions):
    answer(monkeypatch, versions)
    _check_versions("10.0.0.1:6379")


@pytest.mark.parametrize("versions", [("2.10.0", HERE), (ray.__version__, "3.9.1"), (ray.__version__, f"{HERE}1")])
def test_a_cluster_of_another_ray_or_python_is_refused_with_both_versions(monkeypatch, versions):
    answer(monkeypatch, versions)
    there, here = f"Ray {versions[0]} and Python {versions[1]}", f"Ray {ray.__version__} and Python {HERE}"
    with pytest.raises(ResourceError, match=f"^The Ray cluster at 10.0.0.1:6379 was started with {there}.*has {here}"):
        _check_versions("10.0.0.1:6379")
    _check_versions("auto")  # where the cluster is not known yet


def test_a_patch_of_python_may_differ_where_ray_was_told_so(monkeypatch):
    answer(monkeypatch, (ray.__version__, f"{HERE}1"))
    monkeypatch.setenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    _check_versions("10.0.0.1:6379")


def test_gpus_of_amd_s_driver_are_its_nodes_with_a_gpu_s_id(tmp_path: Path) -> None:
    for node, gpu in enumerate(("0", "0", "51110", "18297")):  # two sockets, two GPUs
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "gpu_id").write_text(f"{gpu}\n")
    assert _amd_gpus(tmp_path) == 2
    assert _amd_gpus(tmp_path / "no driver") == 0


def test_gpus_of_nvidia_s_are_devices_or_in_wsl_what_its_library_counts(tmp_path: Path, monkeypatch) -> None:
    bindings = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2)
    monkeypatch.setattr(connect, "nvml", lambda: bindings)
    assert _nvidia_gpus(tmp_path) == 0
    (tmp_path / "dxg").touch()
    assert _nvidia_gpus(tmp_path) == 2
    monkeypatch.setattr(bindings, "nvmlInit", lambda: 1 / 0)
    assert _nvidia_gpus(tmp_path) == 0
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert _nvidia_gpus(tmp_path) == 1


@pytest.mark.parametrize(
    ("cuda", "hip", "found"), [("0,3", None, 2), ("", "1", 1), ("-1", "", 0), (" GPU-1 , ", "0,1,2", 1)]
)
def test_gpus_that_are_hidden_do_not_count(
    monkeypatch: pytest.MonkeyPatch, cuda: str, hip: str | None, found: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cuda)
    if hip is not None:
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", hip)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert nodes_of()[1][0]["GPU"] == found
