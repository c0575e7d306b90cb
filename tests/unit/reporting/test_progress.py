"""What is seen while a sweep runs: table, lines, notebook, how often, for every width; also in another process."""

from __future__ import annotations

import io
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from tests.kit.recording import ERROR, Lines, Sweep
from tests.kit.waiting import until
from tunelight.errors import StorageError
from tunelight.extras.attach import RecordFollower
from tunelight.machine.processes import process_table
from tunelight.record import RECORD_FILE, SweepState, leased
from tunelight.record.lease import Owner, Owners
from tunelight.record.view import sparkline
from tunelight.reporting import display, watch
from tunelight.reporting.display import (
    LinesView,
    NotebookView,
    Steps,
    SweepView,
    TerminalView,
    choose_view,
    rows_of,
    seconds_left,
)
from tunelight.reporting.progress import ProgressCallback
from tunelight.reporting.words import compact, elapsed


class Screen(io.StringIO):
    """A stream that says of itself whether it is a terminal."""

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


class Shown(Lines):
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
    sweep = Shown()
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
    sweep = Shown()
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
    sweep = Shown(notes=[(None, "old")])
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
    sweep = Shown(tty=True)
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
    low = Shown(tty=True, height=12)
    for i in range(30):
        low.start(f"{i:05d}")
    low.step()
    assert low.read().count("STARTING") == 4
    empty = Shown()
    empty.callback.close()
    assert empty.read() == "Sweep digits ended after 0s: 0 trials. No trial reported the metric 'loss'\n"


def test_it_redraws_at_most_four_times_a_second_and_once_when_only_time_passes_and_less_often_where_that_is_dear(
    monkeypatch,
):
    sweep = Shown()
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
    sweep = Shown(progress=False)
    sweep.start("00000")
    sweep.line("note", trial=None, text="note")
    sweep.report("00000", 1, loss=0.5)
    sweep.step(1)
    sweep.end("00000", "ERROR", WORKER_ERROR)
    sweep.callback.on_experiment_end([])
    assert sweep.read() == ""


def test_what_the_first_trial_waits_for_is_shown_once():
    asked: list[float] = []

    def waits() -> str:
        asked.append(sweep.now)
        return "No trial has started yet: it needs 2 CPUs." if len(asked) > 1 else ""

    sweep = Shown(waits=waits)
    for _ in range(30):
        sweep.step(1)
    assert [moment - asked[0] for moment in asked] == [0, 5]
    assert sweep.read() == "No trial has started yet: it needs 2 CPUs.\n"
    sweep = Shown(waits=waits)
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
    sweep = Shown(console=None)
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
    sweep = Shown(tty, steps=SimpleNamespace(end=lambda: ends.append(None)))
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


NOW = 1_000_000.0


class State(Lines):
    """A sweep's state, made of the lines of a record."""

    callback = mock.Mock()

    def trial(self, *losses: float, state: str = "RUNNING", seconds: float = 0.0, **more: Any) -> None:
        """Add a trial with these reports; it took ``seconds``, or has run for so long."""
        name = f"{len(self.state.trials):05d}"
        self.now -= seconds
        self.start(name, more.pop("config", {"lr": 0.5}))
        self.now += seconds
        for number, loss in enumerate(losses, start=1):
            self.report(name, number, loss=loss, **more)
        if state != "RUNNING":
            self.end(name, state)

    def show(
        self, width: int = 100, total: int | None = 20, events: int = 0, columns: Any = None, **console: Any
    ) -> str:
        stream = io.StringIO()
        rows = rows_of(self.state, 12)
        shown = SweepView(self.state, rows, self.now, total, events=events, columns=columns)
        Console(file=stream, width=width, force_terminal=True, color_system=None, **console).print(shown)
        return stream.getvalue()


WIDE = """\
digits  2/20 done, 1 running, 1 paused, 2 stopped early  2 workers in use  0s
rungs  1: 2 of 4 passed   3: 1 of 2 passed
┏━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━┳━━━━━━━┳━━━━━━┳━━━━━━┳━━━━━━━━┳━━━━━┓
┃ trial   ┃ state   ┃ workers ┃ epoch ┃ loss ┃ best ┃   time ┃  lr ┃
┡━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━╇━━━━━━╇━━━━━━╇━━━━━━━━╇━━━━━┩
│ 00000 * │ RUNNING │       2 │     4 │  0.3 │  0.3 │ 1m 05s │   1 │
│ 00003   │ PAUSED  │       8 │     1 │  0.5 │  0.5 │     0s │ 0.5 │
│ 00002   │ STOPPED │       2 │     3 │ 0.75 │ 0.75 │    30s │ 0.5 │
│ 00001   │ STOPPED │       2 │     1 │  0.8 │  0.8 │    10s │ 0.5 │
└─────────┴─────────┴─────────┴───────┴──────┴──────┴────────┴─────┘
best loss=0.3 by trial 00000 at epoch 4: lr=0.5
  0.9 █▆▃▁ 0.3
{at} trial 00002 stopped, loss=0.75
{at} trial 00003 paused
{at} trial 00000: failed on rank 1; going on
{at} trial 00000 took over trial 00002
"""


def test_it_is_as_wide_as_the_terminal_and_in_its_letters_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = State(rungs={"by": "training_iteration", "at": [1, 3, 9]}, workers=2)
    sweep.trial(0.9, 0.7, 0.5, 0.3, seconds=65)
    sweep.trial(0.8, state="STOPPED", seconds=10)
    sweep.trial(0.85, 0.8, 0.75, state="STOPPED", seconds=30)
    sweep.trial(0.5, state="PAUSED", workers=8)
    sweep.line("note", trial="00000", text="failed on rank 1; going on")
    sweep.line("config", trial="00000", training_iteration=4, config={"lr": 1}, parent="00002", parent_iteration=3)
    assert sweep.show(events=4) == WIDE.format(at=time.strftime("%H:%M:%S", time.localtime(NOW)))
    assert rows(sweep.show(60))[0] == ["00000 *", "RUNNING", "4", "0.3", "0.3", "1m 05s", "1"]
    assert rows(sweep.show(46))[0] == ["00000 *", "RUNNING", "4", "0.3", "1m 05s"]
    sweep.line("note", trial="00000", text="failed on rank 1 " + "x" * 300)
    for width in (20, 40, 60, 76, 100, 250):
        assert max(map(len, sweep.show(width, events=4).splitlines())) <= width
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, width=80, force_terminal=True, color_system="truecolor")
    console.print(SweepView(sweep.state, list(sweep.state.trials.values()), NOW, 20, events=4))
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "0.9 #+-_ 0.3" in text
    assert "\x1b[3" not in text.replace("\x1b[3m", "")  # italics are no colour


def rows(shown: str) -> list[list[str]]:
    """Return the cells of the table that is shown."""
    lines = [line for line in shown.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_it_says_nothing_of_rungs_and_reports_that_are_not_there() -> None:
    for made in (State(), State(rungs={"by": "time_total_s", "at": [1]})):
        assert "no trial has reported the metric 'loss' yet" in made.show()
        made.trial(0.5)
        assert "rungs" not in made.show()
    for values, width, drawn in (
        ([1.0, 2, 3, 4, 5, 6, 7, 8], 8, "▁▂▃▄▅▆▇█"),
        ([1.0, 1, 8, 8], 2, "▁█"),
        ([2.0, 2, 2], 8, "▁▁▁"),
        ([1.0, 2, 3], 2, "▁█"),
        ([-1e308, 1e308], 4, "▁▁"),
    ):
        assert sparkline(values, width) == drawn


def test_the_columns_may_be_chosen_and_names_that_end_alike_are_whole() -> None:
    made = State()
    made.trial(0.5, state="FINISHED", config={"model": {"lr": 0.1, "width": 64}})
    shown = made.show(80, columns=["width", "epoch", "model.lr", "val_acc", "best"])
    assert re.search("trial .* state .* width .* epoch .* lr .* val_acc .* best", shown)
    assert rows(shown) == [["00000 *", "FINISHED", "64", "1", "0.1", "-", "0.5"]]
    alike = State()
    alike.trial(0.5, config={"gen": {"lr": 0.1}, "disc": {"lr": 0.2}, "gen.width": 3})
    assert re.search("gen.lr .* disc.lr .* width", alike.show(100))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_many_trials_the_running_ones_and_the_best_are_shown_and_the_others_counted(mode: str) -> None:
    made = State(mode=mode)
    for number in range(56):
        made.trial(number / 56, state="STOPPED" if number % 2 else "FINISHED")
    made.trial(5.0 if mode == "max" else -5.0, state="ERROR")
    for _ in range(3):
        made.trial(0.5)
    shown = made.show()
    best = range(9) if mode == "min" else range(55, 46, -1)
    assert [row[0].removesuffix(" *") for row in rows(shown)] == [
        *(f"{number:05d}" for number in (57, 58, 59)), *(f"{number:05d}" for number in best),
    ]  # fmt: skip
    assert rows(shown)[3][0].endswith(" *")
    assert "and 48 more: " in shown
    assert "1 failed" in next(line for line in shown.splitlines() if "more" in line)
    for _ in range(20):
        made.trial(0.5)
    assert [row[1] for row in rows(made.show())].count("RUNNING") == 6  # at least half of the rows


@pytest.mark.parametrize(
    ("ended", "running", "total", "ends", "left"),
    [
        # The first will take 30 s in all (the one that took longer), the second 20 s; five more take 20 s each.
        ((10, 20, 30), (20, 5), 10, None, (10 + 15 + 5 * 20) / 2),
        ((1, 1, 100), (10, 99.5), 5, None, 90),  # never less than what the longest takes
        ((10, 10, 10), (1,), 9, NOW + 7, 7),  # a time budget ends it earlier
        ((10, 10), (1,), 9, None, None),
        ((10, 10, 10), (), 9, None, None),
        ((10, 10, 10), (1,), None, None, None),
    ],
)
def test_it_estimates_by_how_long_ended_trials_took(ended, running, total, ends, left):
    made = State(ends=ends)
    for seconds in ended:
        made.trial(0.5, state="FINISHED", seconds=seconds)
    for seconds in running:
        made.trial(0.5, seconds=seconds)
    assert seconds_left(made.state, NOW, total=total) == (None if left is None else pytest.approx(left))
    assert ("left" in made.show(total=total).splitlines()[0]) == (left is not None)


def test_a_trial_that_outlasts_all_others_is_judged_by_its_own_pace() -> None:
    made = State(max_epochs=8)
    for _ in range(3):
        made.trial(0.5, state="STOPPED", seconds=10)
    made.trial(0.5, 0.4, seconds=40)
    assert seconds_left(made.state, NOW, total=4) == pytest.approx(40 / 2 * 6)
    made.state.sweep["max_epochs"] = None
    assert seconds_left(made.state, NOW, total=4) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "True"), (64, "64"), (12_345_678, "1.235e+07"), (0.000123456, "0.0001235"),
        (math.nan, "nan"), (-math.inf, "-inf"), ("relu", "relu"),
        ("x" * 30, "x" * 21 + "..."), ([1, 2], "[1, 2]"), (10**400, "1" + "0" * 19 + "..."),
    ],
)  # fmt: skip
def test_values_are_compact_and_durations_read_as_a_person_says_them(value: Any, text: str) -> None:
    assert compact(value) == text
    for seconds, said in ((0.9, "0s"), (59, "59s"), (185, "3m 05s"), (7805, "2h 10m")):
        assert elapsed(seconds) == said


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path / "digits")
    yield made
    made.callback.close()


class Watching:
    """A watcher for whom each pause is a moment in which the sweep goes on."""

    def __init__(self, followed: Sweep, *moments: Callable[[], object]) -> None:
        self.stream, self.now, self._moments = io.StringIO(), 1000.0, list(moments)
        self._folder = followed.folder

    def __call__(self) -> Any:
        console = Console(file=self.stream, width=100)
        return watch(self._folder, console=console, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._moments:
            self._moments.pop(0)()

    @property
    def text(self) -> str:
        return self.stream.getvalue()


def test_it_tells_of_each_end_and_ends_with_the_sweep(followed: Sweep) -> None:
    def begin() -> None:
        followed.run(0.5, lr=0.1)
        followed.callback.note("val_loss is logged without sync_dist", "00000")

    with leased(followed.folder):
        watching = Watching(followed, begin, lambda: followed.end_by_itself(followed.trials[0]), followed.end)
        state = watching()
    assert watching.text.splitlines() == [
        "trial 00000: val_loss is logged without sync_dist",
        "trial 00000 finished after 1 epoch  loss=0.5  (best 0.5 by 00000)  1 done",
        "Sweep digits ended after 0s: 1 trial (1 finished). Best loss=0.5 by trial 00000 at epoch 1: lr=0.1",
    ]
    assert state.ended == "finished"
    again = Watching(followed)
    again()
    assert again.text.splitlines() == watching.text.splitlines()[-1:]  # it has ended already


def test_a_driver_that_died_is_told_of(followed: Sweep) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    Owners(followed.folder).create(Owner(1, socket.gethostname(), dead.pid, table=process_table(), born=1))
    followed.run()
    watching = Watching(followed)
    state = watching()
    assert state.ended is None
    assert f"Its driver (process {dead.pid} on {socket.gethostname()}) is gone" in watching.text
    assert "tunelight.resume(" in watching.text
    assert watching.now - 1000.0 == pytest.approx(5.0, abs=1.0)  # it may just be starting


def test_a_sweep_that_nobody_runs_is_told_of_and_a_driver_that_comes_back_followed(followed: Sweep) -> None:
    watching = Watching(followed)
    watching()
    assert "Sweep digits has not ended. No driver runs it" in watching.text
    held = leased(followed.folder)
    moments = [lambda: None, held.__enter__, *[lambda: None] * 20, followed.end]
    watching = Watching(followed, *moments)
    assert watching().ended == "finished"
    held.__exit__(None, None, None)


def test_ctrl_c_gives_the_terminal_back_and_what_cannot_be_read_is_an_error(followed: Sweep, tmp_path: Path) -> None:
    watching = Watching(followed, mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        watching()
    assert "(watching ended)" in watching.text
    with pytest.raises(StorageError, match="holds no sweep that can be read"):
        watch(tmp_path)
    follower = RecordFollower(followed.folder)
    with (followed.folder / RECORD_FILE).open("ab") as stream:
        stream.write(b'{"kind":"note"}\n')
    assert [line["kind"] for line in follower.look()] == ["sweep"]  # what lies before it
    for _ in range(2):
        with pytest.raises(StorageError, match=r"record\.jsonl, line 2: corrupt"):
            follower.look()
