"""Checkpoints on disk: atomic, found, checked, kept, pruned and pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunelight import checkpoints
from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo


def write(trial: Path, number: int, value: float | None = None, text: str = "weights") -> CheckpointInfo:
    folder = trial / checkpoints.FOLDER
    folder.mkdir(exist_ok=True)
    info = CheckpointInfo(str(folder / checkpoints.file_name(number)), number, value=value)
    draft = checkpoints.draft(info)
    draft.write_text(text)
    return checkpoints.finish(info, draft)


def test_a_draft_is_not_a_checkpoint(tmp_path: Path) -> None:
    info = write(tmp_path, 1)
    checkpoints.draft(CheckpointInfo(info.path.replace("000001", "000002"), 2)).write_text("half")
    assert checkpoints.find(tmp_path) == [info]


def test_nothing_written_is_an_error(tmp_path: Path) -> None:
    info = CheckpointInfo(str(tmp_path / "report-000001.ckpt"), 1)
    with pytest.raises(CheckpointError, match="wrote none"):
        checkpoints.finish(info, checkpoints.draft(info))


def test_best_and_last_are_kept(tmp_path: Path) -> None:
    infos = [write(tmp_path, n, value) for n, value in enumerate([0.5, 0.1, 0.3, float("nan")], start=1)]
    left = checkpoints.prune(infos, keep=1, mode="min")
    assert [info.number for info in left] == [2, 4]
    assert checkpoints.find(tmp_path)[0].number == 2
    assert len(list((tmp_path / checkpoints.FOLDER).iterdir())) == 4


def test_max_mode_keeps_the_largest(tmp_path: Path) -> None:
    infos = [write(tmp_path, n, value) for n, value in enumerate([0.5, 0.9, 0.3], start=1)]
    assert [info.number for info in checkpoints.prune(infos, keep=1, mode="max")] == [2, 3]


def test_what_is_pointed_at_is_not_pruned(tmp_path: Path) -> None:
    infos = [write(tmp_path, n, value) for n, value in enumerate([0.5, 0.1, 0.3], start=1)]
    kept_by_tune = tmp_path / "checkpoint_000000"
    kept_by_tune.mkdir()
    checkpoints.write_pointer(kept_by_tune, infos[0])
    left = checkpoints.prune(infos, 1, "min", checkpoints.pinned(tmp_path))
    assert [info.number for info in left] == [1, 2, 3]


def test_a_corrupt_file_is_passed_over(tmp_path: Path) -> None:
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    Path(second.path).write_text("weightz")
    assert checkpoints.last_whole(tmp_path) == first


def test_a_pointer_finds_its_file_and_says_when_it_is_gone(tmp_path: Path) -> None:
    info = write(tmp_path, 1)
    checkpoints.write_pointer(tmp_path, info)
    assert checkpoints.read_pointer(tmp_path) == info
    Path(info.path).unlink()
    with pytest.raises(CheckpointError, match="is gone"):
        checkpoints.read_pointer(tmp_path)


def test_a_real_copy_beside_the_pointer_comes_first_and_shares_its_bytes(tmp_path: Path) -> None:
    info = write(tmp_path, 1)
    target = tmp_path / "elsewhere"
    target.mkdir()
    checkpoints.write_pointer(target, info)
    checkpoints.copy_into(info, target)
    found = checkpoints.read_pointer(target)
    assert found is not None
    assert found.path == str(target / "report-000001.ckpt")
    assert Path(found.path).stat().st_ino == Path(info.path).stat().st_ino


def test_an_empty_pointer_means_none(tmp_path: Path) -> None:
    checkpoints.write_pointer(tmp_path, None)
    assert checkpoints.read_pointer(tmp_path) is None


def test_a_moved_sweep_folder_still_finds_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", 1)
    (tmp_path / "a").rename(tmp_path / "b")
    (found,) = checkpoints.find(tmp_path / "b")
    assert Path(found.path).is_relative_to(tmp_path / "b")
