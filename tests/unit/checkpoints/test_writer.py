"""Checkpoints: written in the background within a share of the time, found, checked, kept, pruned and pointed at."""

from __future__ import annotations

import errno
import io
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit.recording import Clock, written_checkpoint
from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import FREE_S, CheckpointPolicy
from tunelight.checkpoints.writer import CheckpointWriter
from tunelight.compat.lightning import TorchCheckpointIO
from tunelight.errors import CheckpointError
from tunelight.lightning.strategies.base import frozen, write_later
from tunelight.messages import CheckpointInfo, Saved


class One:
    """Rank 0's writer, and what it says."""

    def __init__(self, folder: Path, *, job: bool = False, lead: bool = True, **policy: Any) -> None:
        self.folder = folder / checkpoints.FOLDER
        self.clock = Clock(0.0)
        self.notes: list[str] = []
        self.posted: list[Saved] = []
        self.policy = CheckpointPolicy(0.0, **policy)
        post = None if job else self.posted.append
        self.writer = CheckpointWriter(lead, self.policy, self.notes.append, post, self.clock)

    def info(self, number: int) -> CheckpointInfo:
        return CheckpointInfo(str(self.folder / checkpoints.file_name(number)), number)

    def write(self, number: int, later: Callable[[Path], object], **kwargs: Any) -> CheckpointInfo | None:
        """Write as a strategy does: take the path over, and leave the rest to the thread."""

        def save(path: str) -> None:
            assert self.writer.writes(path)
            self.writer.defer(lambda: later(Path(path)))

        return self.writer.write(self.info(number), save, **kwargs)


def weights(path: Path) -> None:
    path.write_text("weights")


def after(gate: threading.Event) -> Callable[[Path], None]:
    """Return a way to write that waits for ``gate``."""

    def write(path: Path) -> None:
        gate.wait(10)
        weights(path)

    return write


def full(path: Path) -> None:
    path.write_text("wei")
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_short_trial_or_a_cheap_checkpoint_is_written_at_every_report_and_others_stay_under_their_share() -> None:
    for every_s, cost_s, reports in ((0.1, 0.04, 10), (10.0, 0.4, 1000)):
        policy = CheckpointPolicy(0.0)
        for number in range(1, reports + 1):
            assert policy.allowance_s(number * every_s) > 0
            policy.wrote(number * every_s, cost_s)
    policy, now, written = CheckpointPolicy(0.0), 0.0, 0
    for _ in range(1000):
        now += 10.0
        if policy.allowance_s(now) > 0:
            policy.wrote(now, 2.0)
            now += 2.0
            written += 1
    assert policy.blocked_s <= FREE_S + 0.05 * now
    assert written == pytest.approx(0.05 * now / 2.0, abs=2)  # and the share is used


def test_the_next_one_waits_for_the_one_before_unless_a_hanging_storage_makes_that_dear(tmp_path: Path) -> None:
    one, gate = One(tmp_path / "a"), threading.Event()
    assert one.write(1, after(gate)) is None
    assert (one.posted, checkpoints.find(tmp_path / "a")) == ([], []), "training goes on meanwhile"
    timer = threading.Timer(0.1, gate.set)
    timer.start()
    assert one.writer.admit()
    assert [event.checkpoint and event.checkpoint.number for event in one.posted] == [1]
    one.write(2, weights)
    one.writer.settle()
    assert [event.checkpoint for event in one.posted] == checkpoints.find(tmp_path / "a")
    assert [one.writer.written(number) for number in (1, 2)] == [None, checkpoints.find(tmp_path / "a")[1]]
    timer.join()
    one, gate = One(tmp_path / "b", blocked_s=FREE_S - 0.05), threading.Event()
    one.write(1, after(gate))
    assert not one.writer.admit()
    assert "not every report writes one" in one.notes[0]
    gate.set()
    one.writer.settle()
    assert one.posted[0].checkpoint is not None


def test_a_job_and_a_save_wait_for_their_checkpoint(tmp_path: Path) -> None:
    job = One(tmp_path / "a", job=True)
    done = job.write(1, weights)
    assert done is not None
    one = One(tmp_path / "b")
    assert one.write(1, weights, wait=True) is not None
    assert one.posted == []


def test_a_worker_that_was_given_up_does_not_write_into_the_file_of_the_next_start(tmp_path: Path) -> None:
    old, new = (CheckpointWriter(True, CheckpointPolicy(0.0), print, print, start=start) for start in ("1", "2"))
    info, left = One(tmp_path).info(1), list[str]()

    def first(path: str) -> None:
        left.append(path)
        weights(Path(path))

    def write(path: str) -> None:
        weights(Path(path))
        Path(left[0]).write_text("half")  # it comes late

    old.write(info, first)
    done = new.write(info, write)
    assert done is not None
    assert checkpoints.is_valid(done)


def test_other_ranks_write_nothing_and_a_path_that_is_not_the_reports_is_not_taken_over(tmp_path: Path) -> None:
    one = One(tmp_path, lead=False)
    called: list[str] = []
    assert one.writer.write(one.info(1), called.append) is None
    assert called == [str(checkpoints.temp_path(one.info(1), ""))]
    assert checkpoints.find(tmp_path) == []
    assert not One(tmp_path).writer.writes(tmp_path / "model.ckpt")


@pytest.mark.parametrize("later", [True, False])
def test_a_full_disk_costs_the_checkpoint_and_is_told_once_as_is_its_end(tmp_path: Path, later: bool) -> None:
    one = One(tmp_path, job=not later)
    for number in (1, 2):
        assert one.write(number, full) is None
    one.write(3, weights)
    one.writer.settle()
    told = [event.note for event in one.posted if event.note] if later else one.notes
    assert [text[:39] for text in told] == ["A checkpoint could not be written (No s", "Checkpoints are written again."]
    assert "Make room" in told[0]
    assert [info.number for info in checkpoints.find(tmp_path)] == [3]
    assert not list(one.folder.glob(".*"))


def test_a_disk_that_is_full_for_torch_is_recognised(tmp_path: Path) -> None:
    one = One(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # a file that grows beyond it fails, as on a full disk
    try:
        one.write(1, lambda path: write_later({"w": torch.zeros(10_000)}, str(path), TorchCheckpointIO())())
        one.writer.settle()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    (event,) = one.posted
    assert "could not be written (the storage did not take it)" in str(event.note)
    assert not list(one.folder.glob("*"))
    assert not list(one.folder.glob(".*"))


@pytest.mark.parametrize("says", ["File exists", "Disk quota exceeded"])
def test_a_storage_that_is_away_or_a_quota_that_only_fsync_tells_of_costs_the_checkpoint(tmp_path, monkeypatch, says):
    one, number = One(tmp_path), errno.EDQUOT

    def fsync(file: int) -> None:
        raise OSError(number, os.strerror(number))

    if says == "File exists":
        one.folder.write_text("no folder")
    else:
        monkeypatch.setattr(os, "fsync", fsync)
    one.write(1, weights)
    one.writer.settle()
    assert says in str(one.posted[0].note)
    if says == "File exists":
        one.folder.unlink()
    assert checkpoints.find(tmp_path) == []
    number = errno.EINVAL  # a file system that cannot sync
    one.write(2, weights)
    one.writer.settle()
    assert [info.number for info in checkpoints.find(tmp_path)] == [2]


def test_what_writes_nothing_or_cannot_be_pickled_is_raised_where_training_sees_it(tmp_path: Path) -> None:
    one = One(tmp_path)
    with pytest.raises(CheckpointError, match="wrote none"):
        one.writer.write(one.info(1), lambda path: None)
    with pytest.raises(CheckpointError, match="does not exist"):
        one.writer.write(one.info(1), str(tmp_path / "model.ckpt"))
    one.write(1, lambda _: (_ for _ in ()).throw(TypeError("cannot pickle a lock")))
    with pytest.raises(TypeError, match="cannot pickle"):
        one.writer.settle()


def test_tensors_that_only_the_checkpoint_holds_are_not_copied_and_what_does_not_copy_is_written_as_it_was(tmp_path):
    made, live = torch.ones(3), torch.ones(3)
    held = frozen({"state_dict": {"a": made}, "others": [live]}, [made])
    assert held["state_dict"]["a"] is made
    live.zero_()
    assert held["others"][0].tolist() == [1.0, 1.0, 1.0]
    weight = torch.zeros(2)
    write = write_later({"w": weight, "own": Uncopyable()}, str(tmp_path / "x"), TorchCheckpointIO())
    weight.add_(1)
    write()
    saved = torch.load(io.BytesIO((tmp_path / "x").read_bytes()), weights_only=False)
    assert saved["w"].tolist() == [0, 0]


def test_a_frozen_checkpoint_does_not_change_with_training_and_what_is_shared_is_copied_once() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    live: dict[str, Any] = {
        "state_dict": {"w": weight, "tied": weight, "row": weight[1]},
        "loops": {"step": [1]},
        "opt": ({0: weight},),
    }
    held = frozen(live)
    weight.add_(100)
    live["loops"]["step"].append(2)
    assert held["state_dict"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert held["state_dict"]["row"].tolist() == [3, 4, 5]
    assert held["loops"] == {"step": [1]}
    weight = torch.zeros(1000)
    held = frozen({"a": weight, "b": weight.view(10, 100), "c": [weight[5:7]]})
    pointers = {one.untyped_storage().data_ptr() for one in (held["a"], held["b"], held["c"][0])}
    assert len(pointers) == 1
    assert pointers != {weight.untyped_storage().data_ptr()}


class Uncopyable:
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def test_a_checkpoint_in_parts_of_several_nodes_is_refused_in_a_store(tmp_path: Path) -> None:
    home = tmp_path / "tunelight-stores" / "local" / str(tmp_path).strip("/") / "store" / "s" / "t" / "checkpoints"
    info = CheckpointInfo(str(home / "report-000001.ckpt"), 1)
    away = CheckpointWriter(False, CheckpointPolicy(0.0), lambda _: None, None, away=True)
    assert away.write(info, lambda path: None) is None, "rank 0 writes it whole"
    with pytest.raises(CheckpointError, match="save_distributed_checkpoint=False"):
        away.write(info, lambda path: Path(path).mkdir())
    assert not list(home.glob("*.tmp"))
    whole = b"of rank 0, whose working folder is on a disk that both nodes have"
    assert away.write(info, lambda path: Path(path).write_bytes(whole)) is None, "it writes meanwhile"
    assert [path.read_bytes()[:9] for path in home.glob(".*.tmp")] == [b"of rank 0"]
    plain = CheckpointInfo(str(tmp_path / "shared" / "report-000001.ckpt"), 1)
    assert away.write(plain, lambda path: Path(path).mkdir()) is None, "of a shared folder, rank 0 finishes it"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file", "vocabulary.txt"),
        OSError(errno.ENOSPC, "No space left on device", "/elsewhere/vocabulary.txt"),
        OSError("no vocabulary"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ],
)
def test_an_error_of_the_code_that_is_none_of_the_write_is_raised(tmp_path: Path, error: OSError) -> None:
    one = One(tmp_path)

    def write(path: str) -> None:
        raise error

    def by_another(path: str) -> None:
        try:
            raise error
        except OSError as first:
            raise RuntimeError("cannot save") from first

    for function in (write, by_another):
        with pytest.raises(type(error) if function is write else RuntimeError):
            one.writer.write(one.info(1), function)
    with pytest.raises(FileNotFoundError):  # a folder that it was to make
        one.writer.write(one.info(1), lambda path: Path(path, "weights").write_text("weights"))
    assert one.notes == []


def test_a_corrupt_file_is_passed_over_and_without_a_whole_one_there_is_none(tmp_path: Path) -> None:
    first, second = written_checkpoint(tmp_path, 1), written_checkpoint(tmp_path, 2)
    Path(second.path).write_text("weightz")
    found, warning = checkpoints.resume_point(tmp_path)
    assert found == first
    assert warning is not None
    assert "report-000002.ckpt is torn" in warning
    assert "report-000001.ckpt is used instead" in warning
    assert checkpoints.resume_point(tmp_path, second.number, second) == (first, warning)
    assert checkpoints.resume_point(tmp_path, first.number, first) == (first, None)
    assert checkpoints.resume_point(tmp_path, 1) == (first, None)
    Path(first.path).write_text("we")
    found, warning = checkpoints.resume_point(tmp_path)
    assert found is None
    assert "from scratch" in str(warning)
    assert checkpoints.resume_point(tmp_path / "none") == (None, None)


def test_a_trial_that_failed_goes_on_from_its_newest_but_never_from_before_its_last_start(tmp_path: Path) -> None:
    own = [written_checkpoint(tmp_path, number) for number in (1, 2, 3)]
    others = written_checkpoint(tmp_path / "other", 2)  # as a copy of another trial's weights is, say
    assert checkpoints.resume_point(tmp_path, 3, None) == (own[2], None)
    assert checkpoints.resume_point(tmp_path, 2, None) == (own[1], None)
    assert checkpoints.resume_point(tmp_path, 2, others) == (others, None)
    assert checkpoints.resume_point(tmp_path, 3, others) == (own[2], None)
    assert checkpoints.resume_point(tmp_path, 0, None) == (None, None)


def test_what_a_killed_worker_was_writing_is_no_checkpoint_and_removed(tmp_path: Path) -> None:
    info = written_checkpoint(tmp_path, 1)
    checkpoints.temp_path(CheckpointInfo(info.path.replace("000001", "000002"), 2), "start").write_text("half")
    assert checkpoints.find(tmp_path) == [info], "a draft is no checkpoint"
    later = Path(info.path).with_name(".report-000002.owner-2.ckpt.start.tmp")
    later.write_text("half")  # gangs of a driver that took over write it
    checkpoints.remove_temp_files(tmp_path)
    assert sorted(path.name for path in Path(info.path).parent.iterdir()) == [
        later.name,
        "report-000001.ckpt",
        "report-000001.json",
    ]
    checkpoints.remove_temp_files(tmp_path, 2)
    assert not later.exists()


def test_what_gangs_of_an_earlier_owner_make_after_they_were_succeeded_does_not_count(tmp_path: Path) -> None:
    old = [written_checkpoint(tmp_path, number, text="old") for number in (1, 2, 3)]
    new = [written_checkpoint(tmp_path, number, text="new", owner=3) for number in (2, 3)]
    assert Path(old[1].path).read_text() == "old"
    checkpoints.take_over(tmp_path, 1, 0)
    assert checkpoints.find(tmp_path) == [old[0], old[1], new[0], old[2], new[1]]
    for last in (1, 2):
        checkpoints.take_over(tmp_path, 3, last)  # a second head of that owner changes nothing
    assert checkpoints.find(tmp_path) == [old[0], *new]
    assert checkpoints.resume_point(tmp_path, 3) == (new[1], None)
    earlier, kept = checkpoints.CheckpointSet(1, "min"), checkpoints.CheckpointSet(1, "min", owner=3)
    earlier.discard_after(2, tmp_path)
    kept.look(tmp_path)
    assert (earlier.known, kept.known) == ([old[0]], [old[0], *new])
    kept.discard_after(2, tmp_path)
    assert checkpoints.find(tmp_path) == kept.known == [old[0], new[0]]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.ckpt")) == [
        "report-000001.ckpt",
        "report-000002.owner-3.ckpt",
    ]


def test_a_pointer_finds_its_file_or_none_and_a_file_that_is_gone_is_not_whole(tmp_path: Path) -> None:
    checkpoints.write_pointer(tmp_path, None)
    assert checkpoints.read_pointer(tmp_path) is None
    info = written_checkpoint(tmp_path, 1)
    checkpoints.write_pointer(tmp_path, info)
    assert checkpoints.read_pointer(tmp_path) == info
    Path(info.path).unlink()
    assert checkpoints.read_pointer(tmp_path) == info
    found, warning = checkpoints.resume_point(tmp_path, info.number, info)
    assert found is None
    assert "report-000001.ckpt is torn or gone" in str(warning)


def test_a_real_copy_beside_the_pointer_comes_first_and_a_moved_folder_still_finds_its_checkpoints(tmp_path):
    info = written_checkpoint(tmp_path / "a", 1)
    target = tmp_path / "elsewhere"
    target.mkdir()
    checkpoints.write_pointer(target, info)
    checkpoints.copy_into(info, target)
    found = checkpoints.read_pointer(target)
    assert found is not None
    assert found.path == str(target / "report-000001.ckpt")
    assert Path(found.path).stat().st_ino == Path(info.path).stat().st_ino
    (tmp_path / "a").rename(tmp_path / "b")
    (moved,) = checkpoints.find(tmp_path / "b")
    assert Path(moved.path).is_relative_to(tmp_path / "b")
