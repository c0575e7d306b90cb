"""warm_start=: which earlier sweeps it stands for, and what the record says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.record import read_sweep_file, write_sweep_file
from tunelight.searchers.choose import build_searcher
from tunelight.searchers.earlier import read_earlier
from tunelight.settings import Settings
from tunelight.space import SearchSpace

SPACE = SearchSpace({"model": {"lr": tl.uniform(0, 1)}})


def train(config: dict[str, Any]) -> None:
    """Never run."""


def other(config: dict[str, Any]) -> None:
    """Never run."""


def told(storage: Path, **more: Any) -> Settings:
    return Settings(**{"train": train, "metric": "loss", "storage": storage, "searcher": "tpe", "seed": 1, **more})


def recorded(storage: Path, name: str, configs: Any = None, count: int = 6, **facts: Any) -> Path:
    """Record a sweep of ``train`` whose trials get better and better."""
    folder = storage / name
    folder.mkdir(parents=True)
    made = Sweep(folder)
    for number in range(count):
        trial = made.add(**(configs(number) if configs else {"model": {"lr": (number + 1) / 10}}))
        made.start(trial)
        made.report(trial, 1, 1.0 - number / 10, done=True)
        made.end_by_itself(trial)
    made.end()
    write_sweep_file(folder, {"train": f"{__name__}:train", "metric": "loss", "mode": "min", **facts})
    return folder


def build(space: SearchSpace, settings: Settings, resumed: Path | None = None) -> Any:
    return build_searcher(space, settings, resumed)


# --- which sweeps -----------------------------------------------------------------------------------------


def test_a_folder_of_sweeps_stands_for_those_that_reported_the_metric(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first, second = recorded(runs, "first"), recorded(runs, "second")
    recorded(runs, "empty", count=0)
    (runs / "broken").mkdir()
    (runs / "broken" / "record.jsonl").write_text("{")
    (runs / "notes").mkdir()
    trials, sweeps = read_earlier([runs], [("loss", "min")])
    assert (sorted(sweeps), len(trials)) == ([first, second], 12)
    assert read_earlier([runs, first], [("loss", "min")], but=second)[1] == [first]
    searcher = build(SPACE, told(tmp_path / "new", warm_start=[runs]))
    assert sorted(searcher.sweeps) == [first, second]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    auto = build(SPACE, told(tmp_path / "new", warm_start=[runs], searcher="auto", scheduler="fifo"))
    assert isinstance(auto.study.sampler, optuna.samplers.TPESampler)  # GP needs trials that have all keys
    with pytest.raises(SettingsError, match=r"no sweep in .*runs has a trial that reported this sweep's metric acc"):
        read_earlier([runs], [("acc", "min")])


# --- what the record says ---------------------------------------------------------------------------------


class ReadyError(Exception):
    """The sweep is recorded, and Ray would start."""


def started(storage: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Path:
    """Run a sweep up to the start of Ray, with its folder kept; return that."""
    from tunelight.sweep import run as module

    def ready(settings: Any, reservation: Any, path: Path, signals: Any) -> Any:
        found.append(path.parent)
        (path.parent / "record.jsonl").write_text('{"kind":"sweep","time":1.0,"sweep":{"format":2}}\n')
        raise ReadyError

    found: list[Path] = []
    monkeypatch.setattr(module, "connected", ready)
    with pytest.raises(ReadyError):
        tl.run(SPACE, train, metric="loss", storage=storage, searcher="auto", seed=1, progress=False, **more)
    return found[0]


def test_a_sweep_records_which_sweeps_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = recorded(tmp_path, "first")
    folder = started(tmp_path, monkeypatch, name="second", warm_start=tmp_path)
    assert read_sweep_file(folder)["warm_start"] == [str(first)]


# --- keys -------------------------------------------------------------------------------------------------


def params(searcher: Any) -> list[dict[str, Any]]:
    return [trial.params for trial in searcher.study.trials]


def test_a_key_that_was_fixed_counts_at_its_value(tmp_path: Path) -> None:
    def fixed(number: int) -> dict[str, Any]:
        return SearchSpace({"lr": tl.uniform(0, 1), "width": 64}).written({"lr": number / 10, "width": 64})

    recorded(tmp_path, "first", fixed)
    space = SearchSpace({"lr": tl.uniform(0, 1), "width": tl.choice([32, 64, 128]), "new": tl.uniform(0, 1)})
    known = [{"lr": number / 10, "width": 64} for number in range(6)]
    assert params(build(space, told(tmp_path, warm_start=tmp_path))) == known
    with_all = SearchSpace({"lr": tl.uniform(0, 1), "width": tl.choice([32, 64, 128])})
    assert params(build(with_all, told(tmp_path, warm_start=tmp_path, searcher="cmaes"))) == known
