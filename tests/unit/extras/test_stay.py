"""When a driver stays, and which commands it takes."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunelight.errors import SettingsError
from tunelight.extras import stay


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver that has begun a moment ago, when all modules were there."""
    made = stay._Driver(socket.socket(), stay._request(), lambda: None)
    made._began = time.time() + 60
    for name, module in list(sys.modules.items()):  # what other tests have imported from folders that are gone
        if (file := getattr(module, "__file__", None)) and not Path(file).exists():
            monkeypatch.delitem(sys.modules, name)
    yield made
    made._listener.close()


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"SHLVL": "9", "COLUMNS": "40"}, True),
        ({"CUDA_VISIBLE_DEVICES": "1"}, False),
        ({"PYTHONPATH": "elsewhere"}, False),
    ],
)
def test_it_takes_a_command_of_the_same_environment(driver: Any, changes: dict[str, str], taken: bool) -> None:
    request = driver._first
    other = request._replace(argv=["tunelight", "run", "other.yaml"], env={**request.env, **changes}, cwd="/tmp")
    assert driver._takes(other) is taken


def test_it_takes_none_with_other_limits_or_cores(driver: Any) -> None:
    request = driver._first
    assert driver._takes(request)
    assert not driver._takes(request._replace(cores=[]))
    assert not driver._takes(request._replace(umask=0o7))


def test_it_takes_none_once_what_it_has_imported_is_changed_or_gone(driver: Any, tmp_path: Path, monkeypatch) -> None:
    request, module = driver._first, ModuleType("installed")
    path = tmp_path / "installed.py"
    path.touch()
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "installed", module)
    assert driver._takes(request)
    os.utime(path, (1, 1))
    driver._began = 2
    (tmp_path / "elsewhere.py").hardlink_to(path)  # as another environment may have the same file of a cache
    monkeypatch.setattr(stay.sys, "modules", {"installed": module})
    monkeypatch.setattr(stay.sys, "path", [])
    assert driver._takes(request)
    os.utime(path, (2, 2))
    assert not driver._takes(request)
    driver._began += 60
    path.unlink()
    assert not driver._takes(request)


def test_a_users_own_modules_are_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, folder = ModuleType("own"), ModuleType("folder")
    own.__file__, folder.__path__ = str(tmp_path / "own.py"), [str(tmp_path / "folder")]
    monkeypatch.setitem(sys.modules, "own", own)
    monkeypatch.setitem(sys.modules, "folder", folder)
    names = {"own", "folder", "json", "yaml", "sys", "tunelight.extras.stay"}
    assert set(filter(stay._is_own, names)) == {"own", "folder"}


@pytest.mark.parametrize(
    ("variables", "stays"),
    [({}, True), ({"CI": "true"}, False), ({"TUNELIGHT_KEEP": "0"}, False), ({"CI": "1", "TUNELIGHT_KEEP": "1"}, True)],
)
def test_none_stays_under_ci_unless_asked_for(variables: dict[str, str], stays: bool, monkeypatch) -> None:
    for name in ("CI", stay.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stay.threading, "active_count", lambda: 1)
    monkeypatch.setattr(stay.sys, "gettrace", lambda: None)
    assert stay._may_stay() is stays


def test_down_ends_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stay, "_folder", lambda: str(tmp_path))
    assert not stay.down()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SettingsError, match="A sweep runs on the Ray that is kept"):
            stay.down()
