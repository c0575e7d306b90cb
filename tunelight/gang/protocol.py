"""The run protocol: what a gang does for those who run tasks on it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tunelight.gang.spec import GangSpec
from tunelight.messages import Answer, Decision, Event, WorkerError
from tunelight.session.task import Task

AnswerT = TypeVar("AnswerT", bound=Answer)


class TrainingGang(Protocol):
    """Workers that train one task after another: ``Gang`` in its head's process, and the tests' twins of it.

    ``heal`` makes the gang fit for a task, ``start`` starts one, and ``next_event`` yields its events until every rank
    has ended, with ``answer`` or ``ask`` in between. ``finish`` and ``fail`` end a task that is running.
    """

    spec: GangSpec
    trials: int
    """How many tasks have been started, restarts included."""
    late: list[Event]
    """Events that came while the last failed task was ended."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def running(self) -> bool:
        """True while a rank has not ended, or has left events to read."""

    def heal(self, size: int | None = None) -> None:
        """Replace lost workers and let at most ``size`` ranks meet (None: all that there are). Raises: GangError."""

    def want(self, size: int | None) -> None:
        """Keep workers for ``size`` ranks from now on (None: for all); release those beyond."""

    def ready(self) -> int:
        """Return how many more workers could join at the next ``heal``; request missing ones. It does not wait."""

    def start(self, task: Task) -> None:
        """Start a task on every rank."""

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event; None when none came within ``timeout_s`` seconds."""

    def answer(self, decision: Decision) -> int:
        """Send a decision to the ranks; return the serial that the answer to it carries."""

    def ask(self, decision: Decision, kind: type[AnswerT]) -> AnswerT | None:
        """Send a decision and return its answer; None if the task ended before that came."""

    def fail(self, first: WorkerError) -> WorkerError:
        """End a task in which a rank has failed, on all ranks; return the error that caused it."""

    def finish(self, *, reason: str) -> list[Event]:
        """End the running task within a limit; return the events that came meanwhile."""
