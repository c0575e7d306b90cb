"""attach(): follow a sweep that another process runs, and take its wheel, from any process that reaches its folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tunelight.errors import CommandError, StorageError
from tunelight.record import RUNNING, TERMINAL, find_sweep, live_driver_of
from tunelight.record.lease import COMMANDS_FILE, RECORD_FILE, Owner, driver_of, is_driven_here, record_of, why
from tunelight.record.lines import Source
from tunelight.record.record import read_record, replay
from tunelight.record.remote import refresh
from tunelight.record.snapshot import restored
from tunelight.record.state import SweepState
from tunelight.reporting.words import elapsed
from tunelight.results import SweepResults
from tunelight.space.plain import to_plain_config
from tunelight.stores import store_of, sync_file, working

if TYPE_CHECKING:
    from rich.console import Console

    from tunelight.reporting.display import Display

_BEGINNING: Final = 256
"""Bytes by which a record is known again: its first line holds when it was begun."""
_GRACE_S: Final = 5.0
_KEPT: Final = 8
_MOST_NOTES: Final = 100


class RecordFollower:
    """Keeps the live view of a sweep that another process runs; reads only the new lines. Several threads may look.

    Args:
        folder: the sweep's.
        brief: keep only the best and the last report of each trial in its ``history``, and the last few of all else
            that comes again and again, so that memory grows with the number of trials and not with what they do.
        skip: begin behind what a snapshot of the record has, whose lines no call returns.

    Raises: StorageError where ``folder`` is no sweep, or its record cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, brief: bool = False, skip: bool = False) -> None:
        self.folder = working(folder).absolute()
        self.state = SweepState()
        self.read = 0
        """Bytes of the record that were read."""
        self.size = 0
        """Bytes that the record had at the last look."""
        self.whole = False
        """Whether the last look came to its end. A last line that is not written yet does not count."""
        self._brief, self._skip = brief, skip
        self._path = self.folder / RECORD_FILE
        with suppress(OSError):
            self._path = record_of(self.folder)
        self._file: int | None = None
        self._beginning = b""
        self._alone_since: float | None = None
        self._lock = threading.RLock()
        if not self._path.exists():
            read_record(self.folder, lazy=True)  # brings it here from a store, or says what is wrong

    def look(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Apply the lines that were written since the last call, and return them.

        Raises: StorageError; for a damaged line only after a call has returned the lines before it.

        Args:
            limit: bytes after which, at the end of a line, it reads no further; None reads all there are.
        """
        lines: list[dict[str, Any]] = []
        with self._lock:
            try:
                with suppress(OSError):  # a store that does not answer now may do so at the next call
                    self._path = record_of(self.folder)
                    refresh(self._path)
                with self._path.open("rb") as stream:
                    self._resume(stream)
                    first, self.whole = self.read, True
                    for line, end in replay(self.state, stream, strict=True):
                        self.read = end
                        if self._brief:
                            self._shorten(line["kind"], line.get("trial"))
                        lines.append(line)
                        if limit is not None and self.read - first >= limit:
                            self.whole = self.read >= self.size
                            break
            except StorageError:
                if not lines:
                    raise
            except OSError as error:
                raise StorageError(f"{self._path} cannot be read any more: {why(error)}.") from error
        return lines

    def is_left_alone(self, now: float) -> bool:
        """Tell whether the sweep has had no driver for 5 seconds; ``now`` is in seconds, by the same clock each time.

        Before that, a driver may be about to take the lock, or to write the end.
        """
        self._alone_since = (self._alone_since or now) if live_driver_of(self.folder) is None else None
        return self._alone_since is not None and now - self._alone_since >= _GRACE_S

    def _resume(self, stream: BinaryIO) -> None:
        """Read on where the last look has ended; anew in a record that was repaired, or is another sweep's."""
        found = os.fstat(stream.fileno())
        beginning = stream.read(_BEGINNING)
        known = self._file in (None, found.st_ino) and beginning.startswith(self._beginning)
        if not known or found.st_size < self.read:
            self.read, self.state = 0, SweepState()
        self._file, self.size, self._beginning = found.st_ino, found.st_size, beginning
        if self._skip and not self.read:
            self.state, self.read = restored(Source(stream)) or (self.state, 0)
        stream.seek(self.read)

    def _shorten(self, kind: str, trial_id: Any) -> None:
        """Leave only what a brief view needs of what the last line has added to: of reports the best and the last."""
        if kind == "report":
            longer = self.state.trials[trial_id]
            if len(longer.history) > 1:
                best, last = None if longer.best is None else longer.history[longer.best], longer.history[-1]
                longer.history = [last] if best is None or best is last else [best, last]
                longer.best = None if best is None else 0
            return
        del self.state.notes[:-_MOST_NOTES]
        while len(self.state.answers) > _MOST_NOTES:
            del self.state.answers[next(iter(self.state.answers))]
        if not isinstance(trial_id, str) or (trial := self.state.trials.get(trial_id)) is None:
            return
        several: tuple[list[Any], ...] = (trial.checkpoints, trial.moves, trial.gangs, trial.changes, trial.notes)
        for entries in several:
            if len(entries) > _KEPT:
                del entries[:-_KEPT]


LIMIT_S: Final = 30.0
"""How long an answer may take, of a driver that need not wait for a trial."""
_LOOK_S: Final = 0.1


def send(
    folder: str | os.PathLike[str], do: str, trial: str | None = None, *, driver: Owner | None = None, **arguments: Any
) -> str:
    """Write a command to a driver; return its id, by which the record has its answer. Raises: StorageError."""
    command = uuid.uuid4().hex
    line = {"id": command, "time": time.time(), "do": do, "trial": trial, "arguments": arguments}
    if driver is not None:
        line["driver"] = driver.generation
    path = Path(folder, COMMANDS_FILE)
    try:
        _append(path, json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {why(error)}. The sweep was told nothing; make it writable, or make room."
        ) from error
    return command


def _append(path: Path, line: bytes) -> None:
    """Append a line. A torn last line, whose writer was killed, stays one of its own."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with suppress(OSError):  # a file system without locks: a line is written by one call
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if os.pread(file, 1, max(0, size - 1)) not in (b"", b"\n"):
            line = b"\n" + line
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def ask(
    follower: RecordFollower,
    do: str,
    trial: str | None = None,
    *,
    over: Callable[[], bool] = lambda: False,
    limit_s: float = LIMIT_S,
    **arguments: Any,
) -> str:
    """Send a command, wait for the driver's answer in the record, and return it.

    Args:
        follower: of the sweep's record.
        do: what to do; see :class:`tunelight.record.recorder.Command`.
        trial: the id of the trial that it is for.
        over: tells whether to wait no longer.
        limit_s: how long to wait, in seconds.
        arguments: of the command.

    Raises: CommandError where the driver refuses, has ended, or does not answer in time; StorageError.
    """
    folder = follower.folder
    driver = live_driver_of(folder)
    if driver is None:
        raise CommandError(f"No process runs the sweep {folder.name}, so it cannot be told to {do}.")
    if store_of(folder) and not is_driven_here(folder):
        raise CommandError(
            f"The sweep {folder.name} is in an object store, and {driver} runs it: tell it to {do} on that machine."
        )
    command = send(folder, do, trial, driver=driver, **arguments)
    end = time.monotonic() + limit_s
    while True:
        ended = live_driver_of(folder) is None
        time.sleep(_LOOK_S)
        follower.look()
        if command in follower.state.answers:
            break
        if ended:
            raise CommandError(f"The sweep {folder.name} ended before it was told to {do}.")
        if over() or time.monotonic() > end:
            raise CommandError(
                f"The driver of {folder.name} ({driver}) has not answered yet. It may be busy, or wait for a trial; it "
                "does so all the same, and its answer will be in the record."
            )
    carried_out, answer = follower.state.answers[command]
    if not carried_out:
        raise CommandError(answer)
    return answer + _unsaved(folder, end)


def _unsaved(folder: Path, end: float) -> str:
    """Wait until disk or store have the record as it is now; return what to add to an answer if not in time."""
    path, store = record_of(folder), store_of(folder)
    size = path.stat().st_size
    while True:
        with suppress(OSError):
            if store is None:
                with path.open("rb") as stream:
                    sync_file(stream.fileno())
                return ""
            if (store.stat(path) or (0, 0.0))[0] >= size:
                return ""
        if time.monotonic() > end:
            return " (but a sweep that is resumed elsewhere will not know of it: its storage takes nothing yet)"
        time.sleep(_LOOK_S)


class AttachedSweep:
    """A sweep that another process runs. Its methods wait for the driver's answer, and return it.

    All raise CommandError where the driver refuses, has ended, or does not answer within 30 seconds. What was done is
    in the record, and a resumed sweep keeps it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def stop(self, trial: str | int | None = None) -> str:
        """End a trial now, by its id or number, or ``"best"``; without one the sweep, which can then be resumed."""
        return self._send("stop", trial)

    def enqueue(self, config: Mapping[str, Any]) -> str:
        """Try a configuration next, as one more trial; its keys are dotted, or nested as in the search space."""
        return self._send("enqueue", config=to_plain_config(config))

    def branch(self, trial: str | int, config: Mapping[str, Any] | None = None) -> str:
        """Train one more trial, which begins with the newest checkpoint of another. Experimental.

        Its reports and epochs are counted on from the other's. Keys of ``config`` are changed as population-based
        training does: options of optimizers at once, and the model is built with them. No scheduler stops it.

        Args:
            trial: the other trial's id or number, or ``"best"``.
            config: what is to change, by dotted key or nested; nothing, for another course of the same training.
        """
        return self._send("branch", trial, config=to_plain_config(config or {}))

    def set(self, **settings: Any) -> str:
        """Change ``max_concurrent`` (None: as many as fit; running trials continue) or ``num_samples``."""
        if not settings:
            raise CommandError("Nothing to set. Give max_concurrent= or num_samples=.")
        return self._send("set", **settings)

    def _send(self, do: str, trial: str | int | None = None, **arguments: Any) -> str:
        known = None if trial is None else SweepResults.load(self.folder).trial(str(trial)).id
        return ask(RecordFollower(self.folder, brief=True, skip=True), do, known, **arguments)


def attach(sweep: str | os.PathLike[str] = "last", storage: str | os.PathLike[str] = "tunelight_runs") -> AttachedSweep:
    """Return a sweep that runs, to stop or change it.

    Args:
        sweep: its folder, its name in ``storage``, or "last".
        storage: the folder of sweeps, or its URL.

    Raises: StorageError where there is no such sweep. Runs on: any process that reaches the folder.
    """
    return AttachedSweep(find_sweep(sweep, storage))


# --- watch: show a sweep that another process runs -------------------------------------------------------


def watch(
    folder: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    console: Console | None = None,
    every_s: float = 0.5,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
) -> SweepState:
    """Show a sweep that another process runs, as that process would, until it ends; return its state.

    The state's ``ended`` says how it ended ("finished", "interrupted", "time budget"). It is None if the driver
    died, or does not touch its lock on another host; a line says so. An ended sweep is shown once.

    Args:
        folder: the sweep's folder, storage/name. console: where to write (standard output).
        columns: the table's columns after trial and state; None chooses those for which there is room.
        every_s: seconds between two reads of the record.

    Raises: StorageError if it is no sweep, or its record is damaged; KeyboardInterrupt after Ctrl-C, with the
        terminal as it was. Runs on: any process that sees the folder.
    """
    from tunelight.reporting.display import Display

    follower = RecordFollower(folder)
    follower.look()
    display = Display(lambda: follower.state, columns=columns, console=console, clock=clock)
    display.total = follower.state.sweep.get("num_samples")
    last = "(watching ended)"
    try:
        while True:
            if follower.state.ended is not None:
                last = ""
                break
            if follower.is_left_alone(clock()):
                last = _left(follower, clock())
                break
            display.tick()
            sleep(every_s)
            _take(follower, display)
    finally:
        display.close(last or None)
    return follower.state


def _take(follower: RecordFollower, display: Display) -> None:
    """Read new lines of the record, and show what they say."""
    for line in follower.look():
        display.touch()
        if line["kind"] == "sweep":
            display.total = follower.state.sweep.get("num_samples")
        if line["kind"] == "state" and line["state"] in TERMINAL:
            display.trial_ended(line["trial"])
        elif line["kind"] == "state" and line["state"] == RUNNING:
            display.trial_goes_on(line["trial"])
    display.say_notes()


def _left(follower: RecordFollower, now: float) -> str:
    """Return the line on a sweep that has not ended, and that no driver runs."""
    driver = driver_of(follower.folder)
    who = f"Its driver ({driver}) is gone" if driver is not None else "No driver runs it"
    since = follower.state.updated
    when = f", and its record was written last {elapsed(max(0.0, now - since))} ago" if since is not None else ""
    name = follower.folder.name
    return f"Sweep {name} has not ended. {who}{when}. To go on with it: tunelight.resume({str(follower.folder)!r})."
