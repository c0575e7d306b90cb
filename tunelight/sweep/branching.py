"""Branches: new trials that begin with another one's state, by command."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunelight.checkpoints import adoption
from tunelight.checkpoints import files as checkpoints
from tunelight.compat.controller import add_trial, put_aside
from tunelight.errors import SettingsError, TunelightError, unknown
from tunelight.gang.orders import OrderBook, name_in_orders
from tunelight.messages import CheckpointInfo
from tunelight.record import FINISHED, RUNNING, Branch, Command, RecordCallback, TrialState
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.searchers import SweepSearch
from tunelight.settings.checks import flatten, holder_of
from tunelight.space import SearchSpace

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
