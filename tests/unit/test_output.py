"""What a rank prints, on its way to the driver."""

from __future__ import annotations

import pytest

from tunelight.gang.output import RankStream
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
