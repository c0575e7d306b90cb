"""Connecting to a cluster, the Ray that stays after a run, and a head that answers no more. Ray is a stand-in."""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.accelerators import NvidiaGPUAcceleratorManager

import tunelight as tl
from tests.kit.waiting import until
from tunelight.cluster import gcs_watch as headwatch
from tunelight.cluster import local
from tunelight.cluster.connect import _check_versions
from tunelight.cluster.gcs_watch import EXIT_CODE, GcsCallback, GcsWatch
from tunelight.cluster.local import for_job, for_workers
from tunelight.errors import HeadLostError, ResourceError, SettingsError
from tunelight.extras.check import nodes_of


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
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
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
def test_another_one_is_started_where_it_would_not_be_the_same(stand_in, change, monkeypatch, tmp_path):
    local.start(None, 0).schedule_shutdown()
    asked: dict[str, Any] = {"runtime_env": None, "verbose": 0}
    if change == "environment":
        monkeypatch.setenv("MINE", "2")
    elif change == "cwd":
        monkeypatch.chdir(tmp_path)
    elif change == "path":
        monkeypatch.syspath_prepend(tmp_path)
    elif change == "user":
        stand_in.shutdown()  # by hand
    else:
        asked[change] = {"env_vars": {"A": "1"}} if change == "runtime_env" else 1
    assert local.start(**asked).lives
    assert len(stand_in.started) == 2


def test_it_ends_after_a_while_and_not_while_it_is_used_or_another_is_there(stand_in, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.05)
    local.start(None, 0).schedule_shutdown()
    stand_in.shutdown()  # by hand; its timer ends no other
    mine = local.start(None, 0)
    mine.schedule_shutdown()
    mine.hold()
    time.sleep(0.15)
    assert stand_in.running
    stand_in.used = True  # by tasks of the user's
    mine.schedule_shutdown()
    time.sleep(0.15)
    assert stand_in.running
    stand_in.used = False
    until(lambda: not stand_in.running, 5)
    assert local.kept() is None


def test_what_a_kept_one_cannot_give_is_an_error(stand_in):
    local.start(None, 0, stays=True)
    with pytest.raises(SettingsError, match="runtime_env has pip, which needs a new Ray"):
        local.start({"pip": ["x"]}, 0)
    with pytest.raises(SettingsError, match="working_dir"):
        local.start({"working_dir": "."}, 0)
    local.start({"env_vars": {"A": "1"}}, 0)
    assert len(stand_in.started) == 1


def test_a_second_run_starts_on_it_and_one_with_objects_of_the_user_s_stays_however_that_is(stand_in, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.05)
    mine = local.start(None, 0)
    mine.schedule_shutdown()
    assert local.kept() is mine
    local.start(None, 1, as_it_is=True, stays=True).schedule_shutdown()
    time.sleep(0.15)
    assert local.start(None, 1) is mine
    assert len(stand_in.started) == 1


def test_a_block_keeps_it_ready_and_ends_it(stand_in, monkeypatch):
    monkeypatch.setattr(local, "KEEP_S", 0.01)
    with tl.ready():
        with tl.ready():
            local.start(None, 0).schedule_shutdown()
        time.sleep(0.05)
        assert stand_in.running
    assert not stand_in.running
    tl.shutdown()  # nothing is left to end


def test_a_start_that_fails_leaves_the_environment_as_it_was(stand_in, monkeypatch):
    def fail(**arguments: Any) -> None:
        os.environ["RAY_OF_ITS_OWN"] = "1"
        raise OSError("no room")

    monkeypatch.setattr(stand_in, "init", fail)
    before = dict(os.environ)
    with pytest.raises(OSError, match="no room"):
        local.start(None, 0)
    assert dict(os.environ) == before
    assert local.kept() is None


def test_a_fork_of_the_process_does_not_end_it(stand_in, monkeypatch):
    local.start(None, 0).schedule_shutdown()
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        tl.shutdown()
        os.write(theirs, f"{stand_in.running} {local.kept()}".encode())
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


HERE = platform.python_version()


def test_a_cluster_of_another_ray_or_python_is_refused_with_both_versions(monkeypatch):
    versions: Any
    monkeypatch.setattr("tunelight.cluster.connect.cluster_versions", lambda address: versions)
    for versions in (None, (ray.__version__, HERE)):  # noqa: B007 - the cluster names them
        _check_versions("10.0.0.1:6379")
    for versions in (("2.10.0", HERE), (ray.__version__, "3.9.1"), (ray.__version__, f"{HERE}1")):
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
