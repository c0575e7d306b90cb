"""What the ranks of a trial have in common beside rank 0's words: values that rank 0 makes once, for all of them.

A reference into Ray's object store, or a handle of an actor, cannot be said in a word: the word says that it is there,
and the other ranks fetch it. Nothing here knows Ray or torch; what is needed of them is handed in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tunelight.errors import DataError, TrialStopped
from tunelight.messages import DatasetHandle
from tunelight.session.mailbox import RankChannel

MAKE_LIMIT_S = 3600.0
"""How long rank 0 may take to make what all wait for: it may read and preprocess a whole dataset."""
_POLL_S = 0.2
_MADE, _FAILED = "made", "failed "

T = TypeVar("T")


class MadeByRankZero:
    """What rank 0 makes once for all ranks of a trial, and what has to be undone when the trial ends.

    Runs on: worker.

    Args:
        lead: True on rank 0. alone: True where there is no other rank.
        channel: carries rank 0's messages. given: where rank 0 keeps what others fetch by key.
        fetch: returns what rank 0 keeps under a key. aborted: why the trial was called off, if it was.
        datasets: the sweep's datasets.
    """

    def __init__(
        self,
        channel: RankChannel,
        *,
        lead: bool,
        alone: bool,
        given: dict[str, Any],
        fetch: Callable[[str], Any],
        aborted: Callable[[], str | None] = lambda: None,
        datasets: DatasetHandle | None = None,
    ) -> None:
        self.datasets = datasets or DatasetHandle()
        self._channel, self._lead, self._alone = channel, lead, alone
        self._given, self._fetch, self._aborted = given, fetch, aborted
        self._asked: dict[str, int] = {}
        self._undo: list[Callable[[], object]] = []

    def once(self, key: str, make: Callable[[], T], limit_s: float = MAKE_LIMIT_S) -> T:
        """Return what rank 0 makes; call it on every rank, equally often for each key.

        Raises: what ``make`` raises, on rank 0; DataError on the others where it failed there, or did not come within
        ``limit_s`` seconds; TrialStopped when the trial was called off meanwhile.
        """
        count = self._asked[key] = self._asked.get(key, 0) + 1
        key = f"{key}/{count}"
        if self._alone:
            return make()
        if not self._lead:
            fetched: T = self._wait(key, limit_s)
            return fetched
        try:
            value = make()
        except BaseException as error:
            self._channel.broadcast(key, f"{_FAILED}{type(error).__name__}: {error}")
            raise
        self._given[key] = value
        self._channel.broadcast(key, _MADE)
        return value

    def _wait(self, key: str, limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self.check()
            word = self._channel.receive(key, _POLL_S)
            if word == _MADE:
                return self._fetch(key)
            if word is not None:
                raise DataError(f"Rank 0 could not open {key.rsplit('/', 1)[0]}: {word.removeprefix(_FAILED)}")
        raise DataError(
            f"Waited {limit_s:.0f} s for rank 0 to open {key.rsplit('/', 1)[0]}. Every rank has to ask for the same "
            "datasets, equally often."
        )

    def check(self) -> None:
        """Raise TrialStopped if the trial was called off: for whoever waits for something else."""
        if (reason := self._aborted()) is not None:
            raise TrialStopped(reason)

    def at_end(self, undo: Callable[[], object]) -> None:
        """Have ``undo`` called when the trial ends on this rank, however it does."""
        self._undo.append(undo)

    def end(self) -> None:
        """Undo what is to be undone, the last first, and let go of what was made."""
        while self._undo:
            with contextlib.suppress(Exception):  # what it holds may be gone already
                self._undo.pop()()
        self._given.clear()
