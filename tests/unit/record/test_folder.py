"""A sweep's folder: made and claimed, what it says of its run, deleted and cleared."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.kit.recording import Sweep, Writer
from tunelight import record as storage
from tunelight.errors import SettingsError, StorageError
from tunelight.extras.upkeep import check_deletable, delete_sweep, size_of
from tunelight.record import create_sweep_folder, find_sweep, leased, list_sweeps, write_sweep_file
from tunelight.record.folder import git_state
from tunelight.results import SweepResults
from tunelight.stores import store_of


def test_unnamed_sweeps_get_readable_names_and_existing_ones_are_not_overwritten(tmp_path):
    names = [create_sweep_folder(tmp_path, default="<train>").name for _ in range(3)]
    assert re.fullmatch(r"train-\d{8}-\d{6}", names[0])
    assert len(set(names)) == 3
    runs = tmp_path / "runs" / "digits"  # which is made
    folder = create_sweep_folder(runs, "s")
    create_sweep_folder(runs, "s-2")
    with pytest.raises(StorageError, match=r"exists already.*name='s-3'"):
        create_sweep_folder(runs, "s")
    with leased(folder), pytest.raises(StorageError, match="exists already, and runs now, and is not"):
        create_sweep_folder(runs, "s")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot be written.*storage="):
        create_sweep_folder(tmp_path / "file", "s")
    for name in ("", ".", "..", "a/b", "/abs", "a\\b"):
        with pytest.raises(SettingsError, match="one folder name"):
            create_sweep_folder(tmp_path, name)


def test_a_sweep_s_file_reads_back_numbers_as_numbers_or_is_empty_or_an_error(tmp_path):
    assert storage.read_sweep_file(tmp_path) == {}
    told = {"lr": 1e-05, "tiny": np.float64(3e-30), "big": 1e22, "text": "1e-4", "bad": math.inf, "n": 3}
    storage.write_sweep_file(tmp_path, told)
    assert storage.read_sweep_file(tmp_path) == {**told, "tiny": 3e-30}
    assert "1.0e-05" in (tmp_path / "sweep.yaml").read_text()
    for text, says in (("a: [1", r"sweep\.yaml cannot be read"), ("- 1", "must hold a mapping")):
        (tmp_path / "sweep.yaml").write_text(text)
        with pytest.raises(StorageError, match=says):
            storage.read_sweep_file(tmp_path)


def test_atomic_write_leaves_the_old_file_and_no_draft_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(StorageError, match=r"Could not write .*full"):
        storage.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_git_s_commit_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    (tmp_path / "a").write_text("1")
    for words in (["init"], ["add", "a"], ["commit", "-m", "a"]):
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, *words], check=True, capture_output=True)
    clean: Any = git_state(tmp_path)
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {**clean, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None


def test_nothing_of_the_environment_is_kept(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    found = storage.provenance("space.yaml")
    assert "very-secret-value" not in str(found)
    assert set(found) == {"versions", "run"}
    assert found["run"]["file"] == str(Path("space.yaml").absolute())


def test_a_trial_knows_the_runs_that_trained_it(tmp_path):
    first = Sweep(tmp_path, run={"command": ["one"]})
    done, cut = first.run(0.5, lr=1), first.run(0.5, lr=2)
    first.end_by_itself(done)
    first.end()
    second = Sweep(tmp_path, run={"command": ["two"]})
    second.trials = [done, cut]
    second.start(cut)
    second.end()
    trials = SweepResults.load(tmp_path).trials
    assert [[run["command"] for run in trial.runs] for trial in trials] == [[["one"]], [["one"], ["two"]]]


@pytest.fixture
def folder(tmp_path):
    written = Writer(tmp_path, name="digits", space={"lr": {"uniform": [0, 1]}})
    written.checkpoint(written.trial(0.5), 1, 0.5).write_bytes(b"x" * 100)
    return written.load().folder


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


def test_what_is_no_sweep_alone_is_not_deleted(folder, tmp_path):
    (link := tmp_path / "link").symlink_to(folder)
    assert find_sweep(folder) == folder
    other = tmp_path / "other"
    other.mkdir()
    (other / "record.jsonl").write_text('{"kind": "sweep", "artist": "Nina Simone"}\n')
    (other / "thesis.tex").touch()
    Writer(folder / "inner").load()
    (folder / "inner" / "digits").rename(folder / "second")
    for path, says in (
        (link, r"is a link to .*digits. Give that folder"),
        (other, r"is no sweep of tunelight: .* Nothing is deleted"),
        (folder, "holds other sweeps: second"),
    ):
        before = sorted(path.rglob("*"))
        with pytest.raises(StorageError, match=says):
            delete_sweep(path)
        assert sorted(path.rglob("*")) == before


def test_a_damaged_sweep_and_one_that_never_began_can_be_deleted(folder, tmp_path):
    record = folder / "record.jsonl"
    record.write_bytes(b"junk\n" + record.read_bytes())
    check_deletable(folder)
    new = create_sweep_folder(tmp_path, "new")
    write_sweep_file(new, {"space": {}, "metric": "loss", "mode": "min"})
    check_deletable(new)


def test_a_sweep_that_runs_is_left_alone(folder):
    before = sorted(folder.rglob("*"))
    with leased(folder):
        with pytest.raises(StorageError, match=rf"digits is running: process {os.getpid()} on .* can be deleted\."):
            delete_sweep(folder)
        assert set(before) <= set(folder.rglob("*"))


def test_what_cannot_be_deleted_leaves_a_sweep_that_can_be_deleted_again(folder, monkeypatch):
    """Root may delete anything, so the system's refusal is played."""
    refused = folder / "trial_00000"
    error = PermissionError(13, "Permission denied", str(refused))
    monkeypatch.setattr("tunelight.stores.store.shutil.rmtree", mock.Mock(side_effect=error))
    with pytest.raises(StorageError, match=rf"could not be deleted: {refused}: Permission denied"):
        delete_sweep(folder)
    monkeypatch.undo()
    delete_sweep(find_sweep(folder))
    assert not folder.exists()


def test_a_sweep_in_a_store_is_deleted_there_and_here(storage):
    folder = create_sweep_folder(storage(), "s")
    write_sweep_file(folder, {"space": {}, "metric": "loss", "mode": "min"})
    store: Any = store_of(folder)
    store.write(folder / "trial_0" / "checkpoints" / "report-000001.ckpt", b"x" * 100)
    assert size_of(folder / "trial_0") == 100
    delete_sweep(folder)
    assert list_sweeps(storage()) == []
    assert not store.has_any(folder)
    assert not folder.exists()
