"""The driver's side of commands: stop, pause and resume, enqueue, branch, set and resize, while the sweep runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from ray.tune import Callback

from tunelight.compat.ray import trial_actor
from tunelight.errors import SettingsError, StorageError, TunelightError, unknown
from tunelight.gang.orders import OrderBook, name_in_orders
from tunelight.messages import Resize
from tunelight.record import (
    PAUSED,
    RUNNING,
    STOPPED_BY_COMMAND,
    TERMINAL,
    Command,
    CommandReader,
    RecordCallback,
    driver_of,
    write_sweep_file,
)
from tunelight.resources import Reservation
from tunelight.results.words import counted
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.common import tell
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.searchers import SweepSearch
from tunelight.settings import check_setting
from tunelight.space import SearchSpace
from tunelight.sweep.allowance import Allowance
from tunelight.sweep.branching import Branches
from tunelight.sweep.control import SweepControl
from tunelight.sweep.neighbours import Neighbours

_LOOK_S: Final = 0.05
"""Seconds between two looks for commands."""
_TURN_S: Final = 0.1
"""How long a step of Tune's takes in which nothing happens."""
_ALLOW_S: Final = 0.25
"""Seconds between two looks at how many workers the sweep may have, where no branch waits for some."""
_CHANGEABLE: Final = ("max_concurrent", "max_workers", "num_samples")
"""The settings that may change while a sweep runs."""


class Shows(Protocol):
    """What shows the sweep, as far as it has to know of commands."""

    def expect(self, total: int) -> None:
        """Take another number of trials."""

    def news(self) -> None:
        """Show what was said."""


class Steering(Callback):  # type: ignore[misc,unused-ignore]
    """Carries out commands between two steps of Tune's loop, and records an answer to each. Runs on: driver.

    Args:
        record: the callback that writes the record; it must come before this one in the list of callbacks.
        search, scheduler, space, control: those of the sweep.
        reservation: what each trial reserves. sweep_file: the sweep's settings, which a resumed sweep takes over.
        shown: the live table.
        answered: called once commands were answered.
        neighbours, max_workers: see :class:`tunelight.sweep.allowance.Allowance`.
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
        reservation: Reservation,
        sweep_file: Mapping[str, Any],
        shown: Shows,
        answered: Callable[[], None] = lambda: None,
        neighbours: Neighbours | None = None,
        max_workers: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._search, self._space, self._control = record, search, space, control
        self._reservation, self._sweep_file, self._shown = reservation, dict(sweep_file), shown
        self._steered = dict(sweep_file.get("steered") or {})
        """By setting, [the value before, the value now]; and the configurations that were enqueued."""
        self._commands = CommandReader(record.folder, driver_of(record.folder))  # this process has taken the sweep
        self.scheduler = SweepScheduler(
            scheduler, ends_at=search.ends_at, has_room=search.has_room, can_pause=self._can_pause, note=record.note
        )
        """That of Tune's controller."""
        self._orders = orders = OrderBook()
        self.allowance = Allowance(
            self.scheduler,
            search,
            record.state,
            reservation,
            control,
            neighbours=neighbours,
            max_workers=max_workers,
            order=orders.leave,
        )
        """How many workers the sweep may have."""
        self._branches = Branches(search, record, space, orders, self.scheduler)
        self._answered = answered
        self._clock, self._looked, self._allowed = clock, 0.0, 0.0
        self._carry_out: dict[str, Callable[[Command, dict[str, Any]], str | None]] = {
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "enqueue": self._enqueue,
            "set": self._set,
            "resize": self._resize,
            "branch": self._branches.ask,
        }

    def look(self) -> None:
        """Carry out new commands while no trial lives and Tune takes no steps."""
        controller = self.scheduler.controller
        self.on_step_end(0, [] if controller is None else controller.get_trials())

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Carry out new commands. Called by Tune at the end of each step of its loop."""
        if self._search.held and not self.scheduler.paused:  # paused trials go on before new ones begin
            self._search.held = not self.scheduler.pauses and any(trial.status == PAUSED for trial in trials)
        if abs(self._clock() - self._looked) < _LOOK_S:
            return
        self._looked = now = self._clock()
        self._carry_out_all(trials)
        while self._branches.soon and self._clock() - now < _TURN_S:  # sooner than Tune's next step
            time.sleep(_TURN_S / 10)
            self._begin_branches()
        if self.scheduler.waiting_branches or abs(now - self._allowed) >= _ALLOW_S:
            self._allowed = now
            self.allowance.look(trials)

    def _carry_out_all(self, trials: list[Any]) -> None:
        try:
            commands = [one for one in self._commands.news() if one.id not in self._record.state.answers]
        except OSError as error:
            self._record.record.complain(error)
            return
        self._begin_branches()
        for command in commands:
            before = self._search.total_samples
            answer: str | None
            try:
                if command.do not in self._carry_out:
                    raise SettingsError(unknown("There is no command", command.do, self._carry_out))
                answer, ok = self._carry_out[command.do](command, {trial.trial_id: trial for trial in trials}), True
            except TunelightError as error:
                answer, ok = str(error), False
            if answer is not None:
                self._answer(command, answer, ok=ok, before=before)

    def _begin_branches(self) -> None:
        before = self._search.total_samples
        for command, answer, ok in self._branches.look():
            self._answer(command, answer, ok=ok, before=before)
            before = self._search.total_samples

    def _answer(self, command: Command, answer: str, *, ok: bool, before: int) -> None:
        """Record the answer to a command, ``before`` which there were to be so many trials."""
        total = self._search.total_samples
        self._record.answer(command, answer, ok=ok, num_samples=None if total == before else total)
        if total != before:
            self._shown.expect(total)
        self._shown.news()
        self._answered()

    def _stop(self, command: Command, trials: dict[str, Any]) -> str:
        if command.trial is None:
            self._control.ends = STOPPED_BY_COMMAND
            if self.scheduler.controller is not None:
                self.scheduler.controller.request_stop_experiment()
            return "the sweep is stopped by command; resume it to go on"
        trial = self._living(command, trials)
        self._record.stop(trial.trial_id)
        with contextlib.suppress(Exception):  # Ray is busy: the trial ends with its next report
            self._orders.stop(name_in_orders(trial))
        self.scheduler.controller.stop_trial(trial)
        return "stopped by command"

    def _pause(self, command: Command, trials: dict[str, Any]) -> str:
        if self.scheduler.paused:
            raise SettingsError("The sweep is paused already.")
        self.scheduler.paused = self._search.held = True
        running = [trial.trial_id for trial in trials.values() if trial.status == RUNNING]
        if self.scheduler.pauses:
            how = f"{counted(len(running), 'trial')} run until the scheduler pauses or ends them"
        else:
            on = sum(not self._can_pause(trial_id) for trial_id in running)
            how = f"{counted(len(running) - on, 'trial')} run to the next report"
            how += f", {on} to the end, for want of a checkpoint" if on else ""
        return f"the sweep is paused by command: {how}"

    def _resume(self, command: Command, trials: dict[str, Any]) -> str:
        if not self.scheduler.paused:
            raise SettingsError("The sweep runs, and is not paused.")
        self.scheduler.paused = False
        self._search.held = not self.scheduler.pauses  # a scheduler that pauses trials asks for new ones itself
        return "the sweep goes on"

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
        said = ""
        if best is not None and (taken := self._space.dotted(whole).keys() - self._space.dotted(given).keys()):
            config, said = whole, f" ({', '.join(sorted(taken))} as in trial {best.trial}, the best)"
        self._search.enqueue(whole)
        known = [*(self._sweep_file.get("baselines") or ()), config]
        self._steered["enqueued"] = [*(self._steered.get("enqueued") or ()), config]
        kept = self._keep(baselines=known, num_samples=self._search.num_samples)
        return f"enqueued by command: {self._space.dotted(config)}{said}{kept}"

    def _set(self, command: Command, trials: dict[str, Any]) -> str:
        for name in command.arguments:
            if name not in _CHANGEABLE:
                raise SettingsError(unknown("A sweep that runs cannot be given", name, _CHANGEABLE))
        checked = {name: check_setting(name, value) for name, value in command.arguments.items()}
        if "num_samples" in checked:
            self._search.extend(checked["num_samples"] * self._space.grid_size)
        if "max_concurrent" in checked:
            self._search.limit(checked["max_concurrent"])
        if "max_workers" in checked:
            self.allowance.max_workers = checked["max_workers"]
        said = ", ".join(f"{name}={value}" for name, value in checked.items())
        if checked.get("max_workers") in range(self._reservation.workers):
            said += (
                f" (a trial has {counted(self._reservation.workers, 'worker')}: none begins, and all leave that can)"
            )
        return f"set by command: {said}{self._keep(**checked)}"

    def _resize(self, command: Command, trials: dict[str, Any]) -> str:
        least, most = self._reservation.least, max(self._reservation.workers, self._reservation.most or 0)
        workers = command.arguments.get("workers")
        if least is None or self.scheduler.pauses:
            why = "its trials are not elastic" if least is None else "its scheduler decides on them"
            raise SettingsError(f"The number of workers of this sweep's trials cannot be set: {why}.")
        if not isinstance(workers, int) or not least <= workers <= most:
            raise SettingsError(f"workers must be a whole number from {least} to {most}, not {workers!r}.")
        trial = self._living(command, trials)
        if trial.status != RUNNING or trial_actor(trial) is None:
            raise SettingsError(f"Trial {trial.trial_id} does not run now ({trial.status}).")
        tell(trial, Resize(workers))
        return f"will have {counted(workers, 'worker')}, by command"

    def _can_pause(self, trial_id: str) -> bool:
        """Tell whether a trial writes checkpoints, without which it could not go on after a pause."""
        writes = self._sweep_file.get("model") is not None and self._sweep_file.get("checkpoints") is not None
        return writes or bool(self._record.state.trials[trial_id].checkpoints)

    def _living(self, command: Command, trials: dict[str, Any]) -> Any:
        """Return the trial that a command is for. Raises: SettingsError where there is none, or it has ended."""
        if command.trial not in trials:
            raise SettingsError(unknown("There is no trial", str(command.trial), trials))
        if (state := self._record.state.trials[command.trial].state) in TERMINAL:
            raise SettingsError(f"Trial {command.trial} has ended already ({state}).")
        return trials[command.trial]

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
