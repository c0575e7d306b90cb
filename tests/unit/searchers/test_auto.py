"""AutoSampler: what it suggests, what it learns from, and what it takes from earlier sweeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import tunelight as tl
from tests.unit.searchers.test_any_space import in_space
from tests.unit.searchers.test_optuna import report
from tunelight.searchers.auto import Axis
from tunelight.searchers.earlier import Earlier
from tunelight.searchers.random import RandomSearcher
from tunelight.searchers.surrogate import EarlierSweeps, GaussianProcess, _posterior_loss
from tunelight.space import SearchSpace
from tunelight.space.distributions import parameter_of

SPACE = SearchSpace(
    {
        "lr": tl.loguniform(1e-5, 1.0),
        "width": tl.lograndint(4, 257),
        "dropout": tl.uniform(0, 0.7),
        "batch": tl.choice([16, 32, 64, 128]),
        "log_every": tl.randint(1, 100),
        "optimizer": tl.choice(["adam", "sgd", "lamb"]),
    }
)


def made(space: SearchSpace = SPACE, seed: int = 0, mode: Any = "min") -> tl.OptunaSearcher:
    return tl.OptunaSearcher("auto", space=space, metric="loss", mode=mode, seed=seed)


def loss_of(config: dict[str, Any]) -> float:
    """Best at lr=1e-2, width=64 and without dropout, with sgd a little worse; log_every has no effect."""
    return float(
        (math.log10(config["lr"]) + 2) ** 2
        + 0.5 * (math.log2(config["width"]) - 6) ** 2
        + 2 * config["dropout"]
        + {"adam": 0.0, "sgd": 0.3, "lamb": 1.0}[config["optimizer"]]
    )


def sweep(searcher: Any, count: int, loss: Any = loss_of, at_once: int = 1) -> list[float]:
    """Return the losses of trials, of which so many run at once."""
    found, live = [], []
    for number in range(count):
        trial = f"{number:05d}"
        live.append((trial, searcher.suggest(trial)))
        if len(live) == at_once:
            done, config = live.pop(0)
            found.append(loss(config))
            searcher.end(done, "FINISHED", report(1, found[-1]))
    return found


# --- points -----------------------------------------------------------------------------------------------

DOMAINS = {
    "uniform": tl.uniform(-2, 3),
    "quniform": tl.quniform(0.1, 0.9, 0.1),
    "loguniform": tl.loguniform(1e-6, 1e3),
    "randint": tl.randint(-3, 5),
    "qrandint": tl.qrandint(4, 40, 4),
    "lograndint": tl.lograndint(1, 1000),
    "choice": tl.choice(["a", "b", "c"]),
    "of two numbers": tl.choice([1, 2]),
    "numbers": tl.choice([256, 16, 64]),
    "flags": tl.choice([True, False]),
}


@pytest.mark.parametrize("name", DOMAINS)
@given(coordinate=st.floats(0, 1), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_values_become_coordinates_and_values_again(name, coordinate, seed):
    domain = DOMAINS[name]
    parameter = parameter_of("x", domain)
    assert parameter is not None
    axis = Axis(parameter.distribution, ordered=False)
    drawn = domain.sample(random_state=np.random.RandomState(seed))
    back = axis.value(axis.coordinate(drawn))
    assert back == pytest.approx(drawn, rel=1e-6, abs=1e-6) if isinstance(drawn, float) else back == drawn
    assert type(back) is type(drawn)
    assert domain.is_valid(axis.value(coordinate)), axis.value(coordinate)


def test_a_model_sees_numbers_in_one_column_and_choices_in_one_for_each_value():
    space = SearchSpace({"x": tl.uniform(0, 2), "size": tl.ordinal(["s", "m", "l"]), "act": tl.choice(["a", "b", "c"])})
    searcher: Any = made(space)
    sampler = searcher.study.sampler
    assert sampler._groups.tolist() == [0, 1, 2, 2, 2]
    points = np.array([sampler._point({"x": 0.5, "size": "l", "act": "b"}), sampler._point({"x": 2.0})])
    assert sampler._columns(points).tolist() == [[0.25, pytest.approx(5 / 6), 0, 1, 0], [1, 0.5, 0, 0, 0]]


def test_a_space_without_a_choice_is_searched():
    searcher = made(SearchSpace({"a": 3, "f": tl.sample_from(lambda _: 1), "one": tl.choice(["x"])}))
    assert [searcher.suggest(f"{n:05d}") for n in range(2)] == [{"a": 3, "f": 1, "one": "x"}] * 2


# --- the model --------------------------------------------------------------------------------------------


def test_the_process_meets_its_data_and_knows_where_it_knows_nothing():
    rng = np.random.RandomState(0)
    x = rng.random_sample((40, 2))
    y = np.sin(6 * x[:, 0])
    model = GaussianProcess(x, y, np.arange(2))
    mean, deviation = model.posterior(x)
    assert np.abs(mean - y).max() < 0.1
    assert model.posterior(np.array([[0.5, 3.0], [4.0, 0.5]]))[1].max() > 5 * deviation.max()
    assert model._scales[1] > 3 * model._scales[0]  # the second column does nothing


def test_the_slope_that_the_search_for_hyperparameters_follows_is_that_of_its_loss():
    rng = np.random.RandomState(1)
    x, y, at = rng.random_sample((15, 2)), rng.normal(size=15), 0.3 * rng.normal(size=4)
    square = np.stack([((x[:, None, key] - x[None, :, key]) ** 2).ravel() for key in range(2)])
    measured = optimize.approx_fprime(at, lambda here: _posterior_loss(square, y, here)[0], 1e-6)
    assert _posterior_loss(square, y, at)[1] == pytest.approx(measured, rel=1e-3, abs=1e-3)


def test_pending_points_change_no_mean_there_and_make_it_surer():
    x = np.linspace(0, 1, 6)[:, None]
    model = GaussianProcess(x, np.cos(3 * x[:, 0]), np.zeros(1, int))
    at = np.array([[0.47]])
    before = model.posterior(at)
    model.add(at)
    after = model.posterior(at)
    assert after[0] == pytest.approx(before[0], abs=1e-3)
    assert after[1][0] <= before[1][0]


def test_a_model_without_targets_predicts_its_trend():
    model = GaussianProcess(np.zeros((0, 2)), np.zeros(0), np.array([0, 1]), lambda x: x[:, 0])
    at = np.array([[0.2, 0.0], [0.7, 1.0]])
    mean, deviation = model.posterior(at)
    assert mean.tolist() == [0.2, 0.7]
    assert np.allclose(deviation, 1.0)
    model.add(at[:1])  # a trial that runs
    mean, deviation = model.posterior(at)
    assert mean == pytest.approx([0.2, 0.7])
    assert deviation[0] < 0.5 < deviation[1]


# --- suggestions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 8])
def test_it_finds_more_than_random_search(at_once):
    ours = [min(sweep(made(seed=seed), 40, at_once=at_once)) for seed in range(3)]
    random = [RandomSearcher(SPACE, seed) for seed in range(3)]
    drawn = [min(loss_of(one.suggest(str(number))) for number in range(40)) for one in random]
    assert np.median(ours) < 0.4 * np.median(drawn)


def test_a_metric_to_maximize_is():
    found = sweep(made(mode="max"), 40, lambda config: -loss_of(config))
    assert max(found[30:]) > max(found[:10])


def test_stopped_trials_are_learned_from():
    searcher, best = made(), []
    for number in range(40):
        trial = f"{number:05d}"
        best.append(loss_of(searcher.suggest(trial)))
        searcher.end(trial, "STOPPED", report(1, best[-1]))
    assert min(best[20:]) < 0.3 * min(best[:10])


def test_trials_that_start_together_differ():
    searcher = made()
    sweep(searcher, 20)
    configs = [searcher.suggest(f"{n:05d}") for n in range(100, 108)]
    rates = sorted(math.log10(config["lr"]) for config in configs)
    assert len({tuple(config.values()) for config in configs}) == 8
    assert rates[-1] - rates[0] > 0.01


def test_where_training_diverges_it_goes_rarely():
    searcher, high = made(), []
    for number in range(60):
        trial = f"{number:05d}"
        config = searcher.suggest(trial)
        high.append(config["lr"] > 1e-3)
        if high[-1]:
            searcher.end(trial, "DIVERGED", report(1, math.nan))
        else:
            searcher.end(trial, "FINISHED", report(1, loss_of(config)))
    assert sum(high[30:]) <= 9  # of random draws, three in five are


def test_what_failed_for_other_reasons_is_not_learned_from():
    searcher, fresh = made(), made()
    for number in range(20):
        searcher.suggest(f"{number:05d}")
        searcher.end(f"{number:05d}", "ERROR", None)
    assert searcher.suggest("00020") == fresh.suggest("00020")


def test_a_constraint_that_few_points_meet_is_kept():
    space = SearchSpace({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}, require="x + y <= 0.05")
    searcher = made(space)
    for number in range(14):
        config = searcher.suggest(f"{number:05d}")
        assert config["x"] + config["y"] <= 0.05
        searcher.end(f"{number:05d}", "FINISHED", report(1, config["x"]))


def test_points_of_a_grid_are_taken_in_order():
    space = SearchSpace({"x": tl.uniform(0, 1), "fold": tl.grid_search([0, 1, 2])})
    searcher, folds = made(space), []
    for number in range(18):
        config = searcher.suggest(f"{number:05d}")
        folds.append(config["fold"])
        searcher.end(f"{number:05d}", "FINISHED", report(1, config["x"]))
    assert folds == [0, 1, 2] * 6


def test_a_thousand_trials_are_modelled_by_a_few(monkeypatch):
    sizes = []

    class Counted(GaussianProcess):
        def __init__(self, x: Any, y: Any, groups: Any) -> None:
            sizes.append(len(x))
            super().__init__(x, y, groups)

    monkeypatch.setattr("tunelight.searchers.auto.GaussianProcess", Counted)
    searcher, rng = made(), np.random.RandomState(0)
    for number in range(1000):
        config = SPACE.sample(rng)
        searcher.take(f"{number:05d}", config)
        searcher.end(f"{number:05d}", "STOPPED", report(1, loss_of(config)))
    for number in range(1000, 1004):
        searcher.suggest(f"{number:05d}")
    assert sizes
    assert max(sizes) <= 120


# --- earlier sweeps ---------------------------------------------------------------------------------------


def earlier(count: int = 40, loss: Any = loss_of, seed: int = 5, name: str = "runs/first") -> list[Earlier]:
    """Return trials of an earlier sweep of random configurations."""
    rng = np.random.RandomState(seed)
    configs = [SPACE.sample(rng) for _ in range(count)]
    return [
        Earlier(f"{name}/{n:05d}", "STOPPED", config, [loss(config)], {1: loss(config)})
        for n, config in enumerate(configs)
    ]


def warm(*sweeps: list[Earlier], seed: int = 0) -> tl.OptunaSearcher:
    searcher = made(seed=seed)
    assert searcher.learn([trial for trials in sweeps for trial in trials]) == sum(map(len, sweeps))
    return searcher


def worse(config: dict[str, Any]) -> float:
    return -loss_of(config)


LIE = [*earlier(loss=worse, name="lie"), *earlier(loss=worse, seed=6, name="other")]


def test_the_first_trials_are_near_what_earlier_sweeps_found_good():
    seeds = range(5)
    cold = [min(sweep(made(seed=seed), 6, at_once=3)) for seed in seeds]
    known = [min(sweep(warm(earlier(), earlier(seed=6, name="second"), seed=seed), 6, at_once=3)) for seed in seeds]
    assert np.mean(known) < 0.5 * np.mean(cold)


def test_misleading_sweeps_are_left_as_soon_as_results_speak_against_them():
    cold = np.mean([min(sweep(made(seed=seed), 40)) for seed in range(2)])
    misled = np.mean([min(sweep(warm(LIE, seed=seed), 40)) for seed in range(2)])
    assert misled < cold + 0.5  # random search comes to about 1.5 more


def test_of_several_sweeps_those_that_predict_this_one_weigh_most():
    rng = np.random.RandomState(1)
    x, new = rng.random_sample((40, 2)), rng.random_sample((30, 2))
    truth, scores = x[:, 0] - x[:, 1], 2 * (new[:, 0] - new[:, 1])
    models = EarlierSweeps([(x, -truth), (x, truth), (x, np.zeros(40))], np.arange(2))
    assert models.weights(new[:0], scores[:0]).tolist() == [1 / 3] * 3
    lie, good, flat = models.weights(new, scores)
    assert good > 0.7
    assert lie < 0.1
    assert flat < 0.4  # it says nothing, so that its weight does nothing


def test_keys_that_an_earlier_sweep_did_not_have_are_no_matter():
    rng = np.random.RandomState(3)
    trials = [
        Earlier(f"a/{n}", "FINISHED", {"lr": 10 ** rng.uniform(-5, 0), "old": n, "width": 10**6}, [n / 10])
        for n in range(8)
    ]
    foreign = [Earlier(f"b/{n}", "FINISHED", {"old": n}, [1.0]) for n in range(8)]
    searcher = made()
    assert searcher.learn([*trials, *foreign]) == 8
    for number in range(6):
        in_space(SPACE, searcher.suggest(f"{number:05d}"))


def models_of(searcher: Any) -> int:
    searcher.suggest("00000")
    sampler = searcher.study.sampler
    trials = [one for one in searcher.study.trials if "trial" in one.user_attrs]
    return len(sampler._learn(searcher.study, trials))


def test_infeasible_trials_count_and_short_sweeps_do_not():
    diverged = [Earlier("a/00009", "DIVERGED", SPACE.sample(np.random.RandomState(9)))]
    assert models_of(warm([*earlier(4, name="a"), *diverged], earlier(3, name="short"))) == 1
    assert models_of(warm(earlier(3))) == 0


def test_no_more_than_the_last_twenty_sweeps_are_modelled():
    assert models_of(warm(*(earlier(5, name=f"runs/{n}") for n in range(22)))) == 20


def test_equal_seeds_and_sweeps_make_equal_suggestions_also_when_resumed():
    first, second = warm(earlier()), warm(earlier())
    for number in range(15):
        config = first.suggest(f"{number:05d}")
        if number < 8:
            second.take(f"{number:05d}", config, asked=True)
        else:
            assert second.suggest(f"{number:05d}") == config
        for one in (first, second):
            one.end(f"{number:05d}", "FINISHED", report(1, loss_of(config)))


def test_it_is_a_sampler_of_optuna_s():
    searcher = made()
    assert isinstance(searcher.study.sampler, optuna.samplers.BaseSampler)
    assert searcher.suggest("00000").keys() == SPACE.domains.keys()
