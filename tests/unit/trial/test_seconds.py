"""How long a trial has trained: one number of rank 0, that holds live, in a replay, after a resume, simulated."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from ray.tune.schedulers.trial_scheduler import TrialScheduler

import tunelight as tl
from tests.kit import tasks
from tests.kit.fakes import FakeGang, MemoryControl
from tests.kit.heads import Heads
from tests.kit.recording import Clock, Sweep, read_lines, replay_scheduler
from tunelight.checkpoints import files as checkpoints
from tunelight.messages import RESULT_KEY, CheckpointInfo, Continue, Place
from tunelight.record import create_sweep_folder, read_record
from tunelight.schedulers import ASHA
from tunelight.session import session
from tunelight.session.mailbox import Mailbox
from tunelight.trial.trainable import make_trainable


class Answers(Mailbox):
    """Answers each report after a while."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        super().__init__(1)
        self.clock, self.after_s = clock, after_s

    def take(self, number: int, limit_s: float) -> Any:
        self.clock.now += self.after_s
        return Continue(None)


def write(path: str) -> None:
    Path(path).write_text("weights")


def test_rank_0_counts_the_seconds_of_training_and_not_those_of_its_waits(tmp_path: Path) -> None:
    clock, events = Clock(), list[Any]()
    resume = CheckpointInfo("x.ckpt", number=2, seconds=7.0)
    task = tasks.trial(tmp_path, resume=resume)
    one = session.Session(
        *task, Place(0, 1, 0, 1, 0, "x"), MemoryControl(), events.append, Answers(clock, 50.0), clock=clock
    )
    assert one.context.resume == resume
    clock.now += 30.0  # the train function is fetched and unpickled
    one.begin()
    for _ in range(2):
        clock.now += 2.0
        one.context.report({"loss": 1.0}, checkpoint=write)
    assert [event.seconds for event in events] == [9.0, 11.0]
    assert [info.seconds for info in checkpoints.find(tmp_path)] == [9.0, 11.0]


def timed(config: dict[str, Any]) -> None:
    """Train for a tenth of a second before each report."""
    context = tl.get_context()
    tl.get_checkpoint_path()  # its state is the number of its report
    session.get_session().boundary.writer = write
    while context.number < 6:
        time.sleep(0.1)
        tl.report({"loss": 1.0 / (context.number + 1)}, checkpoint=write)


SPEC = tasks.trial_spec(cloudpickle.dumps(timed), metric="loss", reports_to="sweep")


def seconds(result: dict[str, Any]) -> float:
    return float(result[RESULT_KEY]["seconds"])


def test_a_cold_trial_is_not_charged_its_gang_s_start_nor_a_paused_one_its_pause(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    heal = FakeGang.heal

    def slowly(self: FakeGang, size: int | None = None) -> None:
        time.sleep(1.0 if self.size == 0 else 0.0)
        heal(self, size)

    monkeypatch.setattr(FakeGang, "heal", slowly)
    one = heads.make(make_trainable(SPEC), {})
    first = heads.train(one)
    assert 0.1 <= seconds(first) < 0.6
    assert first["time_total_s"] > 1.0  # by Tune's count, which has the start in it
    pointer = heads.folder() / "checkpoint_000000"
    pointer.mkdir()
    one.save_checkpoint(str(pointer))
    heads.reset(one, {}, "00001")
    time.sleep(0.5)
    again = heads.make(make_trainable(SPEC), {})
    heads.restore(again, pointer)
    second = heads.train(again)
    assert second["training_iteration"] == 2
    assert seconds(first) + 0.1 <= seconds(second) < seconds(first) + 0.6


REPORTS = [("a", 1, 4.0, 0.5), ("b", 1, 9.0, 0.4), ("a", 2, 8.0, 0.5), ("a", 3, 10.5, 0.5), ("b", 2, 21.0, 0.4)]
"""Trial, report, seconds of training, loss: b trains slowly; the record's clock says something else again."""


def asha() -> ASHA:
    return ASHA("loss", "min", unit="seconds", max_t=100, grace_period=10, reduction_factor=2)


def filed(scheduler: ASHA) -> Any:
    return [[rung.filed for rung in rungs] for rungs in scheduler._brackets]


def test_a_replay_files_at_the_same_seconds_as_the_live_sweep_did(tmp_path: Path) -> None:
    live, trials, decisions = asha(), dict[str, Any](), list[str]()
    sweep = Sweep(create_sweep_folder(tmp_path, "sweep"))
    for name in "ab":
        trials[name] = sweep.add(lr=0.1)
        sweep.start(trials[name])
        live.on_trial_add(None, trials[name])  # type: ignore[arg-type]
    for name, number, trained, loss in REPORTS:
        sweep.clock.now += 60.0  # starts, pauses, and the other trial's reports
        sweep.report(trials[name], number, loss, own={"seconds": trained})
        flat = {"training_iteration": number, "loss": loss, "time_total_s": 60.0 * number}
        trials[name].temporary_state = SimpleNamespace(ray_actor=None)
        decisions.append(live.on_trial_result(None, trials[name], {**flat, f"{RESULT_KEY}/seconds": trained}))  # type: ignore[arg-type]
    assert decisions == [TrialScheduler.CONTINUE] * 5
    sweep.callback.record.close()
    replayed = asha()
    replay_scheduler(read_lines(sweep.folder), replayed)
    assert filed(replayed) == filed(live)
    assert {name: loss for name, (loss, _) in filed(live)[0][0].items()} == {"00000": 0.5, "00001": 0.4}
    assert [trial.trained for trial in read_record(sweep.folder).trials.values()] == [10.5, 21.0]
