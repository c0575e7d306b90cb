"""Checkpoints on disk: atomic, found, checked, kept, pruned and pointed at."""

from __future__ import annotations

from pathlib import Path

from tests.kit.recording import written_checkpoint
from tunelight.checkpoints import files as checkpoints
from tunelight.messages import CheckpointInfo


def write(trial: Path, number: int, value: float | None = None, text: str = "weights") -> CheckpointInfo:
    return written_checkpoint(trial, number, value=value, text=text)


def test_a_corrupt_file_is_passed_over_and_without_a_whole_one_there_is_none(tmp_path: Path) -> None:
    first, second = write(tmp_path, 1), write(tmp_path, 2)
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
    own = [write(tmp_path, number) for number in (1, 2, 3)]
    (tmp_path / "other").mkdir()
    others = write(tmp_path / "other", 2)  # as a copy of another trial's weights is, say
    assert checkpoints.resume_point(tmp_path, 3, None) == (own[2], None)
    assert checkpoints.resume_point(tmp_path, 2, None) == (own[1], None)
    assert checkpoints.resume_point(tmp_path, 2, others) == (others, None)
    assert checkpoints.resume_point(tmp_path, 3, others) == (own[2], None)
    assert checkpoints.resume_point(tmp_path, 0, None) == (None, None)


def test_what_a_killed_worker_was_writing_is_no_checkpoint_and_removed(tmp_path: Path) -> None:
    info = write(tmp_path, 1)
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
    info = write(tmp_path, 1)
    checkpoints.write_pointer(tmp_path, info)
    assert checkpoints.read_pointer(tmp_path) == info
    Path(info.path).unlink()
    assert checkpoints.read_pointer(tmp_path) == info
    found, warning = checkpoints.resume_point(tmp_path, info.number, info)
    assert found is None
    assert "report-000001.ckpt is torn or gone" in str(warning)


def test_a_real_copy_beside_the_pointer_comes_first_and_a_moved_folder_still_finds_its_checkpoints(tmp_path):
    info = write(tmp_path / "a", 1)
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
