"""How decisions reach the ranks: rank 0's mailbox, and the messages that it broadcasts."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from tunelight.errors import GangError
from tunelight.messages import Adopt, Continue, Decision, Offer, Save, Stop

_Taken = TypeVar("_Taken", bound=Decision)


class RankChannel(Protocol):
    """Carries messages from rank 0 to the other ranks of its gang, one for each turn.

    Decisions have turns 1, 2, ...; whether report n writes a checkpoint has turn -n. What rank 0 makes for all
    ranks has a name as its turn.
    """

    def broadcast(self, turn: int | str, message: str) -> None:
        """Send rank 0's message for ``turn``."""

    def receive(self, turn: int | str, timeout_s: float) -> str | None:
        """Return rank 0's message for ``turn``; None if it does not arrive within ``timeout_s`` seconds."""


class Mailbox:
    """Rank 0's decisions as they arrive from the head, in any order; thread-safe, one waiter."""

    def __init__(self, until: int | None = 1) -> None:
        self._until: float = math.inf if until is None else until
        self._queue: deque[Decision] = deque()
        self._changed = threading.Condition()
        self._aborted: str | None = None

    @property
    def aborted(self) -> str | None:
        """Why the trial was called off, if it was."""
        return self._aborted

    def put(self, decision: Decision) -> None:
        """Hand in a decision."""
        with self._changed:
            if isinstance(decision, Continue):
                until = math.inf if decision.until is None else decision.until
                self._until = max(self._until, until)  # what was allowed once stays so
            else:
                self._queue.append(decision)
            self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Call the trial off: whoever waits here stops waiting."""
        with self._changed:
            self._aborted = reason
            self._changed.notify_all()

    def take(self, number: int, timeout_s: float) -> Decision:
        """Return the decision for report ``number``; wait for it if the trial may not run on unasked.

        Raises: GangError when none came within ``timeout_s`` seconds.
        """

        def next_one() -> Decision | None:
            if self._queue:
                return self._queue.popleft()
            return Continue() if number < self._until else None

        what = f"the decision on report {number} and none came: is the sweep's driver still alive?"
        return self._wait(next_one, timeout_s, what) or Stop(self._aborted or "")

    def take_adopt(self, serial: int, timeout_s: float) -> Adopt | None:
        """Return the order to adopt that rank 0 has said the word for, by its serial; None when it was called off.

        A reference cannot be said in a word, so each rank has it from the head. Earlier orders, which rank 0 never
        came to, are dropped. Raises: GangError when it does not come within ``timeout_s`` seconds.
        """

        def next_one() -> Adopt | None:
            found = next((one for one in self._queue if isinstance(one, Adopt) and one.serial == serial), None)
            if found is not None:
                self._queue = deque(one for one in self._queue if isinstance(one, Adopt) and one.serial > serial)
            return found

        what = "what rank 0 has begun to adopt, and it did not come: is the trial's head still alive?"
        return self._wait(next_one, timeout_s, what)

    def _wait(self, next_one: Callable[[], _Taken | None], timeout_s: float, what: str) -> _Taken | None:
        """Return what ``next_one`` finds, as soon as it does; None when the trial was called off."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._aborted is not None or next_one(), timeout_s)
        if not found:
            raise GangError(f"Waited {timeout_s:.0f} s for {what}")
        return None if isinstance(found, bool) else found


_WORDS: dict[type, str] = {Continue: "continue", Save: "save", Offer: "offer", Adopt: "adopt"}
_DECISIONS: dict[str, Decision] = {"continue": Continue(), "save": Save(), "offer": Offer()}


def to_message(decision: Decision) -> str:
    """Return a decision as rank 0's word."""
    if isinstance(decision, Stop):
        return f"stop {decision.reason}"
    word = _WORDS[type(decision)]
    return f"{word} {decision.serial}" if isinstance(decision, Adopt) else word


def from_message(word: str) -> Decision:
    """Return the decision that a word stands for; of one to adopt, the serial alone: the rest is in the mailbox."""
    verb, _, rest = word.partition(" ")
    if verb == "adopt":
        return Adopt(None, {}, serial=int(rest))
    return _DECISIONS.get(verb) or Stop(rest)


def numbered(decision: Decision, serial: int) -> Decision:
    """Return a decision with the serial that its answer is to carry; ``Continue`` is not answered and has none."""
    return decision if isinstance(decision, Continue) else replace(decision, serial=serial)
