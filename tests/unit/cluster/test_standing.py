"""The Ray of `tunelight up`: who finds it, what its workers are given, and when it ends. Ray itself is not started."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tunelight.cluster import standing
from tunelight.compat.ray import own_versions
from tunelight.errors import ResourceError


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setattr(standing, "place", lambda: tmp_path / "mine")
    return tmp_path / "mine"


def told(home: Path, **changes: Any) -> standing.Standing:
    """Write the file that a process which keeps a Ray writes: this one, unless ``changes`` say otherwise."""
    home.mkdir(mode=0o700, exist_ok=True)
    about = {
        "pid": os.getpid(), "created": psutil.Process().create_time(), "address": "127.0.0.1:6379",
        "versions": own_versions(), "python": sys.executable, "prefix": os.path.realpath(sys.prefix), **changes,
    }  # fmt: skip
    (home / "ray.json").write_text(json.dumps(about))
    return standing.Standing(**{**about, "versions": tuple(about["versions"])})


def test_it_is_found_while_its_process_lives(home):
    assert standing.find() is None
    there = told(home)
    assert standing.find() == there
    assert not there.misfit
    told(home, created=there.created - 60)  # the id is another process's by now
    assert standing.find() is None
    told(home, pid=2**22 + 1)
    assert standing.find() is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}', "not json"])
def test_a_damaged_file_is_none(home, text):
    home.mkdir(mode=0o700)
    (home / "ray.json").write_text(text)
    assert standing.find() is None


def test_a_folder_of_somebody_else_s_is_an_error(home):
    told(home)
    home.chmod(0o755)
    with pytest.raises(ResourceError, match="not a folder that is this user's alone"):
        standing.find()


def test_it_does_not_fit_another_ray_or_python(home):
    assert told(home, versions=("2.43.0", "3.11.7")).misfit == "it has Ray 2.43.0 and Python 3.11.7"
    assert told(home, python="/other/python", prefix="/other").misfit == "it runs with /other/python"


def test_another_name_of_the_same_python_is_no_other_environment(home, monkeypatch, tmp_path):
    there = told(home)
    server: Any = standing.server_for(None, {}, 1)
    (tmp_path / "env").symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python3.11"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert not there.misfit
    assert standing.server_for(None, {}, 1) == server


def test_workers_have_the_program_s_environment(home, monkeypatch):
    there = told(home)
    theirs = dict(os.environ)
    monkeypatch.setattr(psutil.Process, "environ", lambda self: theirs)
    assert "env_vars" not in there.job(None, 1)
    monkeypatch.setenv("MINE", "7")
    monkeypatch.setenv("RAY_SOMETHING", "1")
    monkeypatch.setenv("PRICE", "5$")
    assert there.job(None, 1)["env_vars"] == {"MINE": "7"}
    given = there.job({"env_vars": {"MINE": "8", "YOURS": "9"}, "working_dir": "."}, 1)
    assert given["env_vars"] == {"MINE": "8", "YOURS": "9"}
    assert given["working_dir"] == "."


def test_jobs_of_one_environment_share_a_server(home):
    def folder(variables: dict[str, str], threads: int = 1) -> str:
        server: Any = standing.server_for(None, variables, threads)
        return str(server.folder)

    assert folder({}) == folder({"TUNELIGHT_X": "1"}) != folder({"MINE": "7"})
    assert folder({}) != folder({}, 2)
    assert Path(folder({})).parent == home


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_paths_of_sockets_are_short(monkeypatch):
    for parent in ("/tmp", "/tmp/" + "x" * 90):
        monkeypatch.setattr(tempfile, "tempdir", parent)
        assert len(str(standing.place() / "fork-0123456789ab" / "job-0123456789abcdef")) < 100


@pytest.fixture
def kept(home, monkeypatch):
    """Stand in for the Ray that is kept; return what was done to it."""
    done: dict[str, Any] = {"used": False, "ended": 0, "lives": True}
    monkeypatch.setattr(standing.local, "start", lambda *_, **__: SimpleNamespace(lives=done["lives"]))
    monkeypatch.setattr(standing.local, "shutdown", lambda: done.update(ended=done["ended"] + 1))
    monkeypatch.setattr(standing.local, "in_use", lambda: done["used"])
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context, __version__="2"))
    monkeypatch.setattr(standing, "_LOOK_S", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return done


def test_it_ends_after_a_while_without_use_and_leaves_no_file(home, kept):
    began = time.monotonic()
    standing.main(idle_s=0.2)
    assert 0.15 < time.monotonic() - began < 5
    assert kept["ended"] == 1
    assert not (home / "ray.json").exists()


def test_it_stays_while_it_is_used_and_a_second_one_ends_at_once(home, kept):
    kept["used"] = True
    first = threading.Thread(target=standing.main, kwargs={"idle_s": 0.1})
    first.start()
    while not (home / "ray.json").exists():
        time.sleep(0.01)
    standing.main()  # the same lock, from another file of this process
    time.sleep(0.3)
    assert not kept["ended"]
    kept["used"] = False
    first.join(20)
    assert kept["ended"] == 1


def test_one_that_does_not_start_is_an_error_with_what_it_said(home, monkeypatch):
    monkeypatch.setattr(standing.sys, "executable", "/bin/false")
    with pytest.raises(ResourceError, match="No Ray was ready"):
        standing.up()
