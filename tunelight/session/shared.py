"""Values that rank 0 of a trial makes once for all ranks.

A message cannot carry a reference into Ray's object store or a handle of an actor: it says that the value exists, and
the other ranks fetch it. Nothing here knows Ray or torch; what is needed of them is passed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from tunelight.errors import DataError, TrialStopped
from tunelight.messages import DatasetHandle
from tunelight.session.mailbox import RankChannel, await_message

MAKE_LIMIT_S = 3600.0
"""How long rank 0 may take to make a value: it may read and preprocess a dataset."""
_MADE, _FAILED = "made", "failed "

T = TypeVar("T")


class MadeByRankZero:
    """Makes values on rank 0 for all ranks of a trial, and cleans up when the trial ends. Runs on: worker.

    Args:
        lead: True on rank 0. alone: True if there is no other rank.
        channel: carries rank 0's messages. given: rank 0's values by key.
        fetch: returns rank 0's value of a key. aborted: returns why the trial was aborted, None if it was not.
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
        """Return the value that ``make`` returns on rank 0; call it on every rank, equally often for each key.

        Raises: what ``make`` raises, on rank 0; DataError on the others if it failed there, or took longer than
        ``limit_s`` seconds; TrialStopped if the trial was aborted meanwhile.
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
        message = await_message(self._channel, [key], limit_s, self._aborted)
        if message == _MADE:
            return self._fetch(key)
        if message is not None:
            raise DataError(f"Rank 0 could not open {key.rsplit('/', 1)[0]}: {message.removeprefix(_FAILED)}")
        raise DataError(
            f"Waited {limit_s:.0f} s for rank 0 to open {key.rsplit('/', 1)[0]}. Every rank has to ask for the same "
            "datasets, equally often."
        )

    def check(self) -> None:
        """Raise TrialStopped if the trial was aborted; for code that waits for something else."""
        if (reason := self._aborted()) is not None:
            raise TrialStopped(reason)

    def at_end(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` when the trial ends on this rank, for whatever reason."""
        self._undo.append(undo)

    def end(self) -> None:
        """Call what :meth:`at_end` was given, the last first, and drop all values."""
        while self._undo:
            with contextlib.suppress(Exception):  # its actor may be gone already
                self._undo.pop()()
        self._given.clear()
