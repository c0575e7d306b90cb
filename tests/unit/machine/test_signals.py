"""The signals that stop a sweep, with real signals to this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tunelight.machine.signals import StopSignals

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
def test_the_first_signal_stops_tune_and_says_so_and_the_second_ends_the_driver(
    handlers: list[Any], number: signal.Signals
) -> None:
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
    def busy(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with StopSignals(busy):
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
