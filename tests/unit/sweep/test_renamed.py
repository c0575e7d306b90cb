"""A sweep that was renamed goes on under its new name, as if it had always had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import tunelight as tl
from tests.unit.sweep.test_resume import Driver
from tunelight.checkpoints import files as checkpoints
from tunelight.messages import CheckpointInfo
from tunelight.record import read_record, read_sweep_file
from tunelight.record.upkeep import rename_sweep
from tunelight.settings import Settings
from tunelight.sweep import run as sweeps
from tunelight.sweep.past import open_saved_sweep


@pytest.fixture(autouse=True)
def no_ray():
    yield
    assert not ray.is_initialized()


@pytest.mark.parametrize("searcher", ["random", {"name": "tpe", "n_startup_trials": 1}, "nsgaii"])
def test_it_suggests_what_it_would_have_suggested(tmp_path, searcher):
    straight, renamed = Driver(tmp_path / "straight"), Driver(tmp_path / "renamed")
    suggested = straight.run(3, num_samples=6, searcher=searcher)
    suggested += straight.run(num_samples=6, resume=True, searcher=searcher)
    first = renamed.run(3, num_samples=6, searcher=searcher)
    rename_sweep(tmp_path / "renamed" / "s", "t")
    renamed.told["name"] = "t"
    assert [*first, *renamed.run(num_samples=6, resume=True, searcher=searcher)] == suggested
    assert not (tmp_path / "renamed" / "s").exists()
    assert read_sweep_file(tmp_path / "renamed" / "t")["name"] == "t"
    assert read_record(tmp_path / "renamed" / "t").sweep["name"] == "t"


def test_its_study_goes_on_in_the_journal(tmp_path, caplog):
    driver = Driver(tmp_path)
    driver.run(3, num_samples=5, searcher="tpe")
    rename_sweep(tmp_path / "s", "t")
    journal = str(tmp_path / "t" / "study.journal")
    assert [study.study_name for study in _studies(journal)] == ["t"]
    driver.told["name"] = "t"
    driver.run(num_samples=5, resume=True, searcher="tpe")
    (study,) = _studies(journal)
    assert study.user_attrs == {"tunelight": str(tmp_path / "t")}
    assert "is left alone" not in caplog.text


def _studies(journal: str) -> list[Any]:
    return list(JournalStorage(JournalFileBackend(journal)).get_all_studies())


def test_its_trials_go_on_from_their_checkpoints_in_the_new_folder(tmp_path):
    driver = Driver(tmp_path)
    driver.run(1, num_samples=1)
    (trial,) = read_record(tmp_path / "s").trials.values()
    path = tmp_path / "s" / trial.folder / "checkpoints" / checkpoints.file_name(1)
    path.parent.mkdir(parents=True)
    info = CheckpointInfo(path=str(path), number=1, epoch=0, value=0.5)
    written = checkpoints.temp_path(info, "start")
    written.write_bytes(b"weights")
    checkpoints.commit(info, written)
    rename_sweep(tmp_path / "s", "t")
    given = Settings(**{**driver.told, "name": "t", "num_samples": 1, "resume": True})
    with open_saved_sweep(given) as past:
        (again,) = sweeps._prepare(tl.SearchSpace({"x": tl.uniform(0, 1)}), given, past).start.resumed
    assert again.folder == tmp_path / "t" / trial.folder
    found, warning = checkpoints.resume_point(again.folder)
    assert found is not None
    assert Path(found.path) == tmp_path / "t" / trial.folder / "checkpoints" / path.name
    assert warning is None
