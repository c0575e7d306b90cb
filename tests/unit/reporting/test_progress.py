"""What a person sees while a sweep runs: table, lines, notebook, and how often."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.kit.recording import ERROR, Lines
from tests.kit.waiting import until
from tunelight.record import SweepState
from tunelight.reporting import display
from tunelight.reporting.display import LinesView, NotebookView, Steps, TerminalView, choose_view
from tunelight.reporting.progress import ProgressCallback


class Screen(io.StringIO):
    """A stream that says of itself whether it is a terminal."""

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


class Sweep(Lines):
    """A sweep that never ran, and what is shown of it."""

    def __init__(self, tty: bool = False, height: int = 40, notes: Any = (), **settings: Any) -> None:
        super().__init__()
        self.state.notes += notes
        self.screen = Screen(tty)
        console = Console(file=self.screen, force_terminal=tty, width=100, height=height, color_system=None)
        settings = {"total": 20, "console": console, **settings}
        self.callback = ProgressCallback(self.state, clock=lambda: self.now, **settings)

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.callback.on_step_end(1, [])

    def read(self) -> str:
        text = self.screen.getvalue()
        self.screen.seek(0)
        self.screen.truncate()
        return text


WORKER_ERROR = {**ERROR, "message": "bad\n  shape"}


def test_without_a_terminal_each_end_and_each_quiet_minute_is_one_line():
    sweep = Sweep()
    sweep.start("00003")
    sweep.report("00003", 1, loss=0.0987)
    sweep.end("00003")
    sweep.start("00007")
    for n in range(1, 5):
        sweep.report("00007", n, loss=0.1234 + 1 / n)
        sweep.step(1)
    sweep.end("00007", "STOPPED")
    sweep.start("00008")
    for _ in range(130):
        sweep.step(1)
    assert [line.partition("  best loss")[0] for line in sweep.read().splitlines()] == [
        "trial 00003 finished after 1 epoch  loss=0.0987  (best 0.0987 by 00003)  1/20 done",
        "trial 00007 stopped after 4 epochs  loss=0.3734  (best 0.0987 by 00003)  2/20 done",
        "digits  2/20 done, 1 starting, 1 stopped early  1 worker in use  1m 04s",
        "digits  2/20 done, 1 starting, 1 stopped early  1 worker in use  2m 04s",
    ]


def test_a_failed_trial_says_once_which_rank_and_why_and_not_too_much():
    sweep = Sweep()
    for done, (state, verb) in enumerate((("ERROR", "failed"), ("OOM", "ran out of memory")), start=1):
        sweep.start("00000")
        sweep.end("00000", state, WORKER_ERROR)
        assert sweep.read().splitlines() == [
            f"trial 00000 {verb}: rank 1: ValueError: bad shape (traceback: trial_00000/log.txt)",
            f"trial 00000 {verb} before its first report  {done}/20 done",
        ]
    error = {"type_name": "TuneError", "message": "x" * 1000, "traceback": ""}
    sweep.start("00001")
    sweep.line("state", trial="00001", state="ERROR", error=error)
    sweep.hear("on_trial_error", "00001")  # by Tune, and then its end
    sweep.hear("on_trial_complete", "00001")
    assert sweep.read().splitlines()[0] == f"trial 00001 failed: TuneError: {'x' * 300}..."


def test_each_warning_is_said_once_and_none_of_an_earlier_run():
    sweep = Sweep(notes=[(None, "old")])
    sweep.start("00000")
    sweep.start("00001")
    for trial in ("00000", "00001"):
        sweep.line("note", trial=trial, text="val_loss is logged without sync_dist [x]")
        sweep.report(trial, 1, loss=0.5)
    sweep.line("note", trial=None, text="the cluster may grow")
    sweep.report("00000", 2, loss=0.5)
    assert sweep.read().splitlines() == [
        "trial 00000: val_loss is logged without sync_dist [x]",
        "the cluster may grow",
    ]


def test_a_terminal_gets_a_table_what_is_said_above_it_and_at_the_end_one_paragraph():
    before, out = threading.active_count(), sys.stdout
    sweep = Sweep(tty=True)
    sweep.start("00000", {"lr": 0.0123456789, "hidden": 64, "model": {"act": "relu"}})
    sweep.report("00000", 1, loss=0.123456)
    sweep.report("00000", 2, loss=0.5)
    sweep.start("00001")
    sweep.step(65)
    text = sweep.read()
    row = next(line for line in text.splitlines() if "00000" in line and "RUNNING" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["00000 *", "RUNNING", "2", "2", "0.5", "0.1235", "1m 05s", "0.01235", "64", "relu"]
    assert "digits  0/20 done, 1 starting, 1 running  3 workers in use  1m 05s" in text
    assert "best loss=0.1235 by trial 00000 at epoch 1: lr=0.01235, hidden=64, model.act=relu" in text
    assert "│ 00001   │ STARTING │       - │     - │    - │" in text
    sweep.end("00001", "ERROR", WORKER_ERROR)
    text = sweep.read()
    assert text.index("rank 1: ValueError") < text.index("digits")
    assert "before its first report" not in text  # the table says it
    sweep.end("00000")
    for trial, state in (("00002", "STOPPED"), ("00003", "INTERRUPTED")):
        sweep.start(trial)
        sweep.report(trial, 1, loss=0.5)
        sweep.line("state", trial=trial, state=state)
    assert threading.active_count() == before
    sweep.now += 18
    sweep.callback.on_experiment_end([])
    assert sys.stdout is out
    text = sweep.read()
    assert "\x1b[?25h" in text  # the cursor is shown again
    assert "│ 00003   │ INTERRUPTED │" in text
    assert text.splitlines()[-1].endswith(
        "Sweep digits ended after 1m 23s: 4 trials (1 finished, 1 stopped early, 1 failed, 1 interrupted). "
        "Best loss=0.1235 by trial 00000 at epoch 1: lr=0.01235, hidden=64, model.act=relu"
    )
    sweep.callback.close()
    assert sweep.read() == ""


def test_a_low_terminal_gets_fewer_rows_and_a_sweep_without_reports_says_so():
    low = Sweep(tty=True, height=12)
    for i in range(30):
        low.start(f"{i:05d}")
    low.step()
    assert low.read().count("STARTING") == 4
    empty = Sweep()
    empty.callback.close()
    assert empty.read() == "Sweep digits ended after 0s: 0 trials. No trial reported the metric 'loss'\n"


def test_it_redraws_at_most_four_times_a_second_and_once_when_only_time_passes_and_less_often_where_that_is_dear(
    monkeypatch,
):
    sweep = Sweep()
    drawn: list[float] = []
    costs_s = 0.0

    def draw(make: Any) -> None:
        drawn.append(sweep.now)
        sweep.now += costs_s

    view = SimpleNamespace(animated=True, draw=draw, say=lambda *a: None, close=lambda: None)
    monkeypatch.setattr(display, "choose_view", lambda console: view)
    sweep.start("00000")
    sweep.report("00000", 0, loss=0.5)
    assert drawn == []  # a report alone draws nothing
    for n in range(1, 1001):
        sweep.report("00000", n, loss=0.5)
        sweep.step(0.01)
    assert 36 <= len(drawn) <= 41
    drawn.clear()
    for _ in range(100):
        sweep.step(0.1)
    assert 9 <= len(drawn) <= 11
    drawn.clear()
    costs_s, began = 0.05, sweep.now  # a slow machine, a large terminal
    shown = display.Display(SweepState, clock=lambda: sweep.now, timer=lambda: sweep.now)
    while sweep.now < began + 100:
        sweep.now += 0.1
        shown.touch()
        shown.tick()
    assert len(drawn) >= 15
    assert costs_s * len(drawn) <= 0.011 * (sweep.now - began)


def test_with_progress_false_nothing_is_shown():
    sweep = Sweep(progress=False)
    sweep.start("00000")
    sweep.line("note", trial=None, text="note")
    sweep.report("00000", 1, loss=0.5)
    sweep.step(1)
    sweep.end("00000", "ERROR", WORKER_ERROR)
    sweep.callback.on_experiment_end([])
    assert sweep.read() == ""


def test_what_the_first_trial_waits_for_is_shown_once(monkeypatch):
    asked: list[float] = []

    def waits() -> str:
        asked.append(sweep.now)
        return "No trial has started yet: it needs 2 CPUs." if len(asked) > 1 else ""

    sweep = Sweep(waits=waits)
    for _ in range(30):
        sweep.step(1)
    assert [moment - asked[0] for moment in asked] == [0, 5]
    assert sweep.read() == "No trial has started yet: it needs 2 CPUs.\n"
    sweep = Sweep(waits=waits)
    sweep.start("00000")
    sweep.step(30)
    assert len(asked) == 2


SHOWN = """
import signal, sys
from types import SimpleNamespace
from tunelight.extras.standalone import cell
from tunelight.machine.signals import StopSignals
from tunelight.messages import Text
from tunelight.record import SweepState, apply
from tunelight.reporting import ProgressCallback, Steps

state = SweepState()
apply(state, {"kind": "trial", "time": 1.0, "trial": "00000", "index": 0, "config": {}, "folder": "trial_00000"})
apply(state, {"kind": "state", "time": 1.0, "trial": "00000", "state": "FINISHED"})
shown = ProgressCallback(state)
with Steps(after_s=0) as steps, StopSignals(shown.say):
    WHAT
    sys.stderr.write("The sweep went on.")
"""


@pytest.mark.parametrize(
    "what",
    [
        "shown.on_trial_complete(1, [], SimpleNamespace(trial_id='00000'))",
        "shown.close()",
        "with cell.shown() as show: show(Text('of a rank'))",
        "signal.signal(signal.SIGUSR1, lambda *_: None); signal.raise_signal(signal.SIGINT)",
    ],
)
def test_a_closed_pipe_never_ends_the_sweep(what):
    reader, writer = os.pipe()
    os.close(reader)  # as that of `tunelight run ... | head` once it has seen enough
    done = subprocess.run(
        [sys.executable, "-c", SHOWN.replace("WHAT", what)],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert "The sweep went on." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def notebook(monkeypatch):
    """A fake IPython: what is displayed, and each update of it."""
    shown: list[Any] = []
    kernel = type("ZMQInteractiveShell", (), {})()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: kernel  # type: ignore[attr-defined]

    def show(table: Any, display_id: bool) -> Any:
        shown.append(("new", table))
        return SimpleNamespace(update=lambda table: shown.append(("update", table)))

    display.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_notebook_gets_one_table_that_is_updated(notebook, capsys):
    sweep = Sweep(console=None)
    sweep.start("00000")
    sweep.step()
    sweep.report("00000", 1, loss=0.5)
    sweep.step(1)
    sweep.end("00000", "ERROR", WORKER_ERROR)
    sweep.callback.close()
    assert [kind for kind, _ in notebook] == ["new", "update", "update"]
    assert "<pre" in notebook[-1][1]._repr_mimebundle_([], [])["text/html"]
    assert "rank 1: ValueError" in capsys.readouterr().out


def test_the_view_fits_where_the_program_runs(notebook, monkeypatch):
    assert isinstance(choose_view(), NotebookView)
    in_terminal = type("TerminalInteractiveShell", (), {})()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: in_terminal)
    assert not isinstance(choose_view(), NotebookView)
    monkeypatch.delitem(sys.modules, "IPython")
    assert isinstance(choose_view(Console(file=Screen(tty=True), force_terminal=True)), TerminalView)
    assert isinstance(choose_view(Console(file=Screen(tty=False), force_terminal=True)), LinesView)
    assert isinstance(choose_view(Console(file=Screen(tty=False))), LinesView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_view(Console(file=Screen(tty=True))), LinesView)


@pytest.mark.parametrize("tty", [True, False])
def test_the_step_before_the_sweep_is_shown_until_there_is_something_else(tty):
    ends: list[None] = []
    sweep = Sweep(tty, steps=SimpleNamespace(end=lambda: ends.append(None)))
    sweep.callback.on_step_end(1, [])
    assert not ends
    assert not sweep.screen.getvalue()
    sweep.start("00000")
    sweep.callback.on_step_end(1, [])
    assert len(ends) == tty  # there is a table now, and no line yet
    sweep.report("00000", 1, loss=0.5)
    sweep.end("00000")
    sweep.callback.close()
    assert len(ends) == 1


def test_a_step_that_takes_its_time_is_a_line_or_drawn_until_it_ends_and_a_short_one_and_a_quiet_program_show_nothing():
    stream, terminal = Screen(tty=False), Screen(tty=True)
    with Steps(console=Console(file=stream), after_s=0.01) as steps:
        steps("Starting Ray [of 2 nodes]")
        until(stream.getvalue, 5)
        steps("Starting 2 workers")
        until(lambda: "workers" in stream.getvalue(), 5)
    with Steps(console=Console(file=stream), after_s=0.05) as steps:
        steps("Checking the sweep")
    with Steps(shown=False, console=Console(file=stream), after_s=0) as steps:
        steps("Starting Ray")
        time.sleep(0.1)
    assert stream.getvalue() == "Starting Ray [of 2 nodes] ...\nStarting 2 workers ...\n"
    with Steps(console=Console(file=terminal, force_terminal=True, width=60), after_s=0.01) as steps:
        steps("Starting Ray")
        until(lambda: "Starting Ray" in terminal.getvalue(), 5)
        steps.end()
    drawn = terminal.getvalue()
    assert "0:00:00" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is erased
    time.sleep(0.15)
    assert terminal.getvalue() == drawn
