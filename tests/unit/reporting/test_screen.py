"""The live view as text: a function of a sweep's state, for every width."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
from rich.console import Console

from tests.kit.recording import Lines
from tunelight.record import apply
from tunelight.record.view import sparkline
from tunelight.reporting.display import (
    SweepView,
    best_curve,
    last_events,
    rows_of,
    rungs_line,
    seconds_left,
)
from tunelight.reporting.words import compact, elapsed

NOW = 1_000_000.0


class State(Lines):
    """A sweep's state, made of the lines of a record."""

    def __init__(self, **told: Any) -> None:
        super().__init__()
        self.line("sweep", sweep={"name": "digits", "metric": "loss", "mode": "min", **told})

    def trial(
        self,
        *losses: float,
        state: str = "RUNNING",
        seconds: float = 0.0,
        workers: int | None = 2,
        config: Any = None,
    ) -> str:
        """Add a trial with these reports; it took ``seconds``, or has run for so long."""
        name = f"{len(self.state.trials):05d}"
        self.line(
            "trial", trial=name, index=len(self.state.trials), config=config or {"lr": 0.5}, folder=f"trial_{name}"
        )
        begun = self.now - seconds
        apply(self.state, {"kind": "state", "time": begun, "trial": name, "state": "RUNNING"})
        for number, loss in enumerate(losses, start=1):
            self.line(
                "report", trial=name, metrics={"loss": loss}, decision="CONTINUE", workers=workers,
                training_iteration=number, epoch=number - 1, timestamp=self.now,
            )  # fmt: skip
        if state != "RUNNING":
            self.line("state", trial=name, state=state)
        return name

    def show(
        self, width: int = 100, total: int | None = 20, events: int = 0, columns: Any = None, **console: Any
    ) -> str:
        stream = io.StringIO()
        rows = rows_of(self.state, 12)
        shown = SweepView(self.state, rows, self.now, total, events=events, columns=columns)
        Console(file=stream, width=width, force_terminal=True, color_system=None, **console).print(shown)
        return stream.getvalue()


@pytest.fixture
def sweep() -> State:
    made = State(rungs={"by": "training_iteration", "at": [1, 3, 9]}, workers=2)
    made.trial(0.9, 0.7, 0.5, 0.3, seconds=65)
    made.trial(0.8, state="STOPPED", seconds=10)
    made.trial(0.85, 0.8, 0.75, state="STOPPED", seconds=30)
    return made


def test_it_shows_workers_rungs_and_the_best_curve(sweep: State) -> None:
    lines = sweep.show().splitlines()
    assert lines[0] == "digits  2/20 done, 1 running, 2 stopped early  2 workers in use  0s"
    sweep.trial()
    sweep.trial(0.5, state="PAUSED", workers=8)
    assert "  4 workers in use" in sweep.show()  # of those that run
    assert lines[1] == "rungs  1: 2 of 3 passed   3: 1 of 2 passed"
    assert lines[-1] == "  0.9 █▆▃▁ 0.3"


def head_of(shown: str) -> list[str]:
    """Return the columns of the table that is shown."""
    head = next(line for line in shown.splitlines() if "trial" in line and "state" in line)
    return head.replace("┃", " ").split()


def rows(shown: str) -> list[list[str]]:
    """Return the cells of the table that is shown."""
    lines = [line for line in shown.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_a_narrow_terminal_gets_fewer_columns_and_no_line_longer_than_it_is_wide(sweep: State) -> None:
    assert head_of(sweep.show(60)) == ["trial", "state", "epoch", "loss", "best", "time", "lr"]
    assert rows(sweep.show(60))[0] == ["00000 *", "RUNNING", "4", "0.3", "0.3", "1m 05s", "0.5"]
    assert head_of(sweep.show(46)) == ["trial", "state", "epoch", "loss", "time"]
    assert head_of(sweep.show(100)) == ["trial", "state", "workers", "epoch", "loss", "best", "time", "lr"]
    sweep.line("note", trial="00000", text="failed on rank 1 " + "x" * 300)
    for width in (20, 40, 60, 76, 100, 250):
        assert max(map(len, sweep.show(width, events=4).splitlines())) <= width


def test_the_columns_may_be_chosen_and_names_that_end_alike_are_whole() -> None:
    made = State()
    made.trial(0.5, state="FINISHED", config={"model": {"lr": 0.1, "width": 64}})
    shown = made.show(80, columns=["width", "epoch", "model.lr", "val_acc", "best"])
    assert head_of(shown) == ["trial", "state", "width", "epoch", "lr", "val_acc", "best"]
    assert rows(shown) == [["00000 *", "FINISHED", "64", "1", "0.1", "-", "0.5"]]
    alike = State()
    alike.trial(0.5, config={"gen": {"lr": 0.1}, "disc": {"lr": 0.2}, "gen.width": 3})
    assert head_of(alike.show(100))[-3:] == ["gen.lr", "disc.lr", "width"]


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


def test_without_colours_no_colour_is_written_and_ascii_in_a_terminal_of_ascii(sweep: State, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, width=80, force_terminal=True, color_system="truecolor")
    console.print(SweepView(sweep.state, list(sweep.state.trials.values()), NOW, 20, events=4))
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "0.9 #+-_ 0.3" in text
    assert "\x1b[3" not in text.replace("\x1b[3m", "")  # italics are no colour


def test_the_last_events_are_told_with_the_time_of_day(sweep: State) -> None:
    sweep.line("note", trial="00000", text="failed on rank 1; going on")
    sweep.line("config", trial="00000", training_iteration=4, config={"lr": 1}, parent="00002", parent_iteration=3)
    sweep.line("state", trial="00000", state="PAUSED")
    at = time.strftime("%H:%M:%S", time.localtime(NOW))
    assert last_events(sweep.state, 4) == [
        f"{at} trial 00002 stopped, loss=0.75",
        f"{at} trial 00000: failed on rank 1; going on",
        f"{at} trial 00000 took over trial 00002",
        f"{at} trial 00000 paused",
    ]
    assert last_events(sweep.state, 0) == []


def test_a_sweep_without_rungs_or_reports_or_with_rungs_of_what_is_not_reported_says_nothing_of_them() -> None:
    for made in (State(), State(rungs={"by": "time_total_s", "at": [1]})):
        assert best_curve(made.state, 40) == ""
        assert "no trial has reported the metric 'loss' yet" in made.show()
        made.trial(0.5)
        assert rungs_line(made.state) == ""


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 8, "▁▂▃▄▅▆▇█"),
        ([1, 1, 8, 8], 2, "▁█"),
        ([2, 2, 2], 8, "▁▁▁"),
        ([1, 2, 3], 2, "▁█"),
        ([-1e308, 1e308], 4, "▁▁"),
    ],
)
def test_a_sparkline_is_as_high_as_its_values(values: list[float], width: int, drawn: str) -> None:
    assert sparkline(values, width) == drawn


# How long it will take yet


@pytest.mark.parametrize(
    ("ended", "running", "total", "ends", "left"),
    [
        # The first will take 30 s in all (the one that took longer), the second 20 s; five more take 20 s each.
        ((10, 20, 30), (20, 5), 10, None, (10 + 15 + 5 * 20) / 2),
        ((1, 1, 100), (10, 99.5), 5, None, 90),  # never less than what the longest takes
        ((10, 10, 10), (1,), 9, NOW + 7, 7),  # a time budget ends it earlier
    ],
)
def test_it_estimates_by_how_long_ended_trials_took(
    ended: tuple[float, ...], running: tuple[float, ...], total: int, ends: float | None, left: float
) -> None:
    made = State(ends=ends)
    for seconds in ended:
        made.trial(0.5, state="FINISHED", seconds=seconds)
    for seconds in running:
        made.trial(0.5, seconds=seconds)
    assert seconds_left(made.state, NOW, total=total) == pytest.approx(left)


def test_a_trial_that_outlasts_all_others_is_judged_by_its_own_pace() -> None:
    made = State(max_epochs=8)
    for _ in range(3):
        made.trial(0.5, state="STOPPED", seconds=10)
    made.trial(0.5, 0.4, seconds=40)
    assert seconds_left(made.state, NOW, total=4) == pytest.approx(40 / 2 * 6)
    made.state.sweep["max_epochs"] = None
    assert seconds_left(made.state, NOW, total=4) is None


@pytest.mark.parametrize(("ended", "running", "total"), [(2, 1, 9), (3, 0, 9), (3, 1, None)])
def test_what_is_unknown_is_not_estimated(ended: int, running: int, total: int | None) -> None:
    made = State()
    for _ in range(ended):
        made.trial(0.5, state="FINISHED", seconds=10)
    for _ in range(running):
        made.trial(0.5, seconds=1)
    assert seconds_left(made.state, NOW, total) is None
    assert "left" not in made.show(total=total).splitlines()[0]


# How often, and in which words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "True"), (64, "64"), (12_345_678, "1.235e+07"), (0.000123456, "0.0001235"),
        (math.nan, "nan"), (-math.inf, "-inf"), ("relu", "relu"),
        ("x" * 30, "x" * 21 + "..."), ([1, 2], "[1, 2]"), (10**400, "1" + "0" * 19 + "..."),
    ],
)  # fmt: skip
def test_values_are_compact(value: Any, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0s"), (59, "59s"), (185, "3m 05s"), (7805, "2h 10m")])
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text
