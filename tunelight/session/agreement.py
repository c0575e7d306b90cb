"""Agreement: all ranks act on the same decision at the same report."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunelight.errors import GangError
from tunelight.messages import Adopt, Decision, Place, Stop
from tunelight.session.mailbox import Mailbox, RankChannel, await_message, from_message, to_message

ANSWER_LIMIT_S = 3600.0
"""How long a report waits for a decision. Synchronous schedulers may take their time; none takes an hour."""
MEET_LIMIT_S = 5.0
"""How long rank 0 waits for the others at the end of a training step at which all are to leave; twice."""
_ENDED, _WRITE, _SKIP, _READY = "ended", "write", "skip", "ready"


class Agreement:
    """Rank 0 decides and broadcasts; the other ranks wait for it. Runs on: worker.

    ``mailbox``: decisions from the head; on ranks other than 0, only states to adopt and an abort.
    """

    def __init__(self, place: Place, channel: RankChannel, mailbox: Mailbox) -> None:
        self._place, self._channel, self._mailbox = place, channel, mailbox
        self._turn = 0
        self._calls: dict[str, int] = {}
        """Name of a meeting -> the step at whose end it is."""

    def decide(self, number: int, decide: Callable[[], Decision]) -> Decision:
        """Return the gang's next decision at report ``number``; ``decide`` makes it, on rank 0.

        Raises: GangError if it does not arrive, or if this rank reports more often than rank 0; TrialStopped after an
        abort.
        """
        self._turn += 1
        if self._place.rank == 0:
            decision = decide()
            self._broadcast(self._turn, to_message(decision))
            return decision
        received = from_message(self._receive(self._turn, number))
        if isinstance(received, Adopt):
            return self._mailbox.take_adopt(received.serial, ANSWER_LIMIT_S) or Stop(self._mailbox.aborted or "stopped")
        return received

    def writes(self, number: int, admit: Callable[[], bool]) -> bool:
        """Return whether report ``number`` writes a checkpoint; ``admit`` decides it, on rank 0."""
        if self._place.rank == 0:
            admitted = admit()
            self._broadcast(-number, _WRITE if admitted else _SKIP)
            return admitted
        return self._receive(-number, number) == _WRITE

    def refused(self, file: str) -> bool:
        """Return whether the storage has refused rank 0's part of a file, once it has refused this rank's."""
        turn = f"refused {file}"
        if self._place.rank == 0:
            self._broadcast(turn, _SKIP)
            return True
        return await_message(self._channel, [turn], MEET_LIMIT_S, lambda: self._mailbox.aborted) is not None

    def agree(self, key: str, value: str, number: int, *, end: str = "", past: str = "") -> str:
        """Return rank 0's ``value`` of ``key``, after report ``number``. Raises: TrialStopped after an abort.

        ``end``: another key, whose value is returned if rank 0 has come to that one. ``past``: a key that every rank
        has read.
        """
        if self._place.rank == 0:
            self._broadcast(key, value)
            if past:
                self._channel.delete(past)
            return value
        return self._receive(key, number, *([end] if end else []))

    def meets(self, what: str, step: int, where: str, *, calls: bool) -> bool | None:
        """Return whether all ranks are at the end of this step, of those that each of them counts; None: not yet.

        Rank 0 calls for the step after its own, where ``calls`` says so. No rank can have gone beyond that in training
        that reduces gradients in each step, and so every rank hears of it in time; elsewhere one may have, and all get
        False. ``what``: the name of the meeting, another one each time. ``where`` has to be equal on all ranks, too.
        Raises: TrialStopped after an abort.
        """
        lead = self._place.rank == 0
        if what not in self._calls:
            called = (str(step + 1) if calls else None) if lead else self._channel.receive(what, 0)
            if called is None:
                return None
            self._calls[what] = int(called)
            if lead:
                self._broadcast(what, called)
        return None if step < self._calls[what] else self._all_at(what, where, lead=lead)

    def _all_at(self, what: str, where: str, *, lead: bool) -> bool:
        """Return on each rank whether all of them have come to the same place, and wait there."""

        def heard(limit_s: float, *turns: str) -> str | None:
            return await_message(self._channel, turns, limit_s, lambda: self._mailbox.aborted)

        mine = f"{what}/{self._place.rank}"
        if not lead:
            self._broadcast(mine, where)
            if heard(2 * MEET_LIMIT_S, f"{what}/ready", f"{what}/all") != _READY:
                return False  # and rank 0 will not hear that this rank waits
            self._broadcast(f"{mine}/waits", where)
            return heard(12 * MEET_LIMIT_S, f"{what}/all") == _WRITE
        met = True
        for suffix in ("", "/waits"):
            end = time.monotonic() + MEET_LIMIT_S
            others = (f"{what}/{rank}{suffix}" for rank in range(1, self._place.world_size))
            met = met and all(heard(end - time.monotonic(), other) == where for other in others)
            if met and not suffix:
                self._broadcast(f"{what}/ready", _READY)
        self._broadcast(f"{what}/all", _WRITE if met else _SKIP)
        return met

    def end(self, number: int) -> None:
        """Make a rank fail that reports once more after rank 0's last report, ``number``, in place of waiting."""
        if self._place.rank == 0:
            for turn in (self._turn + 1, -number - 1):
                self._broadcast(turn, _ENDED)

    def _broadcast(self, turn: int | str, message: str) -> None:
        if self._place.world_size > 1:
            self._channel.broadcast(turn, message)

    def _receive(self, turn: int | str, number: int, *others: str) -> str:
        """Return rank 0's message for ``turn``, or for one of the others."""
        message = await_message(self._channel, [turn, *others], ANSWER_LIMIT_S, lambda: self._mailbox.aborted)
        if message == _ENDED:
            raise GangError(
                f"Rank {self._place.rank} made report {number}, but rank 0's train function has returned before "
                "it: every rank has to report equally often."
            )
        if message is None:
            raise GangError(
                f"Rank {self._place.rank} reached report {number} and rank 0 did not within "
                f"{ANSWER_LIMIT_S:.0f} s: every rank has to report equally often."
            )
        return message
