"""What a process can tell of its machine, and the signals that stop a sweep, with real signals to this process."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import tunelight
from tests.kit.programs import ROOT, printed_by, python
from tunelight.errors import GangError
from tunelight.gang.gang import Gang
from tunelight.gang.placement import Location
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.machine.processes import is_running
from tunelight.machine.signals import StopSignals
from tunelight.machine.versions import (
    ENTRY_POINTS,
    LIGHTNING,
    MUST_AGREE,
    differences,
    ensure_entry_points,
    installed,
    is_installed,
)
from tunelight.resources import Reservation


def test_a_difference_names_versions_and_nodes_and_counts_for_lightning_s_package_in_use_alone():
    found = installed()
    assert tuple(found) == MUST_AGREE
    assert all(version for name, version in found.items() if name not in LIGHTNING)
    assert any(found[name] for name in LIGHTNING)
    same: dict[str, str | None] = dict.fromkeys(MUST_AGREE, "1.0")
    nodes = {f"node{number}": same for number in range(8)}
    assert differences(nodes, "pytorch_lightning") == []
    build, another = (
        {"torch": f"2.13.0+{kind}", "python": f"3.11.{patch}"} for kind, patch in (("cpu", 7), ("cu1", 9))
    )
    assert differences({"one": same | build, "two": same | another}, "pytorch_lightning") == []
    torch, ray = differences(nodes | {"node8": same | {"torch": "2.9.0", "ray": "2.43.0"}}, "pytorch_lightning")
    assert torch == (
        "torch is not the same on all nodes: 1.0 on node0, node1, node2, node3, node4 and 3 more; 2.9.0 on node8."
    )
    assert ray.startswith("ray is not the same")
    names = {"pytorch_lightning": "pytorch-lightning", "lightning.pytorch": "lightning"}
    for used, other in (list(names), list(names)[::-1]):
        assert differences({"one": same, "two": same | {names[other]: None}}, used) == []
        assert differences({"one": same, "two": same | {names[used]: None}}, used) == [
            f"{names[used]} is not the same on all nodes: 1.0 on one; none on two."
        ]


def test_a_gang_of_unlike_workers_never_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a" * 8))
    spec = GangSpec(Reservation(2), versions={})
    membership: Any = Gang(spec, None)
    here = Location("a" * 8, "10.0.0.1", 1, "one", versions={"torch": "2.13.0"})
    there = replace(here, node_id="b" * 8, address="10.0.0.2", hostname="two", versions={"torch": "2.9.0"})
    seats = [Seat(spec, location=here), Seat(spec, location=there)]
    with pytest.raises(GangError, match=r"torch .*: 2.13.0 on one#aaaaaa \(10.0.0.1\); 2.9.0 on two#bbbbbb") as caught:
        membership._meet(seats)
    assert caught.value.cause == "exception"  # trying again is of no use
    alike_but_not_the_driver: Any = Gang(GangSpec(Reservation(2), versions={"torch": "2.13.0"}), None)
    with pytest.raises(GangError, match=r"torch .*: 2.13.0 on the driver; 2.9.0 on two#bbbbbb \(10.0.0.2\)\."):
        alike_but_not_the_driver._meet([Seat(spec, location=there), Seat(spec, location=there)])


def test_a_process_runs_until_it_has_ended_and_another_user_s_runs_too(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.communicate(b"\n")
    assert not is_running(child.pid)
    assert [is_running(pid) for pid in (0, -1, 2**62)] == [False] * 3
    monkeypatch.setattr(os, "kill", mock.Mock(side_effect=PermissionError))
    assert is_running(1)


def test_a_process_has_children_while_one_runs_also_one_of_a_thread():
    code = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from tunelight.machine.processes import has_children
before = has_children()
with ThreadPoolExecutor(1) as pool:
    start = pool.submit(subprocess.Popen, [sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child, during = start.result(), has_children()
    child.communicate(b"\\n")
print(before, during, has_children())
"""
    known = "False" if sys.platform == "linux" else "True"  # other systems do not say
    assert printed_by(code).split() == [known, "True", known]


SCRIPT = """
import importlib.metadata, sys
from pathlib import Path

sys.path[:0] = sys.argv[1:2]
from tunelight.machine import versions

assert not versions.is_installed()
for _ in range(2):
    versions.ensure_entry_points(Path(sys.argv[2]))
for group in versions.ENTRY_POINTS:
    (found,) = importlib.metadata.entry_points(group=group)
    assert found.load()() == []  # nothing outside of a trial
print(importlib.metadata.version("tunelight"), len(list(Path(sys.argv[2]).iterdir())))
"""


def test_entry_points_are_those_of_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: points["tunelight"] for group, points in told.items()} == ENTRY_POINTS


def test_they_are_found_where_it_is_not_installed_and_left_alone_where_it_is(tmp_path: Path) -> None:
    where = tmp_path / "path"
    where.mkdir()
    (where / "tunelight").symlink_to(ROOT / "tunelight")
    done = python("-I", "-S", "-c", SCRIPT, where, tmp_path / "cache", limit_s=60)
    assert done.stdout.split() == [tunelight.__version__, "1"]
    assert is_installed()  # where nothing is written
    ensure_entry_points(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    assert importlib.metadata.version("tunelight") == tunelight.__version__


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[Any]]:
    before = [signal.getsignal(number) for number in HANDLED]
    yield before
    for number, handler in zip(HANDLED, before, strict=True):
        signal.signal(number, handler)


def listen() -> list[str]:
    """Do with signals what Tune does when it starts: SIGUSR1 stops it, and it gives SIGINT back as it was."""
    heard: list[str] = []
    original = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        heard.append("stop")
        signal.signal(signal.SIGINT, original)

    signal.signal(signal.SIGUSR1, stop)
    return heard


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_tune_and_says_so_and_the_second_ends_the_driver(handlers, number: signal.Signals):
    said: list[str] = []
    with StopSignals(said.append) as signals:
        tune = listen()
        signal.raise_signal(number)
        assert tune == ["stop"]
        assert signals.received is number
        assert len(said) == 1
        assert "ends at once" in said[0]
        assert ("SIGTERM" in said[0]) == (number is signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert len(said) == 1
    assert [signal.getsignal(each) for each in HANDLED] == handlers


def test_before_tune_runs_the_first_signal_interrupts(capfd):
    with StopSignals() as signals, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signals.received is signal.SIGTERM
    assert "SIGTERM. Stopping" in capfd.readouterr().err


def test_a_place_that_cannot_be_written_to_now_is_gone_round_and_a_ctrl_c_that_is_ignored_stays_ignored(capfd):
    busy = RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")
    with StopSignals(mock.Mock(side_effect=busy)):
        tune = listen()
        signal.raise_signal(signal.SIGINT)
    assert tune == ["stop"]
    assert capfd.readouterr().err.startswith("Stopping")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_of_the_main_thread_there_are_no_signals(handlers):
    seen: list[Any] = []

    def look() -> None:
        with StopSignals():
            seen.extend(signal.getsignal(number) for number in HANDLED)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert seen == handlers
