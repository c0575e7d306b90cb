"""The driver's side of commands: stop, pause and resume, enqueue, branch, set and resize, while the sweep runs."""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ray.tune import Callback

from tunelight.checkpoints import adoption
from tunelight.checkpoints import files as checkpoints
from tunelight.compat.controller import add_trial, put_aside, take_back
from tunelight.compat.ray import cluster_size, end_cached_actors, trial_actor
from tunelight.errors import SettingsError, StorageError, TunelightError, unknown
from tunelight.gang.orders import OrderBook, Reason, name_in_orders
from tunelight.machine.signals import grace_s
from tunelight.messages import LEAVES, CheckpointInfo, Resize
from tunelight.record import (
    FINISHED,
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
from tunelight.schedulers.common import began_at, tell
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.searchers import SweepSearch
from tunelight.settings import check_setting
from tunelight.settings.checks import flatten, holder_of
from tunelight.space import SearchSpace
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
        neighbours, max_workers: see :class:`tunelight.sweep.steering.Allowance`.
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


# --- Branches: new trials that begin with another one's state, by command -------------------------


_SOON_S: Final = 1.0
_OF_DATA: Final = "data."
"""How keys begin under which the batches of an epoch differ: such a branch begins with a report."""


@dataclass(frozen=True)
class _Asked:
    """A branch whose parent is yet to write a checkpoint. ``trial``: the parent, as Tune has it."""

    command: Command
    trial: Any
    since: float

    @property
    def parent(self) -> str:
        """The parent's name in orders."""
        return name_in_orders(self.trial)


class Branches:
    """Runs on: driver, between two steps of Tune's loop.

    A running parent writes a checkpoint at the end of its training step; otherwise its newest checkpoint is used. The
    parent keeps the checkpoint until the branch has copied it into its own folder.

    Args:
        search, record, space, scheduler: those of the sweep.
        orders: the driver's orders to the heads of trials.
        clock: seconds.
    """

    def __init__(
        self,
        search: SweepSearch,
        record: RecordCallback,
        space: SearchSpace,
        orders: OrderBook,
        scheduler: SweepScheduler,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search, self._record, self._space = search, record, space
        self._orders, self._scheduler, self._clock = orders, scheduler, clock
        self._asked: list[_Asked] = []

    @property
    def soon(self) -> bool:
        """Whether a parent was told just now to write a checkpoint, and will have soon."""
        return any(self._clock() - asked.since < _SOON_S for asked in self._asked)

    def ask(self, command: Command, trials: Mapping[str, Any]) -> str | None:
        """Take a command; return the answer to it, or None where :meth:`look` returns it later.

        Raises: SettingsError where there can be no such branch.
        """
        state, trial = self._parent(command), trials.get(str(command.trial))
        self._config(state.config if trial is None else trial.config, command)
        with _reaching(state):
            if trial is not None and state.state == RUNNING:
                by_data = any(key.startswith(_OF_DATA) for key in flatten(command.arguments["config"]))
                asked = _Asked(command, trial, self._clock())
                self._orders.branch(asked.parent, command.id, at_step=not by_data)
                self._asked.append(asked)
                self._search.branches_asked = len(self._asked)
                return None
            return self._begin_with(self._pinned(state, command), command, trial)

    def look(self) -> Iterator[tuple[Command, str, bool]]:
        """Begin the branches whose checkpoints are written; yield the command, the answer, and whether it was done."""
        for asked in list(self._asked):
            try:
                answer = self._answer(asked)
            except TunelightError as error:
                answer, done = str(error), False
            else:
                done = True
            if answer is None:
                continue
            self._asked.remove(asked)
            self._search.branches_asked = len(self._asked)
            with suppress(Exception):  # Ray is busy or gone, which is noticed elsewhere
                self._orders.forget(asked.parent, asked.command.id)
            yield asked.command, answer, done

    def _answer(self, asked: _Asked) -> str | None:
        """Return the answer to a command; None while its parent has written no checkpoint. Raises: SettingsError."""
        command = asked.command
        state, written = self._parent(command), None
        with suppress(Exception):  # as above
            written = self._orders.branched(asked.parent, command.id)
        with _reaching(state):
            if isinstance(written, CheckpointInfo):
                return self._begin_with(written, command, asked.trial)
            if written is None and state.state == RUNNING:
                return None
            return self._begin_with(self._pinned(state, command), command, asked.trial)

    def _parent(self, command: Command) -> TrialState:
        trials = self._record.state.trials
        if command.trial not in trials:
            raise SettingsError(unknown("There is no trial", str(command.trial), trials))
        state = trials[command.trial]
        if state.repeats not in (None, state.id):
            raise SettingsError(f"Trial {state.id} trains {state.repeats} again. Branch that one, or another.")
        return state

    def _config(self, before: Mapping[str, Any], command: Command) -> dict[str, Any]:
        """Return the branch's configuration. Raises: SettingsError."""
        changes = command.arguments.get("config")
        if not isinstance(changes, Mapping):
            raise SettingsError(f"Changes are a dict of keys and values, not {changes!r}.")
        config, known = copy.deepcopy(dict(before)), flatten(before)
        for key, value in flatten(changes).items():
            if key not in known:
                raise SettingsError(unknown(f"Trial {command.trial} has no", key, known, listed="It has"))
            holder, last = holder_of(config, key)
            holder[last] = value
        try:
            self._space.check_baselines([config])
        except SettingsError as error:
            raise SettingsError(str(error).replace("baselines[0]", "The configuration", 1)) from error
        return config

    def _pinned(self, state: TrialState, command: Command) -> CheckpointInfo:
        """Return a trial's newest checkpoint, which is kept from now on. Raises: SettingsError where it has none."""
        home = self._record.folder / state.folder
        heard = (info for info in reversed(checkpoints.find(home)) if info.number <= state.number)
        newest = next(filter(checkpoints.is_valid, heard), None)
        if newest is None:
            raise SettingsError(
                f"Trial {state.id} has no checkpoint to begin with ({state.state}). Enqueue its configuration, with "
                "what is to change, to train it from scratch."
            )
        adoption.pin(newest, home, command.id)
        return newest

    def _begin_with(self, info: CheckpointInfo, command: Command, parent_now: Any) -> str:
        """Begin a branch, and record it; return the answer to its command."""
        parent, keep = self._record.state.trials[str(command.trial)], bool(command.arguments.get("keep"))
        before = parent.config if parent_now is None else parent_now.config
        config = self._config(before, command)  # now: it may have taken over another one's since it was asked
        root = parent.id if parent.branch is None else parent.branch.root
        folder = self._record.folder / f"trial_{self._search.next_id}"
        at = info.number, info.between
        took = adoption.Adoption(info.number, parent.id, Path(parent.folder).name, *at, command.id)
        adoption.note_adoption(took, folder)
        trial = self._search.branch(config, Branch(parent.id, root, *at, keep), folder)
        add_trial(self._scheduler.controller, trial)
        self._record.meet(self._scheduler.controller.get_trials())
        if self._scheduler.paused and put_aside(self._scheduler.controller, trial):
            self._scheduler.aside[trial.trial_id] = trial
        old, new = flatten(before), flatten(config)
        changed = [f"{key}={value!r}, not {old[key]!r}" for key, value in new.items() if value != old[key]]
        how = f"with {', '.join(changed)}" if changed else "with nothing changed"
        kept = "; it trains to its end" if keep else ""
        begins = f"begins with the state of trial {parent.id} after {checkpoints.where(*at)}"
        ended = f". Trial {parent.id} has finished: if nothing is left to train, {trial.trial_id} fails"
        return f"trial {trial.trial_id} {begins}, {how}{kept}{ended if parent.state == FINISHED else ''}"


@contextmanager
def _reaching(parent: TrialState) -> Iterator[None]:
    """Raise SettingsError where the storage, or Ray, does not answer now."""
    try:
        yield
    except TunelightError:
        raise
    except Exception as error:
        raise SettingsError(f"Trial {parent.id} cannot be branched now: {type(error).__name__}: {error}") from error


# --- Allowance: how many workers the sweep may have now, and which of its trials leave theirs for that ---

# A trial that has to leave writes a checkpoint at the end of its next training step, and is put aside until there is
# room for it again. So workers are given back to other users of the cluster, to a sweep that comes first, or before the
# driver itself has to end.

_ENDS: Final = Reason(f"{LEAVES}: the sweep was told to end (SIGTERM)", ends=True)
_YIELDS: Final = Reason(f"{LEAVES} to others, and goes on when there is room")
_TO_BRANCH: Final = Reason(f"{LEAVES} to a branch, and goes on when there is room", gang_stays=True)


class Allowance:
    """Runs on: driver, between two steps of Tune's loop.

    Args:
        scheduler, search, control: those of the sweep.
        state: what is known of its trials.
        reservation: what a trial reserves at first.
        neighbours: the other sweeps of the cluster.
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
        neighbours: Neighbours | None = None,
        max_workers: int | None = None,
        order: Callable[[str, Reason | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_workers = max_workers
        self._scheduler, self._search, self._state, self._control = scheduler, search, state, control
        self._reservation, self._neighbours = reservation, neighbours
        self._order, self._clock = order or OrderBook().leave, clock
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
        most = self._most(controller)
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

    # -- others that need the workers

    def _most(self, controller: Any) -> int | None:
        """Return how many trials may have workers (None: as many as fit)."""
        most = None if self.max_workers is None else self.max_workers // self._reservation.workers
        if self._neighbours is None:
            return most
        each = self._reservation.totals
        size = dict(zip(("CPU", "GPU"), cluster_size(controller) or (), strict=False))
        left = self._neighbours.look(each, self._wanted(most), size)
        return left if most is None else most if left is None else min(left, most)

    def _room(self, controller: Any, alive: Sequence[Any]) -> float:
        """Return how many trials may have workers beside branches, so that those which wait have some at once."""
        room = math.inf
        if any(began_at(trial) is not None for trial in alive) and self._search.most_at_once is not None:
            room = self._search.most_at_once
        if self._scheduler.waiting_branches:
            size = zip(("CPU", "GPU"), cluster_size(controller) or (), strict=False)
            each = self._reservation.totals
            room = min([room, *((have + 1e-6) // each[name] for name, have in size if each.get(name))])
        return max(1.0, room)

    def _wanted(self, most: int | None) -> int:
        """Return how many trials this sweep would train at once if there was room: all that are left, at most."""
        if self._scheduler.paused:
            return self._state.counts[RUNNING]
        left = len(self._state.live) + self._state.counts[PENDING] + self._search.to_make
        return min(one for one in (left, most, self._search.most_at_once) if one is not None)

    def _keep(self, controller: Any, trials: Sequence[Any], most: float) -> None:
        """Let ``most`` trials have workers: the least promising ones leave theirs, and have them again later."""
        leaving, aside = self._scheduler.leaving, self._scheduler.aside
        if not leaving and most == math.inf and not self._search.has_branches:
            return
        alive = {trial.trial_id: trial for trial in trials if trial.status in (PENDING, RUNNING, PAUSED)}
        leaving.intersection_update(alive)
        for gone in aside.keys() - alive.keys():
            del aside[gone]
        having = [trial for trial in alive.values() if trial.status != PAUSED]
        staying = [trial for trial in having if trial.trial_id not in leaving]
        limit, most = most, min(most, self._room(controller, having))
        if len(staying) > most:
            why = _YIELDS if len(staying) > limit or self._scheduler.pauses else _TO_BRANCH
            others = [trial for trial in staying if not self._begins(trial)]
            for trial in _least_promising(others, self._state)[: len(staying) - int(most)]:
                self._leave(controller, trial, why)
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
        if len(having) >= limit and all(trial.status == RUNNING for trial in having):
            with contextlib.suppress(Exception):  # not public in Tune, which would keep one gang for a next trial
                end_cached_actors(controller)

    def _begins(self, trial: Any) -> bool:
        """Tell whether a trial is a branch that has made no report, with which it could be compared with others."""
        known = self._state.trials.get(trial.trial_id)
        return began_at(trial) is not None and (known is None or not known.history)

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
