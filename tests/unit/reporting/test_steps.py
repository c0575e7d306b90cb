"""Steps that a program shows while it has nothing else to show."""

from __future__ import annotations

import io
import time

from rich.console import Console

from tests.kit.waiting import until
from tunelight.reporting.steps import AFTER_S, Steps


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_a_step_that_takes_its_time_is_a_line():
    stream = Stream(terminal=False)
    with Steps(console=Console(file=stream), after_s=0.01) as steps:
        steps("Starting Ray [of 2 nodes]")
        until(stream.getvalue, 5)
        steps("Starting 2 workers")
        until(lambda: "workers" in stream.getvalue(), 5)
    assert stream.getvalue() == "Starting Ray [of 2 nodes] ...\nStarting 2 workers ...\n"


def test_a_short_step_and_a_quiet_program_show_nothing():
    stream = Stream(terminal=False)
    with Steps(console=Console(file=stream), after_s=0.05) as steps:
        steps("Checking the sweep")
    with Steps(shown=False, console=Console(file=stream), after_s=0) as steps:
        steps("Starting Ray")
        time.sleep(0.1)
    assert not stream.getvalue()
    assert AFTER_S == 0.5


def test_in_a_terminal_it_is_drawn_and_vanishes():
    stream = Stream(terminal=True)
    steps = Steps(console=Console(file=stream, force_terminal=True, width=60), after_s=0.01)
    steps("Starting Ray")
    until(lambda: "Starting Ray" in stream.getvalue(), 5)
    steps.end()
    steps.end()
    drawn = stream.getvalue()
    assert "0:00:00" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is erased
    time.sleep(0.15)
    assert stream.getvalue() == drawn
