"""A run on a gang through faults, changes of size and drained nodes, with a gang that plays a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import cloudpickle
import pytest

from tests.kit.recording import Clock
from tunelight.errors import GangError, TrialError
from tunelight.extras.standalone.driver import _listen
from tunelight.gang import orders
from tunelight.gang.orders import DRAINED, NODES_S, Orders, Started, make_leave_check
from tunelight.gang.placement import Location
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec
from tunelight.messages import (
    CheckpointInfo,
    Continue,
    Ended,
    Event,
    Offer,
    Offered,
    Output,
    Report,
    Saved,
    Slow,
    Stop,
    WorkerError,
)
from tunelight.policies import COOLDOWN_S, FailurePolicy
from tunelight.resources import Reservation
from tunelight.session.task import Start, Task


def error(cause: Any = "died", rank: int = 1) -> WorkerError:
    return WorkerError(rank, "here", "ActorDiedError", "gone", "", cause=cause)


def info(number: int) -> CheckpointInfo:
    return CheckpointInfo(f"/nowhere/report-{number:06d}.ckpt", number)


def report(number: int, saved: bool = True) -> Report:
    return Report(number, {"loss": 1 / number}, checkpoint=info(number) if saved else None)


class ScriptedGang:
    """Every start plays the next list of events; ``late`` is what a failure finds on its way."""

    def __init__(self, *starts: Sequence[Event], late: Sequence[Event] = (), size: int = 2, wanted: int = 2) -> None:
        self.spec = GangSpec(Reservation(size, least=1, most=wanted))
        self.size, self.arrived = size, 0
        self.trials = 0
        self.seats: list[int | None] = []
        self.locations: list[Location] = []
        self.late: list[Event] = list(late)
        self.starts: list[Start] = []
        self.answers: list[Any] = []
        self.broken = self.hurried = 0
        self._plays = deque(starts)
        self._events: deque[Event] = deque()

    @property
    def running(self) -> bool:
        return bool(self._events)

    def heal(self, size: int | None = None) -> None:
        if self.broken:
            self.broken -= 1
            raise GangError("no room")
        self.size = min(self.size + self.arrived, size or 99)
        self.arrived = 0

    def want(self, size: int | None) -> None:
        self.seats.append(size)

    def ready(self) -> int:
        return self.arrived

    def start(self, task: Task, start: Start) -> None:
        self.starts.append(start)
        self.trials += 1
        self._events = deque(self._plays.popleft())

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        return self._events.popleft() if self._events else None

    def answer(self, decision: Any) -> int:
        self.answers.append(decision)
        return len(self.answers)

    def hurry(self) -> None:
        self.hurried += 1

    def ask(self, decision: Any, kind: Any) -> Any:
        return None

    def fail(self, first: WorkerError) -> tuple[WorkerError, list[Event]]:
        self._events.clear()
        return first, self.late

    def finish(self, reason: str = "") -> list[Event]:
        late = list(self._events)
        self._events.clear()
        return late


class Sleeper(Clock):
    """Seconds that pass when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__(100.0)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def play(
    gang: Any, policy: FailurePolicy | None = None, leave: Any = None, until: int | None = None, **kwargs: Any
) -> tuple[ResilientRun, Sleeper, list[str]]:
    said: list[str] = []
    clock, start = Sleeper(), Start("00000", "/nowhere", {}, until=until)
    run = ResilientRun(Task(b""), start, policy or FailurePolicy(), sleep=clock.sleep, clock=clock, **kwargs)
    vars(run)["say"] = said.append
    run.start(gang, leave)
    return run, clock, said


def numbers(run: ResilientRun) -> list[int]:
    found = []
    while run.running:
        event = run.next_event()
        if isinstance(event, Report):
            found.append(event.number)
    return found


def test_a_restarted_rank_runs_unasked_to_where_it_was() -> None:
    gang = ScriptedGang([report(1), report(2, saved=False), Ended(1, error=error())], [Ended(0)])
    run, *_ = play(gang, until=1)
    run.next_event()
    run.answer(Continue(until=2))
    numbers(run)
    assert gang.starts[1].until == 3


def test_retries_wait_longer_each_time_and_a_report_ends_the_row() -> None:
    failed = [Ended(1, error=error())]
    gang = ScriptedGang(failed, failed, failed, [report(1), *failed], [Ended(0)])
    run, clock, _ = play(gang, FailurePolicy(5, backoff_s=2))
    numbers(run)
    assert clock.slept == [0, 2, 4, 0]


def test_a_gang_that_cannot_be_had_is_a_failure_too_and_at_last_an_error() -> None:
    gang = ScriptedGang([report(1), Ended(1, error=error())], [Ended(0)])
    run, clock, said = play(gang)
    gang.broken = 2
    assert numbers(run) == [1]
    assert clock.slept == [0, 1, 2]
    assert len(said) == 3
    gang = ScriptedGang()
    gang.broken = 9
    with pytest.raises(TrialError, match="no room"):
        play(gang, FailurePolicy(2))


def test_a_bug_is_not_tried_again_and_told_after_the_last_report_and_a_preemption_does_not_count() -> None:
    bug = ScriptedGang([Ended(0, error=error("exception", 0))], late=[report(1)])
    run, *_ = play(bug)
    assert isinstance(run.next_event(), Report)
    with pytest.raises(TrialError, match="gone"):
        run.next_event()
    assert not run.running
    asked = ScriptedGang([Ended(0, error=error("exception", 0))], [report(1), Ended(0)])
    run, *_ = play(asked, FailurePolicy(1, retry_exceptions=True))
    assert numbers(run) == [1]
    taken = [Ended(1, error=error("preempted"))]
    gang = ScriptedGang(*[taken] * 4, [report(1), Ended(0)])
    run, *_ = play(gang, FailurePolicy(0))
    assert numbers(run) == [1]


def test_workers_that_arrived_join_at_a_boundary_after_the_cooldown() -> None:
    gang = ScriptedGang([report(1), Saved(info(2), 1), report(2)], [report(3), Ended(0)], size=1, wanted=2)
    run, clock, said = play(gang)
    gang.arrived = 1
    run.resize_if_due()
    assert gang.answers == []
    clock.sleep(COOLDOWN_S)
    run.resize_if_due()
    run.resize_if_due()
    assert gang.answers == [Stop("resize", save=True)]
    assert numbers(run) == [1, 2, 3]
    assert gang.starts[1].resume == info(2)
    assert said == ["goes on with 2 workers (1 before)"]


@pytest.mark.parametrize("asked", [False, True])
def test_training_that_writes_no_checkpoint_keeps_its_workers_and_gives_back_growth(asked: bool) -> None:
    gang = ScriptedGang([report(1, saved=False), Saved(None, 1), report(2, saved=False), Ended(0)], size=1, wanted=2)
    run, clock, said = play(gang, size=1 if asked else None)
    if asked:
        run.resize(2)
    gang.arrived = 1
    clock.sleep(COOLDOWN_S)
    run.resize_if_due()
    assert numbers(run) == [1, 2]
    run.resize_if_due()
    assert len(gang.starts) == len(gang.answers) == 1
    assert "writes no checkpoints" in said[0]
    if asked:
        assert gang.seats == [2, 1]


def test_a_checkpoint_that_the_storage_refused_is_asked_for_again_after_a_while() -> None:
    """A disk may be full for a minute; a gang that keeps its size for that would keep it to the trial's end."""
    refused = [report(number, saved=False) for number in (2, 3, 4)]
    gang = ScriptedGang(
        [report(1), Saved(None, 1, refused=True), refused[0], Saved(None, 2, refused=True), refused[1],
         Saved(info(4), 3), refused[2]],
        [report(5), Ended(0)], size=1, wanted=2,
    )  # fmt: skip
    run, clock, said = play(gang)
    gang.arrived = 1
    asked = []
    seen = []
    for wait_s in (COOLDOWN_S, 1.0, COOLDOWN_S, 2 * COOLDOWN_S, 0.0):
        clock.sleep(wait_s)
        run.resize_if_due()
        asked.append(len(gang.answers))
        event = run.next_event()
        assert isinstance(event, Report)
        seen.append(event.number)
    assert asked == [1, 1, 2, 3, 3], "at once, then not within the pause, then after it, then after twice that"
    assert seen == [1, 2, 3, 4, 5]
    assert gang.size == 2
    assert len([text for text in said if "could not be written" in text]) == 1


def test_a_smaller_size_is_taken_at_once_and_by_another_trial_without_a_word() -> None:
    gang = ScriptedGang([Saved(info(1), 1)], [report(2), Ended(0)])
    run, *_ = play(gang)
    run.resize(1)
    run.resize_if_due()
    assert numbers(run) == [2]
    assert gang.size == 1
    gang = ScriptedGang([report(1), Ended(0)], size=4, wanted=4)
    _, _, said = play(gang, size=2)
    assert gang.size == 2
    assert said == []


def test_a_gang_grows_only_when_all_who_were_asked_for_are_there_and_still_wanted() -> None:
    gang = ScriptedGang([Saved(info(1), 1), report(1)], [report(2), Ended(0)], size=2, wanted=4)
    run, *_ = play(gang, size=2)
    run.resize(4)
    assert gang.seats == [4]
    gang.arrived = 1
    run.resize_if_due()
    assert gang.answers == []
    gang.arrived = 2
    run.resize_if_due()
    assert gang.answers == [Stop("resize", save=True)], "at once: what is asked for needs no cooldown"
    assert numbers(run) == [1, 2]
    assert gang.size == 4
    gang = ScriptedGang([report(1), Ended(0)], size=2, wanted=4)
    run, *_ = play(gang, size=2)
    run.resize(4)
    run.resize(2)
    gang.arrived = 2
    run.resize_if_due()
    assert gang.seats == [4, 2]
    assert gang.answers == []


def test_only_the_answer_to_the_order_to_leave_makes_a_run_leave() -> None:
    gang = ScriptedGang([report(1), Saved(info(1), 7), report(2), Ended(0)], size=1, wanted=2)
    run, clock, _ = play(gang)
    gang.arrived = 1
    clock.sleep(COOLDOWN_S)
    run.resize_if_due()
    assert gang.answers == [Stop("resize", save=True)]
    assert numbers(run) == [1, 2]
    assert len(gang.starts) == 1
    assert run.resume == info(2)  # a checkpoint counts, whoever asked for it


def test_a_report_that_is_read_after_a_restart_does_not_take_the_trial_back() -> None:
    failed = Ended(1, error=error())
    gang = ScriptedGang([failed], [report(3), failed], [Ended(0)], late=[report(1), report(2)])
    run, *_ = play(gang)
    run.next_event()
    gang.late = []
    assert numbers(run) == [2, 3]
    assert [start.resume for start in gang.starts] == [None, info(2), info(3)]


def test_what_a_start_that_failed_has_handed_in_is_no_part_of_the_result() -> None:
    lost: list[Event] = [Output(1, "b1 b3", 1), Ended(0, error=error(rank=0))]
    gang = ScriptedGang(lost, [Output(1, "late", 1), Output(0, "b0 b1 b2 b3", 2), Ended(0)])
    run, *_ = play(gang)
    assert _listen(run, None) == {0: "b0 b1 b2 b3"}


def test_an_offer_that_no_store_takes_is_told() -> None:
    gang: Any = ScriptedGang([report(1), Ended(0)])
    gang.ask = mock.Mock(return_value=Offered(None, why="ObjectStoreFullError: 2 GB"))
    run, _, said = play(gang)
    run.next_event()
    assert run.offer() is None
    assert isinstance(gang.ask.call_args.args[0], Offer)
    assert "could not offer its state to other trials" in said[0]
    assert "ObjectStoreFullError: 2 GB" in said[0]


def test_a_slow_rank_is_named_once_for_each_worker_unless_slow_ones_are_ignored() -> None:
    slow = [Slow(1, 0.42, 0.21)] * 2
    gang = ScriptedGang([*slow, Ended(1, error=error())], [*slow, Ended(0)])
    gang.locations = [Location(f"abcdef{n}", "10.0.0.1", n, "node-b") for n in range(2)]
    run, _, said = play(gang)
    numbers(run)
    why = "its own part of a step takes 0.42 s, and 0.21 s in the median of the others"
    assert [text for text in said if "slow" in text] == [f"rank 1 on node-b#abcdef (10.0.0.1) is slow: {why}"]
    assert [FailurePolicy(on_slow=value).limit_of_slow for value in ("name", "ignore")] == [0.25, None]


def test_a_trial_that_tune_has_ended_ends_at_once() -> None:
    gang = ScriptedGang([report(1), Stop(), Stop(), report(2), Ended(0, stopped=True)])
    run, *_ = play(gang)
    numbers(run)
    assert gang.answers == [Stop("stopped")]
    assert gang.hurried == 1


def test_a_head_without_a_driver_of_tunelights_asks_ray_every_two_seconds_for_its_own_nodes(monkeypatch) -> None:
    monkeypatch.setattr(orders.ray, "is_initialized", lambda: True)
    gang: Any = SimpleNamespace(locations=[SimpleNamespace(node_id=node, hostname="host") for node in "abb"])
    drains, clock = mock.Mock(side_effect=[{"c": 7}, {"b": 0, "c": 7}, RuntimeError("no GCS")]), Clock(0.0)
    check: Any = make_leave_check(gang, with_head=False, drains=drains, clock=clock)
    found = []
    for clock.now in (0.0, NODES_S / 2, NODES_S, NODES_S * 1.5, 2 * NODES_S):
        found.append((check(), drains.call_count))
    leave = Stop("Ray drains host#b", save=True)
    assert found == [(None, 1), (None, 1), (leave, 2), (leave, 2), (None, 3)]


class Relay:
    """Rank 0's worker, as a driver gets it."""

    told: ClassVar[list[tuple[str, int, Stop]]] = []

    def __init__(self, name: str) -> None:
        self.name = name
        self.tell = self

    def remote(self, serial: int, stop: Stop) -> None:
        if self.name == "gone":
            raise ValueError("the worker is gone")
        self.told.append((self.name, serial, stop))


class Sweep:
    """A driver's orders, and what its heads announce."""

    def __init__(self) -> None:
        Relay.told = []
        self.clock, self.drains, self.said = Clock(0.0), dict[str, int](), dict[str, bytes]()
        self.orders = Orders("sweep", self._heard, lambda: self.drains, self.clock)

    def _heard(self, sweep: str) -> dict[str, bytes]:
        said, self.said = self.said, {}
        return said

    def start(self, trial: str, gang: str, serial: int, *nodes: str, number: int = 0, worker: str = "") -> None:
        started = Started(trial, number, dict.fromkeys(nodes, "host"), serial, Relay(worker or gang))
        self.said[f"{gang}/{serial}"] = cloudpickle.dumps(started)

    @property
    def told(self) -> list[tuple[str, int, Stop]]:
        told, Relay.told = Relay.told, []
        return told


def test_a_stop_reaches_each_start_of_its_trial_whose_gang_may_be_another_by_then() -> None:
    sweep, stop = Sweep(), Stop()
    sweep.start("0", "gang", 1)
    sweep.start("1", "other", 1, number=3)
    assert sweep.orders.starts() == [("0", 0), ("1", 3)]
    sweep.start("0", "gang", 2)
    sweep.orders.stop("0", stop)
    sweep.orders.stop("2", stop)  # it has not started
    assert sweep.told == [("gang", 2, stop)]
    sweep.orders.look(lambda: {"0", "1", "2"})
    assert sweep.told == []
    sweep.start("0", "third", 1, worker="gone")
    sweep.start("2", "gang", 3)
    sweep.orders.look(lambda: {"0", "1", "2"})
    assert sweep.told == [("gang", 3, stop)]
    assert sweep.orders.starts() == [("0", 0), ("0", 0), ("2", 0)]
    sweep.start("3", "gang", 4)
    sweep.orders.look(lambda: {"3"})  # nothing is left to be told after this look
    sweep.start("4", "gang", 5)
    sweep.orders.look(lambda: {"3", "4"})
    assert sweep.said


def test_trials_leave_nodes_that_ray_drains_which_is_asked_every_two_seconds() -> None:
    sweep = Sweep()
    sweep.start("0", "gang", 1, "a", "b")
    sweep.start("1", "other", 1, "a", "c")
    sweep.drains = {"c": 0, "d": 0}
    sweep.orders.look(lambda: {"0", "1"})
    assert sweep.told == [("other", 1, Stop("Ray drains host#c", save=True))]
    sweep.drains, sweep.clock.now = {"a": 0}, NODES_S / 2
    sweep.orders.look(lambda: {"0", "1"})
    assert sweep.told == []
    sweep.clock.now = NODES_S
    sweep.orders.look(lambda: {"0"})
    assert sweep.told == [("gang", 1, Stop("Ray drains host#a", save=True))]


@pytest.mark.parametrize("at_once", [False, True])
def test_what_stays_because_it_writes_no_checkpoint_leaves_once_everything_ends(at_once: bool) -> None:
    silent: Any = type("Silent", (ScriptedGang,), {"running": True})  # at last it trains, and reports nothing
    gang = silent([report(1, saved=False), Saved(None, 1), report(2, saved=False)])
    drains, ends = Stop("Ray drains host#abcdef", save=True), Stop("all ends", save=True, ends=True)
    notices = [None, ends if at_once else drains]  # the last one stays
    run, _, said = play(gang, leave=lambda: notices.pop(0) if len(notices) > 1 else notices[0])
    assert isinstance(run.next_event(), Report)
    if not at_once:
        assert isinstance(run.next_event(), Report)
        assert said == ["stays where it is although Ray drains host#abcdef: its training code writes no checkpoints"]
        notices[:] = [ends]
    with pytest.raises(TrialError, match="all ends") as caught:
        numbers(run)
    assert caught.value.error.type_name == DRAINED
    assert (len(gang.answers), gang.hurried, len(said)) == (1, 1, 0 if at_once else 1)


def test_nothing_starts_on_a_warm_gang_whose_node_is_drained():
    gang = ScriptedGang([report(1), Ended(0)])
    with pytest.raises(TrialError, match="Ray drains"):
        play(gang, leave=lambda: Stop("Ray drains host#abcdef", save=True))
    assert gang.starts == []


def test_what_has_to_leave_is_not_started_again_after_a_fault():
    gang = ScriptedGang([report(1), Stop("the sweep ends", save=True), Ended(1, error=error())], [report(2)])
    run, _, said = play(gang)
    assert isinstance(run.next_event(), Report)
    with pytest.raises(TrialError, match="the sweep ends") as failed:
        run.next_event()
    assert failed.value.error.type_name == DRAINED
    assert (len(gang.starts), run.resume) == (1, info(1))
    assert said == ["failed on rank 1 (ActorDiedError: gone); going on from report 1"]
