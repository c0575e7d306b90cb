"""Records that no sweep made: by fake Tune trials that drive a RecordCallback, or line by line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import flattened, stub_trial
from tunelight.errors import StorageError
from tunelight.messages import CheckpointInfo
from tunelight.record import Lease, Record, RecordCallback, SweepState, apply, leased, write_sweep_file
from tunelight.record.record import replayed
from tunelight.results import SweepResults
from tunelight.space import SearchSpace
from tunelight.sweep.queue import ResumeState, SweepSearch
from tunelight.sweep.replay import SchedulerReplay, SearcherReplay, replay

ERROR = {"rank": 1, "node": "a", "type_name": "ValueError", "message": "no such lr", "traceback": "Traceback"}
"""A trial's error, as a record holds it."""


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeTrial(SimpleNamespace):
    """A trial of Tune's, which keeps them in sets."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")


class Lines:
    """A live view made of the lines of a record, and a callback of Tune's that hears of trials as from Tune."""

    callback: Any = None

    def __init__(self, **told: Any) -> None:
        self.now, self.state = 1_000_000.0, SweepState()
        self.state.sweep.update({"name": "digits", "metric": "loss", "mode": "min", **told})
        self.state.started = self.now

    def line(self, kind: str, **fields: Any) -> None:
        apply(self.state, {"kind": kind, "time": self.now, **fields})

    def hear(self, hook: str, trial: str, *more: Any) -> None:
        getattr(self.callback, hook)(1, [], SimpleNamespace(trial_id=trial), *more)

    def start(self, trial: str, config: dict[str, Any] | None = None) -> None:
        self.line("trial", trial=trial, index=len(self.state.trials), config=config or {}, folder=f"trial_{trial}")
        self.line("state", trial=trial, state="RUNNING")
        self.hear("on_trial_start", trial)

    def report(self, trial: str, n: int, epoch: int | None = -1, *, workers: int = 2, **metrics: Any) -> None:
        when = {"training_iteration": n, "epoch": n - 1 if epoch == -1 else epoch, "timestamp": self.now}
        self.line("report", trial=trial, metrics=metrics, decision="CONTINUE", workers=workers, **when)
        self.hear("on_trial_result", trial, {})

    def end(self, trial: str, state: str = "FINISHED", error: dict[str, Any] | None = None) -> None:
        self.line("state", trial=trial, state=state, error=error)
        self.hear("on_trial_complete", trial)


class Book(RecordCallback):
    """A record in memory alone."""

    def __init__(self, clock: Any = None, **told: Any) -> None:
        super().__init__("digits", clock=clock or Clock(), **{"metric": "loss", "mode": "min", **told})

    def _open(self, clock: Any) -> Any:
        state = SweepState()

        def append(kind: str, **fields: Any) -> None:
            apply(state, {"kind": kind, "time": clock(), **fields})

        return SimpleNamespace(append=append, close=lambda: None, state=state, source=None)


def queued(searcher: Any, num_samples: int, *given: Any, book: Any = None, **more: Any) -> SweepSearch:
    """Return the queue of a sweep's trials, which are never run."""
    search = SweepSearch(book or Book(), searcher, num_samples, *given, **more)
    search._make = stub_trial  # type: ignore[method-assign]
    return search


class Tune:
    """Tells the queue of a sweep, and its book, of trials as Tune's controller does."""

    def __init__(self, search: SweepSearch) -> None:
        self.search: Any = search
        self.trials: dict[str, Any] = {}

    def begin(self) -> str:
        trial = self.search.next_trial()
        self.trials[trial.trial_id] = trial
        self.search.book.on_trial_start(1, [], trial)
        trial.status = "RUNNING"
        return str(trial.trial_id)

    def report(self, trial_id: str, number: int, loss: float, *, stop: bool = False, error: str = "") -> None:
        """Make a report, which the scheduler may answer with STOP; or fail in the state ``error``."""
        trial, own = self.trials[trial_id], {"error": {"state": error, "type_name": "E"}} if error else {}
        when = {"training_iteration": number, "timestamp": float(number)}
        result = {"loss": loss, **when, "done": stop or bool(error), "_tunelight": own}
        if not result["done"]:
            self.search.on_trial_result(trial_id, flattened(result))
        self.search.book.on_trial_result(1, [], trial, result)
        trial.run_metadata.last_result = result

    def end(self, trial_id: str, *, by_itself: bool = True, lost: bool = False) -> None:
        """End a trial: by itself, at another's report, or since its head was lost."""
        trial = self.trials[trial_id]
        runs = trial.status == "RUNNING"
        if by_itself and runs:
            trial.last_result["done"] = True
        self.search.on_trial_complete(trial_id, flattened(trial.last_result) if runs and not lost else None, error=lost)
        (self.search.book.on_trial_error if lost else self.search.book.on_trial_complete)(1, [], trial)
        trial.status = "ERROR" if lost else "TERMINATED"


class Sweep:
    """A RecordCallback and fake trials, called as Tune's controller calls it."""

    def __init__(self, folder: Path, *, now: float = 1000.0, **sweep: Any) -> None:
        self.clock = Clock(now)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"metric": "loss", "mode": "min", **sweep}
        self.callback = RecordCallback(folder, seed_of=lambda trial: int(trial) + 7, clock=self.clock, **told)
        self.trials: list[Any] = []
        self.others: list[Any] = []
        """Further callbacks of Tune's, called after the recorder as Tune does."""

    @property
    def state(self) -> SweepState:
        return self.callback.state

    def add(self, kind: Any = None, **config: Any) -> Any:
        """Add a trial; ``kind``: what a repetition, or a branch, has in its line."""
        number = len(self.trials)
        trial = FakeTrial(
            trial_id=f"{number:05d}",
            config=config,
            status="PENDING",
            path=str(self.folder / f"trial_{number:05d}"),
            last_result={},
            get_error=lambda: None,
        )
        self.trials.append(trial)
        self.callback.add(trial, **kind or {})
        return trial

    def run(self, *losses: Any, kind: Any = None, **config: Any) -> Any:
        """Add a trial, start it, and make its reports."""
        trial = self.add(kind, **config)
        self.start(trial)
        for number, loss in enumerate(losses, start=1):
            self.report(trial, number, loss)
        return trial

    def call(self, name: str, *, trial: Any = None, **more: Any) -> None:
        given = {} if trial is None else {"trial": trial}
        for callback in (self.callback, *self.others):
            getattr(callback, name)(iteration=1, trials=self.trials, **given, **more)

    def start(self, trial: Any) -> None:
        self.call("on_trial_start", trial=trial)
        trial.status = "RUNNING"

    def pause(self, trial: Any) -> None:
        trial.status = "PAUSED"
        self.step()

    def step(self) -> None:
        self.call("on_step_begin")
        self.call("on_step_end")

    def report(self, trial: Any, number: int, loss: Any, *, done: bool = False, own: Any = None, **more: Any) -> None:
        result = {
            "loss": loss,
            "epoch": number - 1,
            "timestamp": 5.0,
            **more,
            "training_iteration": number,
            "_tunelight": {"number": number, "workers": 2, "notes": [], "error": None, **(own or {})},
            "done": done,
            "trial_id": trial.trial_id,
            "time_total_s": 1.5,
            "config": trial.config,
            "pid": 1,
        }
        self.call("on_trial_result", trial=trial, result=result)
        trial.last_result = result

    def fail(self, trial: Any, **error: Any) -> None:
        error = {"rank": 1, "node": "n", "type_name": "ValueError", "message": "no", "traceback": "T", **error}
        result = {"_tunelight": {"error": error}, "done": True, "training_iteration": 1}
        self.call("on_trial_result", trial=trial, result=result)
        self.complete(trial)

    def end_by_itself(self, trial: Any) -> None:
        trial.last_result["done"] = True  # as Tune does with a result that is marked as a duplicate
        self.complete(trial)

    def complete(self, trial: Any) -> None:
        self.call("on_trial_complete", trial=trial)
        trial.status = "TERMINATED"

    def end(self) -> None:
        self.callback.on_experiment_end(trials=self.trials)

    def states(self) -> list[str]:
        return [trial.state for trial in self.state.trials.values()]


def read_lines(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a sweep's record."""
    return [line for line, _ in replayed(folder)]


def replay_scheduler(lines: Sequence[Any], scheduler: Any) -> frozenset[str]:
    """Replay lines of a record to a scheduler; return the trials that are paused at the end."""
    told = SchedulerReplay(scheduler, list(applied(lines))[-1][1])
    (paused,) = replay(applied(lines), told)
    return frozenset(paused)


def replay_searcher(lines: Sequence[Any], searcher: Any, space: SearchSpace, **more: Any) -> ResumeState:
    """Replay lines of a record to a searcher; return what a search starts from."""
    told = SearcherReplay(searcher, space, list(applied(lines))[-1][1], **more)
    (start,) = replay(applied(lines), told)
    assert isinstance(start, ResumeState)
    return start


def applied(lines: Sequence[Any]) -> Iterator[tuple[Any, SweepState]]:
    """Yield lines of a record, each with what is known after it."""
    state = SweepState()
    for line in lines:
        apply(state, line)
        yield line, state


class Writer:
    """Writes a sweep's folder line by line, at one second a line."""

    def __init__(self, folder: Path, **told: Any) -> None:
        self.folder = Path(folder, "digits")
        self.folder.mkdir(parents=True)
        self.now = 0.0
        self.record = Record(self.folder, self._clock)
        self.told = {"metric": "loss", "mode": "min", **told}
        write_sweep_file(self.folder, self.told)
        self.record.append("sweep", sweep=self.told)
        self.count = 0

    def _clock(self) -> float:
        self.now += 1
        return self.now

    def trial(self, *losses: float, state: str = "FINISHED", config: Any = None, error: Any = None, **more: Any) -> str:
        trial, index = f"{self.count:05d}", self.count
        self.count += 1
        given = {"lr": 10.0**-index} if config is None else config
        again: dict[str, Any] = {name: more.pop(name) for name in ("repeats", "repetition") if name in more}
        about: dict[str, Any] = {"config": given, "seed": index, "folder": f"trial_{trial}", **again}
        self.record.append("trial", trial=trial, index=index, **about)
        self.record.append("state", trial=trial, state="RUNNING")
        for number, loss in enumerate(losses, start=1):
            self.record.append(
                "report",
                trial=trial,
                training_iteration=number,
                epoch=number - 1,
                timestamp=float(number),
                metrics={"loss": loss, "acc": 1 - loss},
                decision="CONTINUE",
            )
        if state != "RUNNING":
            self.record.append("state", trial=trial, state=state, error=error, **more)
        return trial

    def checkpoint(self, trial: str, number: int, value: Any, there: bool = True) -> Path:
        path = f"trial_{trial}/checkpoints/report-{number:06d}.ckpt"
        if there:
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        self.record.append(
            "checkpoint", trial=trial, training_iteration=number, epoch=number - 1, path=path, value=value
        )
        return self.folder / path

    def load(self) -> SweepResults:
        self.record.close()
        return SweepResults.load(self.folder)


def written_checkpoint(
    trial: Path, number: int, between: int = 0, *, value: float | None = None, text: str = "", owner: int = 1
) -> CheckpointInfo:
    """Write a checkpoint into a trial's folder, with a text for weights, as after 9 s of training."""
    path = trial / checkpoints.FOLDER / checkpoints.file_name(number, between, owner)
    path.parent.mkdir(parents=True, exist_ok=True)
    info = CheckpointInfo(str(path), number, between=between, value=value, seconds=9.0, owner=owner)
    draft = checkpoints.temp_path(info, "start")
    draft.write_text(text or f"weights of {number}, {between}")
    return checkpoints.commit(info, draft)


def lines(folder: Path) -> list[bytes]:
    return (Path(folder) / "record.jsonl").read_bytes().splitlines()


@contextlib.contextmanager
def overtaken(folder: Path) -> Iterator[Lease]:
    """Own a sweep that another driver takes over in this context; check the error that says so."""
    held = leased(folder)
    try:
        yield held.__enter__()
    finally:
        with pytest.raises(StorageError, match="was taken over by process"):
            held.__exit__(None, None, None)
