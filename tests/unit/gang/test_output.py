"""What a rank prints, on its way to the driver."""

from __future__ import annotations

import ctypes
import io
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunelight.extras.standalone.output import RankStream, to_driver
from tunelight.gang.output import RankLog, to_trial_log
from tunelight.messages import Terminal, Text


@pytest.fixture
def posted() -> list[Text]:
    return []


@pytest.fixture
def stream(posted: list[Text]) -> RankStream:
    return RankStream(1, Terminal(tty=True), posted.append, error=False)


def said(posted: list[Text]) -> str:
    return "".join(text.text for text in posted)


@pytest.mark.parametrize(
    ("pieces", "comes"),
    [
        (["one\ntwo\nthr"], "[1] one\n[1] two\n"),
        (["one\ntwo\nthr", "ee\n"], "[1] one\n[1] two\n[1] three\n"),
        (["\rEpoch 0: 10%", "\rEpoch 0: 20%"], "\rEpoch 0: 10%\rEpoch 0: 20%"),
        (["\rEpoch 0: 10%", "a word\n"], "\rEpoch 0: 10%\n[1] a word\n"),
        (["\rEpoch 0: 100%", "\n", "done\n"], "\rEpoch 0: 100%\n[1] done\n"),
    ],
)
def test_whole_lines_come_with_their_rank_and_progress_bars_as_they_are_drawn(stream, posted, pieces, comes) -> None:
    for piece in pieces:
        stream.write(piece)
    assert said(posted) == comes


def test_what_has_no_line_end_is_not_lost_and_a_stream_is_the_terminal_that_the_driver_has(stream, posted) -> None:
    stream.write("the last")
    stream.finish()
    assert said(posted) == "[1] the last\n"
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


def test_what_an_early_handler_logs_goes_where_the_trial_s_lines_go_and_its_stream_is_the_old_one_again(
    tmp_path: Path, early: logging.Logger, posted: list[Text]
) -> None:
    before = early.handlers[0].stream  # type: ignore[attr-defined]
    with to_trial_log(str(tmp_path), 1, verbose=0):
        early.warning("from a library")
    assert (tmp_path / "log.txt").read_text() == "[1] from a library\n"
    assert early.handlers[0].stream is before  # type: ignore[attr-defined]
    with to_driver(2, Terminal(), posted.append):
        early.warning("from a library")
    assert posted == [Text("[2] from a library\n", error=True)]


class Slow(RankLog):
    """Keeps whoever writes "slow" until it is released."""

    def __init__(self, path: Path) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        super().__init__(path, 0)

    def _put(self, lines: bytes) -> None:
        super()._put(lines)
        if b"slow" in lines:
            self.entered.set()
            self.released.wait(60)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_prints_can_print(tmp_path: Path) -> None:
    log = Slow(tmp_path / "log.txt")
    log.write("rather ")
    printing = threading.Thread(target=log.write, args=("slow\nhalf a line",))
    printing.start()
    assert log.entered.wait(10)
    forked = multiprocessing.get_context("fork").Process(target=log.write, args=("from the fork\n",))
    forked.start()
    try:
        forked.join(10)
        assert forked.exitcode == 0
    finally:
        forked.kill()
        forked.join()
        log.released.set()
        printing.join()
    log.finish()
    assert (tmp_path / "log.txt").read_text() == "[0] rather slow\n[0] from the fork\n[0] half a line\n"


PRINTS = """
import os, sys
print("a child's line")
print("a child's warning", file=sys.stderr)
os.write(1, b"half a line")
"""


def print_in_every_way() -> None:
    """Print from this process, by its streams and descriptors, and from others: a command's, a fork, and a new one."""
    sys.stdout.write("its own line\n")
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.flush()
    os.write(2, b"a library's line\n")
    ctypes.pythonapi.printf(b"C has kept this\n")
    os.system("echo a command in a shell")
    forked = multiprocessing.get_context("fork").Process(target=sys.stdout.write, args=("a fork's line\n",))
    forked.start()
    forked.join()
    subprocess.run([sys.executable, "-c", PRINTS], check=True)
    subprocess.run(["echo", "to a stream"], stdout=sys.stdout, check=True)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_trial_s_log_or_the_driver_has_what_libraries_and_child_processes_print(tmp_path, posted) -> None:
    wanted = {
        "a child's line", "a child's warning", "half a line", "bytes", "a library's line", "C has kept this",
        "to a stream", "a command in a shell", "a fork's line", "its own line",
    }  # fmt: skip
    with to_trial_log(str(tmp_path), 0, verbose=0):
        print_in_every_way()
    lines = (tmp_path / "log.txt").read_text().replace("half a line", "half a line\n").splitlines()
    assert {line.removeprefix("[0] ") for line in lines} == wanted
    with to_driver(3, Terminal(), posted.append):
        print_in_every_way()
    lines = said(posted).replace("half a line", "half a line\n[3] ").splitlines()
    assert {line.removeprefix("[3] ") for line in lines} - {""} == wanted
    assert all(line.startswith("[3] ") for line in lines)


def test_what_is_printed_goes_to_the_log_once_and_to_the_process_s_own_output_and_stays_open_nowhere(tmp_path, capfd):
    before = sorted(Path("/proc/self/fd").iterdir())
    files = [os.fstat(number).st_ino for number in (1, 2)]
    with to_trial_log(str(tmp_path), 0, verbose=1):
        assert os.fstat(1).st_ino == os.fstat(2).st_ino == (tmp_path / "log.txt").stat().st_ino
        sys.stdout.write("a line\n")
        left = sys.stdout
        os.write(1, b"a library's line\n")
    left.write("from a thread that is left\n")
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert [os.fstat(number).st_ino for number in (1, 2)] == files
    assert (tmp_path / "log.txt").read_text() == "[0] a line\na library's line\n"
    assert capfd.readouterr().out == "[0] a line\n"


def test_the_last_words_of_a_process_that_dies_are_in_the_trial_s_log(tmp_path: Path) -> None:
    code = f"""
import faulthandler, os
from tunelight.gang.output import to_trial_log
with to_trial_log({str(tmp_path)!r}, 0, verbose=0):
    faulthandler.enable(2)
    os.abort()
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert "Fatal Python error: Aborted" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("detach", [False, True])
def test_training_code_may_set_up_its_streams(tmp_path: Path, detach: bool) -> None:
    with to_trial_log(str(tmp_path), 0, verbose=0):
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")
        assert (sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno() > 2) == ("utf-8", False, True)
        io.TextIOWrapper(sys.stdout.buffer, "latin-1").write("another wrapper\n")
        sys.stdout.write("its own\n")
        below: Any = sys.stdout
        sys.stdout = io.TextIOWrapper(below.detach() if detach else below.buffer, "utf-8", "replace")
        sys.stdout.write("not flushed \udce9")
    log = (tmp_path / "log.txt").read_text()
    assert log == "[0] another wrapper\n[0] its own\n[0] not flushed ?\n"
