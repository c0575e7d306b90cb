"""Words of other programs, and arguments that there are not: what is said, and that editors still see signatures."""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

import tunelight as tl
from tests import flavours
from tunelight.cli import app
from tunelight.cli.overrides import settings_of
from tunelight.compat.arguments import TRAINER_ARGUMENTS, WORDS, replacement
from tunelight.compat.lightning import pl
from tunelight.digits import DigitsClassifier
from tunelight.errors import ArgumentError, SettingsError, SpaceError, TunelightError
from tunelight.settings import NAMES

API: Any = tl
"""What mypy does not look into: it finds these mistakes by itself."""
SPACE = {"x": {"uniform": [0, 1]}}


def train(config: dict[str, Any]) -> None:
    """Never run."""


def run(**given: Any) -> Any:
    return tl.run(SPACE, train, **{"metric": "loss", **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("num_workers", "Here that is workers="),
        ("num_gpus", "Here that is gpus_per_worker=1"),
        ("use_gpu", "Here that is gpus_per_worker=1"),
        ("max_failures", "Here that is failures=3"),
        ("config", r"Here that is the first argument, tl.run\("),
        ("param_space", r"Here that is the first argument, tl.run\("),
        ("space", r"Here that is the first argument, tl.run\("),
        ("n_trials", "Here that is num_samples="),
        ("search_alg", "Here that is searcher="),
        ("sampler", "Here that is searcher="),
        ("pruner", "Here that is scheduler="),
        ("storage_path", "Here that is storage="),
        ("time_budget_s", "Here that is time_budget="),
        ("timeout", "Here that is time_budget="),
        ("direction", "Here that is mode="),
        ("num_epochs", "Here that is max_epochs="),
        ("precision", r"trainer_args={'precision': ...}"),
        ("num_worker", r"Did you mean 'num_workers'\? Here that is workers="),
        ("num_sample", "Did you mean 'num_samples'"),
        ("topology", "Nothing here replaces it: leave it out"),
        ("colour", "It takes: search_space, train, model"),
    ],
)
def test_a_word_that_is_none_of_ours_is_answered_with_ours(given: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=rf"tl\.run\(\) takes no {given}=\..*{says}") as caught:
        run(**{given: 3})
    assert isinstance(caught.value, TunelightError)
    assert isinstance(caught.value, TypeError)
    assert not ray.is_initialized()


def test_trainer_arguments_are_those_of_the_trainer() -> None:
    taken = set(inspect.signature(pl.Trainer).parameters)
    assert TRAINER_ARGUMENTS - taken <= {"enable_autolog_hparams", "model_registry"}  # new in Lightning 2.5 and 2.6


def test_what_replaces_a_word_is_something_that_is_taken() -> None:
    for word, text in WORDS["sweep"].items():
        assert word not in NAMES
        first = text.partition("=")[0]
        assert not first.isidentifier() or first in NAMES, (word, text)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: API.run(SPACE, train, "loss"), "takes search_space, train by position, and 3 arguments came so"),
        (API.run, "missing a required argument: 'search_space'"),
        (lambda: API.run(train=train, lr=API.uniform(0, 1)), "Domains belong to the search space.*{'lr': ...}"),
        (lambda: API.SearchSpace(lr=API.uniform(0, 1)), "Domains belong to the search space.*{'lr': ...}"),
        (lambda: API.SearchSpace(SPACE, n_trials=3), "no setting 'n_trials'. Here that is num_samples="),
        (lambda: API.resume("nowhere", num_workers=3), r"tl.resume\(\) takes no num_workers=. Here that is workers="),
        (lambda: API.simulate("digits", n_trials=3), r"tl.simulate\(\) takes no n_trials=. Here that is num_samples="),
        (lambda: API.plan(SPACE, n_trials=3), r"tl.plan\(\) takes no n_trials=. Here that is num_samples="),
        (lambda: API.FailurePolicy(fail_fast=True), r"tl\.FailurePolicy takes no fail_fast=. It takes: max_failures, "),
        (lambda: API.GangPBT(pertubation_intervall=2), "Did you mean 'perturbation_interval'"),
        (lambda: API.Costs(reserve=2), "Did you mean 'reserve_s'"),
        (lambda: API.RayStrategy(find_unused_paramters=1), "Did you mean 'find_unused_parameters'"),
        (lambda: API.TuneReportCallback(metric="loss"), "Did you mean 'metrics'"),
        (lambda: API.RayDataModule(batchsize=3), "Did you mean 'batch_size'"),
    ],
)
def test_every_call_says_what_it_takes(call: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        call()


def test_strategies_take_what_ddp_and_lightning_take() -> None:
    tl.RayStrategy(find_unused_parameters=True, process_group_backend="gloo", static_graph=True, start_method="spawn")


@pytest.mark.parametrize(
    ("kind", "more"), [("RayStrategy", "find_unused_parameters=true"), ("RayShardedStrategy", "min_sharded=3")]
)
def test_lightning_s_command_line_makes_them(kind: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    wanted = f"--trainer.strategy=tunelight.{kind}"
    told = [wanted, f"--trainer.strategy.{more}"]
    cli = flavours.module("cli").LightningCLI(DigitsClassifier, run=False, args=told, seed_everything_default=False)
    assert type(cli.trainer.strategy) is getattr(tl, kind)


@pytest.mark.parametrize("name", [name for name in tl.__all__ if name != "errors" and callable(getattr(tl, name))])
def test_signatures_stay_what_they_are(name: str) -> None:
    shown = getattr(tl, name)
    assert "kwargs" not in inspect.signature(shown).parameters
    assert pickle.loads(pickle.dumps(shown)) is shown


@pytest.mark.parametrize(
    ("name", "ours"),
    [("Tuner", "run"), ("suggest_float", "uniform"), ("RayPlugin", "RayStrategy"), ("unifrom", "uniform")],
)
def test_names_of_other_programs_are_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{ours}"):
        getattr(tl, name)
    assert hasattr(tl, ours)


def test_an_option_that_is_a_setting_or_another_program_s_word_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    for option, says in (("--n-trials", "Here that is num_samples="), ("--gpus-per-worker", "--set gpus_per_worker=")):
        with pytest.raises(SystemExit):
            app(["run", "space.yaml", option, "3"])
        assert says in " ".join(capsys.readouterr().err.split())


def test_files_and_the_command_line_know_the_words(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("space: {x: {uniform: [0, 1]}}\nn_trials: 3\n")
    with pytest.raises(SettingsError, match=r"space.yaml:2:1: there is no key 'n_trials'. Here that is num_samples="):
        tl.SearchSpace.load(file)
    with pytest.raises(SettingsError, match=r"no setting 'n_trials'\. Here that is num_samples="):
        settings_of({"n_trials": 3})


def test_a_word_for_what_is_not_taken_here_is_no_answer() -> None:
    assert "num_samples" not in replacement("n_trials", ["workers", "metric"])


# None


def test_no_scheduler_is_fifo_and_no_searcher_random(tmp_path: Path) -> None:
    from tunelight.schedulers.choose import build_scheduler
    from tunelight.searchers.choose import build_searcher
    from tunelight.searchers.random import RandomSearcher
    from tunelight.settings import Settings

    file = tmp_path / "space.yaml"
    file.write_text("space: {x: {uniform: [0, 1]}}\nmetric: loss\nscheduler:\nsearcher:\n")
    space = tl.SearchSpace.load(file)
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
        lambda: tl.plan(SPACE, train, metric="loss", num_samples=-1),
    ],
)
def test_errors_of_settings_show_the_callers_line_and_none_of_what_tunelight_did_with_them(call):
    with pytest.raises((SettingsError, SpaceError)) as caught:
        call()
    ours = [entry.name for entry in caught.traceback if Path(entry.path).is_relative_to(Path(tl.__file__).parent)]
    assert len(ours) <= 1, ours
    assert caught.value.__context__ is None or caught.value.__suppress_context__
