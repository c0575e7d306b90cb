"""In-process twins of remote things, held to the same contract as the real ones."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import traceback
from dataclasses import replace
from typing import Any

import cloudpickle

from tunelight.checkpoints.writer import CheckpointWriter
from tunelight.errors import GangError, TrialStopped
from tunelight.gang.placement import Location
from tunelight.gang.spec import GangSpec
from tunelight.messages import Decision, Ended, Event, Hurry, Place, Stop, WorkerError
from tunelight.session import session as sessions
from tunelight.session.mailbox import Mailbox, numbered
from tunelight.session.task import Start, Task


class MemoryControl:
    """Rank 0's words in a dict; the ranks may be threads."""

    def __init__(self) -> None:
        self.words: dict[int | str, str] = {}
        self._said = threading.Condition()

    def broadcast(self, turn: int | str, word: str) -> None:
        with self._said:
            self.words[turn] = word
            self._said.notify_all()

    def receive(self, turn: int | str, timeout_s: float) -> str | None:
        with self._said:
            self._said.wait_for(lambda: turn in self.words, timeout_s)
            return self.words.get(turn)

    def delete(self, turn: int | str) -> None:
        with self._said:
            self.words.pop(turn, None)


class MemoryStore:
    """A store within one process, in place of Ray's: a value is its own reference."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any, timeout_s: float) -> Any:
        return reference


class FakeGang:
    """A gang of one rank that is a thread of this process; the protocol of ``tunelight.gang.gang.Gang``."""

    formed = 0

    def __init__(self, spec: GangSpec, group: Any = None) -> None:
        self.spec = spec
        self.size = 0
        self.name, self.met_at = "fake", 0.0
        self.locations: list[Location] = []
        self.closed, self.met = False, True
        self.trials = 0
        self.wanted: int | None = None
        """How many seats were asked for last."""
        self.unfit: str | None = None
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._buffer: list[Event] = []
        self._mailbox = Mailbox(1)
        self._serial = 0
        self._writing: CheckpointWriter | None = None
        self._ended = True
        self._starts = 0

    @classmethod
    def form(cls, spec: GangSpec, group: Any = None) -> FakeGang:
        gang = cls(spec, group)
        gang.heal()
        return gang

    def __enter__(self) -> FakeGang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return bool(self._buffer) or not self._ended

    @property
    def warm(self) -> bool:
        return self._starts > 1

    def heal(self, size: int | None = None) -> None:
        if self.closed:
            raise GangError("The gang cannot be used again: it was closed.")
        if self.size == 0:
            type(self).formed += 1
            self.locations, self.met_at = [Location("node-1", "127.0.0.1", os.getpid(), "host")], time.time()
        if self.unfit is not None:  # rank 0's process is another one
            self._starts = 0
        self.size, self.unfit = 1, None
        self.wanted = size

    def want(self, size: int | None) -> None:
        self.wanted = size

    def ready(self) -> int:
        return 0

    def start(self, task: Task, start: Start) -> None:
        self.trials += 1
        self._starts += 1
        self._ended = False
        self._buffer = []
        self._events = queue.SimpleQueue()
        self._mailbox = Mailbox(start.until)
        start = replace(start, serial=self.trials)
        place = Place(0, 1, 0, 1, 0, "127.0.0.1")
        session = sessions.Session(
            task, start, place, MemoryControl(), self._events.put, self._mailbox, store=MemoryStore()
        )
        self._writing = session.writing
        args = (task, session, self._events.put)
        self.thread = threading.Thread(target=self._run, args=args, daemon=True)
        self.thread.start()

    @staticmethod
    def _run(task: Task, session: sessions.Session, post: Any) -> None:
        sessions.set_current(session)
        ended = Ended(0)
        try:
            train = cloudpickle.loads(task.train)
            session.begin()
            train(session.start.config)
            session.check_finished()
        except TrialStopped:
            ended = Ended(0, stopped=True)
        except BaseException as error:  # noqa: BLE001 - as the worker does
            text = "".join(traceback.format_exception(error))
            ended = Ended(0, error=WorkerError(0, "here", type(error).__name__, str(error), text))
        finally:
            sessions.set_current(None)
            with contextlib.suppress(Exception):
                session.writing.settle()
        post(ended)

    def answer(self, decision: Decision) -> int:
        self._serial += 1
        self._mailbox.put(numbered(decision, self._serial))
        return self._serial

    def hurry(self) -> None:
        self._mailbox.put(Hurry())

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        if self._ended and not self._buffer:
            return None
        try:
            event = self._buffer.pop(0) if self._buffer else self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._ended = self._ended or isinstance(event, Ended)
        return event

    @property
    def arrived(self) -> tuple[Event, ...]:
        with contextlib.suppress(queue.Empty):
            while True:
                self._buffer.append(self._events.get_nowait())
        return tuple(self._buffer)

    def ends_well(self, limit_s: float) -> bool:
        return isinstance(self.arrived[-1], Ended) and self.arrived[-1].error is None

    def ask(self, decision: Decision, kind: type[Any]) -> Any:
        serial = self.answer(decision)
        kept: list[Event] = []
        found = None
        while found is None and (self._buffer or not self._ended):
            event = self.next_event(10)
            if isinstance(event, kind) and event.answers == serial:
                found = event
            elif event is not None:
                kept.append(event)
        self._buffer = kept + self._buffer
        return found

    def finish(self, limit_s: float = 10.0, reason: str = "stopped") -> list[Event]:
        if not self.running:
            return []
        self.answer(Stop(reason))
        late: list[Event] = []
        deadline = time.monotonic() + limit_s
        while self.running:
            if self._writing is not None and self._writing.busy:
                deadline = max(deadline, time.monotonic() + 1.0)
            if (left := deadline - time.monotonic()) <= 0:
                break
            event = self.next_event(min(left, 0.2))
            if event is not None:
                late.append(event)
        if self.running:
            self.unfit = f"rank 0 did not stop within {limit_s:.0f} s"
        return late

    def fail(self, first: WorkerError) -> tuple[WorkerError, list[Event]]:
        return first, []

    def close(self) -> None:
        if self.running:
            self._mailbox.abort("closed")
        self._ended = self.closed = True
        self._buffer = []
        self.unfit = self.unfit or "it was closed"
