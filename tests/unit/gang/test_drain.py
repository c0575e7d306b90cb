"""Nodes that are to be taken away: who is told, how often that is asked, and what a run does about it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from tests.unit.gang.test_run import ScriptedGang, info, numbers, play, report
from tunelight.errors import TrialError
from tunelight.gang import orders
from tunelight.gang.drain import DRAINED, LOOK_S, NODES_S, DrainWatch, moved_away
from tunelight.gang.orders import OrderBook, Orders, Reason, note_branch, orders_of
from tunelight.gang.run import drained
from tunelight.messages import CheckpointInfo, Ended, Saved, Stop
from tunelight.policies import COOLDOWN_S


def test_only_a_trials_own_nodes_concern_it():
    watch = DrainWatch(lambda: {"b": 0, "c": 7}, lambda: 0.0)
    assert watch.drained(["a", "b", "b"]) == ["b"]
    assert watch.drained(["a"]) == []


def test_ray_is_asked_for_nodes_every_two_seconds_and_for_the_drivers_orders_ten_times_a_second():
    asked: list[str] = []
    now = [0.0]
    watch = DrainWatch(lambda: asked.append("nodes") or {}, lambda: now[0], lambda: asked.append("order"))  # type: ignore[func-returns-value]
    for now[0] in (0.0, LOOK_S / 2, LOOK_S, LOOK_S * 1.5, NODES_S):
        watch.drained(["a"])
    assert asked == ["order", "nodes", "order", "order", "nodes"]


def test_a_slow_ray_is_asked_less_often():
    now, asked = [0.0], list[float]()

    def ordered() -> None:
        asked.append(now[0])
        now[0] += 0.01

    watch = DrainWatch(dict, lambda: now[0], ordered)
    while now[0] < 1.0:
        watch.drained(["a"])
        now[0] += 0.05
    assert 2 <= len(asked) <= 3


def test_an_order_comes_before_a_drain(monkeypatch: pytest.MonkeyPatch):
    order = Reason("the sweep was told to end", ends=True)
    watch = DrainWatch(lambda: {"a": 0}, lambda: 0.0, lambda: order)
    assert watch.drained(["a"]) == ["a"]
    assert watch.order == order


def test_an_order_is_read_as_it_was_given(monkeypatch: pytest.MonkeyPatch):
    kept: dict[str, str] = {}
    monkeypatch.setattr(orders, "keep_for_job", kept.__setitem__)
    monkeypatch.setattr(orders, "kept_for_job", kept.get)
    book = OrderBook()
    assert orders_of("gang/1") == Orders()
    for reason in (Reason("leaves", ends=True), Reason("leaves", gang_stays=True), None):
        book.leave("gang/1", reason)
        assert orders_of("gang/1") == Orders(reason)
    book.branch("gang/1", "b", at_step=True)
    book.leave("gang/1", Reason("leaves"))
    book.stop("gang/1")
    assert orders_of("gang/1") == Orders(Reason("leaves"), {"b": True}, stop=True)
    book.forget("gang/1", "b")
    assert orders_of("gang/1") == Orders(Reason("leaves"), stop=True)
    assert orders_of("gang/2") == Orders()


def test_a_branch_is_given_the_checkpoint_that_was_written_for_it_or_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
):
    kept: dict[str, str] = {}
    monkeypatch.setattr(orders, "keep_for_job", kept.__setitem__)
    monkeypatch.setattr(orders, "kept_for_job", kept.get)
    book, info = OrderBook(), CheckpointInfo("c/report-000003.ckpt", 3, fits=("Net 1",), between=120)
    assert book.branched("gang/1", "b") is None
    note_branch("gang/1", "b", info)
    note_branch("gang/1", "c", None)
    assert book.branched("gang/1", "b") == info
    assert book.branched("gang/1", "c") == "it writes no checkpoint now"


def test_training_without_a_checkpoint_leaves_all_the_same_where_everything_ends():
    gang = ScriptedGang([report(1, saved=False), Saved(None, 1), report(2, saved=False), Ended(0)])
    run, _, said = play(gang, leave=Notice(ends=True))
    run.next_event()
    with pytest.raises(TrialError) as caught:
        numbers(run)
    assert caught.value.error.type_name == DRAINED
    assert said == []
    assert gang.hurried == 1


def test_a_ray_that_does_not_answer_is_no_notice():
    def broken() -> dict[str, int]:
        raise RuntimeError("no GCS")

    assert DrainWatch(broken).drained(["a"]) == []


class Notice:
    """Says from the second time it is asked on that the node is drained."""

    def __init__(self, first: Reason | None = None, *, ends: bool = False) -> None:
        self.said = [None, first]
        self.why = Reason("Ray drains host#abcdef", ends=ends)

    def __call__(self) -> Reason | None:
        return self.said.pop(0) if len(self.said) > 1 else self.why


def test_a_drained_trial_ends_at_its_next_boundary_with_a_checkpoint_to_go_on_from_elsewhere():
    gang = ScriptedGang([report(1), Saved(info(2), 1), report(2)])
    run, _, _ = play(gang, leave=Notice())
    seen: list[Any] = [run.next_event(), run.next_event()]
    with pytest.raises(TrialError) as caught:
        run.next_event()
    assert [event.number for event in seen] == [1, 2]  # nothing is lost on the way
    assert gang.answers == [Stop("moved", save=True)]
    assert (caught.value.error.type_name, caught.value.error.cause) == (DRAINED, "preempted")
    assert run.resume == info(2)
    assert len(gang.starts) == 1


def test_training_that_writes_no_checkpoint_stays_as_long_as_it_can():
    gang = ScriptedGang([report(1, saved=False), Saved(None, 1), report(2, saved=False), Ended(0)])
    run, _, said = play(gang, leave=Notice())
    assert numbers(run) == [1, 2]
    assert said == ["stays where it is although Ray drains host#abcdef: its training code writes no checkpoints"]
    assert len(gang.answers) == 1


def test_what_stays_because_it_writes_no_checkpoint_leaves_once_everything_ends():
    gang = ScriptedGang([report(1, saved=False), Saved(None, 1), report(2, saved=False), report(3, saved=False)])
    notice = Notice()
    run, _, said = play(gang, leave=notice)
    seen: list[Any] = [run.next_event(), run.next_event()]
    assert [event.number for event in seen] == [1, 2]
    assert "stays where it is" in said[0]
    notice.why = Reason("all ends", ends=True)
    with pytest.raises(TrialError, match="all ends"):
        numbers(run)


def test_training_whose_checkpoint_the_storage_refused_tries_again_to_leave():
    gang = ScriptedGang([report(1), Saved(None, 1, refused=True), report(2, saved=False), Saved(info(3), 2), report(3)])
    run, clock, said = play(gang, leave=Notice())
    run.next_event()
    run.next_event()
    clock.sleep(COOLDOWN_S)
    run.next_event()
    with pytest.raises(TrialError) as caught:
        run.next_event()
    assert caught.value.error.type_name == DRAINED
    assert gang.answers == [Stop("moved", save=True)] * 2
    assert run.resume == info(3)
    assert "could not be written" in said[0]


def test_nothing_starts_on_a_warm_gang_whose_node_is_drained():
    gang = ScriptedGang([report(1), Ended(0)])
    with pytest.raises(TrialError, match="Ray drains"):
        play(gang, leave=lambda: Reason("Ray drains host#abcdef"))
    assert gang.starts == []


def test_tune_starts_it_anew_and_counts_no_failure():
    from ray.tune.experiment import Trial

    trial = Trial("x", stub=True)
    notice = drained(Reason("Ray drains host#abcdef"))
    for error, failures in ((moved_away(notice), 0), (TrialError(notice), 1)):
        raised = RayTaskError("step", "traceback", error, proctitle="head", pid=1, ip="10.0.0.1")
        trial._handle_ray_task_error(pickle.loads(pickle.dumps(raised)))  # it comes from another process
        assert trial.run_metadata.num_failures == failures
