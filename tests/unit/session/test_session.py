"""The session: reports, decisions that every rank hears, what is refused, and how a gang leaves together."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.kit import tasks
from tests.kit.fakes import MemoryControl, MemoryStore
from tests.kit.recording import written_checkpoint
from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import Checkpoints
from tunelight.errors import ContextError, GangError, MetricError, TrialStopped
from tunelight.messages import CheckpointInfo, Continue, Hurry, Place, Report, Save, Saved, Stop
from tunelight.session import boundary, session
from tunelight.session.mailbox import Mailbox

pytestmark = pytest.mark.usefixtures("every_checkpoint")


def write(path: str) -> None:
    """Write a checkpoint as each rank does here, though only one of them writes in a training: none sees half of it."""
    part = Path(f"{path}.{threading.get_ident()}")
    part.write_text("weights")
    part.replace(path)


class Ranks:
    """Sessions of one trial that share a control channel, as threads would be ranks."""

    def __init__(self, folder: Path, size: int = 2, **task: Any) -> None:
        self.events: list[Any] = []
        self.mailboxes = [Mailbox(task.get("until", 1)) for _ in range(size)]
        self.control = control = MemoryControl()
        what = tasks.trial(folder, **task)
        self.sessions = [
            session.Session(
                *what, Place(rank, size, rank, size, 0, "x"), control, self.events.append, box, store=MemoryStore()
            )
            for rank, box in enumerate(self.mailboxes)
        ]

    def report(self, metrics: dict[str, Any], **kwargs: Any) -> list[BaseException | None]:
        """Report on all ranks at once; return what each raised."""
        return self.each(lambda rank: self.sessions[rank].context.report(metrics, **kwargs))

    def each(self, does: Callable[[int], object]) -> list[Any]:
        """Let all ranks do something at once; return what each returned or raised."""

        def one(rank: int) -> Any:
            try:
                return does(rank)
            except BaseException as error:  # noqa: BLE001 - TrialStopped is one
                return error

        with ThreadPoolExecutor(len(self.sessions)) as threads:
            return list(threads.map(one, range(len(self.sessions)), timeout=20))


def saved_by(ranks: Ranks) -> list[Any]:
    return [event for event in ranks.events if isinstance(event, Saved)]


def test_a_stop_is_raised_on_every_rank_at_the_same_report_and_again_where_training_code_swallowed_it(tmp_path) -> None:
    ranks = Ranks(tmp_path)
    ranks.mailboxes[0].put(Stop("asha"))
    assert [type(error) for error in ranks.report({"loss": 1})] == [TrialStopped, TrialStopped]
    assert [s.context.number for s in ranks.sessions] == [1, 1]
    with pytest.raises(TrialStopped):
        ranks.sessions[0].context.report({"loss": 1})


def test_reports_below_until_need_no_answer_and_the_next_one_waits_and_each_goes_out_once_from_rank_0(tmp_path) -> None:
    ranks = Ranks(tmp_path, until=3)
    assert [ranks.report({"loss": loss}) for loss in (0.5, 0.4)] == [[None, None]] * 2
    threading.Timer(0.2, ranks.mailboxes[0].put, [Continue(until=9)]).start()
    assert [ranks.report({"loss": loss}) for loss in (0.3, 0.2)] == [[None, None]] * 2
    sent = [(event.number, event.metrics["loss"]) for event in ranks.events]
    assert sent == [(1, 0.5), (2, 0.4), (3, 0.3), (4, 0.2)]


@pytest.mark.parametrize(("writes", "fits", "refused"), [(1, 0, True), (0, 0, False), (0, 1, True)])
def test_a_save_says_whether_the_storage_refused_it_or_training_cannot_write(tmp_path, writes, fits, refused) -> None:
    """Where a fit reports without a writer, as a Trainer inside it does, the fit can write at another time."""

    full, ranks = mock.Mock(side_effect=OSError(28, "No space left on device")), Ranks(tmp_path)
    for one in ranks.sessions:
        one.boundary.writer = full if writes else None
        one.progress.fitting = "another Trainer" if fits else None
    ranks.mailboxes[0].put(Stop("resize", save=True))
    ranks.mailboxes[0].put(Continue(None))
    assert ranks.report({"loss": 0.25}) == [None, None], "training goes on"
    (saved,) = saved_by(ranks)
    assert (saved.checkpoint, saved.refused) == (None, refused)


@pytest.mark.parametrize(("policy", "kept"), [({"every_s": 3600.0}, [1]), ({"every": 2}, [2, 4])])
def test_every_rank_leaves_out_the_checkpoints_that_rank_0_does(tmp_path: Path, policy: Any, kept: list[int]) -> None:
    ranks = Ranks(tmp_path, until=None, checkpoints=Checkpoints(**policy))
    writing = ranks.sessions[0].writing

    def in_background(path: str) -> None:
        if writing.writes(path):
            writing.defer(lambda: write(path))

    writer = mock.Mock(side_effect=in_background)
    for _ in range(4):
        assert ranks.report({"loss": 1}, checkpoint=writer) == [None, None]
    assert writer.call_count == 2 * len(kept)
    writing.settle()
    assert [info.number for info in checkpoints.find(tmp_path)] == kept


def test_a_rank_that_reports_a_checkpoint_more_than_rank_0_learns_why_it_cannot(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, until=None)
    ranks.report({"loss": 1})
    ranks.sessions[0].check_finished()
    with pytest.raises(GangError, match="report equally often"):
        ranks.sessions[1].context.report({"loss": 1}, checkpoint=write)


def test_an_abort_frees_ranks_that_wait_and_ends_training_that_is_repeated_without_reports(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    for box in ranks.mailboxes:
        threading.Timer(0.2, box.abort, ["rank 1 failed"]).start()
    assert [type(error) for error in ranks.report({"loss": 1})] == [TrialStopped, TrialStopped]
    ranks = Ranks(tmp_path, size=1, until=None, resume=CheckpointInfo("x.ckpt", 3, fit=1))
    assert ranks.report({"loss": 1}) == [None]
    assert ranks.events == []
    ranks.mailboxes[0].abort("enough")
    assert [type(error) for error in ranks.report({"loss": 1})] == [TrialStopped]


def test_what_is_wrong_with_reports_is_said(tmp_path: Path) -> None:
    with pytest.raises(GangError, match="decision on report 4"):
        Mailbox(1).take(4, 0.05)
    with pytest.raises(MetricError, match="without a report"):
        Ranks(tmp_path, size=1, metric="loss").sessions[0].check_finished()
    with pytest.raises(ContextError, match=r"tunelight\.run"):
        session.get_context()
    (error,) = Ranks(tmp_path, size=1, until=None, metric="loss").report({"los": 1, "acc": 2})
    assert isinstance(error, MetricError)
    assert all(text in str(error) for text in ("'loss'", "acc, los", "Did you mean 'los'?"))


def test_a_checkpoint_file_is_moved_into_the_trial_and_described_and_belongs_to_no_fit_before_it(tmp_path) -> None:
    mine = tmp_path / "mine.ckpt"
    mine.write_text("weights")
    ranks = Ranks(tmp_path, until=None)
    for one in ranks.sessions:
        one.boundary.begin_fit()
        one.boundary.end_fit()
    assert ranks.report({"loss": 1}, checkpoint=str(mine), epoch=3) == [None, None]
    info = ranks.events[0].checkpoint
    assert Path(info.path).read_text() == "weights"
    assert (info.number, info.epoch, info.size, info.fit) == (1, 3, 7, -1)
    assert not mine.exists()


def test_values_of_a_script_s_own_classes_are_sent_as_what_they_derive_from(tmp_path: Path) -> None:
    class Phase(str, Enum):  # noqa: UP042 - whose str() is "Phase.VAL"
        VAL = "val"

    class Width(IntEnum):
        WIDE = 8

    ranks = Ranks(tmp_path, size=1, until=None)
    ranks.report({"phase": Phase.VAL, "width": [Width.WIDE], "loss": type("Loss", (float,), {})(0.5), "last": True})
    metrics = ranks.events[0].metrics
    assert metrics == {"phase": "val", "width": [8], "loss": 0.5, "last": True}
    assert [type(value) for value in (metrics["phase"], *metrics["width"], metrics["loss"])] == [str, int, float]


class _OnGPU:
    """A tensor on a GPU, as one looks that has none: it can be sent, and cannot be read there."""

    shape = (2,)

    def tolist(self) -> list[float]:
        return [0.25, 0.5]

    def __reduce__(self) -> Any:
        return (_cannot, ())


def _cannot() -> None:
    raise RuntimeError("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False")


class _Odd:
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_Odd' object")

    def __repr__(self) -> str:
        return "<odd>"


def test_every_metric_can_be_read_where_neither_torch_nor_a_gpu_is(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, size=1, until=None)
    matrix = np.eye(2)
    tensors = {"each": _OnGPU(), "item": torch.full((1,), 0.125), "two": torch.ones(1, 2)}
    of = {"a": [torch.tensor(3)], 1: (_OnGPU(),)}
    assert ranks.report({"loss": 1.0, "odd": _Odd(), **tensors, "of": of, "np": matrix}) == [None]
    sent = pickle.dumps(ranks.events[0])
    assert b"torch" not in sent
    metrics = pickle.loads(sent).metrics
    assert np.array_equal(metrics.pop("np"), matrix)
    assert metrics.pop("of") == {"a": [3], "1": ((0.25, 0.5),)}
    assert metrics == {"loss": 1.0, "odd": "<odd>", "each": (0.25, 0.5), "item": 0.125, "two": ([1.0, 1.0],)}
    assert ranks.events[0].notes == ("The metric 'odd' is no number but a _Odd: its text is recorded.",)


def test_callbacks_that_hold_a_session_can_be_copied(tmp_path: Path) -> None:
    """Tests and training code copy ``trainer.callbacks``, some of which are tunelight's."""
    one = Ranks(tmp_path, size=1).sessions[0]
    assert copy.deepcopy({"callback": [one]}) == {"callback": [one]}


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_a_checkpoint_of_which_the_storage_refuses_a_part_is_skipped_by_all_ranks(tmp_path, failing) -> None:
    ranks = Ranks(tmp_path, until=None)

    def report(rank: int) -> None:
        def write(path: str) -> None:
            Path(path).mkdir(exist_ok=True)
            if rank in failing:
                raise OSError(28, "No space left on device")
            Path(path, str(rank)).write_text("weights")

        ranks.sessions[rank].context.report({"loss": 1.0}, checkpoint=write)

    assert ranks.each(report) == [None, None]
    assert [event.checkpoint for event in ranks.events] == [None]
    assert not any((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize(("end", "kept"), [(Stop("asha"), [1, 3]), (Stop("paused"), [1]), (None, [1])])
def test_the_checkpoint_of_the_report_that_stops_a_trial_is_written_whatever_it_costs_and_none_behind_a_report(
    tmp_path: Path, end: Stop | None, kept: list[int]
) -> None:
    ranks = Ranks(tmp_path, until=None, metric="loss")
    ranks.report({"loss": 1.0}, checkpoint=write)
    ranks.sessions[0].writing._policy.blocked_s = 1e9
    ranks.report({"loss": 2.0}, checkpoint=write)
    for mailbox in ranks.mailboxes[:1] if end else ():
        mailbox.put(end)  # type: ignore[arg-type]  # there is one
    raised = ranks.report({"loss": 3.0}, checkpoint=write)
    assert [type(error) for error in raised] == [TrialStopped if end else type(None)] * 2
    for one in () if end else ranks.sessions:
        one.check_finished()
    assert [info.number for info in checkpoints.find(tmp_path)] == kept


@pytest.mark.parametrize(
    ("resumed", "told", "counted"),
    [(None, [0, 1, 2], [0, 1, 2]), (None, [1, 1, 2], [0, 0, 1]), (4, [6, 7], [5, 6]), (4, [5, 6], [5, 6])],
)
def test_epochs_that_training_code_counts_from_one_are_counted_as_lightnings(tmp_path, resumed, told, counted) -> None:
    resume = None if resumed is None else CheckpointInfo("x", 5, epoch=resumed)
    ranks = Ranks(tmp_path, size=1, until=None, resume=resume)
    assert ranks.sessions[0].context.resume == resume
    for epoch in told:
        ranks.report({"loss": 1.0, "epoch": epoch})
    assert [event.epoch for event in ranks.events] == counted


def test_a_report_says_whether_a_checkpoint_could_be_written_and_has_a_note_once(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, size=1, until=None)
    ranks.sessions[0].note("mind this")
    ranks.report({"loss": 1.0})
    ranks.sessions[0].note("mind this")
    ranks.report({"loss": 1.0}, checkpoint=write)
    ranks.sessions[0].boundary.writer = write
    ranks.report({"loss": 1.0})
    reports = [event for event in ranks.events if isinstance(event, Report)]
    assert [event.savable for event in reports] == [False, True, True]
    assert [event.notes for event in reports] == [("mind this",), (), ()]


def ordered(ranks: Ranks, *hurried: int) -> None:
    """Give rank 0 the order to leave, and let some ranks hurry."""
    ranks.mailboxes[0].put(Stop("moved", save=True, serial=7))
    for rank in hurried:
        ranks.mailboxes[rank].put(Hurry())


def each(ranks: Ranks, does: Callable[[int, Any], object]) -> list[Any]:
    """Let all ranks do something with their boundaries at once; return what each returned, or the type of its error."""
    found = ranks.each(lambda rank: does(rank, ranks.sessions[rank].boundary))
    return [type(one) if isinstance(one, BaseException) else one for one in found]


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
    (saved,) = saved_by(ranks)
    assert saved.answers == 7
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


@pytest.mark.parametrize("apart", ["by steps", "by batches"])
def test_ranks_that_are_apart_go_on_and_leave_at_the_next_report(tmp_path, monkeypatch, apart) -> None:
    monkeypatch.setattr(boundary, "MEET_LIMIT_S", 1.0)
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    if apart == "by steps":
        ranks.sessions[0].boundary.end_step(write, epoch=0, step=1)  # it calls for step 2, and rank 1 is at 4 already
        came = {0: {"step": 2}, 1: {"step": 4}}
    else:
        step(ranks, 1)
        came = {rank: {"step": 2, "batch": rank} for rank in (0, 1)}
    assert each(ranks, lambda rank, boundary: boundary.end_step(write, epoch=0, **came[rank])) == [None, None]
    assert saved_by(ranks) == []
    assert [type(error) for error in ranks.report({"loss": 1.0}, checkpoint=write)] == [TrialStopped] * 2
    assert [saved.checkpoint.number for saved in saved_by(ranks)] == [1]


def test_rank_0_does_not_take_a_rank_for_there_that_has_gone_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(boundary, "MEET_LIMIT_S", 0.3)
    ranks = Ranks(tmp_path, 2, until=None)
    ordered(ranks, 1, 0)
    step(ranks, 1)
    late = {0: 1.5, 1: 0.0}

    def come(rank: int, boundary: Any) -> None:
        time.sleep(late[rank])
        boundary.end_step(write, epoch=0, step=2)

    assert each(ranks, come) == [None, None]  # rank 1 has waited for 0.6 s, and gone on
    assert saved_by(ranks) == []


def test_a_loop_of_ones_own_is_told_and_its_next_report_writes_a_checkpoint(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2, until=None, checkpoints=Checkpoints(every_s=1000))
    ranks.report({"loss": 1.0}, checkpoint=write)
    asks = [each(ranks, lambda rank, _: ranks.sessions[rank].context.preempted())]
    ordered(ranks, 1, 0)
    asks += [each(ranks, lambda rank, _: ranks.sessions[rank].context.preempted()) for _ in range(3)]
    assert asks == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]
    assert [type(error) for error in ranks.report({"loss": 0.5}, checkpoint=write)] == [TrialStopped] * 2
    (saved,) = saved_by(ranks)
    assert (saved.checkpoint.number, saved.checkpoint.between) == (2, 0)
    assert [report.number for report in ranks.events if isinstance(report, Report)] == [1, 2]


def test_a_checkpoint_behind_a_report_is_newer_than_that_and_older_than_the_next(tmp_path: Path) -> None:
    info = partial(written_checkpoint, tmp_path, value=None)
    made = [info(1, value=0.1), info(1, 20), info(1, 100), info(2, value=0.2), info(2, 120)]
    assert checkpoints.find(tmp_path) == made
    assert checkpoints.resume_point(tmp_path, 1)[0] == made[2]
    assert checkpoints.resume_point(tmp_path, 1, base=made[1])[0] == made[2]
    assert checkpoints.resume_point(tmp_path, 1, base=made[2])[0] == made[2]
    assert checkpoints.prune(made, 1, "min") == [made[0], made[3], made[4]]
    later = [info(2, 130), info(2, 140)]
    assert checkpoints.prune([made[3], made[4], *later], 0, "min") == [made[3], *later]  # the last of a report stays


def asked_to_save(folder: Path, size: int, reports: int = 0) -> Ranks:
    """Return ranks that are to write a checkpoint soon, after so many reports."""
    ranks = Ranks(folder, size, until=None)
    for _ in range(reports):
        ranks.report({"loss": 0.5}, checkpoint=write)
    ranks.mailboxes[0].put(Save(serial=5))
    for mailbox in ranks.mailboxes:
        mailbox.put(Hurry())
    return ranks


@pytest.mark.parametrize("size", [1, 2])
def test_a_checkpoint_between_two_reports_leaves_training_as_it_was(tmp_path: Path, size: int) -> None:
    ranks = asked_to_save(tmp_path, size, reports=1)
    assert [step(ranks, number) for number in (1, 2, 3)] == [[None] * size] * 3
    (saved,) = saved_by(ranks)
    assert saved.answers == 5
    assert (saved.checkpoint.number, saved.checkpoint.between) == (1, 2)
    assert not any(one.boundary.hurried for one in ranks.sessions)
    assert [one.boundary.writer for one in ranks.sessions] == [None] * size
    ranks.report({"loss": 0.4}, checkpoint=write)
    assert [event.number for event in ranks.events if isinstance(event, Report)] == [1, 2]


def test_a_checkpoint_that_is_asked_for_is_no_reason_for_training_code_to_leave_but_an_order_behind_it_is(tmp_path):
    ranks = asked_to_save(tmp_path, 2)
    assert each(ranks, lambda _, boundary: [boundary.preempted() for _ in range(3)]) == [[False] * 3] * 2
    ordered(ranks, 1, 0)
    asked = [each(ranks, lambda _, boundary: boundary.preempted()) for _ in range(3)]
    assert asked[-1] == [True, True]
    assert [type(error) for error in ranks.report({"loss": 1.0}, checkpoint=write)] == [TrialStopped] * 2
    assert [saved.answers for saved in saved_by(ranks)] == [5, 7]
