"""TrackingSearcher: a Searcher of a sweep, which is told of all of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher


class TrackingSearcher(Searcher):
    """A Searcher that tracks every trial, including those that it did not suggest, and how each one ended.

    ``notes``: remarks for the person who runs the sweep; ``learns``: whether earlier trials make a difference to it;
    ``sweeps``: the earlier sweeps that it has learned from.
    """

    notes: Sequence[str] = ()
    learns = False
    sweeps: Sequence[Path] = ()
    _seen = 0

    def _number(self, trial_id: str) -> int:
        """Return the trial's number: its id in a sweep, else counted here."""
        number = int(trial_id) if trial_id.isdecimal() else self._seen
        self._seen = max(self._seen, number + 1)
        return number

    def close(self, states: Mapping[str, str]) -> None:
        """End with the sweep; ``states``: trial id -> recorded state."""

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial that it did not suggest in this run: a baseline, or (``asked``) an earlier run's suggestion."""
        raise NotImplementedError

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """Learn how a trial ended, by its recorded state; ``result``: its last report, if any."""
        raise NotImplementedError
