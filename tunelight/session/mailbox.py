"""How decisions reach the ranks: rank 0's mailbox, and the messages that it broadcasts."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tunelight.errors import GangError, TrialStopped
from tunelight.messages import Adopt, Continue, Decision, Hurry, Offer, Save, Stop

_POLL_S = 0.2
_Taken = TypeVar("_Taken", bound=Decision)


class RankChannel(Protocol):
    """Carries messages from rank 0 to the other ranks of its gang, one for each turn.

    Decisions have turns 1, 2, ...; whether report n writes a checkpoint has turn -n. What rank 0 makes for all
    ranks has a name as its turn. Any rank may send a message under a name that has its rank in it (`Agreement`).
    """

    def broadcast(self, turn: int | str, message: str) -> None:
        """Send rank 0's message for ``turn``."""

    def receive(self, turn: int | str, timeout_s: float) -> str | None:
        """Return rank 0's message for ``turn``; None if it does not arrive within ``timeout_s`` seconds."""

    def delete(self, turn: str) -> None:
        """Delete this rank's message for ``turn``, which every rank has read."""


def await_message(
    channel: RankChannel, turns: Sequence[int | str], limit_s: float, aborted: Callable[[], str | None]
) -> str | None:
    """Return the first message that comes for one of ``turns``; None if none does within ``limit_s`` seconds.

    ``aborted`` returns why the trial was aborted, if it was. Raises: TrialStopped in that case.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if (reason := aborted()) is not None:
            raise TrialStopped(reason)
        for turn in turns:
            if (message := channel.receive(turn, _POLL_S if turn == turns[0] else 0.001)) is not None:
                return message
    return None


class Mailbox:
    """The head's decisions for one rank, queued until a report takes them. Thread-safe; one thread waits at a time."""

    def __init__(self, until: int | None = 1) -> None:
        self._until: float = math.inf if until is None else until
        self._queue: deque[Decision] = deque()
        self._changed = threading.Condition()
        self.aborted: str | None = None
        """The reason for which the trial was aborted; None if it was not."""
        self.hurried = False
        """Whether the gang has to leave its nodes soon: a stop counts at the end of a training step as well."""

    @property
    def leaving(self) -> bool:
        """Whether a stop is among the next decisions for which a checkpoint is to be written. Runs on: rank 0."""
        with self._changed:
            return any(isinstance(decision, Stop) and decision.save for decision in self._queue)

    @property
    def saves(self) -> bool:
        """Whether the next decision asks for a checkpoint. Runs on: rank 0."""
        return self.leaving or isinstance(self._first, Save)

    @property
    def acts(self) -> bool:
        """Whether ranks that meet at the end of a training step act on the next decision. Runs on: rank 0."""
        return isinstance(self._first, Save | Stop | None)

    @property
    def _first(self) -> Decision | None:
        with self._changed:
            return self._queue[0] if self._queue else None

    def put(self, decision: Decision) -> None:
        """Queue a decision; ``Continue`` only raises the report up to which training needs no decision."""
        with self._changed:
            if isinstance(decision, Continue):
                until = math.inf if decision.until is None else decision.until
                self._until = max(self._until, until)  # decisions may arrive in another order than they were sent
            elif isinstance(decision, Hurry):
                self.hurried = True
            else:
                self._queue.append(decision)
            self._changed.notify_all()

    def holds(self, number: int) -> bool:
        """Tell whether report ``number`` waits for an answer."""
        return number >= self._until

    def abort(self, reason: str) -> None:
        """Abort the trial; calls that wait here return at once."""
        with self._changed:
            self.aborted = reason
            self._changed.notify_all()

    def take(self, number: int, timeout_s: float) -> Decision:
        """Return the decision for report ``number``; wait for it if the trial may not continue without.

        Raises: GangError if none arrives within ``timeout_s`` seconds.
        """

        def next_one() -> Decision | None:
            if self._queue:
                return self._queue.popleft()
            return None if self.holds(number) else Continue()

        what = f"the decision on report {number} and none came: is the sweep's driver still alive?"
        return self._wait(next_one, timeout_s, what) or Stop(self.aborted or "")

    def take_adopt(self, serial: int, timeout_s: float) -> Adopt | None:
        """Return the ``Adopt`` with the serial that rank 0 has broadcast; None if the trial was aborted.

        A message cannot carry a reference into an object store, so the head sends each rank its ``Adopt``. Those with
        lower serials are dropped: rank 0 never took them. Raises: GangError if it does not arrive within
        ``timeout_s`` seconds.
        """

        def next_one() -> Adopt | None:
            adopts = [decision for decision in self._queue if isinstance(decision, Adopt)]
            found = next((adopt for adopt in adopts if adopt.serial == serial), None)
            if found is not None:
                self._queue = deque(adopt for adopt in adopts if adopt.serial > serial)
            return found

        what = "what rank 0 has begun to adopt, and it did not come: is the trial's head still alive?"
        return self._wait(next_one, timeout_s, what)

    def _wait(self, next_one: Callable[[], _Taken | None], timeout_s: float, what: str) -> _Taken | None:
        """Return the first result of ``next_one`` that is not None; None if the trial was aborted."""
        with self._changed:
            found = self._changed.wait_for(lambda: self.aborted is not None or next_one(), timeout_s)
        if not found:
            raise GangError(f"Waited {timeout_s:.0f} s for {what}")
        return None if isinstance(found, bool) else found


_DECISIONS: dict[str, Decision] = {"continue": Continue(), "save": Save(), "offer": Offer()}


def to_message(decision: Decision) -> str:
    """Return a decision as a message of a :class:`RankChannel`."""
    if isinstance(decision, Stop):
        return f"stop {decision.reason}"
    if isinstance(decision, Adopt):
        return f"adopt {decision.serial}"
    return next(verb for verb, known in _DECISIONS.items() if type(known) is type(decision))


def from_message(message: str) -> Decision:
    """Return the decision that a message encodes; an ``Adopt`` has its serial only, the rest is in the mailbox."""
    verb, _, rest = message.partition(" ")
    if verb == "adopt":
        return Adopt(None, {}, serial=int(rest))
    return _DECISIONS.get(verb) or Stop(rest)


def numbered(decision: Decision, serial: int) -> Decision:
    """Return a decision with a serial, which its answer carries; ``Continue`` and ``Hurry`` have neither."""
    return decision if isinstance(decision, Continue | Hurry) else replace(decision, serial=serial)
