"""record: sweeps are deleted and renamed, and only sweeps that nobody runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.recording import Writer
from tunelight.errors import StorageError
from tunelight.record import create_sweep_folder, find_sweep, leased, list_sweeps, write_sweep_file
from tunelight.record.upkeep import (
    check_deletable,
    delete_checkpoints,
    delete_sweep,
    size_of,
    started_from,
)
from tunelight.stores import store_of


@pytest.fixture
def folder(tmp_path):
    written = Writer(tmp_path, name="digits", space={"lr": {"uniform": [0, 1]}})
    written.checkpoint(written.trial(0.5), 1, 0.5).write_bytes(b"x" * 100)
    return written.load().folder


def test_a_sweep_is_deleted_whole(folder):
    delete_sweep(folder)
    assert not os.path.lexists(folder)


def test_what_a_link_in_a_sweep_points_to_is_not_deleted(folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.bin").write_text("dear")
    (folder / "trial_00000" / "data").symlink_to(data)
    (folder / "data").symlink_to(data)
    (folder / "file").symlink_to(data / "train.bin")
    assert size_of(folder) < 5000
    delete_sweep(folder)
    assert not folder.exists()
    assert (data / "train.bin").read_text() == "dear"


def test_a_link_to_a_sweep_is_refused(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(StorageError, match=r"is a link to .*digits. Give that folder"):
        delete_sweep(link)
    assert find_sweep(folder) == folder


def test_a_folder_with_another_program_s_record_is_no_sweep(tmp_path):
    (tmp_path / "record.jsonl").write_text('{"kind": "sweep", "artist": "Nina Simone"}\n')
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StorageError, match=r"is no sweep of tunelight: .* Nothing is deleted"):
        delete_sweep(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_damaged_sweep_and_one_that_never_began_can_be_deleted(folder, tmp_path):
    record = folder / "record.jsonl"
    record.write_bytes(b"junk\n" + record.read_bytes())
    check_deletable(folder)
    new = create_sweep_folder(tmp_path, "new")
    write_sweep_file(new, {"space": {}, "metric": "loss", "mode": "min"})
    check_deletable(new)


def test_a_sweep_that_holds_others_is_refused(folder):
    inner = folder / "inner"
    inner.mkdir()
    Writer(inner).load()
    (inner / "digits").rename(folder / "second")
    with pytest.raises(StorageError, match="holds other sweeps: second"):
        delete_sweep(folder)
    assert len(list_sweeps(folder.parent)) == 1


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (delete_sweep, "deleted"),
        (lambda folder: delete_checkpoints(folder, [folder / "trial_00000"]), "cleared of checkpoints"),
    ],
)
def test_a_sweep_that_runs_is_left_alone(folder, act, what):
    before = sorted(folder.rglob("*"))
    with leased(folder):
        with pytest.raises(StorageError, match=rf"digits is running: process {os.getpid()} on .* can be {what}\."):
            act(folder)
        assert set(before) <= set(folder.rglob("*"))


def test_what_cannot_be_deleted_leaves_a_sweep_that_can_be_deleted_again(folder, monkeypatch):
    """Root may delete anything, so the system's refusal is played."""
    refused = folder / "trial_00000"

    def rmtree(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tunelight.stores.store.shutil.rmtree", rmtree)
    with pytest.raises(StorageError, match=rf"could not be deleted: {refused}: Permission denied"):
        delete_sweep(folder)
    monkeypatch.undo()
    delete_sweep(find_sweep(folder))
    assert not folder.exists()


def test_a_sweep_in_a_store_is_deleted_there_and_here(storage):
    folder = create_sweep_folder(storage(), "s")
    write_sweep_file(folder, {"space": {}, "metric": "loss", "mode": "min"})
    store = store_of(folder)
    assert store is not None
    store.write(folder / "trial_0" / "checkpoints" / "report-000001.ckpt", b"x" * 100)
    assert size_of(folder / "trial_0") == 100
    delete_sweep(folder)
    assert list_sweeps(storage()) == []
    assert not store.has_any(folder)
    assert not folder.exists()


def test_checkpoints_are_deleted_and_nothing_else(folder, tmp_path):
    elsewhere = tmp_path / "scratch" / "checkpoints"
    elsewhere.mkdir(parents=True)
    (elsewhere / "report-000001.ckpt").touch()
    (folder / "trial_linked").mkdir()
    (folder / "trial_linked" / "checkpoints").symlink_to(elsewhere)
    (folder / "trial_00000" / "log.txt").touch()
    trials = [folder / "trial_00000", folder / "trial_linked", elsewhere.parent]
    assert delete_checkpoints(folder, trials) == 100
    assert sorted(path.name for path in (folder / "trial_00000").iterdir()) == ["log.txt"]
    assert (elsewhere / "report-000001.ckpt").exists()
    assert delete_checkpoints(folder, trials) == 0


def test_sweeps_that_were_warm_started_from_it_are_named(folder, tmp_path):
    for name, source in (("later", folder), ("digits-2", tmp_path / "digits-3")):
        other = create_sweep_folder(tmp_path, name)
        write_sweep_file(other, {"metric": "loss", "mode": "min", "warm_start": [str(source)]})
    assert started_from(folder) == ["later"]
