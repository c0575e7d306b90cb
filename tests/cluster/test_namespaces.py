"""Nodes with addresses of their own (network namespaces, by namespaces.sh), and three raylets of two CPUs each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import tunelight
from tests.cluster.scenes import read
from tests.cluster.three import another, finished, on_three_nodes
from tests.kit.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]
Run = Callable[..., str]


def forbidden() -> str | None:
    """Return why this system allows no network namespaces, or None."""
    if os.geteuid():
        return "needs root"
    name = f"tlprobe{os.getpid()}"
    try:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "needs ip (iproute2)"
    if done.returncode:
        return done.stderr.strip()
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return a function that runs a module on so many nodes, the address of the first being its first argument."""
    if (why := forbidden()) is not None:
        pytest.skip(f"no network namespaces here: {why}")
    before = namespaces()

    def on(nodes: int, module: str, *arguments: str, code: int = 0, **variables: str) -> str:
        return finished(
            str(ROOT / "tests" / "cluster" / "namespaces.sh"), str(nodes),
            sys.executable, "-m", module, "10.77.0.1:6379", *arguments,
            limit_s=300.0, code=code, PYTHON=sys.executable, **variables,
        )  # fmt: skip

    yield on
    assert namespaces() == before, "namespaces are left behind"


def test_gangs_meet_at_real_addresses(run: Run, tmp_path: Path) -> None:
    scenes = ["spread", "fit", *(["horovod"] if find_spec("horovod") else [])]
    told = read(run(2, "tests.cluster.scenes", str(tmp_path), *scenes))
    (ranks,) = told["spread"]["trials"]
    assert {rank["address"] for rank in ranks} == {"10.77.0.1", "10.77.0.2"}
    for rank in ranks:
        assert rank["told"] == {
            "MASTER_ADDR": ranks[0]["address"], "GLOO_SOCKET_IFNAME": "tlnet0", "HOROVOD_GLOO_IFACE": "tlnet0",
            "NCCL_SOCKET_IFNAME": "=tlnet0",
        }  # fmt: skip
    assert told["fit"]["learned"]
    assert told["fit"]["best"]
    if "horovod" in told:
        assert told["horovod"]["states"] == ["FINISHED"], told["horovod"]["errors"]
        assert told["horovod"]["losses"] == pytest.approx(told["spread"]["losses"], abs=1e-5)


@pytest.mark.parametrize(
    ("nodes", "blocked", "words"),
    [
        (2, {"BLOCKED": "all"}, ["firewall", "on node"]),
        (3, {"BLOCKED": "later", "CPUS": "1"}, ["10.77.0.2", "10.77.0.3"]),
    ],
    ids=["a firewall", "later nodes"],
)
def test_a_gang_whose_nodes_are_apart_says_so(run, tmp_path, nodes, blocked, words):
    told = read(run(nodes, "tests.cluster.scenes", str(tmp_path), "refused", **blocked))["refused"]
    assert all(word in told["error"] for word in words), told
    assert told["seconds"] < 90, told  # nothing is tried again: 10 s of waiting, and the start of workers


def test_nodes_that_share_only_a_store_train_pause_and_go_on(run: Run, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    output = run(2, "tests.cluster.scenes", str(tmp_path), "stored", PRIVATE=str(cache), XDG_CACHE_HOME=str(cache))
    told = read(output)["stored"]
    assert not told["errors"]
    assert set(told["states"]) <= {"FINISHED", "STOPPED"}
    assert "FINISHED" in told["states"]
    assert told["resumed"], "trials pause, and their heads and ranks go on wherever there is room"
    assert len(told["losses"]) == 4
    for ranks in told["trials"]:
        assert {rank["address"] for rank in ranks} == {"10.77.0.1", "10.77.0.2"}
    assert told["logs"] == ["log-node1.txt", "log.txt"]
    assert told["loaded"] == "Line"
    assert [one.startswith(told["best"]) for one in told["here"]] == [True], "the driver holds what it has fetched"
    assert not list(cache.rglob("*")), "each node had a folder of its own"


def test_everything_is_removed_after_a_failure(run: Run) -> None:
    run(2, "no.such.module", code=1)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("three")
    scenes = ["packed", "spread", "fit", *(["horovod"] if find_spec("horovod") else [])]
    return read(on_three_nodes("tests.cluster.scenes", str(folder), *scenes))


def whole(scene: dict[str, Any]) -> None:
    assert set(scene["states"]) == {"FINISHED"}, scene["errors"]
    assert scene["loaded"] == "Line"  # written on whatever node, read here


def test_a_gang_that_fits_a_node_has_one_and_gangs_use_every_node(told):
    whole(told["packed"])
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
    whole(told["spread"])
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
        whole(told["horovod"])
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
    whole(code)
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
