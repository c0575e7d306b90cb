"""A copy of the study on disk or in a database, for Optuna's own tools."""

from __future__ import annotations

import copy
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from tunelight.errors import SettingsError
from tunelight.record.names import STUDY_OWNER as OWNER
from tunelight.stores.masking import masked

logger = logging.getLogger("tunelight")

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_PAUSE_S: Final = 0.25
"""Changes within this time are written together."""
_RETRY_S: Final = 5.0
_CLOSE_S: Final = 10.0


class ForeignStudyError(Exception):
    """The storage holds a study of the sweep's name that belongs to another sweep."""


@dataclass
class _Written:
    """A trial as it is in the copy, with the storage's id ``at``."""

    at: int
    params: dict[str, Any]
    state: TrialState = TrialState.RUNNING
    values: list[float] | None = None
    steps: set[int] = field(default_factory=set)
    attrs: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, at: int, trial: FrozenTrial) -> _Written:
        attrs = {*trial.user_attrs, *trial.system_attrs}
        return cls(at, dict(trial.params), trial.state, trial.values, set(trial.intermediate_values), attrs)

    def leads_to(self, trial: FrozenTrial) -> bool:
        """Tell whether what is written can still be updated to ``trial``: an ended trial cannot be changed."""
        same = self.params == trial.params
        return same and (self.state == TrialState.RUNNING or (self.state, self.values) == (trial.state, trial.values))


def storage_opener(where: str) -> Callable[[], BaseStorage]:
    """Return what opens the storage at a URL, or the journal at a path; ``${NAME}`` is an environment variable."""
    if "://" in where:
        return lambda: optuna.storages.get_storage(_VARIABLE.sub(lambda name: os.environ[name[1]], where))
    return lambda: _journal(Path(where))


def check_address(where: str, folder: Path | None) -> None:
    """Raise SettingsError if a URL cannot be opened, or holds another sweep's study of that name."""
    shown = masked(where)
    if "://" not in where:
        shown = masked(f"x://{where}").removeprefix("x://")
        raise SettingsError(
            f"study_storage={shown!r} is no address. Give one as 'sqlite:///studies.db', or leave it out for "
            "study.journal in the sweep's folder."
        )
    for name in _VARIABLE.findall(where):
        if name not in os.environ:
            raise SettingsError(
                f"study_storage={shown!r} names the environment variable {name}, which is not set. Set it, or give "
                "another address."
            )
    try:
        target = storage_opener(where)()
        known = {study.study_name: study.user_attrs.get(OWNER) for study in target.get_all_studies()}
        target.remove_session()
    except Exception as error:
        text = f"study_storage={shown!r} cannot be used: {_reason(error)}"
        if masked(str(error)) != str(error):  # a database's own error may contain the password
            raise SettingsError(text) from None
        raise SettingsError(text) from error
    if folder is not None and known.get(folder.name, str(folder)) != str(folder):
        raise SettingsError(_taken(shown, folder.name, str(folder)))


def _taken(where: str, name: str, owner: str) -> str:
    return (
        f"{where} holds a study {name!r} already, which is not that of {owner}, and is left alone. Give the sweep "
        f"another name=, or delete that study (optuna delete-study --storage {where} --study-name {name})."
    )


def _journal(path: Path) -> BaseStorage:
    """Open a journal, after cutting off an incomplete last line, to which the next one would be appended."""
    if path.exists():
        with path.open("rb+") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
    return JournalStorage(JournalFileBackend(str(path)))


class StudyCopy:
    """Writes a study in memory to a storage, in a thread, whenever it has changed.

    The study in the storage is updated, or written anew if it contradicts the one in memory. A failed write is logged
    once, and retried; training goes on.

    Args:
        source: the study.
        memory: its storage.
        opened: opens the other storage.
        where: that storage, for messages.
        folder: the sweep's folder, whose name the study gets; another sweep's study of that name is left alone.
    """

    def __init__(
        self,
        source: optuna.Study,
        memory: BaseStorage,
        opened: Callable[[], BaseStorage],
        where: str,
        folder: Path,
    ) -> None:
        self._memory = memory
        self._source = memory.get_study_id_from_name(source.study_name)
        self._opened = opened
        self._where = masked(where)
        self._name = folder.name
        self._owner = str(folder)
        self._target: BaseStorage | None = None
        self._study = 0
        self._written: dict[str, _Written] = {}
        self._seen: dict[int, FrozenTrial] = {}
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunelight-study", daemon=True)
        self.failed: Exception | None = None
        """The error of the last write; None if it succeeded."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.changed()

    def changed(self) -> None:
        """Note that the study has changed."""
        self._woken.set()

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Write what is left, within a limit, and end the thread. May be called more than once."""
        self._closing.set()
        self.changed()
        self._thread.join(limit_s)
        if self._thread.is_alive() or self.failed is not None:
            logger.warning(
                "%s does not show the study as it ended: %s. The sweep's record does, and a sweep that is resumed "
                "writes it anew.",
                self._where,
                _reason(self.failed) if self.failed else f"it could not be written within {limit_s:g} s",
            )

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            last = self._closing.is_set()
            try:
                self._update()
                self.failed = None
            except ForeignStudyError as error:
                self.failed = error
                logger.warning("%s", error)
                return
            except Exception as error:  # noqa: BLE001 - databases have errors of their own, and none may end a sweep
                self._complain(error)
                if not last:
                    self._closing.wait(_RETRY_S)
                    self._woken.set()
            if last:
                self._close_storage()
                return
            self._closing.wait(_PAUSE_S)

    def _complain(self, error: Exception) -> None:
        if self.failed is None:
            logger.warning(
                "%s cannot be written: %s. The sweep goes on; its study is written as soon as that works again.",
                self._where,
                _reason(error),
            )
        self.failed = error
        self._close_storage()

    def _close_storage(self) -> None:
        """Close the storage; its contents are read again when it is opened the next time."""
        if self._target is not None:
            with suppress(Exception):
                self._target.remove_session()
        self._target = None

    def _update(self) -> None:
        trials = self._memory.get_all_trials(self._source, deepcopy=False)
        if self._target is None:
            self._open([trial for trial in trials if "trial" in trial.user_attrs])
        assert self._target is not None  # it is open
        for trial in trials:
            if self._seen.get(trial.number) is trial:
                continue
            kept = _snapshot(trial)
            if self._memory.get_trial(trial._trial_id) is not trial:
                return  # it has changed meanwhile, and this copy may be half updated: the next round writes it
            # A trial without a name is still being suggested, or was not run.
            if "trial" in kept.user_attrs:
                self._write(self._target, kept)
                self._seen[trial.number] = trial

    def _open(self, trials: list[FrozenTrial]) -> None:
        """Open the study and read its trials, or create it."""
        target = self._opened()
        self._seen, self._written = {}, {}
        try:
            self._study = target.get_study_id_from_name(self._name)
        except KeyError:
            self._create(target)
        else:
            if target.get_study_user_attrs(self._study).get(OWNER) != self._owner:
                raise ForeignStudyError(_taken(self._where, self._name, self._owner))
            for known in target.get_all_trials(self._study, deepcopy=False):
                self._written[known.user_attrs.get("trial", "")] = _Written.of(known._trial_id, known)
            by_name = {trial.user_attrs["trial"]: trial for trial in trials}
            if not all(name in by_name and one.leads_to(by_name[name]) for name, one in self._written.items()):
                target.delete_study(self._study)
                self._create(target)
        self._target = target

    def _create(self, target: BaseStorage) -> None:
        self._written = {}
        self._study = target.create_new_study(self._memory.get_study_directions(self._source), self._name)
        target.set_study_user_attr(self._study, OWNER, self._owner)
        for key, value in self._memory.get_study_system_attrs(self._source).items():
            if key.startswith("study:"):  # the metrics' names; others are notes of samplers, which name trials by id
                target.set_study_system_attr(self._study, key, value)

    def _write(self, target: BaseStorage, trial: FrozenTrial) -> None:
        name = trial.user_attrs["trial"]
        known = self._written.get(name)
        if known is None:
            self._written[name] = _Written.of(target.create_new_trial(self._study, template_trial=trial), trial)
            return
        if known.state.is_finished():
            return
        for step in trial.intermediate_values.keys() - known.steps:
            target.set_trial_intermediate_value(known.at, step, trial.intermediate_values[step])
        for key in trial.user_attrs.keys() - known.attrs:
            target.set_trial_user_attr(known.at, key, trial.user_attrs[key])
        for key in trial.system_attrs.keys() - known.attrs:
            target.set_trial_system_attr(known.at, key, trial.system_attrs[key])
        if trial.state != known.state:
            target.set_trial_state_values(known.at, trial.state, trial.values)
        self._written[name] = _Written.of(known.at, trial)


def _snapshot(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy that does not change while it is written: Optuna's share their dicts with the live trial."""
    kept = copy.copy(trial)
    for name in ("intermediate_values", "user_attrs", "system_attrs", "params", "distributions"):
        setattr(kept, name, dict(getattr(trial, name)))
    return kept


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or masked(f"{type(error).__name__}: {error}")
