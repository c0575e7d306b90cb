"""A saved sweep that is to be resumed: what its folder holds, and whether it is still the same sweep."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from tunelight import stores
from tunelight.errors import SettingsError, StorageError
from tunelight.record import (
    ERROR,
    FINISHED,
    GAVE_UP,
    INTERRUPTED,
    RECORD_FILE,
    TERMINAL,
    Lease,
    SweepState,
    TrialState,
    has_record,
    is_folder,
    leased,
    provenance,
    pull,
    reaching,
    read_record,
    read_sweep_file,
    record_of,
    repair,
    sweep_folder,
    to_json_types,
)
from tunelight.resources import Reservation
from tunelight.settings import Settings, fingerprint
from tunelight.settings.checks import plain_setting
from tunelight.space import SearchSpace
from tunelight.stores.masking import masked_settings

_log = logging.getLogger("tunelight")
CODE: Final = ("train", "model", "data", "script")
"""The settings that are training code."""
_SAME: Final = ("require", "metric", "mode", *CODE, "args", "trainer_args", "datasets", "evaluation")
"""Settings that must not change when a sweep is resumed, or its results would not be comparable."""


@dataclass(frozen=True)
class SavedSweep:
    """What a sweep's folder holds: ``sweep.yaml``, and what its record says."""

    folder: Path
    sweep_file: Mapping[str, Any]
    state: SweepState
    lease: Lease | None = None
    """The driver's lock of the folder."""

    def baselines(self, space: SearchSpace) -> list[dict[str, Any]]:
        """Return its baselines as configurations of recorded trials."""
        return [to_json_types(space.filled(config)) for config in self.sweep_file.get("baselines") or ()]

    def with_new(self, baselines: Sequence[Any]) -> list[Any]:
        """Return its baselines, and those of ``baselines`` (plain data) that are new."""
        known = [to_json_types(config) for config in self.sweep_file.get("baselines") or ()]
        return [*known, *(config for config in baselines if to_json_types(config) not in known)]

    def steered(self, settings: Settings) -> Settings:
        """Return ``settings`` with what was set by command in earlier runs, where these have the value from before it.

        A script that starts its sweep again passes the same arguments as at first; one whose argument was changed
        since means it. Enqueued configurations are added to the baselines. Trials are evaluated as before.
        """
        steered = self.sweep_file.get("steered") or {}
        given = [to_json_types(config) for config in settings.baselines]
        missing = [config for config in self.sweep_file.get("baselines") or () if not _take(config, given)]
        enqueued = [config for config in steered.get("enqueued") or () if _take(config, missing)]
        changed: dict[str, Any] = {
            name: kept[1]
            for name, kept in steered.items()
            if name != "enqueued" and getattr(settings, name) == kept[0] != kept[1]
        }
        if changed:
            listed = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            _log.warning("%s: set by command while the sweep ran, and still so.", listed)
        if settings.evaluation is None:
            changed["evaluation"] = self.sweep_file.get("evaluation")
        return replace(settings, **changed, baselines=(*settings.baselines, *enqueued))

    def still_steered(self, settings: Settings) -> dict[str, Any]:
        """Return of what was set by command in earlier runs that which holds under ``settings``."""
        steered = self.sweep_file.get("steered") or {}
        return {
            name: kept for name, kept in steered.items() if name == "enqueued" or getattr(settings, name) == kept[1]
        }

    def untried(self, space: SearchSpace, settings: Settings) -> list[dict[str, Any]]:
        """Return the baselines without a trial. Raises: SettingsError if new ones exceed the number of trials."""
        from tunelight.searchers.choose import count_trials  # imports Ray Tune

        tried = [
            trial.config_at(0)
            for trial in self.state.trials.values()
            if trial.repeats is None and trial.branch is None  # with a configuration of another trial
        ]
        made, known = len(tried), self.baselines(space)
        found, new = [], 0
        for config in (space.filled(config) for config in settings.baselines):
            if not _take(as_recorded := to_json_types(config), tried):
                found.append(config)
                new += as_recorded not in known
        total = count_trials(space, settings)
        if new and made + len(found) > total:
            raise SettingsError(
                f"baselines= holds {new} that {self.folder} has not tried, and all but {max(total - made, 0)} of its "
                f"num_samples={settings.num_samples} trials are made. Give num_samples="
                f"{-(-(made + len(found)) // space.grid_size)} or more, or leave the new baselines out."
            )
        return found

    def again(self, max_epochs: int | None, *, repetitions: bool = True) -> list[TrialState]:
        """Return the trials to resume, in order of creation; no repetitions, if the sweep makes none any more.

        These are the trials that were cut off; if ``max_epochs`` has grown, also finished ones; if the last run gave
        up, also the trials that failed in it.
        """
        gave_up, last = self.state.ended == GAVE_UP, len(self.state.runs) - 1
        known = self.state.sweep.get("max_epochs")
        longer = known is not None and max_epochs is not None and max_epochs > known
        return [
            trial
            for trial in sorted(self.state.trials.values(), key=lambda trial: trial.index)
            if (repetitions or trial.repeats is None)
            and (
                (trial.state not in TERMINAL - {INTERRUPTED} and trial.decision != "STOP")
                or (longer and trial.state == FINISHED)
                or (gave_up and trial.state == ERROR and trial.runs[-1:] == [last])
            )
        ]

    def settle(self, searcher: Any) -> None:
        """Close the record and the study of a sweep whose driver died after its last trial had ended.

        Raises: StorageError.
        """
        from tunelight.record import RecordCallback  # imports Ray Tune
        from tunelight.searchers import TrackingSearcher

        if self.state.ended is None:
            sweep_file = {key: value for key, value in self.state.sweep.items() if key not in ("name", "format")}
            RecordCallback(self.folder, **sweep_file).close()
        with reaching(self.folder), record_of(self.folder).open("ab") as stream:
            stores.sync_file(stream.fileno())  # the driver that wrote it may have been killed before it could
        if isinstance(searcher, TrackingSearcher):
            searcher.close({})

    def check(self, space: SearchSpace, settings: Settings, sweep_file: Mapping[str, Any]) -> None:
        """Check that the sweep is still the same; with ``resume="force"``, warn where it is not.

        ``sweep_file``: the content of sweep.yaml as of now. Raises: SettingsError, which says what differs.
        """
        known = self.state.sweep.get("max_epochs")
        if known is not None and settings.max_epochs is not None and settings.max_epochs < known:
            raise SettingsError(
                f"max_epochs={settings.max_epochs} is less than the {known} that trials of {self.folder} trained "
                f"already, and it can only grow. Give max_epochs={known} or more."
            )
        found = [
            *_space_differs(self.sweep_file.get("space"), to_json_types(space.describe())),
            *self._differences(sweep_file),
        ]
        text = f"{self.folder} is not the sweep that is asked for now: {'; '.join(found)}."
        if found and settings.resume != "force":
            raise SettingsError(
                f"{text} Its results would not compare. Undo that, start a new sweep under another name=, or go on "
                "all the same with resume='force'."
            )
        if found:
            warnings.warn(f"{text} It goes on all the same, for resume='force' says so.", stacklevel=5)

    def _differences(self, sweep_file: Mapping[str, Any]) -> list[str]:
        comparable = self.state.ended != GAVE_UP or any(trial.history for trial in self.state.trials.values())
        found = [
            f"{name} was {self.sweep_file[name]!r} and is {now!r}"
            for name in (_SAME if comparable else ("require",))
            if name in self.sweep_file and (now := to_json_types(sweep_file.get(name))) != self.sweep_file[name]
        ]
        if (seed := self.sweep_file.get("seed")) is not None and sweep_file.get("seed") != seed:
            found.append(f"seed was {seed} and is {sweep_file.get('seed')} (leave it out to keep it)")
        folds = [(known or {}).get("folds") for known in (self.sweep_file.get("repeats"), sweep_file.get("repeats"))]
        if folds[0] != folds[1] and any(trial.history for trial in self.state.trials.values()):
            found.append(f"the number of folds was {folds[0] or 'none'} and is {folds[1] or 'none'}")
        changed = changed_code(self.sweep_file, sweep_file) if comparable else ()
        same_name = [name for name in changed if sweep_file.get(name) == self.sweep_file.get(name)]
        return [*found, *(f"the code of {name} ({sweep_file[name]}) has changed" for name in same_name)]


def changed_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings whose code differs, by the fingerprints in two files of sweeps."""
    codes = {name: [(file.get("code") or {}).get(name) for file in (before, now)] for name in CODE}
    return [name for name, pair in codes.items() if None not in pair and pair[0] != pair[1]]


def _take(config: Any, configs: list[Any]) -> bool:
    """Remove a configuration from a list; return whether it was there."""
    if found := config in configs:
        configs.remove(config)
    return found


def _space_differs(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Describe how two search spaces differ, key by key."""
    if before is None or list(before.items()) == list(now.items()):
        return []
    if before == now:
        return [f"the keys of the search space stood in the order {', '.join(map(str, before))}"]
    pairs = {
        key: [repr(space[key]) if key in space else "absent" for space in (before, now)] for key in {**before, **now}
    }
    return [f"{key} was {old} in the search space and is {new}" for key, (old, new) in pairs.items() if old != new]


@contextlib.contextmanager
def open_saved_sweep(settings: Settings) -> Iterator[SavedSweep | None]:
    """Open and lock the saved sweep that ``settings`` name; None if there is none yet.

    With ``resume="force"`` a damaged record is repaired first. Raises: StorageError if another driver runs the sweep,
    or if its folder is not a sweep or cannot be read; SettingsError. Runs on: driver.
    """
    folder = sweep_folder(settings.storage, settings.name or "")
    with reaching(folder):
        known, whole = is_folder(folder), has_record(folder)
    if not known:
        yield None
        return
    if not whole:
        raise StorageError(
            f"{stores.shown(folder)} exists, but is no sweep that could go on: it holds no {RECORD_FILE}. Give the "
            "name= and storage= of a sweep, or a name that is free."
        )
    with leased(folder) as lease:
        with reaching(folder):
            pull(folder)
        if settings.resume == "force" and (done := repair(folder)):
            warnings.warn(f"{folder}: {done}.", stacklevel=3)
        yield SavedSweep(folder, read_sweep_file(folder), read_record(folder, lazy=True), lease)


def sweep_file_of(
    space: SearchSpace, settings: Settings, reservation: Reservation, at_first: Reservation, trained: Any = None
) -> dict[str, Any]:
    """Return the content of sweep.yaml: space, settings and provenance as plain data, with secrets masked.

    ``trained``: the training code, from which a script's way to be called is recorded.
    """
    sweep_file: dict[str, Any] = {"space": space.describe(), "require": space.require}
    for entry in fields(settings):
        sweep_file[entry.name] = plain_setting(getattr(settings, entry.name))
    sweep_file["workers"] = (
        reservation.workers if reservation.least is None else [reservation.least, reservation.workers]
    )
    sweep_file["evaluation"] = settings.evaluation or reservation.evaluation
    sweep_file["reservation"] = at_first.bundles
    sweep_file["code"] = {name: fingerprint(code) for name in CODE if (code := getattr(settings, name)) is not None}
    sweep_file["lightning"] = settings.lightning
    if settings.script is not None and trained is not None:
        sweep_file["call"] = trained.recorded(list(space.domains))
    sweep_file["space_objects"] = space.objects.described()
    return masked_settings(sweep_file | provenance(space.source))
