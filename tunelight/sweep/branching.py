"""Branches: new trials that begin with another one's state, by command."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunelight.checkpoints import adoption
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import SettingsError, TunelightError, unknown
from tunelight.gang.orders import PLANNED, OrderBook
from tunelight.messages import CheckpointInfo
from tunelight.record import RUNNING, Branch, Command, RecordCallback, TrialState
from tunelight.searchers import SweepSearch
from tunelight.settings.dotted import flatten, holder_of
from tunelight.space import SearchSpace

_LIMIT_S: Final = 900.0
"""How long a trial may take to write a checkpoint: it does so at the end of a step, or with its next report."""
_SOON_S: Final = 1.0
_OF_DATA: Final = "data."
"""How keys begin under which the batches of an epoch differ: such a branch begins with a report."""


@dataclass(frozen=True)
class _Asked:
    """A branch whose parent is yet to write a checkpoint."""

    command: Command
    parent: str
    """The name of the parent in orders."""
    config: dict[str, Any]
    keep: bool
    since: float


class Branches:
    """Runs on: driver, between two steps of Tune's loop.

    A parent that trains is told to write a checkpoint at the end of a training step; of another one its newest is
    taken. The checkpoint is kept until the branch has a copy of it in its own folder, with which it begins.

    Args:
        search, record, space: those of the sweep.
        orders: what the heads of trials are told.
        clock: seconds.
    """

    def __init__(
        self,
        search: SweepSearch,
        record: RecordCallback,
        space: SearchSpace,
        orders: OrderBook,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search, self._record, self._space, self._orders, self._clock = search, record, space, orders, clock
        self._asked: list[_Asked] = []

    @property
    def soon(self) -> bool:
        """Whether a parent was told just now to write a checkpoint, and will have soon."""
        return any(self._clock() - asked.since < _SOON_S for asked in self._asked)

    def ask(self, command: Command, trials: Mapping[str, Any]) -> str | None:
        """Take a command; return the answer to it, or None where :meth:`look` returns it later.

        Raises: SettingsError where there can be no such branch.
        """
        state, keep = self._parent(command), bool(command.arguments.get("keep"))
        trial = trials.get(state.id)
        config = self._config(state.config if trial is None else trial.config, command)
        if trial is not None and state.state == RUNNING:
            name = f"{trial.trainable_name}/{trial.trial_id}"
            by_data = any(key.startswith(_OF_DATA) for key in command.arguments["config"])
            if command.id != PLANNED:
                self._orders.branch(name, command.id, at_step=not by_data)
            self._asked.append(_Asked(command, name, config, keep, self._clock()))
            return None
        return self._begin_with(self._pinned(state, command), command, config, keep=keep)

    def look(self) -> Iterator[tuple[Command, str, bool]]:
        """Begin the branches whose checkpoints are written; yield the command, the answer, and whether it was done."""
        for asked in list(self._asked):
            try:
                answer = self._answer(asked)
            except TunelightError as error:
                yield asked.command, str(error), False
            else:
                if answer is None:
                    continue
                yield asked.command, answer, True
            self._asked.remove(asked)
            with suppress(Exception):  # Ray is busy or gone, which is noticed elsewhere
                self._orders.forget(asked.parent, asked.command.id)

    def _answer(self, asked: _Asked) -> str | None:
        command = asked.command
        state, written = self._parent(command), None
        with suppress(Exception):  # as above
            written = self._orders.branched(asked.parent, command.id)
        if isinstance(written, str):
            raise SettingsError(f"Trial {state.id} cannot be branched: {written}.")
        if written is None and state.state != RUNNING:  # it has ended, or waits
            written = self._pinned(state, command)
        if written is not None:
            return self._begin_with(written, command, asked.config, keep=asked.keep)
        if self._clock() - asked.since > _LIMIT_S:
            raise SettingsError(f"Trial {state.id} has not reached the end of a training step in {_LIMIT_S:.0f} s.")
        return None

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
        found = checkpoints.find(self._record.folder / state.folder)
        heard = [info for info in found if info.number <= state.number]
        if not heard:
            raise SettingsError(
                f"Trial {state.id} has no checkpoint to begin with ({state.state}). Enqueue its configuration, with "
                "what is to change, to train it from scratch."
            )
        adoption.pin(heard[-1], self._record.folder / state.folder, command.id)
        return heard[-1]

    def _begin_with(self, info: CheckpointInfo, command: Command, config: dict[str, Any], *, keep: bool) -> str:
        """Begin a branch; return the answer to its command."""
        parent = self._record.state.trials[str(command.trial)]
        root = parent.id if parent.branch is None else parent.branch.root
        branch = Branch(parent.id, root, info.number, info.between, keep)
        trial_id = self._search.branch(config, branch, self._folder_of)
        folder = Path(parent.folder).name
        took = adoption.Adoption(info.number, parent.id, folder, info.number, info.between, command.id)
        adoption.note_adoption(took, self._folder_of(trial_id))
        before = flatten(parent.config)
        changed = [
            f"{key}={value!r}, not {before[key]!r}" for key, value in flatten(config).items() if value != before[key]
        ]
        how = f"with {', '.join(changed)}" if changed else "with nothing changed"
        kept = "; it trains to its end" if keep else ""
        return (
            f"trial {trial_id} begins with the state of trial {parent.id} after {checkpoints.where(info)}, {how}{kept}"
        )

    def _folder_of(self, trial_id: str) -> Path:
        return self._record.folder / f"trial_{trial_id}"
