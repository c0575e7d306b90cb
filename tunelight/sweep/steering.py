"""The driver's side of commands: stop, pause and resume, enqueue, branch, set and resize, while the sweep runs."""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ray.tune import Callback

from tunelight.checkpoints.files import copy_from_trial
from tunelight.compat.controller import add_trial, put_aside, take_back
from tunelight.compat.ray import end_cached_actors, trial_actor
from tunelight.errors import CheckpointError, SettingsError, StorageError, TunelightError, unknown
from tunelight.gang.orders import OrderBook, Reason, name_in_orders
from tunelight.machine.signals import grace_s
from tunelight.messages import LEAVES, CheckpointInfo, Resize
from tunelight.record import (
    PAUSED,
    PENDING,
    RUNNING,
    STOPPED_BY_COMMAND,
    TERMINAL,
    Branch,
    Command,
    CommandReader,
    RecordCallback,
    SweepState,
    TrialState,
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
from tunelight.settings.checks import flatten, holder_of
from tunelight.space import SearchSpace
from tunelight.sweep.control import SweepControl

_LOOK_S: Final = 0.05
"""Seconds between two looks for commands."""
_ALLOW_S: Final = 0.25
"""Seconds between two looks at how many workers the sweep may have."""
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
        max_workers: see :class:`tunelight.sweep.steering.Allowance`.
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
            max_workers=max_workers,
            order=orders.leave,
        )
        """How many workers the sweep may have."""
        self._answered = answered
        self._clock, self._looked, self._allowed = clock, 0.0, 0.0
        self._carry_out: dict[str, Callable[[Command, dict[str, Any]], str]] = {
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "enqueue": self._enqueue,
            "set": self._set,
            "resize": self._resize,
            "branch": self._branch,
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
        if abs(now - self._allowed) >= _ALLOW_S:
            self._allowed = now
            self.allowance.look(trials)

    def _carry_out_all(self, trials: list[Any]) -> None:
        try:
            commands = [one for one in self._commands.news() if one.id not in self._record.state.answers]
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

    def _branch(self, command: Command, trials: dict[str, Any]) -> str:
        if self.scheduler.paused:
            raise SettingsError("The sweep is paused: resume it first.")
        known = self._record.state.trials
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
        trial = self._search.branch(config, Branch(parent.id, root, info.number), Path(info.path).parents[1])
        add_trial(self.scheduler.controller, trial)
        self._record.meet(self.scheduler.controller.get_trials())
        how = f"with {', '.join(changed)}" if changed else "with nothing changed"
        return f"trial {trial.trial_id} begins with the state of trial {parent.id} after report {info.number}, {how}"

    def _copied(self, parent: TrialState) -> CheckpointInfo:
        """Copy a trial's newest checkpoint into the folder of the next trial. Raises: SettingsError."""
        folder = self._record.folder
        try:
            info = copy_from_trial(
                folder / parent.folder, folder / f"trial_{self._search.next_id}", None, parent.number
            )
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


# --- Allowance: how many workers the sweep may have now, and which of its trials leave theirs for that ---

# A trial that has to leave writes a checkpoint at the end of its next training step, and is put aside until there is
# room for it again. So workers are given back to other users of the cluster, or before the driver itself has to end.

_ENDS: Final = Reason(f"{LEAVES}: the sweep was told to end (SIGTERM)", ends=True)
_YIELDS: Final = Reason(f"{LEAVES} to others, and goes on when there is room")


class Allowance:
    """Runs on: driver, between two steps of Tune's loop.

    Args:
        scheduler, search, control: those of the sweep.
        state: what is known of its trials.
        reservation: what a trial reserves at first.
        max_workers: how many workers all trials may have together (None: as many as fit).
        order: tells the head of a trial, by its name, to leave, or not any more.
        clock: seconds.
    """

    def __init__(
        self,
        scheduler: SweepScheduler,
        search: SweepSearch,
        state: SweepState,
        reservation: Reservation,
        control: SweepControl,
        *,
        max_workers: int | None = None,
        order: Callable[[str, Reason | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_workers = max_workers
        self._scheduler, self._search, self._state, self._control = scheduler, search, state, control
        self._reservation, self._order, self._clock = reservation, order or OrderBook().leave, clock
        self._grace_s = grace_s()
        self._ends_at: float | None = None
        """When the sweep ends, once it was told to."""
        control.signals.graceful = self._grace_s > 0

    @property
    def remark(self) -> str | None:
        """What to tell the person who runs the sweep, if no trial may have workers."""
        if self.max_workers is None or self.max_workers >= self._reservation.workers:
            return None
        return (
            f"max_workers={self.max_workers}, and a trial has {counted(self._reservation.workers, 'worker')}: all "
            "trials wait until there are more (tunelight set SWEEP --max-workers N)"
        )

    def look(self, trials: Sequence[Any]) -> None:
        """Let trials leave their workers, or have them again."""
        controller = self._scheduler.controller
        if controller is None:
            return
        if self._control.signals.received is signal.SIGTERM and self._grace_s:
            self._end(controller, trials)
            return
        most = None if self.max_workers is None else self.max_workers // self._reservation.workers
        self._search.allowed = None if most is None else most - len(self._scheduler.aside)
        self._scheduler.within(None if most is None else most * self._reservation.workers)
        self._keep(controller, trials, math.inf if most is None else most)

    # -- the end of the sweep

    def _end(self, controller: Any, trials: Sequence[Any]) -> None:
        """Let all trials leave; end the sweep once they have, or at the end of the time for it."""
        if self._ends_at is None:
            self._ends_at = self._clock() + self._grace_s
            self._search.allowed = 0
            self._scheduler.leaving.clear()  # who was told to yield hears that all ends
        for trial in trials:
            if trial.status in (PENDING, RUNNING):
                self._leave(controller, trial, _ENDS)
        if self._clock() >= self._ends_at or not any(trial.status == RUNNING for trial in trials):
            controller.request_stop_experiment()

    def _keep(self, controller: Any, trials: Sequence[Any], most: float) -> None:
        """Let ``most`` trials have workers: the least promising ones leave theirs, and have them again later."""
        leaving, aside = self._scheduler.leaving, self._scheduler.aside
        if not leaving and most == math.inf:
            return
        alive = {trial.trial_id: trial for trial in trials if trial.status in (PENDING, RUNNING, PAUSED)}
        leaving.intersection_update(alive)
        for gone in aside.keys() - alive.keys():
            del aside[gone]
        having = [trial for trial in alive.values() if trial.status != PAUSED]
        staying = [trial for trial in having if trial.trial_id not in leaving]
        if len(staying) > most:
            for trial in _least_promising(staying, self._state)[: len(staying) - int(most)]:
                self._leave(controller, trial, _YIELDS)
        elif not self._scheduler.paused:
            told = [trial for trial in having if trial.trial_id in leaving]
            stay = told[: int(min(most - len(staying), len(told)))]
            back = list(aside.values())[: int(max(0, min(most - len(having), len(aside))))]
            for trial in (*stay, *back):
                if self._tell(trial, None):
                    leaving.discard(trial.trial_id)
            for trial in back:
                if trial.trial_id not in leaving:
                    del aside[trial.trial_id]
                    take_back(controller, trial)
        if len(having) >= most and all(trial.status == RUNNING for trial in having):
            with contextlib.suppress(Exception):  # not public in Tune, which would keep one gang for a next trial
                end_cached_actors(controller)

    def _leave(self, controller: Any, trial: Any, why: Reason) -> None:
        if trial.status == PENDING and put_aside(controller, trial):
            self._scheduler.aside[trial.trial_id] = trial
        elif trial.trial_id in self._scheduler.leaving or not self._tell(trial, why):
            return
        self._scheduler.leaving.add(trial.trial_id)

    def _tell(self, trial: Any, why: Reason | None) -> bool:
        """Tell a trial's head to leave, or not any more; False where Ray does not answer now: it is tried again."""
        with contextlib.suppress(Exception):  # Ray is busy or gone, which is noticed elsewhere
            self._order(name_in_orders(trial), why)
            return True
        return False


def _least_promising(trials: Sequence[Any], state: SweepState) -> list[Any]:
    """Sort trials: those that wait for workers first, then by their metric at the last report of all, worst first.

    Those that have yet to report come before those that have.
    """
    known = {trial.trial_id: state.trials.get(trial.trial_id) for trial in trials}
    common = min((one.number for one in known.values() if one is not None and one.history), default=0)
    metric = str(state.sweep.get("metric"))
    sign = -1.0 if state.mode == "max" else 1.0

    def promise(trial: Any) -> tuple[bool, bool, float, str]:
        found: TrialState | None = known[trial.trial_id]
        reported = found is not None and bool(found.history)
        reports = found.history if found is not None else []
        report = next((one for one in reports if one["training_iteration"] >= common), {})
        value = report.get(metric)
        loss = sign * value if isinstance(value, int | float) and math.isfinite(value) else math.inf
        return trial.status != PENDING, reported, -loss, trial.trial_id

    return sorted(trials, key=promise)
