"""headwatch: a head that answers no more."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.kit.waiting import until
from tunelight.cluster import gcs_watch as headwatch
from tunelight.cluster.gcs_watch import EXIT_CODE, GcsCallback, GcsWatch
from tunelight.errors import HeadLostError


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


@pytest.mark.parametrize("signalled", [None, signal.SIGTERM])
def test_a_head_that_answers_is_left_alone(quick, head, signalled):
    watch = GcsWatch(address(head), Path("/sweeps/s"), signalled=lambda: signalled)
    watch.start()
    assert not quick[1].wait(0.3)
    GcsCallback(watch).on_step_begin(1, [])
    watch.close()


def test_a_lost_head_ends_the_driver_with_a_sentence(quick, head, capsys):
    watch = GcsWatch(address(head), Path("/sweeps/s"))
    head.close()
    watch.start()
    assert quick[1].wait(5)
    watch.close()
    assert quick[0] == [EXIT_CODE]
    said = capsys.readouterr().err
    assert "The head of the Ray cluster (127.0.0.1:" in said
    assert "record and checkpoints lie in /sweeps/s" in said
    assert "name='s' and resume=True goes on" in said
    with pytest.raises(HeadLostError, match="has not answered"):
        GcsCallback(watch).on_step_begin(1, [])


def test_a_signal_that_ended_ray_too_ends_the_driver_soon_with_the_signal_for_its_reason(
    quick, head, capsys, monkeypatch
):
    monkeypatch.setattr(headwatch, "LOST_S", 30.0)
    watch = GcsWatch(address(head), Path("/sweeps/s"), signalled=lambda: signal.SIGTERM)
    head.close()
    watch.start()
    assert quick[1].wait(5)
    watch.close()
    assert quick[0] == [75]
    said = capsys.readouterr().err
    assert "SIGTERM has ended Ray together with the sweep" in said
    assert "name='s' and resume=True goes on" in said


def test_a_driver_that_ends_by_itself_is_not_ended(quick, head, monkeypatch):
    monkeypatch.setattr(headwatch, "GRACE_S", 5.0)
    watch = GcsWatch(address(head), Path("/sweeps/s"))
    head.close()
    watch.start()
    until(lambda: watch._lost, 5)
    watch.close()
    assert quick[0] == []
