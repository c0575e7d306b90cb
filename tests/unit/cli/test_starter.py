"""init: what it writes is a sweep, and nothing is overwritten."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT
from tunelight.cli.starter import FILES, write_starter
from tunelight.errors import StorageError


@pytest.fixture
def starter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "new"
    sys.modules.pop("train", None)


def test_what_it_writes_is_a_sweep_that_checks(starter, monkeypatch):
    assert "Next: cd new && tunelight check space.yaml" in call("init", "new").output
    assert sorted(path.name for path in starter.iterdir()) == sorted(FILES)
    monkeypatch.chdir(starter)
    assert "12 trials, judged by val_loss" in call("check", "space.yaml", "--workers", "1").output


def test_nothing_is_overwritten(starter):
    starter.mkdir()
    (starter / "train.py").write_text("mine")
    with pytest.raises(StorageError, match=r"holds train.py already"):
        write_starter(starter)
    assert [path.name for path in starter.iterdir()] == ["train.py"]
    assert (starter / "train.py").read_text() == "mine"
    assert "nothing is overwritten" in call("init", "new", code=BAD_INPUT).stderr


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_starter(Path(tmp_path / "file" / "new"))
