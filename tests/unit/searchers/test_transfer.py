"""AutoSearcher with earlier sweeps: what it takes from good ones, from misleading ones, and from a folder of sweeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunelight as tl
from tests.kit.recording import Sweep
from tests.unit.searchers.test_auto import SPACE, in_space, loss_of, made, report, sweep
from tunelight.errors import SettingsError, StorageError
from tunelight.searchers.auto import AutoSearcher
from tunelight.searchers.choose import build_searcher
from tunelight.searchers.earlier import Earlier, read_earlier
from tunelight.searchers.encoding import Encoder
from tunelight.searchers.surrogate import GaussianProcess
from tunelight.searchers.transfer import EarlierSweeps
from tunelight.settings import Settings
from tunelight.space import SearchSpace


def earlier(count: int = 40, loss: Any = loss_of, seed: int = 5, name: str = "first") -> list[Earlier]:
    """Return trials of an earlier sweep of random configurations."""
    rng = np.random.RandomState(seed)
    configs = [SPACE.sample(rng) for _ in range(count)]
    return [Earlier(name, f"{n:05d}", "STOPPED", config, [loss(config)]) for n, config in enumerate(configs)]


def warm(*sweeps: list[Earlier], seed: int = 0) -> AutoSearcher:
    searcher = made(seed=seed)
    assert searcher.learn([trial for trials in sweeps for trial in trials]) == sum(map(len, sweeps))
    return searcher


def worse(config: dict[str, Any]) -> float:
    return -loss_of(config)


def test_the_first_trials_are_near_what_earlier_sweeps_found_good():
    seeds = range(5)
    cold = [min(sweep(made(seed=seed), 6, at_once=3)) for seed in seeds]
    known = [min(sweep(warm(earlier(), earlier(seed=6, name="second"), seed=seed), 6, at_once=3)) for seed in seeds]
    assert np.mean(known) < 0.5 * np.mean(cold)


def test_misleading_sweeps_are_left_as_soon_as_results_speak_against_them():
    lie = [*earlier(loss=worse), *earlier(loss=worse, seed=6, name="second")]
    searcher, rng = made(), np.random.RandomState(1)
    searcher.learn(lie)
    points = np.array([searcher.encoder.point(SPACE.sample(rng)) for _ in range(30)])
    scores = np.array([loss_of(searcher.encoder.values(point, rng)) for point in points])
    x = searcher.encoder.columns(points)
    few, many = (searcher._earlier.weights(x[:n], scores[:n] / scores.std()) for n in (3, 30))
    assert searcher._earlier.weights(x[:0], scores[:0]).tolist() == [0.5, 0.5]
    assert few.sum() < 0.9
    assert many.sum() < 0.05
    cold = np.mean([min(sweep(made(seed=seed), 40)) for seed in range(2)])
    misled = np.mean([min(sweep(warm(lie, seed=seed), 40)) for seed in range(2)])
    assert misled < cold + 0.5  # random search comes to about 1.5 more


def test_of_several_sweeps_those_that_predict_this_one_weigh_most():
    searcher = warm(earlier(loss=worse, name="lie"), earlier(name="good"), earlier(loss=lambda _: 1.0, name="flat"))
    rng = np.random.RandomState(1)
    points = np.array([searcher.encoder.point(SPACE.sample(rng)) for _ in range(20)])
    scores = np.array([loss_of(searcher.encoder.values(point, rng)) for point in points])
    lie, good, flat = searcher._earlier.weights(searcher.encoder.columns(points), scores / scores.std())
    assert good > 0.7
    assert lie < 0.1
    assert flat < 0.4  # it says nothing, so that its weight does nothing


def test_keys_that_an_earlier_sweep_did_not_have_are_no_matter():
    rng = np.random.RandomState(3)
    trials = [
        Earlier("a", str(n), "FINISHED", {"lr": 10 ** rng.uniform(-5, 0), "old": n, "width": 10**6}, [n / 10])
        for n in range(8)
    ]
    foreign = [Earlier("b", str(n), "FINISHED", {"old": n}, [1.0]) for n in range(8)]
    searcher = made()
    assert searcher.learn([*trials, *foreign]) == 8
    for number in range(6):
        in_space(SPACE, searcher.suggest(f"{number:05d}"))


def test_infeasible_trials_and_short_sweeps_are_borne():
    diverged = [Earlier("a", "00009", "DIVERGED", SPACE.sample(np.random.RandomState(9)))]
    searcher = warm([*earlier(9, name="a"), *diverged], earlier(3, name="short"))
    assert len(searcher._earlier) == 1
    in_space(SPACE, searcher.suggest("00000"))
    assert not len(warm(earlier(3))._earlier)


def test_several_metrics_count_by_their_mean_rank():
    searcher = AutoSearcher(space=SPACE, metric=["loss", "speed"], mode=["min", "max"], seed=0)
    rng = np.random.RandomState(0)
    configs = [SPACE.sample(rng) for _ in range(10)]
    searcher.learn([Earlier("a", str(n), "FINISHED", config, [n, 9 - n]) for n, config in enumerate(configs)])
    assert searcher._past[0][1].tolist() == list(range(10))  # the best loss goes with the highest speed
    searcher.suggest("00000")


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


def test_a_model_without_targets_expects_what_its_trend_says():
    model = GaussianProcess(np.zeros((0, 2)), np.zeros(0), np.array([0, 1]), lambda x: x[:, 0])
    model.add(np.zeros((0, 2)))
    mean, deviation = model.posterior(np.array([[0.2, 0.0], [0.7, 1.0]]))
    assert mean.tolist() == [0.2, 0.7]
    assert np.allclose(deviation, 1.0)
    model.add(np.array([[0.2, 0.0]]))  # a trial that runs
    mean, deviation = model.posterior(np.array([[0.2, 0.0], [0.7, 1.0]]))
    assert mean == pytest.approx([0.2, 0.7])
    assert deviation[0] < 0.5 < deviation[1]
    assert model.mean(np.array([[0.7, 1.0]])) == pytest.approx([0.7])


def test_no_more_than_the_last_twenty_sweeps_are_modelled():
    rng = np.random.RandomState(0)
    encoder = Encoder(SPACE)
    sweeps = [(rng.random_sample((6, len(encoder.axes))), np.arange(6.0) + n) for n in range(25)]
    assert len(EarlierSweeps(encoder, sweeps)) == 20


# --- a folder of sweeps -----------------------------------------------------------------------------------

SMALL = SearchSpace({"x": tl.uniform(0, 1)})


def recorded(folder: Path, count: int = 6, metric: str = "loss") -> Path:
    folder.mkdir(parents=True)
    made = Sweep(folder)
    for number in range(count):
        trial = made.add(x=number / 10)
        made.start(trial)
        own = {} if metric == "loss" else {metric: 1.0}
        made.report(trial, 1, 0.5 + number if metric == "loss" else math.nan, done=True, **own)
        made.end_by_itself(trial)
    made.end()
    return folder


def test_a_folder_of_sweeps_stands_for_those_that_reported_the_metric(tmp_path: Path):
    runs = tmp_path / "runs"
    first, second = recorded(runs / "first"), recorded(runs / "second")
    recorded(runs / "other", metric="acc")
    broken = runs / "broken"
    broken.mkdir()
    (broken / "record.jsonl").write_text("{")
    (runs / "notes").mkdir()
    trials, sweeps = read_earlier([runs], [("loss", "min")])
    assert sorted(sweeps) == [first, second]
    assert len(trials) == 12
    _, sweeps = read_earlier([runs, first], [("loss", "min")], but=second)
    assert sweeps == [first]
    told: dict[str, Any] = {"searcher": "auto", "metric": "loss", "warm_start": [runs], "seed": 1}
    settings = Settings(**told)
    searcher: Any = build_searcher(SMALL, settings)
    assert sorted(searcher.sweeps) == [first, second]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    assert len(searcher._earlier) == 2


def test_wrong_folders_are_refused(tmp_path: Path):
    def build(space: SearchSpace, folder: Path, metric: str) -> None:
        told: dict[str, Any] = {"searcher": "auto", "metric": metric, "warm_start": [folder], "seed": 1}
        build_searcher(space, Settings(**told))

    runs = tmp_path / "runs"
    recorded(runs / "other", metric="acc")
    with pytest.raises(SettingsError, match=r"no sweep in .*runs has a trial that reported this sweep's metric val"):
        build(SMALL, runs, "val")
    with pytest.raises(StorageError, match="no sweep that can be read"):
        build(SMALL, tmp_path / "nowhere", "val")
    with pytest.raises(SettingsError, match="of the 6 trials of earlier sweeps, none has a value for a key"):
        build(SPACE, recorded(tmp_path / "a"), "loss")
