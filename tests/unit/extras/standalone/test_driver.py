"""Fits outside of a sweep: the driver's launcher, its pool of warm gangs, and what ranks draw in a notebook's cell."""

from __future__ import annotations

import pickle
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import cloudpickle
import pytest
from rich.console import Console

import tunelight as tl
from tests.kit.fakes import FakeGang
from tests.kit.waiting import until
from tunelight.checkpoints import files as checkpoints
from tunelight.cluster.connect import quiet
from tunelight.compat.lightning import pl
from tunelight.errors import GangError, SettingsError, StrategyError, TrialError
from tunelight.extras.standalone import cell as cells
from tunelight.extras.standalone import driver
from tunelight.extras.standalone import pool as pools
from tunelight.extras.standalone.cell import Cell, NotebookTerminal
from tunelight.extras.standalone.driver import TrialReporter, own_error
from tunelight.extras.standalone.pool import Held, Pool
from tunelight.gang.spec import GangSpec
from tunelight.gang.worker import carried
from tunelight.lightning.strategies.base import Workers
from tunelight.machine.processes import is_terminal
from tunelight.messages import Text, WorkerError
from tunelight.reporting.display import choose_view
from tunelight.resources import Reservation
from tunelight.session.session import get_session
from tunelight.session.task import Home


def reports(config: dict[str, Any]) -> None:
    """Report with a checkpoint each time, as a Trainer's callback does inside a Tune function trainable."""
    context = tl.get_context()
    for number in range(1, 9):
        context.report({"loss": 1.0 / number}, checkpoint=lambda path: Path(path).write_text("weights"))


def saves(config: dict[str, Any]) -> None:
    """Come to boundaries, as a fit on a driver does, and write a checkpoint at each."""
    session = get_session()
    session.boundary.writer = lambda path: Path(path).write_text("weights")
    for number in range(1, 9):
        session.boundary.reach(epoch=number, step=number)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> driver.DriverLauncher:
    workers = Workers(idle_timeout_s=1.0)
    one = driver.DriverLauncher(SimpleNamespace(workers=workers), None)  # type: ignore[arg-type]
    held = SimpleNamespace(gang=FakeGang(GangSpec()))
    monkeypatch.setattr(one, "_take", lambda **_: held)
    monkeypatch.setattr(driver, "pool", SimpleNamespace(give_back=lambda *_: None, close=lambda *_: None))
    return one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / checkpoints.FOLDER


def test_a_trainer_in_a_tune_trial_leaves_no_checkpoints_beside_those_of_tune(launcher, monkeypatch, tmp_path, folder):
    told: list[str] = []
    there: list[int] = []

    def report(metrics: dict[str, Any], checkpoint: Any) -> None:
        """Stand in for Tune, which copies what it is handed before it returns."""
        (file,) = Path(checkpoint.path).iterdir()
        told.append(f"{file.name}: {file.read_text()}")
        there.append(len(list(folder.glob("report-*.ckpt"))))

    monkeypatch.setattr("ray.tune.report", report)
    monkeypatch.setattr(driver, "_reporter", lambda: TrialReporter(str(tmp_path)))
    launcher._run(reports)
    assert told == [f"report-{number:06d}.ckpt: weights" for number in range(1, 9)]
    assert max(there) == checkpoints.SPARES
    assert not folder.exists()


def test_a_fit_on_a_driver_keeps_the_last_two_checkpoints_of_its_own_while_it_runs(
    launcher: driver.DriverLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    monkeypatch.setattr(driver, "SAFE_EVERY_S", 0.0)
    launcher._run(saves, folder=tmp_path)
    assert sorted(path.name for path in folder.glob("*.ckpt")) == ["report-000007.ckpt", "report-000008.ckpt"]


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"GPU": 2}, r"resources_per_worker\['GPU'\] must be 0, 1 or a part of one, not 2"),
        ({"TPU": 4}, "Workers cannot train on TPU, of which 4"),
    ],
)
def test_what_a_worker_cannot_train_on_is_refused_before_ray_starts(resources: dict[str, float], message: str) -> None:
    strategy = tl.RayStrategy(2, resources_per_worker=resources)
    trainer = pl.Trainer(strategy=strategy, logger=False, enable_checkpointing=False)
    with pytest.raises(SettingsError, match=message):
        trainer.fit(pl.LightningModule(), [0])


def arrived(error: BaseException) -> Exception:
    """Return what a driver makes of an exception that was raised on a worker."""
    told = WorkerError(1, "there", type(error).__name__, str(error), "line 7", exception=carried(error))
    return own_error(TrialError(pickle.loads(pickle.dumps(told))))


class OddError(ValueError):
    """Pickle calls its constructor with the wrong arguments."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("mine"), {"args": ("mine",)}),
        (FileNotFoundError(2, "No such file", "a.txt"), {"errno": 2, "filename": "a.txt"}),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), {"start": 0, "reason": "why", "object": b"x"}),
        (ModuleNotFoundError("No module", name="absent"), {"name": "absent"}),
        (KeyError("missing"), {"args": ("missing",)}),
        (StopIteration(3), {"value": 3}),
        (ExceptionGroup("several", [ValueError("one")]), {}),
        (StrategyError("of ours"), {"args": ("of ours",)}),
    ],
)
def test_it_is_the_exception_itself_with_a_note_of_where_it_was_raised(error, attributes):
    here = arrived(error)
    assert type(here) is type(error)
    assert str(here) == str(error)
    assert here.__notes__ == [f"rank 1 on there: {type(error).__name__}: {error}\n\nline 7"]
    assert {name: getattr(here, name) for name in attributes} == attributes


def test_a_class_of_the_driver_s_own_script_is_the_same_class_again_and_notes_of_both_are_kept() -> None:
    class LocalError(Exception): ...

    kind = cloudpickle.loads(cloudpickle.dumps(LocalError))
    assert isinstance(arrived(kind("mine")), LocalError)
    error = ValueError("mine")
    error.add_note("of the worker")
    plain = TrialError(WorkerError(0, "there", "ValueError", "mine", "", exception=carried(error)))
    plain.add_note("go on from here")
    assert own_error(plain).__notes__ == ["of the worker", "rank 0 on there: ValueError: mine", "go on from here"]
    told = WorkerError(0, "there", "ValueError", "mine", "", exception=carried(ValueError("mine")))
    assert "exception" not in told.asdict()
    assert "exception" not in repr(told).replace("cause='exception'", "")


def test_what_cannot_be_pickled_or_is_large_or_would_end_the_driver_or_is_not_here_leaves_tunelight_s_own(monkeypatch):
    unsent = (OddError(7, hint="mine"), ValueError(threading.Lock()), ValueError(bytes(2**21)))
    for error in (*unsent, SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        assert type(arrived(error)) is TrialError
    module: Any = ModuleType("only_there")
    exec("class AbsentError(Exception): ...", vars(module))
    monkeypatch.setitem(sys.modules, "only_there", module)
    data = carried(module.AbsentError("mine"))
    monkeypatch.delitem(sys.modules, "only_there")
    plain = TrialError(WorkerError(0, "there", "AbsentError", "mine", "", exception=data))
    assert own_error(plain) is plain


class Gang(FakeGang):
    """A gang that may be dead; keeps what was formed."""

    made: list[Gang]
    dead = False

    @classmethod
    def form(cls, spec: GangSpec, group: Any = None) -> Gang:
        gang = cls(spec)
        gang.heal()
        cls.made.append(gang)
        return gang

    def check_alive(self, limit_s: float) -> None:
        if self.dead:
            raise GangError("no sign of life")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    Gang.made = []
    monkeypatch.setattr(pools, "Gang", Gang)
    monkeypatch.setattr(Pool, "_reserve", lambda *_: "a reservation")
    monkeypatch.setattr(pools, "remove_placement_group", lambda group: None)
    pool = Pool()
    yield pool
    pool.close()


def take(pool: Pool, workers: int = 2, cwd: str = "/a", group: Any = None, **kwargs: Any) -> Held:
    return pool.take(GangSpec(Reservation(workers), home=Home(cwd)), Reservation(workers), group, **kwargs)


def test_the_next_job_of_the_same_kind_finds_the_gang_warm_and_any_other_gets_its_own(pool: Pool) -> None:
    first = take(pool)
    assert take(pool) is not first  # which is taken
    pool.give_back(first, 60)
    assert take(pool, workers=3) is not first
    assert take(pool, cwd="/b") is first


@pytest.mark.parametrize("why", ["it died while it idled", "it is unfit", "it idled too long"])
def test_a_gang_that_cannot_be_had_again_is_closed_and_replaced(pool: Pool, why: str) -> None:
    first = take(pool)
    if why == "it is unfit":
        Gang.made[0].unfit = "rank 1 died"
    pool.give_back(first, 0.01 if why == "it idled too long" else 60)
    if why == "it idled too long":
        until(lambda: first.closed, 5)
    Gang.made[0].dead = why == "it died while it idled"
    assert take(pool) is not first
    assert first.closed


def test_a_timer_that_is_late_closes_no_gang_that_was_taken_meanwhile(pool: Pool) -> None:
    first = take(pool)
    pool.give_back(first, 60)
    timer: Any = first.timer
    assert take(pool) is first
    timer.function(*timer.args)  # it had begun before it was cancelled
    assert not first.closed
    pool.give_back(first, 60)
    timer.function(*timer.args)
    assert not first.closed


def test_a_strategy_that_is_shut_down_ends_its_own_workers_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "pool", pool)
    one, other = (driver.DriverLauncher(cast("Any", None), None) for _ in range(2))
    for launcher in (one, other):  # one fit after the other, on the same warm gang
        launcher._held = take(pool)
        launcher._lease = launcher._held.lease
        pool.give_back(launcher._held, 60)
    held = one._held
    assert held is other._held
    assert held is not None
    one.shutdown()
    assert not held.closed
    other.shutdown()
    assert held.closed


def test_closing_the_pool_ends_what_idles_alone(pool: Pool) -> None:
    idle, busy = take(pool), take(pool)
    pool.give_back(idle, 60)
    pool.close()
    assert (idle.closed, busy.closed) == (True, False)


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
