"""Arguments that there are not: what is said, and that editors still see signatures."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tunelight as tl
from tunelight.errors import ArgumentError, SettingsError, SpaceError

API: Any = tl
"""What mypy does not look into: it finds these mistakes by itself."""
SPACE = {"x": {"uniform": [0, 1]}}


def run(**given: Any) -> Any:
    return tl.run(SPACE, print, **{"metric": "loss", **given})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: API.run(SPACE, print, "loss"), "takes search_space, train by position, and 3 arguments came so"),
        (API.run, "missing a required argument: 'search_space'"),
        (lambda: API.run(train=print, lr=API.uniform(0, 1)), "Domains belong to the search space.*{'lr': ...}"),
        (lambda: API.SearchSpace(lr=API.uniform(0, 1)), "Domains belong to the search space.*{'lr': ...}"),
        (lambda: API.SearchSpace(SPACE, n_trials=3), "no setting 'n_trials'. There are: "),
        (lambda: API.resume("nowhere", num_workers=3), r"tl.resume\(\) takes no num_workers=. Did you mean 'workers'"),
        (lambda: API.FailurePolicy(fail_fast=True), r"tl\.FailurePolicy takes no fail_fast=. It takes: max_failures, "),
        (lambda: API.GangPBT(pertubation_intervall=2), "Did you mean 'perturbation_interval'"),
        (lambda: API.RayStrategy(find_unused_paramters=1), "Did you mean 'find_unused_parameters'"),
        (lambda: API.TuneReportCallback(metric="loss"), "Did you mean 'metrics'"),
        (lambda: API.RayDataModule(batchsize=3), "Did you mean 'batch_size'"),
    ],
)
def test_every_call_says_what_it_takes(call: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        call()


@pytest.mark.parametrize("name", [name for name in tl.__all__ if name != "errors" and callable(getattr(tl, name))])
def test_signatures_stay_what_they_are(name: str) -> None:
    shown = getattr(tl, name)
    assert "kwargs" not in inspect.signature(shown).parameters
    assert pickle.loads(pickle.dumps(shown)) is shown


def test_a_misspelt_name_is_answered() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'unifrom'\. Did you mean 'uniform'"):
        API.unifrom  # noqa: B018 - it is asked for


def test_no_scheduler_is_fifo_and_no_searcher_random(write) -> None:
    from tunelight.schedulers.choose import build_scheduler
    from tunelight.searchers.choose import build_searcher
    from tunelight.searchers.random import RandomSearcher
    from tunelight.settings import Settings

    space = tl.SearchSpace.load(write("space: {x: {uniform: [0, 1]}}\nmetric: loss\nscheduler:\nsearcher:\n"))
    for given in (space.settings, {"metric": "loss", "scheduler": None, "searcher": None}):
        settings = Settings(**given)
        assert settings.scheduler == "fifo"  # as sweep.yaml will have it
        assert type(build_scheduler(settings).inner) is tune.schedulers.FIFOScheduler
        assert isinstance(build_searcher(space, settings), RandomSearcher)
    assert Settings().scheduler == "asha"


@pytest.mark.parametrize(
    "call",
    [
        lambda: run(num_samples=1, seed=-1),
        lambda: run(num_samples=1, max_epochs="ten"),
        lambda: tl.SearchSpace({"x": {"uniform": [1, 0]}}),
        lambda: tl.ASHA(grace_period=0),
        lambda: tl.plan(SPACE, cluster="1x1", seconds_per_epoch=1, num_samples=-1),
    ],
)
def test_errors_of_settings_show_the_callers_line_and_none_of_what_tunelight_did_with_them(call):
    with pytest.raises((SettingsError, SpaceError)) as caught:
        call()
    ours = [entry.name for entry in caught.traceback if Path(entry.path).is_relative_to(Path(tl.__file__).parent)]
    assert len(ours) <= 1, ours
    assert caught.value.__context__ is None or caught.value.__suppress_context__
