"""Lockstep: compares what the ranks of a gang are about to do together, over the gang's store."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunelight.messages import Place
from tunelight.session.mailbox import RankChannel, await_message


class Lockstep:
    """Each rank's acts in its own order, compared with those of the others. Runs on: worker.

    ``aborted`` returns why the trial was aborted, if it was. ``limit_s``: how long the slowest rank may take.
    """

    def __init__(self, place: Place, channel: RankChannel, aborted: Callable[[], str | None], limit_s: float) -> None:
        self._place, self._channel, self._aborted, self._limit_s = place, channel, aborted, limit_s
        self._round = self._number = 0
        self._sent: list[str] = []

    def begin(self) -> None:
        """Begin a new count. All ranks do so equally often."""
        self._round, self._number = self._round + 1, 0

    def note(self, act: str) -> None:
        """Tell the other ranks of this rank's next act, without waiting for theirs."""
        if self._place.world_size == 1:
            return
        self._number += 1
        turn = self._turn(self._place.rank)
        self._channel.broadcast(turn, act)
        self._sent.append(turn)

    def compare(self, act: str) -> list[str | None]:
        """Tell the others of this rank's next act; return the act of the same number of each rank.

        None for a rank that has come to none within the limit. A rank that has found a difference goes no further:
        others that wait for it get its last act. Raises: TrialStopped if the trial was aborted.
        """
        self.note(act)
        deadline = time.monotonic() + self._limit_s
        acts = []
        for rank in range(self._place.world_size):
            turns = (self._turn(rank), self._turn(rank, "last"))
            left_s = deadline - time.monotonic()
            own = rank == self._place.rank
            acts.append(act if own else await_message(self._channel, turns, left_s, self._aborted))
        if set(acts) != {act}:
            self._channel.broadcast(self._turn(self._place.rank, "last"), act)
        for turn in self._sent[:-1]:  # every rank has come this far, and so has read them
            self._channel.delete(turn)
        del self._sent[:-1]
        return acts

    def _turn(self, rank: int, number: int | str | None = None) -> str:
        return f"act/{self._round}/{rank}/{self._number if number is None else number}"
