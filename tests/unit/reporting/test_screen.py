"""The live view as text: a function of a sweep's state, for every width."""

from __future__ import annotations

import io
import math
import re
import time
from typing import Any

import pytest
from rich.console import Console

from tests.kit.recording import Lines
from tunelight.record import apply
from tunelight.record.view import sparkline
from tunelight.reporting.display import (
    SweepView,
    rows_of,
    seconds_left,
)
from tunelight.reporting.words import compact, elapsed

NOW = 1_000_000.0


class State(Lines):
    """A sweep's state, made of the lines of a record."""

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
