"""What changes a sweep while it runs: commands (stop, enqueue, branch, set), and SIGTERM."""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from ray.tune import Callback

from tunelight.checkpoints.files import copy_from_trial
from tunelight.compat.ray import add_trial, park
from tunelight.errors import CheckpointError, SettingsError, StorageError, TunelightError, unknown
from tunelight.gang.orders import Orders
from tunelight.machine.signals import StopSignals, grace_s, to_stderr
from tunelight.messages import LEAVES, CheckpointInfo, Stop
from tunelight.record import (
    PENDING,
    RUNNING,
    STOPPED_BY_COMMAND,
    TERMINAL,
    Branch,
    RecordCallback,
    TrialState,
    driver_of,
    write_sweep_file,
)
from tunelight.record.recorder import Command, CommandReader
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.settings import check_setting
from tunelight.settings.checks import flatten, holder_of
from tunelight.space import SearchSpace
from tunelight.sweep.queue import SweepSearch

_LOOK_S: Final = 0.05
"""Seconds between two looks for commands."""
_CHANGEABLE: Final = ("max_concurrent", "num_samples")
"""The settings that may change while a sweep runs."""
_ENDS: Final = Stop(f"{LEAVES}: the sweep was told to end (SIGTERM)", save=True, ends=True)


class SweepControl:
    """By it the parts of a running sweep reach those that are made after them. Runs on: driver.

    It is made first, and passed to each part as that is made; ``begin`` completes it.
    """

    def __init__(self) -> None:
        self.signals = StopSignals(self.say)
        self.ends: str | None = None
        """Why the sweep is ended early, as the record will say; None: it is not."""
        self._record: RecordCallback | None = None
        self._queue: SweepSearch | None = None
        self._show: Callable[[str], object] = to_stderr

    def begin(self, record: RecordCallback, queue: SweepSearch, show: Callable[[str], object] | None) -> None:
        """Take the record, the queue of trials, and what shows a line (None: standard error)."""
        self._record, self._queue, self._show = record, queue, show or to_stderr

    def complete(self) -> bool:
        """Tell whether no trial is left to be made."""
        return self._queue is None or self._queue.complete

    def say(self, text: str) -> None:
        """Show a line to the person who runs the sweep: above the live table, once there is one."""
        self._show(text)

    def change(self, *change: Any) -> None:
        """Record that a trial goes on with another configuration. In a replay it is recorded already."""
        if self._record is not None:
            self._record.change(*change)


class Shows(Protocol):
    """What shows the sweep, as far as it has to know of commands."""

    def expect(self, total: int) -> None:
        """Take another number of trials."""

    def show_notes(self) -> None:
        """Show what was said."""


class Steering(Callback):  # type: ignore[misc,unused-ignore]
    """Carries out commands between two steps of Tune's loop, and records an answer to each. Runs on: driver.

    After SIGTERM all trials are told to write a checkpoint at the end of their training step, and to leave.

    Args:
        record: the callback that writes the record; it must come before this one in the list of callbacks.
        search, scheduler, space, control, orders: those of the sweep.
        sweep_file: the sweep's settings, which a resumed sweep takes over.
        shown: the live table.
        answered: called once commands were answered.
        clock: seconds.
    """

    def __init__(
        self,
        record: RecordCallback,
        search: SweepSearch,
        scheduler: GangScheduler,
        space: SearchSpace,
        control: SweepControl,
        *,
        orders: Orders,
        sweep_file: Mapping[str, Any],
        shown: Shows,
        answered: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._search, self._space, self._control = record, search, space, control
        self._sweep_file, self._shown = dict(sweep_file), shown
        self._steered = dict(sweep_file.get("steered") or {})
        """By setting, [the value before, the value now]; and the configurations that were enqueued."""
        self._commands = CommandReader(record.folder, driver_of(record.folder))  # this process has taken the sweep
        self.scheduler = SweepScheduler(
            scheduler, search, record.note, lambda: control.signals.received is not None or record.lost
        )
        """That of Tune's controller."""
        self._orders = orders
        self._answered = answered
        self._clock, self._looked = clock, 0.0
        self._grace_s = grace_s()
        self._ends_at: float | None = None
        """When the sweep ends, once it was told to."""
        self._leaving: set[str] = set()
        """Ids of the trials that were told to leave."""
        control.signals.graceful = self._grace_s > 0
        self._carry_out: dict[str, Callable[[Command, dict[str, Any]], str]] = {
            "stop": self._stop,
            "enqueue": self._enqueue,
            "set": self._set,
            "branch": self._branch,
        }

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Carry out new commands. Called by Tune at the end of each step of its loop."""
        if abs(self._clock() - self._looked) < _LOOK_S:
            return
        self._looked = self._clock()
        self._carry_out_all(trials)
        self._orders.look(lambda: {trial.trial_id for trial in trials if not trial.is_finished()})
        if self._control.signals.received is signal.SIGTERM and self._grace_s:
            self._end(trials)

    def _end(self, trials: Sequence[Any]) -> None:
        """Let all trials leave; end the sweep once they have, or at the end of the time for it."""
        if self._ends_at is None:
            self._ends_at = self._looked + self._grace_s
            self._search.held = True
        controller = self.scheduler.controller
        for trial in trials:
            if trial.status == PENDING and park(controller, trial):
                continue
            if trial.status in (PENDING, RUNNING) and trial.trial_id not in self._leaving:
                self._orders.stop(trial.trial_id, _ENDS)
                self._leaving.add(trial.trial_id)
        if self._looked >= self._ends_at or not any(trial.status == RUNNING for trial in trials):
            controller.request_stop_experiment()

    def _carry_out_all(self, trials: list[Any]) -> None:
        try:
            commands = [sent for sent in self._commands.drain() if sent.id not in self._record.state.answers]
        except OSError as error:
            self._record.record.complain(error)
            return
        for command in commands:
            before = self._search.total_samples
            try:
                if command.do not in self._carry_out:
                    raise SettingsError(unknown("There is no command", command.do, self._carry_out))
                answer, ok = self._carry_out[command.do](command, {trial.trial_id: trial for trial in trials}), True
            except TunelightError as error:
                answer, ok = str(error), False
            total = self._search.total_samples
            self._record.answer(command, answer, ok=ok, num_samples=None if total == before else total)
            if total != before:
                self._shown.expect(total)
            self._shown.show_notes()
            self._answered()

    def _stop(self, command: Command, trials: dict[str, Any]) -> str:
        if command.trial is None:
            self._control.ends = STOPPED_BY_COMMAND
            if self.scheduler.controller is not None:
                self.scheduler.controller.request_stop_experiment()
            return "the sweep is stopped by command; resume it to go on"
        if command.trial not in trials:
            raise SettingsError(unknown("There is no trial", str(command.trial), trials))
        if (state := self._record.state.trials[command.trial].state) in TERMINAL:
            raise SettingsError(f"Trial {command.trial} has ended already ({state}).")
        trial = trials[command.trial]
        self._record.stop(trial.trial_id)
        self._orders.stop(trial.trial_id, Stop())
        self.scheduler.controller.stop_trial(trial)
        return "stopped by command"

    def _enqueue(self, command: Command, trials: dict[str, Any]) -> str:
        config = command.arguments.get("config")
        if not isinstance(config, Mapping):
            raise SettingsError(f"A configuration is a dict of keys and values, not {config!r}.")
        if self._space.grid_size > 1:
            raise SettingsError("A grid has no place for another configuration.")
        if all(key in self._space.domains for key in config):  # dotted
            config = self._space.written(config)
        best, from_best = self._record.state.best, dict[str, Any]()
        if best is not None:
            trial = self._record.state.trials[best.trial]
            from_best = self._space.dotted(trial.config_at(best.training_iteration))
        self._space.check_baselines([config], from_best, "The configuration")
        given, whole = self._space.filled(config), self._space.filled(config, from_best)
        origin = ""
        if best is not None and (taken := self._space.dotted(whole).keys() - self._space.dotted(given).keys()):
            config, origin = whole, f" ({', '.join(sorted(taken))} as in trial {best.trial}, the best)"
        self._search.enqueue(whole)
        known = [*(self._sweep_file.get("baselines") or ()), config]
        self._steered["enqueued"] = [*(self._steered.get("enqueued") or ()), config]
        kept = self._keep(baselines=known, num_samples=self._search.num_samples)
        return f"enqueued by command: {self._space.dotted(config)}{origin}{kept}"

    def _set(self, command: Command, trials: dict[str, Any]) -> str:
        for name in command.arguments:
            if name not in _CHANGEABLE:
                raise SettingsError(unknown("A sweep that runs cannot be given", name, _CHANGEABLE))
        checked = {name: check_setting(name, value) for name, value in command.arguments.items()}
        if "num_samples" in checked:
            self._search.extend(checked["num_samples"] * self._space.grid_size)
        if "max_concurrent" in checked:
            self._search.limit(checked["max_concurrent"])
        values = ", ".join(f"{name}={value}" for name, value in checked.items())
        return f"set by command: {values}{self._keep(**checked)}"

    def _branch(self, command: Command, trials: dict[str, Any]) -> str:
        known = self._record.state.trials
        if self._search.held:
            raise SettingsError("The sweep is ending, and starts no trial. Resume it, and branch the trial then.")
        if command.trial not in known:
            raise SettingsError(unknown("There is no trial", str(command.trial), known))
        parent = known[command.trial]
        if parent.repeats not in (None, parent.id):
            raise SettingsError(f"Trial {parent.id} trains {parent.repeats} again. Branch that one, or another.")
        changes = command.arguments.get("config")
        if not isinstance(changes, Mapping):
            raise SettingsError(f"Changes are a dict of keys and values, not {changes!r}.")
        before = trials[parent.id].config if parent.id in trials else parent.config
        config, known_keys, changed = copy.deepcopy(dict(before)), flatten(before), list[str]()
        for key, value in flatten(changes).items():
            if key not in known_keys:
                raise SettingsError(unknown(f"Trial {parent.id} has no", key, known_keys, listed="It has"))
            if value != known_keys[key]:
                holder, last = holder_of(config, key)
                holder[last] = value
                changed.append(f"{key}={value!r}, not {known_keys[key]!r}")
        try:
            self._space.check_baselines([config])
        except SettingsError as error:
            raise SettingsError(str(error).replace("baselines[0]", "The configuration", 1)) from error
        info = self._copied(parent)
        root = parent.id if parent.branch is None else parent.branch.root
        trial = self._search.branch(config, Branch(parent.id, root, info.number))
        add_trial(self.scheduler.controller, trial)
        how = f"with {', '.join(changed)}" if changed else "with nothing changed"
        return f"trial {trial.trial_id} begins with the state of trial {parent.id} after report {info.number}, {how}"

    def _copied(self, parent: TrialState) -> CheckpointInfo:
        """Copy a trial's newest checkpoint into the folder of the next trial. Raises: SettingsError."""
        folder = self._record.folder
        info, copy = None, folder / f"trial_{self._search.next_id}"
        try:
            if parent.number:  # a report that is not recorded yet may never be
                info = copy_from_trial(folder / parent.folder, copy, None, parent.number)
        except (OSError, CheckpointError) as error:
            raise SettingsError(f"Trial {parent.id} cannot be branched now: {type(error).__name__}: {error}") from error
        if info is None:
            raise SettingsError(
                f"Trial {parent.id} has no checkpoint to begin with ({parent.state}). Enqueue its configuration, with "
                "what is to change, to train it from scratch."
            )
        epochs = self._sweep_file.get("max_epochs")
        if self._sweep_file.get("model") and epochs and info.epoch is not None and info.epoch + 1 >= epochs:
            raise SettingsError(f"Trial {parent.id} has trained its {epochs} epochs: a branch of it has none left.")
        return info

    def _keep(self, **settings: Any) -> str:
        """Write settings that have changed into the sweep's file, from which a resumed sweep takes them.

        ``steered`` has the values that they replace, by which a script that starts the sweep again with its own
        arguments is known not to have changed since (:meth:`SavedSweep.steered`). Return what to add to the answer
        where it cannot be written: they hold for this run all the same.
        """
        if "num_samples" in settings:
            settings["num_samples"] = self._search.num_samples // self._space.grid_size
        for name in settings.keys() - {"baselines"}:
            replaced, _ = self._steered.get(name) or (self._sweep_file.get(name), None)
            self._steered[name] = [replaced, settings[name]]
        self._sweep_file.update(settings, steered=self._steered)
        try:
            write_sweep_file(self._record.folder, self._sweep_file)
        except StorageError as error:
            return f" (but a resumed sweep will not know of it: {error})"
        return ""
