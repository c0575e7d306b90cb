"""A gang that has to leave does so at the end of the same training step on every rank, or at its next report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.session.test_session import Ranks
from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import Checkpoints
from tunelight.errors import TrialStopped
from tunelight.messages import Hurry, Report, Save, Saved, Stop
from tunelight.session import boundary


def write(path: str) -> None:
    Path(path).write_text("weights")


def ordered(ranks: Ranks, *hurried: int) -> None:
    """Give rank 0 the order to leave, and let some ranks hurry."""
    ranks.mailboxes[0].put(Stop("moved", save=True, serial=7))
    for rank in hurried:
        ranks.mailboxes[rank].put(Hurry())


def each(ranks: Ranks, does: Callable[[int, Any], object]) -> list[Any]:
    """Let all ranks do something at once; return what each returned or raised."""
    found: list[Any] = [None] * len(ranks.sessions)

    def one(rank: int) -> None:
        try:
            found[rank] = does(rank, ranks.sessions[rank].boundary)
        except BaseException as error:  # noqa: BLE001 - TrialStopped is one
            found[rank] = type(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(ranks.sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def step(ranks: Ranks, number: int, writer: Callable[[str], object] = write) -> list[Any]:
    return each(ranks, lambda _, boundary: boundary.end_step(writer, epoch=0, step=number))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_leave_at_one_step_with_a_checkpoint_after_the_last_report(tmp_path: Path, size: int) -> None:
    ranks = Ranks(tmp_path, size, until=None)
    ranks.report({"loss": 0.5}, checkpoint=write)
    assert step(ranks, 1) == [None] * size
    ordered(ranks, *range(size))
    stops = [step(ranks, number) for number in (2, 3)]
    assert stops == [[None] * size, [TrialStopped] * size]
    saved = next(event for event in ranks.events if isinstance(event, Saved))
    assert saved.answers == 7
    assert saved.checkpoint is not None
    assert (saved.checkpoint.number, saved.checkpoint.between, saved.checkpoint.value) == (1, 3, None)
    assert Path(saved.checkpoint.path).name == "report-000001.step-000000003.ckpt"
    assert checkpoints.resume_point(tmp_path)[0] == saved.checkpoint  # before that of report 1, which stays
    assert [info.between for info in checkpoints.find(tmp_path)] == [0, 3]


def test_without_an_order_the_end_of_a_step_costs_no_message(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None)
    step(ranks, 1)
    ordered(ranks)  # rank 0 has it, and nobody was told to hurry
    step(ranks, 2)
    assert not any("leave" in str(turn) for turn in ranks.control.words)
    assert [type(error) for error in ranks.report({"loss": 1.0}, checkpoint=write)] == [TrialStopped] * 2


def test_a_rank_that_hears_late_leaves_with_the_others(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    first, second = (one.boundary for one in ranks.sessions)
    first.end_step(write, epoch=0, step=5)  # it calls for step 6
    second.end_step(write, epoch=0, step=5)
    assert step(ranks, 6) == [TrialStopped] * 2


def test_ranks_that_are_apart_go_on_and_leave_at_the_next_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "MEET_LIMIT_S", 1.0)
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    ranks.sessions[0].boundary.end_step(write, epoch=0, step=1)  # it calls for step 2, and rank 1 is at 4 already
    steps = {0: 2, 1: 4}
    assert each(ranks, lambda rank, boundary: boundary.end_step(write, epoch=0, step=steps[rank])) == [None, None]
    assert not any(isinstance(event, Saved) for event in ranks.events)
    assert [type(error) for error in ranks.report({"loss": 1.0}, checkpoint=write)] == [TrialStopped] * 2
    saved = [event.checkpoint for event in ranks.events if isinstance(event, Saved)]
    assert [info and info.number for info in saved] == [1]


def test_ranks_that_come_to_the_step_with_other_batches_behind_them_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "MEET_LIMIT_S", 1.0)
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    step(ranks, 1)
    apart = each(ranks, lambda rank, boundary: boundary.end_step(write, epoch=0, step=2, batch=rank))
    assert apart == [None, None]


def test_rank_0_does_not_take_a_rank_for_there_that_has_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "MEET_LIMIT_S", 0.3)
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    step(ranks, 1)
    late = {0: 1.5, 1: 0.0}

    def come(rank: int, boundary: Any) -> None:
        time.sleep(late[rank])
        boundary.end_step(write, epoch=0, step=2)

    assert each(ranks, come) == [None, None]  # rank 1 has waited for 0.6 s, and gone on
    assert not any(isinstance(event, Saved) for event in ranks.events)


def test_after_a_checkpoint_that_the_storage_refused_they_train_on_and_can_be_told_again(tmp_path: Path) -> None:
    def refuse(path: str) -> None:
        raise OSError(28, "No space left on device")

    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    for number in (1, 2):
        step(ranks, number, refuse)
    assert [(event.refused, event.checkpoint) for event in ranks.events if isinstance(event, Saved)] == [(True, None)]
    assert ranks.report({"loss": 1.0}) == [None, None]
    ordered(ranks, 1, 0)
    assert [step(ranks, number) for number in (3, 4)] == [[None, None], [TrialStopped] * 2]


def test_a_loop_of_ones_own_is_told_and_its_next_report_writes_a_checkpoint(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None, checkpoints=Checkpoints(every_s=1000))
    ranks.report({"loss": 1.0}, checkpoint=write)
    asks = [each(ranks, lambda rank, _: ranks.sessions[rank].context.preempted())]
    ordered(ranks, 1, 0)
    asks += [each(ranks, lambda rank, _: ranks.sessions[rank].context.preempted()) for _ in range(3)]
    assert asks == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]
    assert [type(error) for error in ranks.report({"loss": 0.5}, checkpoint=write)] == [TrialStopped] * 2
    reports = [event for event in ranks.events if isinstance(event, Report)]
    saved = next(event for event in ranks.events if isinstance(event, Saved))
    assert saved.checkpoint is not None
    assert (saved.checkpoint.number, saved.checkpoint.between) == (2, 0)
    assert [report.number for report in reports] == [1, 2]


def test_a_checkpoint_behind_a_report_is_newer_than_that_and_older_than_the_next(tmp_path: Path) -> None:
    def info(number: int, between: int = 0, value: float | None = None) -> Any:
        path = tmp_path / checkpoints.FOLDER / checkpoints.file_name(number, between)
        path.parent.mkdir(exist_ok=True)
        made = checkpoints.CheckpointInfo(str(path), number, between=between, value=value)
        write(str(checkpoints.temp_path(made, "a")))
        return checkpoints.commit(made, checkpoints.temp_path(made, "a"))

    made = [info(1, value=0.1), info(1, 20), info(1, 100), info(2, value=0.2), info(2, 120)]
    assert checkpoints.find(tmp_path) == made
    assert checkpoints.resume_point(tmp_path, 1)[0] == made[2]
    assert checkpoints.resume_point(tmp_path, 1, base=made[1])[0] == made[2]
    assert checkpoints.resume_point(tmp_path, 1, base=made[2])[0] == made[2]
    assert checkpoints.prune(made, 1, "min") == [made[0], made[3], made[4]]
    later = [info(2, 130), info(2, 140)]
    assert checkpoints.prune([made[3], made[4], *later], 0, "min") == [made[3], *later]  # the last of a report stays


@pytest.mark.parametrize("size", [1, 2])
def test_a_checkpoint_between_two_reports_leaves_training_as_it_was(tmp_path: Path, size: int) -> None:
    ranks = Ranks(tmp_path, size, until=None)
    ranks.report({"loss": 0.5}, checkpoint=write)
    ranks.mailboxes[0].put(Save(serial=5))
    for mailbox in ranks.mailboxes:
        mailbox.put(Hurry())
    assert [step(ranks, number) for number in (1, 2, 3)] == [[None] * size] * 3
    (saved,) = [event for event in ranks.events if isinstance(event, Saved)]
    assert saved.answers == 5
    assert saved.checkpoint is not None
    assert (saved.checkpoint.number, saved.checkpoint.between) == (1, 2)
    assert not any(one.boundary.hurried for one in ranks.sessions)
    assert [one.boundary.writer for one in ranks.sessions] == [None] * size
    ranks.report({"loss": 0.4}, checkpoint=write)
    assert [event.number for event in ranks.events if isinstance(event, Report)] == [1, 2]


def test_where_a_report_comes_first_it_writes_the_checkpoint_and_nobody_hurries_any_more(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None)
    ranks.mailboxes[0].put(Save(serial=5))
    for mailbox in ranks.mailboxes:
        mailbox.put(Hurry())
    ranks.report({"loss": 0.5}, checkpoint=write)
    (saved,) = [event.checkpoint for event in ranks.events if isinstance(event, Saved)]
    assert saved is not None
    assert (saved.number, saved.between) == (1, 0)
    assert [step(ranks, number) for number in (1, 2, 3)] == [[None, None]] * 3
    assert not any(one.boundary.hurried for one in ranks.sessions)
    assert sum(isinstance(event, Saved) for event in ranks.events) == 1


def test_a_checkpoint_for_a_branch_is_no_reason_for_training_code_to_leave(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None)
    ranks.mailboxes[0].put(Save(serial=5))
    for mailbox in ranks.mailboxes:
        mailbox.put(Hurry())
    assert each(ranks, lambda _, boundary: [boundary.preempted() for _ in range(3)]) == [[False] * 3] * 2


def test_training_code_that_has_to_leave_hears_so_behind_an_order_for_a_branch(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None)
    ranks.mailboxes[0].put(Save(serial=5))
    ordered(ranks, 1, 0)
    asked = [each(ranks, lambda _, boundary: boundary.preempted()) for _ in range(3)]
    assert asked[-1] == [True, True]
    assert [type(error) for error in ranks.report({"loss": 1.0}, checkpoint=write)] == [TrialStopped] * 2
    assert [event.answers for event in ranks.events if isinstance(event, Saved)] == [5, 7]
