"""A sweep and a Trainer on three raylets of two CPUs each: where gangs lie, who is who, and what reaches the driver."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import tunelight
from tests.cluster.scenes import read
from tests.cluster.three import another, on_three_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("three")
    scenes = ["packed", "spread", "fit", *(["horovod"] if find_spec("horovod") else [])]
    return read(on_three_nodes("tests.cluster.scenes", str(folder), *scenes))


def finished(scene: dict[str, Any]) -> None:
    assert set(scene["states"]) == {"FINISHED"}, scene["errors"]
    assert scene["loaded"] == "Line"  # written on whatever node, read here


def test_a_gang_that_fits_a_node_has_one_and_gangs_use_every_node(told):
    finished(told["packed"])
    for ranks in told["packed"]["trials"]:
        assert len({rank["node"] for rank in ranks}) == 1
        assert [rank["ranks"] for rank in ranks] == [[0, 0, 0, 2], [1, 1, 0, 2]]
        assert {rank["told"]["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}
        assert {rank["file"] for rank in ranks} == {str(Path(tunelight.__file__))}  # the driver's code
    assert len({ranks[0]["node"] for ranks in told["packed"]["trials"]}) == 3


def expected(nodes: list[str]) -> list[list[int]]:
    """Return each rank, local rank and node rank on these nodes, of which each one's ranks must be neighbours."""
    assert len([node for node, _ in groupby(nodes)]) == len(set(nodes)) > 1
    order = list(dict.fromkeys(nodes))
    return [[number, nodes[:number].count(node), order.index(node)] for number, node in enumerate(nodes)]


def test_a_gang_over_nodes_has_neighbours_on_each_and_is_told_rank_0s_address_and_its_interfaces(told):
    finished(told["spread"])
    (ranks,) = told["spread"]["trials"]
    nodes = [rank["node"] for rank in ranks]
    assert [rank["ranks"][:3] for rank in ranks] == expected(nodes)
    assert [rank["ranks"][3] for rank in ranks] == [nodes.count(node) for node in nodes]
    assert {rank["told"]["MASTER_ADDR"] for rank in ranks} == {ranks[0]["address"]}
    for rank in ranks:
        interface = rank["told"]["GLOO_SOCKET_IFNAME"]
        assert interface
        assert rank["told"]["HOROVOD_GLOO_IFACE"] == interface
        assert rank["told"]["NCCL_SOCKET_IFNAME"] == f"={interface}"
    if "horovod" in told:  # which trains as DDP does
        finished(told["horovod"])
        assert told["horovod"]["losses"] == pytest.approx(told["spread"]["losses"], abs=1e-5)


def test_a_trainers_gang_spans_nodes_and_brings_everything_back(told):
    fit = told["fit"]
    assert fit["best"]
    assert fit["learned"]
    assert len(fit["places"]) == 4
    assert [place["ranks"][:3] for place in fit["places"]] == expected([place["node"] for place in fit["places"]])


def test_a_gang_leaves_a_drained_node_with_nothing_lost(tmp_path: Path) -> None:
    drain = read(on_three_nodes("tests.cluster.scenes", str(tmp_path), "drain"))["drain"]
    assert drain["states"] == ["FINISHED"], drain["notes"]
    assert drain["losses"][1] == drain["losses"][0]
    assert len(drain["losses"][1]) == 8
    assert drain["drained"]
    assert drain["drained"] not in drain["nodes"]
    assert any("Ray drains" in note for note in drain["notes"])


def test_a_folder_and_variables_reach_every_worker(tmp_path: Path) -> None:
    code = read(on_three_nodes("tests.cluster.scenes", str(tmp_path), "code"))["code"]
    finished(code)
    for rank in code["trials"][0]:
        assert rank["sent"]
        assert rank["env"] == {"MINE_TOO": "yes"}


def test_a_sweep_is_refused_before_its_first_trial_where_a_node_has_other_versions(tmp_path: Path) -> None:
    # A node of another Ray joins no cluster; one whose environment was changed since it joined is like this one.
    unlike = f"PYTHONPATH={another(tmp_path, 'torch', 'ray', 'pytorch-lightning')}"
    told = read(on_three_nodes("tests.cluster.scenes", str(tmp_path), "refused", UNLIKE=unlike))["refused"]
    assert told["kind"] == "ResourceError", told["error"]
    for name in ("torch", "ray", "pytorch-lightning"):
        assert re.search(rf"\b{name} is not the same on all nodes: [\d.]+ on this one[^;]*; 9\.9\.9 on", told["error"])
    assert " lightning is not" not in told["error"]
    assert told["trials"] == 0
