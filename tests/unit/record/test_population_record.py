"""What a population's changes leave in the record: whose configuration held when, and the same scheduler again."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.record import read_lines, read_record
from tunelight.schedulers import GangPBT
from tunelight.schedulers.base import SweepFacts
from tunelight.schedulers.choose import build_scheduler
from tunelight.settings import Settings
from tunelight.sweep.replay import replay_scheduler

LR = {"lr": tune.loguniform(1e-4, 1.0)}


def test_the_best_configuration_is_the_one_that_the_best_report_was_trained_under(sweep: Sweep, tmp_path: Path) -> None:
    first, second = sweep.add(lr=0.1), sweep.add(lr=0.9)
    for trial in (first, second):
        sweep.start(trial)
    sweep.report(first, 1, 0.5)
    sweep.report(second, 1, 0.9)
    sweep.callback.change("00001", 1, {"lr": 0.12}, "00000", 1)
    sweep.report(second, 2, 0.2)
    sweep.callback.change("00001", 2, {"lr": 0.14}, "00000", 2)
    sweep.report(second, 3, 0.3)
    sweep.end()
    results = tl.SweepResults.load(tmp_path)
    assert results.best.id == "00001"
    assert results.best_config == {"lr": 0.12}
    assert [change["before"] for change in results.best.changes] == [{"lr": 0.9}, {"lr": 0.12}]
    assert results.trials[0].changes == []
    text = results.export_best(tmp_path / "best.yaml").read_text()
    assert "lr: 0.12" in text.split("metric:")[0]
    assert "parent: " in text
    state = read_record(tmp_path).trials["00001"]
    assert [state.config_at(number)["lr"] for number in (1, 2, 3)] == [0.9, 0.12, 0.14]
    assert state.config == {"lr": 0.14}


def test_a_change_that_could_not_be_made_is_as_if_it_had_not_been(sweep: Sweep, tmp_path: Path) -> None:
    trial = sweep.run(0.5, lr=0.1)
    sweep.callback.change("00000", 1, {"lr": 0.12}, "00001", 1)
    sweep.callback.change("00000", 1, {"lr": 0.1}, None, None)
    sweep.report(trial, 2, 0.2)
    sweep.end()
    result = tl.SweepResults.load(tmp_path).trials[0]
    assert (result.config, result.changes) == ({"lr": 0.1}, [])


def pbt() -> GangPBT:
    return GangPBT("loss", "min", perturbation_interval=2, hyperparam_mutations=LR, seed=4)


def decisions(scheduler: GangPBT, trials: dict[str, Any], seed: int) -> list[Any]:
    """Go on with random reports, and return what changes."""
    changes: list[Any] = []
    scheduler.prepare(SweepFacts(on_change=lambda *change: changes.append(change)))
    rng = random.Random(seed)
    at = dict.fromkeys(trials, 30)
    for _ in range(60):
        key = rng.choice(list(trials))
        at[key] += 1
        scheduler.on_trial_result(_nobody(), trials[key], {"loss": rng.random(), "training_iteration": at[key]})
    return changes


def _nobody() -> Any:
    return SimpleNamespace(get_live_trials=list)


def test_a_replayed_population_decides_as_the_live_one_would_have(tmp_path: Path) -> None:
    sweep, live = Sweep(tmp_path), pbt()
    live.prepare(SweepFacts(on_change=sweep.callback.change))
    trials: dict[str, Any] = {}
    for index in range(4):
        one = sweep.run(lr=0.1 * (index + 1))
        trials[one.trial_id] = Trial("live", stub=True, trial_id=one.trial_id, config=dict(one.config))
        live.on_trial_add(_nobody(), trials[one.trial_id])
    rng = random.Random(1)
    for number in range(1, 31):
        for one in sweep.trials:
            loss = rng.random()
            own = {"_tunelight/adopted": rng.choice(["none", "memory", "disk"])}  # heard where it was to adopt
            live.on_trial_result(_nobody(), trials[one.trial_id], {"loss": loss, "training_iteration": number, **own})
            sweep.report(one, number, loss)
    sweep.callback.record.close()
    assert live.num_exploits > 2
    again = pbt()
    lines = read_lines(tmp_path)
    replay_scheduler(lines, again)
    assert any(line["kind"] == "config" and line["parent"] is None for line in lines)
    assert again.num_exploits == live.num_exploits
    assert {key: trial.config for key, trial in again._trials.items()} == {key: t.config for key, t in trials.items()}
    assert decisions(again, dict(again._trials), 9) == decisions(live, trials, 9)


def test_it_is_there_by_name_with_the_sweeps_seed_and_end() -> None:
    settings = Settings(scheduler={"name": "gang_pbt", "perturbation_interval": 3}, metric="loss", seed=5, max_epochs=9)
    scheduler: Any = build_scheduler(settings)
    assert isinstance(scheduler, tl.GangPBT)
    assert (scheduler._seed, scheduler.max_t) == (5, 9)
    assert scheduler.initial_decision().until == 3
    with pytest.raises(tl.errors.SettingsError, match="gang_pbt' has no 'quantile'"):
        build_scheduler(Settings(scheduler={"name": "gang_pbt", "quantile": 3}))
