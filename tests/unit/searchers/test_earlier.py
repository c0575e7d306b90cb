"""Earlier sweeps: which folders are read, and which are refused."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.unit.recording import Sweep
from tunelight.errors import SettingsError, StorageError
from tunelight.searchers.choose import build_searcher
from tunelight.searchers.earlier import read_earlier
from tunelight.settings import Settings
from tunelight.space import SearchSpace

SMALL = SearchSpace({"x": tl.uniform(0, 1)})


def recorded(folder: Path, count: int = 6, metric: str = "loss") -> Path:
    folder.mkdir(parents=True)
    made = Sweep(folder)
    for number in range(count):
        trial = made.add(x=number / 10)
        made.start(trial)
        own = {} if metric == "loss" else {metric: 1.0}
        made.report(trial, 1, 0.5 + number if metric == "loss" else math.nan, done=True, **own)
        made.end_by_itself(trial)
    made.end()
    return folder


def test_a_folder_of_sweeps_stands_for_those_that_reported_the_metric(tmp_path: Path):
    runs = tmp_path / "runs"
    first, second = recorded(runs / "first"), recorded(runs / "second")
    recorded(runs / "other", metric="acc")
    broken = runs / "broken"
    broken.mkdir()
    (broken / "record.jsonl").write_text("{")
    (runs / "notes").mkdir()
    trials, sweeps = read_earlier([runs], [("loss", "min")])
    assert sorted(sweeps) == [first, second]
    assert len(trials) == 12
    _, sweeps = read_earlier([runs, first], [("loss", "min")], but=second)
    assert sweeps == [first]
    settings = Settings(searcher="auto", metric="loss", warm_start=[runs], seed=1)
    searcher: Any = build_searcher(SMALL, settings)
    assert sorted(searcher.sweeps) == [first, second]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    assert len(searcher.study.trials) == 12


def test_no_more_than_the_last_twenty_sweeps_of_a_folder_are_read(tmp_path: Path):
    folders = [recorded(tmp_path / f"{number:02d}", count=1) for number in range(22)]
    for number, folder in enumerate(folders):
        os.utime(folder / "record.jsonl", (number, number))
    assert read_earlier([tmp_path], [("loss", "min")])[1] == folders[2:]


def test_wrong_folders_are_refused(tmp_path: Path):
    runs = tmp_path / "runs"
    recorded(runs / "other", metric="acc")
    more: dict[str, Any] = {"searcher": "auto", "metric": "val", "seed": 1}
    with pytest.raises(SettingsError, match=r"no sweep in .*runs has a trial that reported this sweep's metric val"):
        build_searcher(SMALL, Settings(warm_start=[runs], **more))
    with pytest.raises(StorageError, match="no sweep that can be read"):
        build_searcher(SMALL, Settings(warm_start=[tmp_path / "nowhere"], **more))
    with pytest.raises(SettingsError, match="of the 6 trials of earlier sweeps, none has a value for a key"):
        build_searcher(
            SearchSpace({"lr": tl.uniform(0, 1)}),
            Settings(searcher="tpe", metric="loss", warm_start=[recorded(tmp_path / "a")], seed=1),
        )
