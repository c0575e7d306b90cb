"""Values that a space names by ``around`` are heard by every searcher, and a misleading one does little harm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tunelight.searchers.choose import build_searcher
from tunelight.searchers.optuna import PriorDraws
from tunelight.settings import Settings
from tunelight.space import SearchSpace

SEEDS = 4


def space(lr: float | None = None, depth: int | None = None) -> SearchSpace:
    """Return a space with its best configuration at lr=1e-4, depth=12, width=0.3, with or without a prior."""
    domains: dict[str, Any] = {
        "lr": {"loguniform": [1e-6, 1.0]},
        "depth": {"randint": [1, 17]},
        "width": {"uniform": [0.0, 1.0]},
        "decay": {"loguniform": [1e-6, 1.0]},
    }
    for key, around in (("lr", lr), ("depth", depth)):
        if around is not None:
            domains[key]["around"] = around
    return SearchSpace(domains)


GOOD = space(1e-4, 12)
MISLEADING = space(0.3, 2)
NONE = space()


def loss_of(config: dict[str, Any]) -> float:
    return float(
        (math.log10(config["lr"]) + 4) ** 2 + ((config["depth"] - 12) / 4) ** 2 + 4 * (config["width"] - 0.3) ** 2
    )


def made(name: str, searched: SearchSpace, seed: int) -> Any:
    return build_searcher(searched, Settings(searcher=name, metric="loss", seed=seed))


def losses_of(name: str, searched: SearchSpace, count: int) -> list[list[float]]:
    """Return the losses of so many trials, for each seed."""
    found = []
    for seed in range(SEEDS):
        searcher, losses = made(name, searched, seed), []
        for number in range(count):
            trial = f"{number:05d}"
            losses.append(loss_of(searcher.suggest(trial)))
            searcher.on_trial_result(trial, {"loss": losses[-1], "training_iteration": 1})
            searcher.end(trial, "FINISHED", {"loss": losses[-1], "training_iteration": 1})
        found.append(losses)
    return found


@pytest.mark.parametrize("name", ["tpe", "cmaes", "nsgaii", "sobol"])
def test_a_good_prior_helps_from_the_first_trials_on(name):
    assert np.median(losses_of(name, GOOD, 8)) < 0.7 * np.median(losses_of(name, NONE, 8))


def test_a_misleading_prior_is_left():
    assert np.median([min(losses) for losses in losses_of("tpe", MISLEADING, 50)]) < 0.6


def test_a_prior_that_proves_bad_is_hardly_drawn_from_and_a_good_one_goes_on():
    for searched, least, most in ((GOOD, 0.4, 0.5), (MISLEADING, 0.05, 0.15)):
        searcher = made("sobol", searched, 1)
        for number in range(60):
            trial = f"{number:05d}"
            config = searcher.suggest(trial)
            searcher.on_trial_result(trial, {"loss": loss_of(config), "training_iteration": 1})
        assert least <= searcher._priors.share() <= most


def test_without_priors_nothing_is_drawn_from_them():
    draws = PriorDraws(NONE, 0)
    assert not draws.active
    assert not any(draws.has_turn(number) for number in range(50))
    draws.began("00000", 0, draws.draw(0))
    draws.reported("00000", 1.0)
    assert draws.share() == 0.5


def test_trials_of_an_earlier_run_count_as_they_would_have():
    whole, again = made("tpe", GOOD, 3), made("tpe", GOOD, 3)
    for number in range(30):
        trial = f"{number:05d}"
        config = whole.suggest(trial)
        again.take(trial, config, asked=True)
        for searcher in (whole, again):
            searcher.on_trial_result(trial, {"loss": loss_of(config), "training_iteration": 1})
            searcher.end(trial, "FINISHED", None)
    assert again._priors.share() == whole._priors.share()
    assert [again.suggest(f"{n:05d}") for n in range(30, 36)] == [whole.suggest(f"{n:05d}") for n in range(30, 36)]


def test_what_cannot_be_trained_speaks_against_a_prior():
    searcher = made("tpe", GOOD, 0)
    for number in range(30):
        trial = f"{number:05d}"
        config = searcher.suggest(trial)
        if searcher._priors._drawn[trial]:
            searcher.end(trial, "DIVERGED", None)
        else:
            searcher.on_trial_result(trial, {"loss": loss_of(config), "training_iteration": 1})
    assert searcher._priors.share() == 0.05


def test_a_trial_that_is_stopped_at_its_first_report_counts():
    searcher = made("tpe", MISLEADING, 0)
    for number in range(30):
        trial = f"{number:05d}"
        config = searcher.suggest(trial)
        searcher.end(trial, "STOPPED", {"loss": loss_of(config), "training_iteration": 1})
    assert searcher._priors.share() < 0.5
