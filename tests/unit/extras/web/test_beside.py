"""The server beside a sweep: it starts once for a folder, keeps its address, and leaves when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.kit.sweeps import record
from tunelight.errors import ReportError, SettingsError
from tunelight.extras.web import server
from tunelight.sweep import live_page
from tunelight.sweep.live_page import LivePage, check_web


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Path]:
    record(tmp_path / "digits", trials=3)
    yield tmp_path
    found = server.running(tmp_path)
    if found is not None:
        end(found.pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    limit = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_second_sweep_of_the_folder_finds_the_server_and_a_later_one_has_its_address(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = LivePage(storage / "digits")
    page.say()
    said = capsys.readouterr().err
    first = server.running(storage)
    assert first is not None
    assert said == f"Live page: {first.place}/sweep/digits?token={first.token}\n"
    assert server.start(storage) == first.address
    assert server.running(storage) == first
    assert first.pid not in [one.pid for one in psutil.Process().children()]
    end(first.pid)
    assert server.running(storage) is None
    assert server.start(storage) == first.address


def test_where_its_port_is_taken_meanwhile_it_has_another_and_the_same_token(storage: Path) -> None:
    address = server.start(storage)
    first = server.running(storage)
    assert first is not None
    end(first.pid)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program was quicker
            other.bind(("127.0.0.1", first.port))
            other.listen()
        again = server.start(storage)
    assert again != address
    assert again.partition("token=")[2] == first.token


def test_a_server_that_cannot_start_says_why_and_the_sweep_goes_on(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(ReportError, match="could not be started"):
        server.start(storage)
    LivePage(storage / "digits").say()
    assert "could not be started, and the sweep goes on without" in capsys.readouterr().err


def test_a_sweep_with_a_page_is_refused_before_ray_starts_where_packages_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"web=True needs starlette and uvicorn: pip install 'tunelight\[web\]'"):
        check_web()


@pytest.mark.parametrize(("streams", "driven", "leaves"), [(0, False, True), (1, False, False), (0, True, False)])
def test_it_leaves_once_no_page_is_open_and_no_sweep_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int, driven: bool, leaves: bool
) -> None:
    monkeypatch.setattr(server, "_IDLE_S", 0.1)
    monkeypatch.setattr(server, "_LOOK_S", 0.15)
    own: Any = SimpleNamespace(should_exit=False)
    page: Any = SimpleNamespace(streams=streams)
    sweeps: Any = SimpleNamespace(names=list, any_driven=lambda: driven)

    async def watch() -> None:
        task = asyncio.create_task(server._leave_when_idle(own, page, sweeps, tmp_path))
        await asyncio.sleep(0.6)
        task.cancel()

    asyncio.run(watch())
    assert own.should_exit is leaves


def test_it_leaves_where_the_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    own: Any = SimpleNamespace(should_exit=False)
    sweeps: Any = SimpleNamespace(names=list, any_driven=lambda: True)
    asyncio.run(server._leave_when_idle(own, SimpleNamespace(streams=1), sweeps, tmp_path / "gone"))  # type: ignore[arg-type]
    assert own.should_exit


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", None), ("127.0.0.1", 1), ("192.0.2.1", None)])
def test_an_address_that_cannot_be_listened_on_is_an_error(host: str, port: int | None) -> None:
    if port == 1 and os.geteuid() == 0:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(SettingsError, match="cannot listen"):
                server._listen(host, taken.getsockname()[1])
        return
    with pytest.raises(SettingsError, match=r"cannot listen|is not known"):
        server._listen(host, port)
