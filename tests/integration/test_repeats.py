"""The best configurations of a live sweep are trained again: with other seeds, and on folds, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunelight as tl


def train(config: dict[str, Any]) -> None:
    """Report a loss that the seed changes a little, and where it was trained."""
    context = tl.get_context()
    for number in range(1, 5):
        noise = (context.seed or 0) % 1000 / 1e6
        place = -1 if context.fold is None else context.fold
        loss = config["x"] + noise + 1 / number
        tl.report({"loss": loss, "repetition": context.repetition, "fold": place, "folds": context.folds or 0})


def run(folder: Path, **more: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 4, "workers": 1, "cpus_per_worker": 0.5, "seed": 3, "max_epochs": 4,
        "storage": folder, "name": "s", "progress": False,
        "baselines": [{"x": 0.2}, {"x": 0.1}, {"x": 0.3}, {"x": 0.4}],
    }  # fmt: skip
    return tl.run({"x": tl.uniform(0.0, 1.0)}, train, **{**settings, **more})


@pytest.mark.parametrize("scheduler", ["asha", "fifo", "elastic_asha"])
def test_the_best_are_trained_again_on_warm_gangs_and_the_winner_has_the_best_mean(
    ray4: Any, tmp_path: Path, scheduler: str
) -> None:
    results = run(tmp_path, scheduler=scheduler, repeats={"top": 2, "repeats": 2}, max_concurrent=1)
    again = results.repetitions
    assert len(again) >= 2
    assert len(results) == 4
    assert {results.trial(str(trial.repeats)).config["x"] for trial in again} == {0.1, 0.2}
    assert all(trial.state == "FINISHED" and len(trial.history) == 4 for trial in again)
    assert all(trial.history[-1]["repetition"] == trial.repetition > 0 for trial in again)
    assert len({trial.seed for trial in results.every_trial}) == 4 + len(again)
    gangs = [gang for trial in again for gang in results.record.trials[trial.id].gangs]
    assert gangs
    assert all(gang["warm"] for gang in gangs)

    best, second = results.repeated()
    assert results.trial(best.trial).config == {"x": 0.1}
    assert results.trial(second.trial).config == {"x": 0.2}
    assert best.n == second.n == 2
    assert results.best_config == {"x": 0.1}
    assert results.best.value == min(best.values)
    assert "of 2 trainings" in results.summary()
    assert results.dataframe()["repeats"].notna().sum() == len(again)
