"""A sweep as the live page shows it: what has changed since a page last heard, in bounded memory."""

from __future__ import annotations

import json
import math
import re
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from tunelight import stores
from tunelight.errors import StorageError
from tunelight.extras.attach import RecordFollower
from tunelight.extras.report.page import MOST_ROWS, sweep_head, with_curves
from tunelight.record import Found, TrialState, live_driver_of, read_sweep_file, view
from tunelight.settings.checks import flatten

_MOST_VARIANT: Final = 8000
_READ_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.25
_STORE_LOOK_S: Final = 0.75
_DRIVER_S: Final = 2.0
_TEXT: Final = re.compile(r"[^\ud800-\udfff]+")
"""A name that can be in an address: no part of it was undecodable."""
_RECENT_S: Final = 86400.0
"""How long ago the record of a sweep that runs was written to, at most."""


class SweepWatch(RecordFollower):
    """Follows a sweep's record for any number of pages; trials have their best and last report only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, brief=True)
        self.version = 0
        """Counts the changes; a page keeps the version that it has seen."""
        self.generation = 0
        """Counts how often the record was replaced by another one, after which a page begins anew."""
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._curves: dict[str, view.Curve] = {}
        self._looked = self._asked = -math.inf
        self._driver: str | None = None
        self._settings: Mapping[str, Any] | None = None
        self._seen = view.ColumnStats()
        self._every = _STORE_LOOK_S if stores.store_of(folder) else _LOOK_S

    def look(self, limit: int | None = _READ_BYTES) -> list[dict[str, Any]]:
        """Read what is new, at most a megabyte at a time; does nothing where the last look was a moment ago."""
        with self._lock:
            now = time.monotonic()
            if self.whole and now - self._looked < self._every:
                return []
            self._looked = now
            lines = super().look(limit)
            for line in lines:
                self._take(line)
            if now - self._asked > _DRIVER_S:
                self._asked = now
                name = None if (found := live_driver_of(self.folder)) is None else str(found)
                if name != self._driver:
                    self._driver = name
                    self.version += 1
            return lines

    def catch_up(self, limit_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Read up to the end, for so many seconds at most, or until it is ``over``. Raises: StorageError."""
        end = time.monotonic() + limit_s
        self.look()
        while not self.whole and time.monotonic() < end and not over():
            self.look()

    def _resume(self, stream: BinaryIO) -> None:
        before = self.state
        super()._resume(stream)
        if self.state is not before:
            self._changed.clear()
            self._curves.clear()
            self._seen = view.ColumnStats()
            self._settings = None
            self.generation += 1

    def _take(self, line: Mapping[str, Any]) -> None:
        self.version += 1
        if line["kind"] == "sweep":
            self._settings = None
        trial_id = line.get("trial")
        trial = self.state.trials.get(trial_id) if isinstance(trial_id, str) else None
        if trial is None:
            return
        self._changed[trial.id] = self.version
        self._changed.move_to_end(trial.id)
        if line["kind"] == "report":
            value = view.finite(line["metrics"], self.state.sweep.get("metric"))
            self._curves.setdefault(trial.id, view.Curve()).add(line, value)
        elif line["kind"] in ("trial", "config", "state"):
            self._seen.add(trial)

    # -- what a page gets

    def head(self) -> dict[str, Any]:
        """Return what is said of the sweep as a whole."""
        with self._lock:
            state = self.state
            until = state.updated if state.ended is not None or self._driver is None else time.time()
            return {
                **sweep_head(
                    state, self._seen, self.folder.name, self.standing(), until, space=self._sweep_file().get("space")
                ),
                "driven": self._driver is not None,
                "driver": self._driver,
                "read": 1.0 if self.whole else min(0.99, self.read / max(1, self.size)),
            }

    def _sweep_file(self) -> Mapping[str, Any]:
        """Return the sweep's settings; those of a resumed sweep are read anew."""
        if self._settings is None:
            try:
                self._settings = read_sweep_file(self.folder)
            except StorageError:
                self._settings = {}
        return self._settings

    def standing(self) -> str:
        """Return how it goes: "running", "cut off" where its driver died, or how it ended."""
        return self.state.ended or ("cut off" if self._driver is None else "running")

    def row(self, index: int, since: int) -> list[dict[str, Any]]:
        """Return one trial, with all of its configuration as text, if it has changed after version ``since``."""
        with self._lock:
            trial = self.one(index)
            if trial is None or self._changed.get(trial.id, 0) <= since:
                return []
            words = [f"{key}={json.dumps(value, default=str)}" for key, value in flatten(trial.config).items()]
            text = shlex.join(words)
            return [{**view.row(self.state, trial), "variant": text if len(text) < _MOST_VARIANT else ""}]

    def rows(self, since: int) -> list[dict[str, Any]]:
        """Return the trials that have changed after version ``since``, the earliest change first."""
        with self._lock:
            first = len(self.state.trials) - MOST_ROWS
            changed = []
            for trial_id, version in reversed(self._changed.items()):
                if version <= since:
                    break
                trial = self.state.trials[trial_id]
                if trial.index >= first:
                    changed.append(trial)
            return [view.row(self.state, trial) for trial in reversed(changed)]

    def one(self, index: int) -> TrialState | None:
        """Return a trial by its number; None where there is none."""
        with self._lock:
            return next((trial for trial in self.state.trials.values() if trial.index == index), None)

    def curves(self, sent: dict[int, int]) -> dict[str, Any]:
        """Return the curves to show that a page lacks or that have grown, and which are no longer shown.

        Args:
            sent: by trial, the version of the curve that the page has; it is brought up to date.
        """
        with self._lock:
            trials, reported = with_curves(self.state)
            shown = {trial.index: trial.id for trial in trials}
            grown = {}
            for index, trial_id in shown.items():
                version = self._changed.get(trial_id, 0)
                if sent.get(index, -1) < version:
                    sent[index] = version
                    grown[index] = self._curves[trial_id].points()
            gone = [index for index in sent if index not in shown]
            for index in gone:
                del sent[index]
            return {"curves": grown, "gone": gone, "of": reported}


class SweepList:
    """All sweeps below a storage folder, with a summary of each; only those that have changed are read again."""

    MOST: Final = 500
    """Sweeps that a page lists: the last written."""
    _KEPT: Final = 8
    """Watches of sweeps that nobody drives which are kept for the next page."""

    def __init__(self, find: Callable[[], Iterable[Found]], every_s: float = _DRIVER_S) -> None:
        self._find, self._every = find, every_s
        self._folders: dict[str, tuple[Path, float]] = {}
        self._summaries: dict[str, tuple[float, dict[str, Any]]] = {}
        self._watches: OrderedDict[str, SweepWatch] = OrderedDict()
        self._lock = threading.RLock()
        self._looked = -math.inf
        self.error: str | None = None

    def names(self) -> list[str]:
        """Return the names of the sweeps that there are now, the last written first."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= self._every:
                self._looked = now
                try:
                    found = [each for each in self._find() if _TEXT.fullmatch(each.folder.name)]
                    self._folders = {sweep.folder.name: (sweep.folder, sweep.written) for sweep in found}
                    self.error = None
                    for name in self._watches.keys() - self._folders.keys():
                        del self._watches[name]
                except Exception as error:  # noqa: BLE001 - the page says what is wrong, and looks again
                    self.error = str(error)
            return list(self._folders)

    def watch(self, name: str) -> SweepWatch | None:
        """Return the watch of a sweep, which pages share; None where there is no such sweep. Raises: StorageError.

        No path is made of the name, which a request may say.
        """
        if name not in self._folders:
            self._looked = min(self._looked, time.monotonic() - self._every)
            self.names()
        if (known := self._folders.get(name)) is None:
            return None
        made = self._watches.get(name) or SweepWatch(known[0])  # may read it from a store
        with self._lock:
            found = self._watches.setdefault(name, made)
            self._watches.move_to_end(name)
            idle = [key for key, watch in self._watches.items() if watch.standing() != "running"]
            for key in idle[: -self._KEPT]:
                if key != name:  # which may be new, and not read yet
                    del self._watches[key]
            return found

    def summaries(self, budget_s: float = 0.3) -> tuple[list[dict[str, Any]], int]:
        """Return a summary of each sweep, and how many are to be read yet; reading ends after ``budget_s``."""
        end, found, left = time.monotonic() + budget_s, [], 0
        names = self.names()
        for name in names[: self.MOST]:
            with self._lock:
                known = self._folders.get(name)
                last = self._summaries.get(name)
            if known is None:
                continue
            stamp = known[1]
            same = last is not None and last[0] == stamp and not last[1]["live"]
            if same or time.monotonic() > end:
                left += not same
                found += [last[1]] if last is not None else []
                continue
            summary = self._summary(name)
            found.append(summary)
            if summary.get("read", 1.0) < 1.0:
                left += 1
            else:
                with self._lock:
                    self._summaries[name] = stamp, summary
        with self._lock:
            for name in self._summaries.keys() - set(names):
                del self._summaries[name]
        return found, left

    def _summary(self, name: str) -> dict[str, Any]:
        try:
            watch = self.watch(name)
            if watch is None:
                return {"name": name, "state": "removed", "live": False}
            watch.catch_up(0.2)
            head = watch.head()
        except Exception as error:  # noqa: BLE001 - a sweep that cannot be read must not hide the others
            return {"name": name, "state": "unreadable", "error": view.plain(str(error), 400), "live": False}
        left_out = ("events", "rungs", "driver", "columns")
        best = head["best"] and {"trial": head["best"]["trial"], "value": head["best"]["value"]}
        return {
            **{key: value for key, value in head.items() if key not in left_out},
            "best": best,
            "live": head["state"] == "running" or head["read"] < 1.0,
        }

    def any_driven(self) -> bool:
        """Tell whether a process runs one of the sweeps that were written lately."""
        recent = [folder for folder, written in self._folders.values() if time.time() - written < _RECENT_S][:50]
        try:
            return any(live_driver_of(folder) is not None for folder in recent)
        except Exception:  # noqa: BLE001 - a store that does not answer now may do so at the next look
            return True


def encode(message: Mapping[str, Any]) -> str:
    """Return a message as JSON without line breaks."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)
