"""Nodes with addresses of their own: network namespaces, made and removed by namespaces.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.scenes import read
from tests.cluster.three import finished
from tests.kit.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]
LIMIT_S = 300.0
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
            limit_s=LIMIT_S, code=code, PYTHON=sys.executable, **variables,
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
