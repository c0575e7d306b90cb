"""Arguments that there are not: what is said, and that editors still see signatures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tunelight as tl
from tests import flavours
from tunelight.cli import app
from tunelight.digits import DigitsClassifier
from tunelight.errors import ArgumentError

API: Any = tl
"""What mypy does not look into: it finds these mistakes by itself."""
SPACE = {"x": {"uniform": [0, 1]}}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: API.SearchSpace(SPACE, n_trials=3), "no setting 'n_trials'. There are: "),
        (lambda: API.resume("nowhere", num_workers=3), r"no setting 'num_workers'\. Did you mean 'workers'"),
    ],
)
def test_a_setting_that_there_is_not_is_answered(call: Any, says: str) -> None:
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


def test_a_misspelt_name_is_answered() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'unifrom'\. Did you mean 'uniform'"):
        API.unifrom  # noqa: B018 - it is asked for


def test_an_option_that_is_a_setting_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["run", "space.yaml", "--gpus-per-worker", "3"])
    assert "--set gpus_per_worker=" in " ".join(capsys.readouterr().err.split())


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
