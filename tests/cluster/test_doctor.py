"""The doctor's look at three raylets, sound and not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.scenes import read
from tests.cluster.three import another, on_three_nodes
from tunelight.cli.app import FAILED
from tunelight.machine.versions import MUST_AGREE, installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def answer(output: str) -> Any:
    return json.loads(output[output.index("\n{") :])


def test_a_sound_cluster_is_fit() -> None:
    told = answer(on_three_nodes("tests.cluster.doctor", "--json"))
    assert told["fit"] is True
    assert len(told["nodes"]) == 3
    for node in told["nodes"]:
        assert node["total"]["CPU"] == 2
        assert node["free"]["CPU"] == 2  # its probe holds nothing
        assert node["unreachable"] == {}
        assert abs(node["skew_s"]) < 1  # all of them are this machine
        assert {name: node["here"]["versions"][name] for name in MUST_AGREE} == installed()
    assert 0 < told["all_reduce_s"] < 60


def test_a_node_with_another_torch_is_named(tmp_path: Path) -> None:
    path = another(tmp_path, "torch")
    told = answer(on_three_nodes("tests.cluster.doctor", "--json", code=FAILED, UNLIKE=f"PYTHONPATH={path}"))
    (wrong,) = [finding for finding in told["findings"] if finding["verdict"] == "wrong"]
    assert "torch is not the same on all nodes" in wrong["found"]
    assert "9.9.9 on" in wrong["found"]
    assert "Install the same versions" in wrong["advice"]


def test_a_sweep_is_refused_before_its_first_trial_where_a_node_has_other_versions(tmp_path: Path) -> None:
    # A node of another Ray joins no cluster; one whose environment was changed since it joined is like this one.
    unlike = f"PYTHONPATH={another(tmp_path, 'torch', 'ray', 'pytorch-lightning')}"
    told = read(on_three_nodes("tests.cluster.scenes", str(tmp_path), "refused", UNLIKE=unlike))["refused"]
    assert told["kind"] == "ResourceError", told["error"]
    for name in ("torch", "ray", "pytorch-lightning"):
        assert re.search(rf"\b{name} is not the same on all nodes: [\d.]+ on this one[^;]*; 9\.9\.9 on", told["error"])
    assert " lightning is not" not in told["error"]
    assert told["trials"] == 0
