"""The Ray that stays after a run, when it ends, and a head that answers no more. Ray itself is a stand-in."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunelight as tl
from tests.kit.waiting import until
from tunelight.cluster import gcs_watch as headwatch
from tunelight.cluster import local
from tunelight.cluster.gcs_watch import EXIT_CODE, GcsCallback, GcsWatch
from tunelight.errors import HeadLostError, SettingsError


class Ray:
    """What is asked of Ray: it runs or not, and each start is another session."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.running = self.used = False

    def init(self, **arguments: Any) -> None:
        self.started.append(arguments)
        self.running = True
        os.environ["RAY_OF_ITS_OWN"] = "1"

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "memory": 1.0}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0 if self.used else 2.0, "memory": 0.5}

    def is_initialized(self) -> bool:
        return self.running

    def shutdown(self) -> None:
        self.running = False


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    one = Ray()
    monkeypatch.setattr(local, "ray", one)
    monkeypatch.setattr(local, "session_folder", lambda: str(len(one.started)))
    monkeypatch.setattr(local, "fork_server", lambda *_: None)
    monkeypatch.setattr(local, "_Process", SimpleNamespace(kept=None, found=None, blocks=0))
    monkeypatch.setenv("MINE", "1")
    yield one
    local.shutdown()
    assert "RAY_OF_ITS_OWN" not in os.environ


@pytest.mark.parametrize("change", ["runtime_env", "verbose", "environment", "cwd", "path", "user"])
def test_another_one_is_started_where_it_would_not_be_the_same(ray, change, monkeypatch, tmp_path):
    local.start(None, 0).schedule_shutdown()
    asked: dict[str, Any] = {"runtime_env": None, "verbose": 0}
    if change == "environment":
        monkeypatch.setenv("MINE", "2")
    elif change == "cwd":
        monkeypatch.chdir(tmp_path)
    elif change == "path":
        monkeypatch.syspath_prepend(tmp_path)
    elif change == "user":
        ray.shutdown()  # by hand
    else:
        asked[change] = {"env_vars": {"A": "1"}} if change == "runtime_env" else 1
    assert local.start(**asked).lives
    assert len(ray.started) == 2


def test_it_ends_after_a_while_and_not_while_it_is_used_or_another_is_there(ray, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.05)
    local.start(None, 0).schedule_shutdown()
    ray.shutdown()  # by hand; its timer ends no other
    mine = local.start(None, 0)
    mine.schedule_shutdown()
    mine.hold()
    time.sleep(0.15)
    assert ray.running
    ray.used = True  # by tasks of the user's
    mine.schedule_shutdown()
    time.sleep(0.15)
    assert ray.running
    ray.used = False
    until(lambda: not ray.running, 5)
    assert local.kept() is None


def test_what_a_kept_one_cannot_give_is_an_error(ray):
    local.start(None, 0, stays=True)
    with pytest.raises(SettingsError, match="runtime_env has pip, which needs a new Ray"):
        local.start({"pip": ["x"]}, 0)
    with pytest.raises(SettingsError, match="working_dir"):
        local.start({"working_dir": "."}, 0)
    local.start({"env_vars": {"A": "1"}}, 0)
    assert len(ray.started) == 1


def test_a_second_run_starts_on_it_and_one_with_objects_of_the_user_s_stays_however_that_is(ray, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.05)
    mine = local.start(None, 0)
    mine.schedule_shutdown()
    assert local.kept() is mine
    local.start(None, 1, as_it_is=True, stays=True).schedule_shutdown()
    time.sleep(0.15)
    assert local.start(None, 1) is mine
    assert len(ray.started) == 1


def test_a_block_keeps_it_ready_and_ends_it(ray, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.01)
    with tl.ready():
        with tl.ready():
            local.start(None, 0).schedule_shutdown()
        time.sleep(0.05)
        assert ray.running
    assert not ray.running
    tl.shutdown()  # nothing is left to end


def test_a_start_that_fails_leaves_the_environment_as_it_was(ray, monkeypatch):
    def fail(**arguments: Any) -> None:
        os.environ["RAY_OF_ITS_OWN"] = "1"
        raise OSError("no room")

    monkeypatch.setattr(ray, "init", fail)
    before = dict(os.environ)
    with pytest.raises(OSError, match="no room"):
        local.start(None, 0)
    assert dict(os.environ) == before
    assert local.kept() is None


def test_a_fork_of_the_process_does_not_end_it(ray, monkeypatch):
    local.start(None, 0).schedule_shutdown()
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        tl.shutdown()
        os.write(theirs, f"{ray.running} {local.kept()}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ours, 100) == b"True None"


@pytest.fixture
def quick(monkeypatch):
    """Look every 10 ms; return what the watch ends the process with, and when it did."""
    for name, seconds in (("PING_S", 0.01), ("LOST_S", 0.05), ("GRACE_S", 0.05), ("SIGNALLED_S", 0.02)):
        monkeypatch.setattr(headwatch, name, seconds)
    ended = threading.Event()
    codes: list[int] = []

    def note(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", note)
    return codes, ended


@pytest.fixture
def head():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_that_answers_is_left_alone_as_is_a_driver_that_ends_by_itself(quick, head, monkeypatch):
    for signalled in (None, signal.SIGTERM):
        watch = GcsWatch(address(head), Path("/sweeps/s"), signalled=lambda: signalled)  # noqa: B023
        watch.start()
        assert not quick[1].wait(0.3)
        GcsCallback(watch).on_step_begin(1, [])
        watch.close()
    monkeypatch.setattr(headwatch, "GRACE_S", 5.0)
    watch = GcsWatch(address(head), Path("/sweeps/s"))
    head.close()
    watch.start()
    until(lambda: watch._lost, 5)
    watch.close()
    assert quick[0] == []


@pytest.mark.parametrize(
    ("signalled", "code", "says"),
    [
        (None, EXIT_CODE, ("The head of the Ray cluster (127.0.0.1:", "record and checkpoints lie in /sweeps/s")),
        (signal.SIGTERM, 75, ("SIGTERM has ended Ray together with the sweep",)),
    ],
)
def test_a_lost_head_ends_the_driver_with_a_sentence_and_the_signal_for_its_reason(  # noqa: PLR0917 - a row each
    quick, head, capsys, monkeypatch, signalled, code, says
):
    if signalled is not None:
        monkeypatch.setattr(headwatch, "LOST_S", 30.0)  # it ends soon all the same
    watch = GcsWatch(address(head), Path("/sweeps/s"), signalled=lambda: signalled)
    head.close()
    watch.start()
    assert quick[1].wait(5)
    watch.close()
    assert quick[0] == [code]
    said = capsys.readouterr().err
    assert all(text in said for text in (*says, "name='s' and resume=True goes on"))
    if signalled is None:
        with pytest.raises(HeadLostError, match="has not answered"):
            GcsCallback(watch).on_step_begin(1, [])
