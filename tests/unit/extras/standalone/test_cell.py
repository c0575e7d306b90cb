"""What ranks draw, on the screen that a notebook's cell shows."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tunelight.cluster.connect import quiet
from tunelight.extras.standalone import cell as cells
from tunelight.extras.standalone.cell import Cell, NotebookTerminal
from tunelight.machine.processes import is_terminal
from tunelight.messages import Text
from tunelight.reporting.display import choose_view


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("one\ntwo", ["one", "two"]),
        ("\r 10%\r 20%", [" 20%"]),
        ("\r100%\n", ["100%", ""]),
        ("a\r\nb", ["a", "b"]),
        ("\x1b[?25l\r\x1b[2Kbar\nloss\r\x1b[2K\x1b[1A\x1b[2Kbar!\nacc", ["bar!", "acc"]),
        ("one\ntwo\x1b[A\rnew", ["new", "two"]),
        ("one\ntwo\nthree\x1b[2A\r\x1b[Jnew", ["new"]),
        ("\x1b[35mred\x1b[0m", ["\x1b[35mred\x1b[0m"]),
        ("one\x1b[9A\rtop", ["top"]),
    ],
)
def test_a_screen_shows_what_a_terminal_would(written: str, lines: list[str]) -> None:
    screen = NotebookTerminal()
    for piece in re.split(r"(?=\x1b|\r)", written):
        screen.write(piece)
    assert screen.lines == lines


class Display:
    """Stands in for IPython's: notes what each output shows."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    def __call__(self, shown: dict[str, Any], **_: Any) -> Any:
        index = len(self.outputs)
        self.outputs.append(shown["text/plain"])
        return SimpleNamespace(update=lambda shown, **_: self.outputs.__setitem__(index, shown["text/plain"]))


def test_a_bar_is_drawn_in_place_and_lines_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    cell = Cell(display)
    for text in ("\r\x1b[2K10%", "[1] hello\n", "\r\x1b[2K20%", "\n"):
        cell.show(Text(text))
    cell.draw()
    assert display.outputs == ["20%"]
    assert capsys.readouterr().out == "[1] hello\n"


def test_a_long_drawing_goes_on_in_another_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_MOST_LINES", 4)
    monkeypatch.setattr(cells, "_LIVE_LINES", 2)
    display = Display()
    cell = Cell(display)
    cell.show(Text("\ra\nb\nc\nd\ne"))
    cell.show(Text("\r\x1b[2K\x1b[1A\x1b[2KD\nE"))
    cell.draw()
    assert display.outputs == ["a\nb\nc", "D\nE"]


def test_outside_of_a_notebook_text_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    with cells.shown() as show:
        show(Text("\rbar"))
        show(Text("wrong\n", error=True))
    assert capsys.readouterr() == ("\rbar", "wrong\n")


class Tee:
    """What Ray Tune puts in place of standard output for log_to_file=True: it only writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


class Closed(Tee):
    def isatty(self) -> bool:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stream", [Tee(), None, Closed()])
def test_any_object_may_stand_for_a_stream_and_gets_what_ranks_print(stream: Any, monkeypatch: Any) -> None:
    assert not is_terminal(stream)
    assert not choose_view(Console(file=stream)).animated
    monkeypatch.setattr("sys.stdout", stream)
    with quiet(0), cells.shown() as show:
        show(Text("[0] a line\n", False))
    assert stream is None or stream.text == "[0] a line\n"
