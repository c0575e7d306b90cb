"""The head's side of a gang, without the workers; what it tells of them, and what they send together."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest
import ray
from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from tests.kit import tasks
from tests.kit.contract import GangContract
from tests.kit.fakes import FakeGang
from tests.kit.programs import held
from tests.kit.waiting import until
from tunelight.errors import GangError
from tunelight.gang import gang as gangs
from tunelight.gang import seat, worker
from tunelight.gang.gang import Gang
from tunelight.gang.placement import Location
from tunelight.gang.seat import Seat, _kill, _remains, await_ends
from tunelight.gang.spec import GangSpec
from tunelight.gang.watch import Sign
from tunelight.gang.worker import TrialBox
from tunelight.messages import Continue, Ended, Event, Report, Saved
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation


class Polls:
    """Ray's side of polls, each a list: of what it brings, or the error that it raises; without either, it waits on."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def wait(self, polls: list[Any], num_returns: int = 1, timeout: float | None = None) -> Any:
        ready = [poll for poll in polls if poll.answer is not None][:num_returns]
        return ready, [poll for poll in polls if poll not in ready]

    def get(self, poll: Any) -> Any:
        if isinstance(poll.answer, Exception):
            raise poll.answer
        return poll.answer, Sign()

    def worker(self, rank: int) -> Any:
        """Return a rank's actor that is asked, and answers nothing by itself."""

        def remote(*_: Any) -> Any:
            self.asked.append(mock.Mock(rank=rank, answer=None))
            return self.asked[-1]

        return SimpleNamespace(poll=SimpleNamespace(remote=remote), answer=SimpleNamespace(remote=remote))


LIMIT_S = 600.0


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a gang of two ranks that train, its polls, and a clock that the test sets."""
    polls, clock = Polls(), SimpleNamespace(now=0.0)
    gang = Gang(GangSpec(Reservation(2), FailurePolicy(hang_timeout_s=LIMIT_S)), None)
    gang.trials = 1
    gang.ranks = [Seat(gang.spec, worker=polls.worker(rank)) for rank in range(2)]
    gang.locations = [Location("node", "127.0.0.1", rank, "host") for rank in range(2)]
    monkeypatch.setattr(ray, "wait", polls.wait)
    monkeypatch.setattr(ray, "get", polls.get)
    monkeypatch.setattr("tunelight.gang.gang.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(Gang, "lose", lambda self, rank, reason: None)
    for rank in range(2):
        gang._ask(rank)
    return gang, polls, clock


def test_a_gang_runs_until_its_last_event_is_read(two: Any) -> None:
    """Rank 1 has ended; one poll of rank 0 then brings its last report and its end at once."""
    gang, polls, _ = two
    last = [Report(3, {"loss": 1.0}), Ended(0)]
    polls.asked[0].answer, polls.asked[1].answer = last, [Ended(1)]
    for rank in (1, 0):
        gang._take(rank, polls.asked[rank])
    read = []
    while gang.running:
        read.append(gang.next_event(0))
    assert read == [Ended(1), *last]


def test_a_worker_that_left_a_thread_is_ended_once_all_ranks_have_ended(two, monkeypatch) -> None:
    """Rank 0's process serves the store from which the others may read their last decision."""
    gang, polls, _ = two
    monkeypatch.setattr(gang, "lose", lose := mock.Mock())
    polls.asked[0].answer, polls.asked[1].answer = [Ended(0, left_behind=("a thread",))], [Ended(1)]
    gang._take(0, polls.asked[0])
    lose.assert_not_called()
    gang._take(1, polls.asked[1])
    lose.assert_called_once_with(0, "rank 0 left a thread")


def test_a_frozen_rank_is_noticed_although_the_other_one_reports_all_the_while(two: Any) -> None:
    gang, polls, clock = two
    number = 0
    while clock.now < 2 * LIMIT_S:
        number += 1
        clock.now += 10
        polls.asked[-1 if number > 1 else 0].answer = [Report(number, {"loss": 1.0})]
        event = gang.next_event()
        if isinstance(event, Ended):
            break
        assert isinstance(event, Report)
    assert (event.rank, event.error.cause) == (1, "unresponsive")


@pytest.mark.parametrize(("limit_s", "silent_s"), [(LIMIT_S, LIMIT_S - 1), (None, 100 * LIMIT_S)])
def test_a_rank_may_hold_the_gil_for_as_long_as_hang_timeout_s_says(two: Any, limit_s: Any, silent_s: float) -> None:
    gang, _, clock = two
    gang.spec = replace(gang.spec, failures=FailurePolicy(hang_timeout_s=limit_s))
    clock.now = silent_s
    gang._drop_silent()
    assert not gang._buffer


def test_a_rank_whose_answer_nobody_has_read_yet_is_not_frozen(two: Any) -> None:
    gang, polls, clock = two
    clock.now = 2 * LIMIT_S  # nobody asked for events, between two steps
    for poll in polls.asked:
        poll.answer = [Report(1, {"loss": 1.0})] if poll.rank == 0 else []
    assert isinstance(gang.next_event(), Report)
    assert not any(isinstance(event, Ended) for event in gang._buffer)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ActorDiedError(), "died"),
        (RaySystemError("cannot decode", "Traceback\nRuntimeError: Attempting to deserialize object"), "exception"),
    ],
)
def test_what_cannot_be_read_is_not_called_a_dead_process_and_not_tried_again(two: Any, error: Any, cause: str) -> None:
    gang, polls, _ = two
    polls.asked[0].answer = error
    error = gang.next_event().error
    assert error.cause == cause
    assert ("process died" in error.message) == (cause == "died")


def test_rank_0_hurries_once_the_others_have_heard_however_late_they_answer(two: Any) -> None:
    gang, polls, _ = two
    gang.hurry()
    told = polls.asked[2:]
    assert [call.rank for call in told] == [1]
    polls.asked[0].answer = [Report(1, {"loss": 1.0})]  # of rank 0, whose next poll follows
    gang.next_event()
    assert [call.rank for call in polls.asked[3:]] == [0], "rank 1 has not heard yet"
    told[0].answer = []
    polls.asked[3].answer = [Report(2, {"loss": 1.0})]
    gang.next_event()
    assert [call.rank for call in polls.asked[4:]] == [0, 0], "told to hurry, and asked for the next events"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> TrialBox:
    """A box whose trial has just begun, and trains to report 8 without an answer."""
    monkeypatch.setattr(worker, "_LINGER_S", 30.0)  # longer than the test may take: who waits for it fails
    box = TrialBox(1)
    box.mailbox.put(Continue(8))
    return box


def numbers(events: list[Event]) -> list[int]:
    return [event.number for event in events if isinstance(event, Report)]


def later(box: TrialBox, *events: Event) -> None:
    def post() -> None:
        for event in events:
            time.sleep(0.05)
            box.events.put(event)

    threading.Thread(target=post, daemon=True).start()


@pytest.mark.parametrize(
    "urgent", [Ended(0), Saved(None), Report(8, {})], ids=["end", "answer", "report that waits for an answer"]
)
def test_reports_are_sent_with_the_first_event_that_someone_waits_for(box: TrialBox, urgent: Event) -> None:
    later(box, Report(2, {}), Report(3, {}), urgent)
    events = box.read(5.0)
    assert numbers(events)[:2] == [2, 3]
    assert events[2] == urgent


def test_a_report_after_a_pause_is_sent_at_once_and_those_after_it_in_time(box, monkeypatch) -> None:
    monkeypatch.setattr(worker, "_LINGER_S", 0.2)
    time.sleep(0.25)
    box.events.put(Report(2, {}))
    began = time.monotonic()
    assert numbers(box.read(5.0)) == [2]
    assert time.monotonic() - began < 0.15
    later(box, Report(3, {}), Report(4, {}))
    assert numbers(box.read(5.0)) == [3, 4]


def test_a_read_without_events_ends_in_time_and_one_with_many_is_cut(box: TrialBox) -> None:
    assert box.read(0.01) == []
    for number in range(2, 2003):
        box.events.put(Report(number, {}))
    box.mailbox.put(Continue(None))
    assert len(box.read(1.0)) == 1000


# --- the fake gang keeps the contract that the real one keeps in tests/integration/test_gang.py -----------


class TestFakeGang(GangContract):
    @pytest.fixture
    def gang(self) -> Iterator[FakeGang]:
        with FakeGang.form(GangSpec()) as gang:
            yield gang


@pytest.mark.parametrize(("live", "cause"), [(True, "exception"), (False, "unresponsive")])
def test_what_a_worker_says_of_its_meeting_is_kept_unless_another_one_is_gone(monkeypatch, live, cause):
    said = GangError("Rank 1 cannot reach rank 0", "exception")
    error = RayTaskError("join", "a long traceback", said).as_instanceof_cause()
    answers = mock.Mock(wait=lambda calls, **_: (calls, []), get=mock.Mock(side_effect=error))
    monkeypatch.setattr(gangs, "ray", answers)
    monkeypatch.setattr(Gang, "_all_live", lambda self: live)
    monkeypatch.setattr(Gang, "lose", lambda self, rank, reason: None)
    with pytest.raises(GangError) as caught:
        Gang(GangSpec(Reservation(2)), None)._gather([error, "joined"], 1.0, "its ranks to meet")
    assert (str(caught.value), caught.value.cause) == ("Rank 1 cannot reach rank 0", cause)


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(1, flush=True)
ctypes.CDLL(None).syscall(%d, 0)
"""
_EXIT = {"x86_64": 60, "aarch64": 93}
"""The number of the system call that ends one thread."""


@pytest.fixture
def start() -> Iterator[Any]:
    """Return a function that starts a program with an argument, and waits until it runs."""
    with contextlib.ExitStack() as started:

        def start(code: str, argument: str) -> Any:
            one: Any = started.enter_context(held(sys.executable, "-c", code, argument))
            assert one.stdout.readline()
            return one

        yield start


def test_a_worker_that_does_not_end_is_killed_and_another_process_of_the_same_number_left_alone(start: Any) -> None:
    process = start(DEAF, "GangWorker")
    assert _remains(process.pid)
    _kill(process.pid)
    until(lambda: not _remains(process.pid), 20)  # nobody has asked for its exit status yet
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    process = start(DEAF, "another program")
    _kill(process.pid)
    assert process.poll() is None
    assert not _remains(process.pid)


def test_a_process_remains_while_one_of_its_threads_does(start: Any) -> None:
    """It holds its memory, and a GPU's, though its first thread has ended."""
    process = start(FIRST_THREAD_ENDS % _EXIT[os.uname().machine], "GangWorker")
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, 20)
    assert _remains(process.pid)
    process.kill()
    until(lambda: not _remains(process.pid), 20)


@pytest.fixture
def vacated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a seat whose worker, a process, is not ended by Ray."""
    context = type("Context", (), {"get_node_id": staticmethod(lambda: "here")})
    monkeypatch.setattr(seat.ray, "get_runtime_context", context)
    monkeypatch.setattr(seat.ray, "kill", lambda worker: None)
    monkeypatch.setattr(seat, "_kill", lambda pid: None)

    def vacated(pid: int, *gpus: str) -> Seat:
        one = Seat(GangSpec(), worker="worker", location=Location("here", "10.0.0.1", pid, "host", gpus))
        one.vacate("it hangs")
        return one

    return vacated


def test_what_a_worker_holds_of_a_gpu_is_waited_for(start: Any, vacated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(DEAF, "GangWorker")
    one = vacated(process.pid, "0")
    looked = iter(range(10**6))

    def look(seconds: float) -> None:
        if next(looked) == 3:
            process.kill()
        time.sleep(seconds)

    sleeper = type("Time", (), {"sleep": staticmethod(look), "monotonic": staticmethod(time.monotonic)})
    monkeypatch.setattr(seat, "time", sleeper)
    await_ends([one, Seat(GangSpec())])
    assert not _remains(process.pid)
    assert next(looked) > 3


def test_but_not_for_long_nor_where_there_is_no_gpu(start: Any, vacated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(DEAF, "GangWorker")
    monkeypatch.setattr(seat, "_FREE_S", 0.05)
    one = vacated(process.pid, "0")
    await_ends([one])
    assert process.poll() is None
    assert one.ended is None
    assert vacated(start(DEAF, "GangWorker").pid).ended is None


def test_a_worker_is_sent_a_task_once_and_its_successor_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seat, "dismiss", lambda self: None)  # without Ray
    sent: list[Any] = []
    worker = SimpleNamespace(start=SimpleNamespace(remote=lambda start, task: sent.append((start.trial_id, task))))
    one = Seat(GangSpec(), worker=worker)
    (first, start), (second, _) = tasks.trial("x"), tasks.trial("x", metric="loss")
    for task in (first, first, second):
        one.start(task, start)
    one.vacate("lost")
    one.worker = worker
    one.start(second, start)
    assert sent == [("00000", first), ("00000", None), ("00000", second), ("00000", second)]
    assert one.starts == 1
