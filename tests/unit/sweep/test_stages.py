"""The two stages of ``proxy``: what each of them is, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import tunelight as tl
from tests.kit.recording import Writer
from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError, SpaceError, StorageError
from tunelight.record import plan
from tunelight.results import SweepResults
from tunelight.settings import Settings
from tunelight.settings.repeats import Repeats
from tunelight.sweep.stages import Stages, run_stages


class Net(pl.LightningModule):
    def __init__(self, lr: float = 0.1, width: int = 64, layers: int = 2, act: str = "relu") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), *(nn.Linear(width, width) for _ in range(layers)))


class Deepening(Net):
    """Its width also says how many layers it has."""

    def __init__(self, lr: float = 0.1, width: int = 64) -> None:
        super().__init__(lr, width, layers=width // 16)


def stages(proxy: Mapping[str, Any], space: Mapping[str, Any] | None = None, **more: Any) -> Stages:
    space = space or {"model.lr": tl.loguniform(1e-3, 1.0)}
    settings: dict[str, Any] = {"model": Net, "metric": "loss", "workers": 4, "num_samples": 50, "name": "s", "seed": 1}
    return Stages.of(tl.SearchSpace(space), Settings(**{"proxy": proxy, **settings, **more}), "s")


def test_the_first_stage_fixes_its_values_and_has_workers_of_its_own():
    made = stages({"model.width": 8, "workers": 1}, time_budget=100, repeats=3, baselines=[{"model.lr": 0.5}])
    space, settings = made.first()
    assert space.sample(_rng())["model.width"] == 8
    assert (settings.name, settings.workers, settings.num_samples, settings.budget_s) == ("s-proxy", 1, 50, 50.0)
    assert (settings.repeats, settings.proxy, settings.base_width) == (None, None, None)
    assert settings.baselines == ({"model.lr": 0.5, "model.width": 8},)


def test_narrow_trials_train_on_the_first_fold_and_a_scheduler_that_is_an_object_does_not_remember_them():
    scheduler = tl.ASHA(max_t=9)
    made = stages({"model.width": 8}, repeats=tl.Folds(5), scheduler=scheduler)
    _, settings = made.first()
    assert settings.folds == 5
    assert settings.repeats is not None
    assert plan([], settings.repeats, "min").again == ()
    assert Repeats.of("repeats", settings.repeats.plain()) == settings.repeats
    assert settings.scheduler is not made.settings.scheduler


def test_the_second_stage_tries_the_best_in_full_and_scales_them(tmp_path: Path):
    written = Writer(tmp_path, metric="loss")
    for value, lr in ((0.3, 0.1), (0.1, 0.2), (0.2, 0.3)):
        written.trial(value, config={"model.lr": lr, "model.act": "relu", "model.width": 8})
    given = {"model.lr": tl.loguniform(1e-3, 1.0), "model.act": tl.grid_search(["relu", "tanh"]), "model.width": 128}
    made = stages({"model.width": 8, "top": 2}, given, storage=tmp_path, repeats={"top": 2, "repeats": 2})
    space, settings = made.second(written.load(), 30.0)
    assert settings.baselines == tuple({"model.lr": lr, "model.act": "relu", "model.width": 128} for lr in (0.2, 0.3))
    assert (settings.num_samples * space.grid_size, settings.searcher, settings.name) == (2, "random", "s")
    assert settings.base_width == {"model.width": 8}
    assert settings.repeats is not None
    assert settings.budget_s == 30.0


def test_what_does_not_widen_the_model_is_a_cheaper_trial_alone():
    assert stages({"model.layers": 1}).base_width == {}
    assert stages({"model.act": "tanh", "model.width": 8}).base_width == {"model.width": 8}
    with pytest.raises(SettingsError, match=r"narrower \(net\.0\.\w+\) and changes which there are \(net\.2\.bias\)"):
        stages({"model.width": 16}, model=Deepening)


def train(config: dict[str, Any]) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("proxy", "more", "said"),
    [
        ({"model.lr": 0.1}, {}, r"model.lr=0.1, and model.lr is searched"),
        ({"model.widht": 8}, {}, "model.widht: Net takes no argument 'widht'. Did you mean 'width'"),
        ({"model.width": 64}, {"space": {"model.lr": tl.uniform(0, 1), "model.width": 64}}, "its value in full, too"),
        ({"width": 8}, {"space": {"lr": tl.uniform(0, 1)}, "model": None, "train": train}, "does not say what it is"),
    ],
)
def test_a_key_that_cannot_be_made_cheaper_is_refused(proxy: Any, more: dict[str, Any], said: str):
    with pytest.raises((SettingsError, SpaceError), match=said):
        stages(proxy, **more)


class Ended:
    """A sweep that has ended, as far as stages ask."""

    def __init__(self, folder: Path, ended: str | None, trials: int = 1) -> None:
        self.name, self.ended, self._trials = folder.name, ended, trials

    def top(self, k: int) -> list[Any]:
        return [_Trial() for _ in range(self._trials)]


class _Trial:
    config: Mapping[str, Any] = {"model.lr": 0.1, "model.layers": 1}


@pytest.mark.parametrize(
    ("ended", "trials", "ran"),
    [
        ("finished", 1, ["s-proxy", "s"]),
        ("time budget", 1, ["s-proxy", "s"]),
        ("interrupted", 1, ["s-proxy"]),
        ("stopped", 1, ["s-proxy"]),
        ("gave up", 1, ["s-proxy"]),
        ("finished", 0, ["s-proxy"]),
    ],
)
def test_the_second_stage_follows_a_first_that_ended_and_found_something(
    tmp_path: Path, ended: str, trials: int, ran: list[str]
):
    names = []

    def run_one(space: Any, settings: Any, stage: Any) -> Any:
        names.append(settings.name)
        assert stage["settings"]["proxy"] == {"model.layers": 1, "top": 5}
        return Ended(tmp_path / settings.name, ended, trials)

    given = stages({"model.layers": 1}, storage=tmp_path, progress=False)
    found = run_stages(given.space, given.settings, run_one, "Net")
    assert names == ran
    assert found.name == ran[-1]


def test_a_taken_name_of_either_stage_is_refused_before_anything_is_trained(tmp_path: Path):
    Writer(tmp_path, metric="loss").folder.rename(tmp_path / "s")
    given = stages({"model.layers": 1}, storage=tmp_path, progress=False)
    with pytest.raises(StorageError, match="exists already"):
        run_stages(given.space, given.settings, _never, "Net")
    resumed = stages({"model.layers": 1}, storage=tmp_path, progress=False, resume=True)
    with pytest.raises(StorageError, match=r"second stage of a sweep whose first, .*s-proxy, is gone"):
        run_stages(resumed.space, resumed.settings, _never, "Net")


def _never(*_: Any) -> SweepResults:
    raise AssertionError


def _rng() -> Any:
    import numpy as np

    return np.random.RandomState(0)
