"""RecordCallback: writes the record of a sweep from Ray Tune's callbacks. CommandReader: reads what it is to answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ray.tune import Callback

from tunelight.errors import last_line
from tunelight.messages import LEAVES, RESULT_KEY
from tunelight.record.lease import COMMANDS_FILE, Lease, Owner
from tunelight.record.outcomes import ERROR, FINISHED, PAUSED, PENDING, RUNNING, STOPPED, TERMINAL
from tunelight.record.record import FORMAT, Record
from tunelight.record.snapshot import fold
from tunelight.record.state import Branch, TrialState
from tunelight.stores.masking import masked, masked_error

_OWN_KEYS: Final = frozenset(
    "done trial_id training_iteration epoch timestamp date time_this_iter_s time_total_s pid hostname "
    "node_ip config time_since_restore timesteps_since_restore iterations_since_restore timesteps_total "
    "timesteps_this_iter episodes_total episodes_this_iter checkpoint_dir_name should_checkpoint "
    f"experiment_tag trainable_name __duplicate__ {RESULT_KEY}".split()
)
"""Keys that Tune and tunelight add to a result; the others are the user's metrics."""


_MOST_UNFOLDED: Final = 50
"""How many trials may have ended until all that have are folded: some that were have been looked at since."""
_ASK_S: Final = 0.5
"""The shortest time between two questions for the starts whose workers have met."""


class Scheduler(Protocol):
    """What the record asks of a scheduler."""

    time_attr: str

    def milestones(self) -> Sequence[float]:
        """Return the rungs, in units of the reported name ``time_attr``."""

    def reason(self, trial_id: str) -> str | None:
        """Return why it has just stopped or paused a trial."""


class RecordCallback(Callback):
    """Write the record of a sweep from Tune's callbacks, and keep its live view. Runs on: driver.

    ``state`` is the live view of the record. Whoever reads it in another thread copies a container before iterating
    over it. A write error never ends the sweep (see :class:`Record`).

    Args:
        folder: the sweep's folder, from :func:`create_sweep_folder`; an existing record is continued.
        seed_of: a trial's seed by its id, or for a branch by the id of the first trial of its line (none is recorded).
        again: ids of recorded trials that go on now -> whether they are paused; the sweep's last run ended with the
            last line of its record.
        scheduler: its rungs and its ``reason(trial_id)`` to stop or pause a trial are recorded where it has them.
        budget_s: the sweep's time budget in seconds, from now on, to tell its end from an interruption.
        complete: tells whether no trial is left to be made; a sweep that ends without one has finished.
        ended_by: returns why the sweep is ended early; None: it is not.
        announced: returns the trials that were started since the last call, and the report behind which each trains.
        lease: the driver's; nothing is written once another host has taken it.
        clock: seconds since the epoch.
        sweep: facts of the sweep for readers of the record: ``metric`` and ``mode`` at least.

    Raises: StorageError when the record cannot be opened; from Tune's loop, when another driver has taken the sweep.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        seed_of: Callable[[str], int] | None = None,
        again: Mapping[str, bool] | None = None,
        scheduler: Scheduler | None = None,
        budget_s: float | None = None,
        complete: Callable[[], bool] = lambda: True,
        ended_by: Callable[[], str | None] = lambda: None,
        announced: Callable[[], Iterable[tuple[str, int]]] = tuple,
        lease: Lease | None = None,
        clock: Callable[[], float] = time.time,
        **sweep: Any,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.record = self._open(clock)
        self.state = self.record.state
        self._budget_end = None if budget_s is None else clock() + budget_s
        self._clock, self._complete, self._ended_by, self._lease = clock, complete, ended_by, lease
        self._seed_of = seed_of
        self._scheduler = scheduler
        self._running: dict[str, Any] = {}
        self._starting: set[str] = set()
        self._unfolded = 0
        self._announced, self._asked = announced, 0.0
        self.closed = False
        self._take_up(again or {})
        self._unfolded = len(self.state.trials)
        facts = {**sweep, "ends": self._budget_end}
        if scheduler is not None and (rungs := scheduler.milestones()):
            facts["rungs"] = {"by": scheduler.time_attr, "at": list(rungs)}
        self._write("sweep", sweep={"name": self.folder.name, "format": FORMAT, **facts})

    def _open(self, clock: Callable[[], float]) -> Record:
        return Record.open(self.folder, clock)

    @property
    def out_of_time(self) -> bool:
        """Whether the sweep's time budget is spent."""
        return self._budget_end is not None and self._clock() >= self._budget_end

    @property
    def lost(self) -> bool:
        """Whether another driver has taken the sweep."""
        return self._lease is not None and not self._lease.held()

    def _take_up(self, again: Mapping[str, bool]) -> None:
        """End the trials that a dead driver left running, and put those that go on into their state."""
        ended = self.state.updated  # nobody ran since, so nobody's seconds count
        for trial in self.state.trials.values():
            if trial.id not in again and trial.state not in TERMINAL:
                self._set(trial.id, trial.due, at=ended, error=trial.error)
        for trial_id, paused in again.items():
            self._set(trial_id, PAUSED if paused else PENDING, at=ended)

    def _write(self, kind: str, **fields: Any) -> None:
        if self._lease is not None:
            self._lease.check()
        self.record.append(kind, **fields)

    def note(self, text: str, trial: str | None = None) -> None:
        """Put a remark for the person who runs the sweep into the record."""
        self._write("note", trial=trial, text=masked(text))

    def answer(self, command: Command, text: str, *, ok: bool, num_samples: int | None = None) -> None:
        """Record what became of a command; ``num_samples`` is the number of trials in all, where it has changed."""
        known = {"id": command.id, "do": command.do, "trial": command.trial, "arguments": dict(command.arguments)}
        total = {} if num_samples is None else {"num_samples": num_samples}
        self._write("command", **known, ok=ok, said=masked(text), **total)

    def stop(self, trial: str) -> None:
        """Record that a person stops a trial, before Tune ends it."""
        self._set(trial, STOPPED, why="by command")

    def change(
        self, trial: str, number: int, config: Mapping[str, Any], parent: str | None, parent_number: int | None
    ) -> None:
        """Record that after its report ``number`` a trial goes on with a configuration taken over from ``parent``.

        Without a parent: that the last recorded change could not be made.
        """
        self._write(
            "config",
            trial=trial,
            training_iteration=number,
            config=dict(config),
            parent=parent,
            parent_iteration=parent_number,
        )

    def add(
        self,
        trial: Any,
        *,
        baseline: bool = False,
        repeats: str | None = None,
        repetition: int = 0,
        branch: Branch | None = None,
    ) -> TrialState:
        """Record a new trial of Tune's, before Tune has it: what its searcher suggested, or what kind it is besides."""
        root = trial.trial_id if branch is None else branch.root
        last = next(reversed(self.state.trials.values()), None)
        after = 0 if last is None else last.index + 1
        self._write(
            "trial",
            trial=trial.trial_id,
            index=int(trial.trial_id) if trial.trial_id.isdecimal() else after,  # lines of trials before may be lost
            config=trial.config,
            seed=self._seed_of(root) if self._seed_of else None,
            baseline=baseline,
            folder=f"trial_{trial.trial_id}",
            **({} if repeats is None else {"repeats": repeats, "repetition": repetition}),
            **({} if branch is None else {"branch": asdict(branch)}),
        )
        return self.state.trials[trial.trial_id]

    def _relative(self, path: str) -> str | None:
        """Return a path relative to the sweep's folder; None for one that is not inside it, which no reader takes."""
        found = Path(os.path.abspath(path))  # noqa: PTH100 - Path's own keeps ".."
        folder = os.path.abspath(self.folder)  # noqa: PTH100
        return str(found.relative_to(folder)) if found.is_relative_to(folder) and path else None

    def _set(self, trial_id: str, new: str, **fields: Any) -> None:
        if self.state.trials[trial_id].state == new:
            return
        if new == PAUSED:
            fields |= self._why(trial_id)
        if fields.get("error"):
            fields["error"] = masked_error(fields["error"])
        self._write("state", trial=trial_id, state=new, **fields)
        if new != RUNNING:
            self._running.pop(trial_id, None)
        self._unfolded += new in TERMINAL

    def _why(self, trial_id: str) -> dict[str, str]:
        """Return why the scheduler stopped or paused a trial just now, as a field of a line, if it says so."""
        reason = None if self._scheduler is None else self._scheduler.reason(trial_id)
        return {} if reason is None else {"why": reason}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise StorageError where another driver has the sweep. Called by Tune at the start of each step."""
        if self._lease is not None:
            self._lease.check()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Record which trials were paused or began to train, for which Tune has no callback; fold those that ended."""
        if self._unfolded >= _MOST_UNFOLDED:
            self._unfolded = 0
            for known in self.state.trials.values():
                if known.state in TERMINAL:
                    fold(known, self.record.source)
        for paused in [key for key, trial in self._running.items() if trial.status == PAUSED]:
            self._set(paused, PAUSED)
        if abs(self._clock() - self._asked) < _ASK_S:
            return
        self._asked = self._clock()
        self._starting = {key for key in self._starting if self.state.trials[key].starting}
        for begun, number in self._announced() if self._starting else ():
            if begun in self._starting and number >= self.state.trials[begun].number:
                self._write("training", trial=begun)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record a start, also a start after a pause. Called by Tune just before it sets RUNNING."""
        self._set(trial.trial_id, RUNNING)
        self._running[trial.trial_id] = trial
        self._starting.add(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report, the scheduler's decision on it, its checkpoint and notes; or the trial's failure."""
        extra = result.get(RESULT_KEY) or {}
        for text in extra.get("notes") or ():
            self.note(text, trial.trial_id)
        if extra.get("gang"):
            self._write("gang", trial=trial.trial_id, **extra["gang"])
        when = {key: result.get(key) for key in ("training_iteration", "epoch", "timestamp")}
        metrics = extra.get("metrics") or {key: value for key, value in result.items() if key not in _OWN_KEYS}
        # A trial that went back to a checkpoint reports again what is recorded, and judged, already.
        repeated = self._repeats(trial.trial_id, when["training_iteration"])
        if not repeated and (
            metrics or not result.get("done")
        ):  # one that failed, or had nothing left, reports nothing
            self._write(
                "report",
                trial=trial.trial_id,
                **when,
                metrics=metrics,
                decision="STOP" if result.get("done") else "CONTINUE",
                workers=extra.get("workers"),
                seconds=extra.get("seconds"),
                **({"compiled": extra["compiled"]} if extra.get("compiled") else {}),
                **(self._why(trial.trial_id) if result.get("done") else {}),
                **({"error": masked_error(extra["error"])} if extra.get("error") else {}),
            )
        for found in extra.get("checkpoints") or ():
            self._write_checkpoint(trial.trial_id, when, found)
        if error := extra.get("error"):
            state = error.get("state", ERROR)
            self._set(trial.trial_id, state, **({"why": error["message"]} if state == STOPPED else {"error": error}))
        elif repeated and metrics and result.get("done"):
            self._set(trial.trial_id, STOPPED, **self._why(trial.trial_id))

    def _repeats(self, trial_id: str, number: Any) -> bool:
        known = self.state.trials[trial_id]
        return bool(known.history) and number is not None and number <= known.number

    def _write_checkpoint(self, trial_id: str, when: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        path = self._relative(found["path"])
        if path is None or any(known["path"] == path for known in self.state.trials[trial_id].checkpoints):
            return
        self._write(
            "checkpoint",
            trial=trial_id,
            training_iteration=found.get("number", when["training_iteration"]),
            epoch=found.get("epoch", when["epoch"]),
            path=path,
            **{key: found.get(key) for key in ("value", "fit", "size", "checksum")},
        )

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record an end."""
        known, end = self.state.trials[trial.trial_id], self.end_of(trial)
        more: dict[str, Any] = {}
        if end == ERROR and known.branch is not None:
            text = (
                f"the branch ended without a report: its training ends (max_epochs, max_steps) with report "
                f"{known.branch.number}, at which it began. Let it train for longer, or branch a trial before its end"
            )
            more = {"error": {"type_name": "GangError", "message": text, "traceback": ""}}
        elif known.state == PAUSED:  # the scheduler may know more now than when it paused the trial
            more = self._why(known.id)
        self._set(known.id, end, **more)

    def end_of(self, trial: Any, *, failed: bool = False) -> str:
        """Return the state in which a trial ends that Tune ends now; ``failed``: as it has seen a failure.

        FINISHED if the trial ended by itself, STOPPED if the scheduler ended it. A scheduler may also end a trial that
        did not just report (a paused one, say): Tune marks the last result as done only when the trial itself has
        ended, or with the decision on that result.
        """
        known = self.state.trials[trial.trial_id]
        if known.state in TERMINAL:
            return known.state
        if failed:
            return ERROR
        by_itself = trial.status == RUNNING and (not known.history or bool(trial.last_result.get("done")))
        if known.state == PAUSED or known.decision == "STOP" or not by_itself:
            return STOPPED
        return FINISHED if known.history or known.branch is None else ERROR

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial failed where Tune sees it, or has left its workers, and waits to be started again."""
        why = _head_error(trial)["message"].removeprefix("ray.exceptions.RayActorError: ")
        left = trial.status == PAUSED or why.startswith(LEAVES)
        self.note(why if left else f"failed and will be started again: {why}", trial.trial_id)
        self._set(trial.trial_id, PENDING)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record a failure that Tune saw itself, as when the trial's head died."""
        if self.state.trials[trial.trial_id].state not in TERMINAL:
            self._set(trial.trial_id, ERROR, error=_head_error(trial))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Record the end of the sweep; unfinished trials were interrupted."""
        self.close()

    def close(self, reason: str | None = None) -> None:
        """End the record, also where Tune failed before it could. May be called more than once."""
        if self.closed:
            return
        self.closed = True
        if self.lost:
            return
        cut = [trial for trial in self.state.trials.values() if trial.state not in TERMINAL]
        for trial in cut:
            self._set(trial.id, trial.due, error=trial.error)
        over = "time budget" if self.out_of_time else "interrupted"
        reason = reason or self._ended_by() or ("finished" if not cut and self._complete() else over)
        self._write("end", reason=reason)
        self.record.close()


def _head_error(trial: Any) -> dict[str, Any]:
    """Describe a failure that Tune saw and no worker reported."""
    try:
        # This machine's file first: what Tune reads may lack the last failure, until its copy in the storage is new.
        file = getattr(trial, "error_file", None)
        text = Path(file).read_text() if file and Path(file).exists() else str(trial.get_error() or "")
    except Exception as error:  # noqa: BLE001 - Tune reads files here; the sweep must not end for it
        text = f"(its error cannot be read: {error})"
    return {"type_name": "TuneError", "message": last_line(text) or "unknown", "traceback": text}


# --- commands to a sweep that runs ------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command: what to ``do`` (stop, enqueue, branch, set), for a trial's id or the sweep (None)."""

    id: str
    do: str
    trial: str | None
    arguments: Mapping[str, Any]
    driver: int | None = None
    """The generation of the driver that it is for."""


class CommandReader:
    """Reads ``commands.jsonl``: the commands for a driver; without one, all. Runs on: driver.

    Any process that reaches the sweep's folder may write one: a line of JSON, appended under a lock (``flock``). Of a
    sweep in an object store, which cannot append, that is the working folder on the driver's machine. A command names
    the driver that it is for by that one's generation (:mod:`tunelight.record.lease`). That driver carries it out, and
    writes its answer, or why it refuses, into the record; one that died first leaves it undone, also by later drivers.
    """

    def __init__(self, folder: str | os.PathLike[str], driver: Owner | None = None) -> None:
        self._path = Path(folder, COMMANDS_FILE)
        self._driver = None if driver is None else driver.generation
        self._read = 0

    def drain(self) -> list[Command]:
        """Return the commands since the last call. Lines that are no command are left out. Raises: OSError.

        A line without its line break is not written yet.
        """
        try:
            size = self._path.stat().st_size
            if size < self._read:  # it was written anew
                self._read = 0
            if size == self._read:
                return []
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        self._read += sum(len(chunk) + 1 for chunk in chunks)
        commands = map(_command, chunks)
        return [command for command in commands if command is not None and self._driver in (None, command.driver)]


def _command(chunk: bytes) -> Command | None:
    """Return the command in a line; None for what is not one."""
    try:
        line = json.loads(chunk)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("trial"), str | None):
        return None
    known, do, arguments, driver = line.get("id"), line.get("do"), line.get("arguments"), line.get("driver")
    if not (isinstance(known, str) and isinstance(do, str) and isinstance(arguments, dict)):
        return None
    return Command(known, do, line.get("trial"), arguments, driver if isinstance(driver, int) else None)
