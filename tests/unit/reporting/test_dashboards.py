"""dashboard: ports in use are told, servers are waited for, and end with their caller."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.test_command import call
from tests.unit.results.test_results import Writer
from tunelight.cli.app import BAD_INPUT
from tunelight.errors import SettingsError, StorageError
from tunelight.machine.network import HOST, free_port
from tunelight.reporting.dashboards import Server, serve, servers


@pytest.fixture
def taken() -> Iterator[int]:
    """Listen on a port, and return it."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.mark.parametrize("option", ["--optuna-port", "--tensorboard-port"])
def test_a_port_in_use_is_told_with_another_that_is_free(tmp_path, monkeypatch, taken, option):
    monkeypatch.chdir(tmp_path)
    Writer(tmp_path).record.close()
    (tmp_path / "digits" / "study.journal").touch()
    done = call("dashboard", "digits", option, taken, code=BAD_INPUT)
    assert f"Port {taken} is in use" in done.stderr
    assert f"Give another: {option} " in done.stderr


def test_both_on_one_port_are_refused(tmp_path):
    (tmp_path / "study.journal").touch()
    port = free_port()
    with pytest.raises(SettingsError, match="Both cannot listen"):
        servers(tmp_path, port, port)


def test_a_sweep_without_a_study_has_tensorboard_only(tmp_path):
    found, notes = servers(tmp_path, free_port(), free_port())
    assert [server.name for server in found] == ["TensorBoard"]
    assert "no study.journal" in notes[0]


def pages(port: int) -> Server:
    command = [sys.executable, "-m", "http.server", str(port), "--bind", HOST]
    return Server("pages", command, port)


def test_servers_run_until_they_are_told_to_end_and_end_then(tmp_path: Path) -> None:
    said: list[str] = []
    ports = [free_port(), free_port()]

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("Ctrl-C"):
            for port in ports:
                urllib.request.urlopen(f"http://{HOST}:{port}").read()
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    before = signal.getsignal(signal.SIGTERM)
    serve([pages(port) for port in ports], say)
    assert said[0] == f"pages: http://{HOST}:{ports[0]}"
    for port in ports:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((HOST, port), timeout=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_ends_by_itself_is_told_with_its_last_words() -> None:
    broken = Server("broken", [sys.executable, "-c", "import sys; sys.exit('no such study')"], free_port())
    with pytest.raises(StorageError, match=r"broken ended by itself \(exit code 1\). It said: no such study"):
        serve([broken], print)
