"""What a rank prints, on its way to the driver."""

from __future__ import annotations

import io
import logging
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunelight.gang.output import RankLog, RankStream, to_driver, to_trial_log
from tunelight.messages import Terminal, Text


@pytest.fixture
def posted() -> list[Text]:
    return []


@pytest.fixture
def stream(posted: list[Text]) -> RankStream:
    return RankStream(1, Terminal(tty=True), posted.append, error=False)


def said(posted: list[Text]) -> str:
    return "".join(text.text for text in posted)


def test_whole_lines_come_with_their_rank(stream: RankStream, posted: list[Text]) -> None:
    stream.write("one\ntwo\nthr")
    assert said(posted) == "[1] one\n[1] two\n"
    stream.write("ee\n")
    assert said(posted) == "[1] one\n[1] two\n[1] three\n"


def test_a_progress_bar_comes_as_it_is_drawn(stream: RankStream, posted: list[Text]) -> None:
    stream.write("\rEpoch 0: 10%")
    stream.write("\rEpoch 0: 20%")
    assert said(posted) == "\rEpoch 0: 10%\rEpoch 0: 20%"


def test_a_line_after_a_bar_begins_a_line(stream: RankStream, posted: list[Text]) -> None:
    stream.write("\rEpoch 0: 10%")
    stream.write("a word\n")
    assert said(posted) == "\rEpoch 0: 10%\n[1] a word\n"


def test_a_bar_s_own_line_end_gets_no_rank(stream: RankStream, posted: list[Text]) -> None:
    stream.write("\rEpoch 0: 100%")
    stream.write("\n")
    stream.write("done\n")
    assert said(posted) == "\rEpoch 0: 100%\n[1] done\n"


def test_what_has_no_line_end_is_not_lost(stream: RankStream, posted: list[Text]) -> None:
    stream.write("the last")
    stream.finish()
    assert said(posted) == "[1] the last\n"


def test_a_stream_is_the_terminal_that_the_driver_has(stream: RankStream, posted: list[Text]) -> None:
    assert stream.isatty()
    assert not RankStream(0, Terminal(), posted.append, error=True).isatty()


@pytest.fixture(params=["stderr", "__stderr__"])
def early(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """Return a logger whose handler was made before there was a trial, as Lightning's is: in a fork, before Ray."""
    logger = logging.getLogger("tests.early")
    logger.propagate = False
    handler = logging.StreamHandler(getattr(sys, request.param))
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def test_what_an_early_handler_logs_is_in_the_trials_log(tmp_path: Path, early: logging.Logger) -> None:
    with to_trial_log(str(tmp_path), 1, verbose=0):
        early.warning("from a library")
    assert (tmp_path / "log.txt").read_text() == "[1] from a library\n"


def test_a_job_sends_what_an_early_handler_logs_to_its_driver(early: logging.Logger, posted: list[Text]) -> None:
    with to_driver(2, Terminal(), posted.append):
        early.warning("from a library")
    assert posted == [Text("[2] from a library\n", error=True)]


def test_a_handler_has_its_stream_again_after_the_trial(tmp_path: Path, early: logging.Logger) -> None:
    before = early.handlers[0].stream  # type: ignore[attr-defined]
    with to_trial_log(str(tmp_path), 0, verbose=0):
        pass
    assert early.handlers[0].stream is before  # type: ignore[attr-defined]


class Slow(io.StringIO):
    """Keeps whoever writes "slow" until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        if "slow" in text:
            self.entered.set()
            self.released.wait(60)
        return super().write(text)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_prints_can_print(tmp_path: Path) -> None:
    slow = Slow()
    log = RankLog(tmp_path / "log.txt", 0, slow)
    log.write("rather ")
    printing = threading.Thread(target=log.write, args=("slow\nhalf a line",))
    printing.start()
    assert slow.entered.wait(10)
    forked = multiprocessing.get_context("fork").Process(target=log.write, args=("from the fork\n",))
    forked.start()
    try:
        forked.join(10)
        assert forked.exitcode == 0
    finally:
        forked.kill()
        forked.join()
        slow.released.set()
        printing.join()
    log.finish()
    assert (tmp_path / "log.txt").read_text() == "[0] rather slow\n[0] from the fork\n[0] half a line\n"
