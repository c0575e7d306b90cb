"""storage: a sweep's folder, made and claimed, and ``sweep.yaml`` in it."""

from __future__ import annotations

import errno
import math
import os
import re

import numpy as np
import pytest
import yaml

from tunelight import record as storage
from tunelight.errors import SettingsError, StorageError
from tunelight.record import create_sweep_folder, leased, read_record

# The folder


def test_new_folder_is_made_with_its_parents(tmp_path):
    folder = create_sweep_folder(tmp_path / "runs" / "digits", "first")
    assert folder == tmp_path / "runs" / "digits" / "first"
    assert read_record(folder).trials == {}


def test_unnamed_sweeps_get_readable_names_that_differ(tmp_path):
    names = [create_sweep_folder(tmp_path, default="<train>").name for _ in range(3)]
    assert re.fullmatch(r"train-\d{8}-\d{6}", names[0])
    assert len(set(names)) == 3


def test_existing_sweep_is_not_overwritten_and_a_free_name_is_offered(tmp_path):
    create_sweep_folder(tmp_path, "s")
    create_sweep_folder(tmp_path, "s-2")
    with pytest.raises(StorageError, match=r"exists already.*name='s-3'"):
        create_sweep_folder(tmp_path, "s")


def test_a_sweep_that_runs_now_is_said_to(tmp_path):
    folder = create_sweep_folder(tmp_path, "s")
    with leased(folder), pytest.raises(StorageError, match="exists already, and runs now, and is not"):
        create_sweep_folder(tmp_path, "s")


def test_storage_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot be written.*storage="):
        create_sweep_folder(tmp_path / "file", "s")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/abs", "a\\b"])
def test_name_must_be_one_folder_name(tmp_path, name):
    with pytest.raises(SettingsError, match="one folder name"):
        create_sweep_folder(tmp_path, name)


# sweep.yaml


def test_sweep_file_reads_back_numbers_as_numbers(tmp_path):
    told = {"lr": 1e-05, "tiny": np.float64(3e-30), "big": 1e22, "text": "1e-4", "bad": math.inf, "n": 3}
    storage.write_sweep_file(tmp_path, told)
    assert storage.read_sweep_file(tmp_path) == {**told, "tiny": 3e-30}
    assert "1.0e-05" in (tmp_path / "sweep.yaml").read_text()


def test_missing_sweep_file_is_empty_and_a_broken_one_an_error(tmp_path):
    assert storage.read_sweep_file(tmp_path) == {}
    (tmp_path / "sweep.yaml").write_text("a: [1")
    with pytest.raises(StorageError, match=r"sweep\.yaml cannot be read"):
        storage.read_sweep_file(tmp_path)
    (tmp_path / "sweep.yaml").write_text("- 1")
    with pytest.raises(StorageError, match="must hold a mapping"):
        storage.read_sweep_file(tmp_path)


def test_atomic_write_leaves_the_old_file_and_no_draft_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(StorageError, match=r"Could not write .*full"):
        storage.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_versions_name_what_is_installed():
    found = storage.versions()
    assert list(found) == [
        *("python", "torch", "pytorch-lightning", "lightning", "ray", "tunelight", "numpy", "optuna", "horovod")
    ]
    assert found["ray"]
    assert yaml.safe_load(storage.to_yaml(found)) == found
