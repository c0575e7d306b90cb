"""AutoSearcher: what it suggests, what it learns from, and that a resumed sweep goes on as it would have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.record import read_lines
from tunelight.searchers.auto import AutoSearcher
from tunelight.searchers.choose import build_searcher
from tunelight.searchers.encoding import Encoder, axis_of
from tunelight.searchers.random import RandomSearcher
from tunelight.searchers.surrogate import GaussianProcess
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.sweep.replay import replay_searcher

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
MIXED = SearchSpace(
    {
        "optimizer": tl.choice(["adam", "sgd"]),
        "momentum": {"uniform": [0.0, 0.99], "when": {"optimizer": "sgd"}},
        "net": {"depth": tl.randint(1, 9), "width": tl.qlograndint(8, 512, 8), "grow": tl.choice([True, False])},
        "scale": tl.randn(1.0, 0.1),
        "size": tl.ordinal(["s", "m", "l"]),
        "total": tl.sample_from(lambda config: config["net"]["depth"] * config["net"]["width"]),
        "fold": tl.grid_search([0, 1, 2]),
    },
    require="net.depth * net.width <= 1024",
)


def made(space: SearchSpace = SPACE, seed: int = 0, metric: Any = "loss", mode: Any = "min") -> AutoSearcher:
    return AutoSearcher(space=space, metric=metric, mode=mode, seed=seed)


def loss_of(config: dict[str, Any]) -> float:
    """Best at lr=1e-2, width=64 and without dropout, with sgd a little worse; log_every has no effect."""
    return float(
        (math.log10(config["lr"]) + 2) ** 2
        + 0.5 * (math.log2(config["width"]) - 6) ** 2
        + 2 * config["dropout"]
        + {"adam": 0.0, "sgd": 0.3, "lamb": 1.0}[config["optimizer"]]
    )


def report(number: int, loss: Any, **more: Any) -> dict[str, Any]:
    return {"loss": loss, "training_iteration": number, "timestamp": float(number), **more}


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


def in_space(space: SearchSpace, config: dict[str, Any]) -> None:
    values = space.dotted(config)
    assert space.written(values) == config
    assert space.broken(values) is None
    space.check_baselines([config])
    for key, domain in space.domains.items():
        if key in values and hasattr(domain, "is_valid") and not domain.is_function():
            assert domain.is_valid(values[key]), (key, values[key])


# --- points -----------------------------------------------------------------------------------------------

DOMAINS = {
    "uniform": tl.uniform(-2, 3),
    "quniform": tl.quniform(0.1, 0.9, 0.1),
    "loguniform": tl.loguniform(1e-6, 1e3),
    "qloguniform": tl.qloguniform(0.5, 100, 0.5),
    "randint": tl.randint(-3, 5),
    "qrandint": tl.qrandint(4, 40, 4),
    "lograndint": tl.lograndint(1, 1000),
    "qlograndint": tl.qlograndint(8, 512, 8),
    "choice": tl.choice(["a", "b", "c"]),
    "of two numbers": tl.choice([1, 2]),
    "numbers": tl.choice([256, 16, 64]),
    "flags": tl.choice([True, False, 1]),
    "ordinal": tl.ordinal(["s", "m", "l"]),
    "randn": tl.randn(2.0, 0.5),
}


@pytest.mark.parametrize("name", DOMAINS)
@given(coordinate=st.floats(0, 1), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_values_become_coordinates_and_values_again(name, coordinate, seed):
    axis, domain = axis_of(DOMAINS[name]), DOMAINS[name]
    assert axis is not None
    drawn = domain.sample(random_state=np.random.RandomState(seed))
    at = axis.coordinate(drawn)
    assert at is not None
    assert 0 <= at <= 1
    back = axis.value(at)
    assert (
        back == pytest.approx(drawn, rel=1e-6, abs=1e-6) if isinstance(drawn, float) else back is drawn or back == drawn
    )
    assert type(back) is type(drawn)
    if name != "randn":
        assert domain.is_valid(axis.value(coordinate)), axis.value(coordinate)


def test_what_has_one_value_or_no_order_has_no_axis():
    own = type("Own", (type(tl.uniform(0, 1)),), {})(0, 1)
    assert [axis_of(one) for one in (tl.choice(["a"]), tl.randint(3, 4), tl.sample_from(lambda _: 1))] == [None] * 3
    assert axis_of(own) is not None  # it is a uniform one still
    space = SearchSpace({"a": 3, "f": tl.sample_from(lambda _: 1)})
    searcher = made(space)
    assert [searcher.suggest(f"{n:05d}") for n in range(2)] == [{"a": 3, "f": 1}] * 2


def test_a_model_sees_numbers_in_one_column_and_choices_in_one_for_each_value():
    encoder = Encoder(SPACE)
    assert encoder.groups.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    config = {"lr": 1e-5, "width": 4, "dropout": 0.7, "batch": 128, "log_every": 1, "optimizer": "sgd"}
    point = encoder.point(config)
    row = encoder.columns(point[None])[0]
    assert row[:4] == pytest.approx([0, 0.03, 1, 0.875], abs=0.01)
    assert row[5:].tolist() == [0, 1, 0]
    unknown = encoder.columns(np.full((1, 6), np.nan))[0]
    assert unknown.tolist() == [0.5] * 5 + [0.0] * 3


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


def test_the_slope_that_the_search_for_hyperparameters_follows_is_that_of_its_loss(monkeypatch):
    rng = np.random.RandomState(1)
    seen = {}

    def look(loss: Any, start: Any, **options: Any) -> Any:
        at = start + 0.3 * rng.normal(size=len(start))
        seen["slope"] = loss(at)[1]
        seen["measured"] = optimize.approx_fprime(at, lambda here: loss(here)[0], 1e-6)
        return real(loss, start, **options)

    real = optimize.minimize
    monkeypatch.setattr(optimize, "minimize", look)
    GaussianProcess(rng.random_sample((15, 3)), rng.normal(size=15), np.array([0, 1, 1]))
    assert seen["slope"] == pytest.approx(seen["measured"], rel=1e-3, abs=1e-3)


def test_points_that_are_expected_change_no_mean_there_and_make_it_surer():
    x = np.linspace(0, 1, 6)[:, None]
    model = GaussianProcess(x, np.cos(3 * x[:, 0]), np.zeros(1, int))
    at = np.array([[0.47]])
    before = model.posterior(at)
    model.add(at)
    after = model.posterior(at)
    assert after[0] == pytest.approx(before[0], abs=1e-3)
    assert after[1][0] <= before[1][0]


# --- suggestions ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31 - 1), losses=st.lists(st.floats(-1e6, 1e6), min_size=16, max_size=16))
@settings(max_examples=6, deadline=None)
def test_suggestions_are_in_the_space_and_the_same_for_a_seed(seed, losses):
    for space in (MIXED, SPACE):
        one, other = made(space, seed), made(space, seed)
        for number, loss in enumerate(losses):
            trial = f"{number:05d}"
            config = one.suggest(trial)
            assert other.suggest(trial) == config
            in_space(space, config)
            for searcher in (one, other):
                searcher.on_trial_result(trial, report(1, loss))
                if number % 3:
                    searcher.end(trial, ("FINISHED", "STOPPED", "DIVERGED", "ERROR")[number % 4], report(2, loss + 1))


def test_the_first_ten_are_those_of_random_search():
    assert [made(seed=4).suggest(f"{n:05d}") for n in range(10)] == [_random(4, n) for n in range(10)]


def _random(seed: int, number: int) -> Any:
    searcher = RandomSearcher(SPACE, seed)
    return [searcher.suggest(f"{n:05d}") for n in range(number + 1)][-1]


@pytest.mark.parametrize("at_once", [1, 8])
def test_it_finds_more_than_random_search(at_once):
    ours = [min(sweep(made(seed=seed), 40, at_once=at_once)) for seed in range(3)]
    random = [min(_sweep_random(seed, 40)) for seed in range(3)]
    assert np.median(ours) < 0.4 * np.median(random)


def _sweep_random(seed: int, count: int) -> list[float]:
    searcher = RandomSearcher(SPACE, seed)
    return [loss_of(searcher.suggest(f"{n:05d}")) for n in range(count)]


def test_a_metric_to_maximize_is():
    searcher = made(mode="max")
    found = sweep(searcher, 40, lambda config: -loss_of(config))
    assert max(found[30:]) > max(found[:10])


def test_trials_that_start_together_differ():
    searcher = made()
    sweep(searcher, 20)
    configs = [searcher.suggest(f"{n:05d}") for n in range(100, 108)]
    rates = sorted(math.log10(config["lr"]) for config in configs)
    assert len({tuple(config.values()) for config in configs}) == 8
    assert rates[-1] - rates[0] > 0.01


def test_where_training_diverges_it_goes_rarely():
    searcher = made()
    for number in range(60):
        trial = f"{number:05d}"
        config = searcher.suggest(trial)
        if config["lr"] > 1e-3:
            searcher.end(trial, "DIVERGED", report(1, math.nan))
        else:
            searcher.end(trial, "FINISHED", report(1, loss_of(config)))
    late = [searcher._known[f"{n:05d}"].values["lr"] > 1e-3 for n in range(30, 60)]
    assert sum(late) <= 9  # of random draws, three in five are


def test_what_failed_for_other_reasons_is_not_learned_from():
    searcher = made()
    for number in range(20):
        trial = f"{number:05d}"
        searcher.suggest(trial)
        searcher.end(trial, "ERROR", None)
    assert searcher.suggest("00020") == _random(0, 20)


def test_several_metrics_are_all_heard():
    searcher = made(metric=["loss", "cost"], mode=["min", "max"])
    best = []
    for number in range(50):
        trial = f"{number:05d}"
        config = searcher.suggest(trial)
        best.append((loss_of(config), config["dropout"]))
        searcher.end(trial, "FINISHED", report(1, best[-1][0], cost=config["dropout"]))
    late = np.array(best[25:])
    assert late[:, 0].min() < 1
    assert late[:, 1].max() > 0.6


def test_a_report_without_the_metric_says_nothing():
    searcher = made(metric=["loss", "cost"])
    searcher.suggest("00000")
    searcher.on_trial_result("00000", report(1, 3.0))
    searcher.on_trial_result("00000", report(2, math.nan, cost=1.0))
    searcher.on_trial_result("unknown", report(2, 1.0, cost=1.0))
    assert searcher._known["00000"].best is None


def test_a_constraint_that_few_points_meet_is_kept():
    space = SearchSpace({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}, require="x + y <= 0.05")
    searcher = made(space)
    for number in range(14):
        config = searcher.suggest(f"{number:05d}")
        assert config["x"] + config["y"] <= 0.05
        searcher.end(f"{number:05d}", "FINISHED", report(1, config["x"]))


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
    assert max(sizes) <= 150


# --- a sweep ----------------------------------------------------------------------------------------------


def test_it_is_found_by_its_name_and_takes_no_options():
    more: dict[str, Any] = {"metric": "loss", "seed": 1}
    assert isinstance(build_searcher(SPACE, Settings(searcher="auto", **more)), AutoSearcher)
    assert isinstance(build_searcher(SPACE, Settings(searcher={"name": "auto"}, **more)), AutoSearcher)
    with pytest.raises(SettingsError, match="searcher='auto' takes no trials"):
        build_searcher(SPACE, Settings(searcher={"name": "auto", "trials": 3}, **more))


def test_a_resumed_sweep_goes_on_as_if_nothing_had_happened(tmp_path: Path):
    space = SearchSpace({"lr": tl.loguniform(1e-5, 1.0), "width": tl.randint(4, 64)})
    record = Sweep(tmp_path)
    searcher = made(space, seed=5)
    for number in range(24):
        config = searcher.suggest(f"{number:05d}")
        trial = record.add(**config)
        record.start(trial)
        for step in range(1, 4):
            loss = abs(math.log10(config["lr"]) + 2) + 1 / step
            record.report(trial, step, loss)
            searcher.on_trial_result(trial.trial_id, report(step, loss))
        record.end_by_itself(trial)
        searcher.end(trial.trial_id, "FINISHED", report(step, loss))
    again = made(space, seed=5)
    start = replay_searcher(read_lines(tmp_path), again, space, foreign=False)
    assert start.created == 24
    assert [again.suggest(f"{n:05d}") for n in range(24, 28)] == [searcher.suggest(f"{n:05d}") for n in range(24, 28)]


def test_without_a_space_it_says_so():
    with pytest.raises(SettingsError, match="AutoSearcher has nothing to search"):
        AutoSearcher(metric="loss").suggest("00000")


def test_tune_may_tell_it_metric_and_space():
    searcher = AutoSearcher(seed=2)
    assert searcher.set_search_properties("loss", "max", {"x": tl.uniform(0, 1)})
    assert 0 <= searcher.suggest("00000")["x"] <= 1
    assert not searcher.set_search_properties("other", "min", {})
    assert (searcher.metric, searcher.mode) == ("loss", "max")
