"""Which searcher a sweep gets, the grid, and warm starts."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

import tunelight as tl
from tests.kit.recording import Sweep, queued
from tests.unit.searchers.test_optuna import FLAT, counts, report
from tunelight.errors import SettingsError, StorageError
from tunelight.extras.earlier import read_earlier
from tunelight.extras.optuna import OptunaSearcher
from tunelight.extras.optuna_versions import constraints_of
from tunelight.record import read_sweep_file
from tunelight.schedulers import GangPBT
from tunelight.searchers import GridSearcher, RandomSearcher
from tunelight.searchers.choose import build_searcher, count_trials
from tunelight.searchers.random import all_of
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.space.plain import alike
from tunelight.sweep.past import SavedSweep
from tunelight.sweep.queue import SweepTrial
from tunelight.sweep.run import _prepare, claimed
from tunelight.sweep.steering import SweepControl

GIVEN: dict[str, Any] = {"metric": "loss", "seed": 1}


def build(searcher: Any = None, space: SearchSpace = FLAT, **more: Any) -> Any:
    return build_searcher(space, Settings(**{**GIVEN, "searcher": searcher, **more}))


@pytest.mark.parametrize(
    ("given", "more", "kind"),
    [
        (None, {}, RandomSearcher),
        ("random", {}, RandomSearcher),
        ("random", {"metric": ["loss", "latency"]}, RandomSearcher),
        (None, {"metric": ["loss", "latency"]}, optuna.samplers.NSGAIISampler),
        (OptunaSearcher(), {"metric": ["loss", "latency"], "mode": ["min", "max"]}, optuna.samplers.NSGAIISampler),
        (OptunaSearcher(), {}, optuna.samplers.TPESampler),
        ("tpe", {}, optuna.samplers.TPESampler),
        ("sobol", {}, optuna.samplers.QMCSampler),
        ("cmaes", {}, optuna.samplers.CmaEsSampler),
        ({"name": "tpe", "n_startup_trials": 5}, {}, optuna.samplers.TPESampler),
        ({"n_startup_trials": 5}, {}, optuna.samplers.TPESampler),
        ({"population_size": 5}, {"metric": ["loss", "latency"]}, optuna.samplers.NSGAIISampler),
        (OptunaSearcher(population_size=5), {"metric": ["loss", "latency"]}, optuna.samplers.NSGAIISampler),
        (optuna.samplers.GPSampler(), {}, optuna.samplers.GPSampler),
        ("auto", {}, optuna.samplers.TPESampler),
        ({"name": "auto"}, {"scheduler": "fifo"}, optuna.samplers.GPSampler),
        ("auto", {"scheduler": "fifo", "num_samples": 101}, optuna.samplers.TPESampler),
        ("auto", {"metric": ["loss", "latency"], "num_samples": 200}, optuna.samplers.TPESampler),
        ("auto", {"metric": ["loss", "latency"], "num_samples": 201}, optuna.samplers.NSGAIISampler),
    ],
)
def test_a_searcher_is_found_by_name_by_sampler_and_by_what_is_searched_for(given, more, kind):
    built = build(given, **more)
    assert isinstance(built if kind is RandomSearcher else built.study.sampler, kind)
    if "n_startup_trials" in str(given):
        assert built.study.sampler._n_startup_trials == 5
    if "mode" in more:
        assert [direction.name for direction in built.study.directions] == ["MINIMIZE", "MAXIMIZE"]


@pytest.mark.parametrize(
    "key", [tl.randn(0, 1), {"uniform": [0, 1], "when": {"kind": "a"}}], ids=["no distribution", "condition"]
)
def test_auto_models_no_keys_together_that_are_not_always_parameters(key):
    space = SearchSpace({"kind": tl.choice(["a", "b"]), "key": key, "width": 3})
    assert isinstance(build("auto", space, scheduler="fifo").study.sampler, optuna.samplers.TPESampler)
    whole = SearchSpace({"kind": tl.choice(["a", "b"]), "width": 3})
    assert isinstance(build("auto", whole, scheduler="fifo").study.sampler, optuna.samplers.GPSampler)


def test_one_searcher_serves_two_sweeps_without_one_knowing_of_the_other():
    given = OptunaSearcher(optuna.samplers.RandomSampler())
    first, second = build(given), build(given)
    assert first.suggest("00000") == second.suggest("00000")
    assert len(first.study.trials) == 1


def test_any_searcher_of_ray_tunes_still_works():
    class Own(Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"x": 0.5, "y": 0.5}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...

    own = Own()
    assert build(own) is own
    rays = OptunaSearch(seed=1)
    assert build(rays) is rays
    assert build(rays).suggest("a").keys() == {"x", "y"}
    several: Any = OptunaSearch(seed=1)
    build(several, metric=["loss", "acc"], mode=["min", "max"])
    assert (several.metric, several.mode) == (["loss", "acc"], ["min", "max"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"searcher": "tep"}, "There is no searcher 'tep'. Did you mean 'tpe'.* random, grid, auto, tpe, gp"),
        ({"searcher": ["tpe"]}, r"searcher must be a name.* not \['tpe'\]"),
        ({"searcher": {"name": "tpe", "n_startup": 3}}, "no 'n_startup'. Did you mean 'n_startup_trials'"),
        ({"searcher": {"name": "tpe", "group": True, "multivariate": False}}, "searcher 'tpe' does not take"),
        ({"searcher": {"name": "random", "seed": 3}}, "searcher='random' takes no seed"),
        ({"searcher": {"name": "auto", "trials": 3}}, "searcher='auto' takes no trials"),
        ({"searcher": "cmaes", "metric": ["loss", "acc"]}, "searcher='cmaes' takes one metric only"),
        ({"searcher": "grid"}, "searcher='grid' tries every value, and x, y has no end of them"),
        ({"mode": ["min", "max"]}, r"mode=\['min', 'max'\] has to hold .* for each metric"),
        ({"metric": ["loss", "acc"], "mode": ["min"]}, "Give as many modes as metrics"),
        ({"metric": ["loss", "loss"]}, "a list of different ones"),
        ({"metric": []}, "a list of different ones"),
        ({"metric": ["loss", 3]}, "metric must be text"),
        ({"metric": ["loss", "acc"], "mode": ["min", "maximum"]}, "not 'maximum'. Did you mean 'max'"),
        ({"warm_start": "earlier"}, "warm_start= is given, but searcher='random' does not look"),
        ({"warm_start": "earlier", "searcher": "sobol"}, "searcher='sobol' does not look at earlier trials"),
        ({"warm_start": "earlier", "searcher": OptunaSearch()}, "OptunaSearch is not tunelight's, and does not look"),
        ({"warm_start": 3}, "warm_start must be the path of a folder"),
    ],
)
def test_wrong_ones_are_refused_before_anything_starts(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    settings: dict[str, Any] = {"metric": "loss", "storage": tmp_path, "name": "s", **given}
    with pytest.raises(SettingsError, match=says):
        tl.run({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}, print, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("most", "more"), [(10, {}), (12, {"baselines": ({"x": 1, "y": 2},)}), (12, {})])
def test_a_grid_says_where_it_is_cut_off(monkeypatch, caplog, most, more) -> None:
    monkeypatch.setattr(logging.getLogger("tunelight"), "propagate", True)
    space = SearchSpace({"x": tl.choice([1, 2, 3]), "y": tl.randint(0, 4)})
    assert build("grid", space, num_samples=most, **more).suggest("0") == {"x": 1, "y": 0}
    said = ["The grid has 12 configurations, of which num_samples=10 tries the first 10."]
    assert caplog.messages == (said if most == 10 else [])


def test_a_large_grid_is_not_counted_to_its_end() -> None:
    space = {"x": tl.randint(0, 10**9)}
    found, all_found = all_of(SearchSpace(space), 20)
    assert (len(found), all_found) == (21, False)
    five = {alike({"x": number}) for number in range(5)}
    assert all_of(SearchSpace(space, require=["x < 5"]), 20) == (five, False)
    assert all_of(SearchSpace({"x": tl.randint(0, 20)}, require=["x < 5"]), 20) == (five, True)


FINITE = SearchSpace({"lr": tl.choice([0.1, 0.2]), "depth": tl.lograndint(1, 4)})


@pytest.mark.parametrize("searcher", ["random", "tpe", "gp", "sobol", "nsgaii", "grid"])
@pytest.mark.parametrize("num_samples", [4, 6, 9])
def test_none_of_finitely_many_configurations_is_trained_twice(searcher: str, num_samples: int) -> None:
    settings = Settings(**{**GIVEN, "searcher": searcher, "num_samples": num_samples})
    built: Any = build_searcher(FINITE, settings)
    search = queued(built, count_trials(FINITE, settings), [{"lr": 0.2, "depth": 1}])
    tried = []
    for _ in range(num_samples):
        if (trial := search.next_trial()) is not None:
            tried.append(tuple(trial.config.values()))
            built.on_trial_result(trial.trial_id, report(1, trial.config["lr"] * trial.config["depth"]))
    assert len(set(tried)) == len(tried) == count_trials(FINITE, settings) == min(num_samples, 6)
    said = "".join(note for note in built.notes if "is trained once" in note)
    assert ("each of the space's 6 configurations" in said) is (num_samples >= 6)
    assert ("num_samples=9 would train some of them again" in said) is (num_samples == 9)


@pytest.mark.parametrize("searcher", ["random", "tpe", "grid"])
def test_a_value_that_stands_twice_in_a_grid_keeps_no_other_from_its_trial(searcher: str) -> None:
    space = SearchSpace({"size": tl.grid([16, 32, 32, 64]), "drop": tl.choice([0])})
    settings = Settings(**{**GIVEN, "searcher": searcher, "num_samples": 1})
    built: Any = build_searcher(space, settings)
    sizes = [built.suggest(f"{number:05d}")["size"] for number in range(count_trials(space, settings))]
    assert sizes == [16, 32, 64]


def test_a_population_may_begin_alike_and_a_single_configuration_is_trained_as_often_as_asked() -> None:
    for scheduler in ("gang_pbt", {"name": "population"}, GangPBT(hyperparam_mutations={"lr": tl.choice([0.1, 0.2])})):
        settings = Settings(**{**GIVEN, "scheduler": scheduler, "num_samples": 9})
        assert count_trials(FINITE, settings) == 9
        assert len({*map(str, map(build_searcher(FINITE, settings).suggest, map(str, range(9))))}) <= 6
    assert count_trials(SearchSpace({"lr": tl.choice([0.1])}), Settings(**{**GIVEN, "num_samples": 9})) == 9


@pytest.mark.parametrize("searcher", ["random", "tpe"])
@pytest.mark.parametrize(
    ("baselines", "first", "count"),
    [
        ([0.001], [0.001, 0.1, 0.01], 3),
        ([0.1], [0.1, 0.01, 0.001], 3),
        ([0.01, 0.01], [0.01, 0.01, 0.1, 0.001], 4),  # one more than its turn
        ([0.5], [0.5, 0.1, 0.01, 0.001], 4),  # no point of the grid
    ],
)
def test_each_point_of_a_grid_has_its_trials_whatever_baselines_come_first(searcher, baselines, first, count):
    space = SearchSpace({"lr": {"grid_search": [0.1, 0.01, 0.001]}, "drop": tl.uniform(0, 1)})
    given = [{"lr": lr, "drop": 0.5} for lr in baselines]
    settings = Settings(**{**GIVEN, "searcher": searcher, "num_samples": 1, "baselines": given})
    assert count_trials(space, settings) == count
    search = queued(build_searcher(space, settings), count, given)
    suggested: Any = [search.next_trial() for _ in range(count)]
    assert [trial.config["lr"] for trial in suggested] == first


def walked(grid: GridSearcher) -> list[Any]:
    return [config for number in range(1000) if (config := grid.suggest(str(number))) != Searcher.FINISHED]


def test_a_grid_is_every_configuration_once_in_order_with_the_axes_of_the_space():
    space = SearchSpace({"a": tl.choice([1, 2]), "b": tl.randint(0, 3), "c": tl.quniform(0, 1, 0.5)})
    found = [tuple(config.values()) for config in walked(GridSearcher(space))]
    assert found == list(itertools.product([1, 2], [0, 1, 2], [0, 0.5, 1]))
    last = tl.sample_from(lambda config: config["c"])
    space = SearchSpace({"a": tl.choice([1, 2]), "b": tl.grid_search([3, 4]), "c": tl.qrandint(0, 4, 2), "d": last})
    found = [tuple(config.values()) for config in walked(GridSearcher(space))]
    assert sorted(found) == [(a, b, c, c) for a, b, c in itertools.product([1, 2], [3, 4], [0, 2, 4])]
    settings = Settings(**{**GIVEN, "searcher": {"name": "grid"}, "num_samples": 3})
    assert count_trials(SearchSpace({"a": tl.grid_search([1, 2])}), settings) == 2


def test_keys_that_depend_on_others_are_walked_where_they_are():
    described = {"a": {"choice": ["one", "two", "three"]}, "b": {"randint": [0, 4], "when": {"a": "two"}}}
    assert walked(GridSearcher(SearchSpace(described, require=["b != 2"]))) == [
        {"a": "one"}, {"a": "two", "b": 0}, {"a": "two", "b": 1}, {"a": "two", "b": 3}, {"a": "three"},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_step_whose_multiples_round_over_a_bound_stays_within_it(name):
    # 137 * 0.1 is 13.700000000000001, and 13.7 / 0.1 is 136.99999999999997
    searcher: Any = build(name, SearchSpace({"x": {"quniform": [13.5, 13.7, 0.1]}}), num_samples=30)
    found: set[float] = set()
    while (config := searcher.suggest(f"{len(found):05d}")) != Searcher.FINISHED:
        found.add(config["x"])
    assert (min(found) >= 13.5, max(found)) == (True, 13.7)


EARLIER = SearchSpace({"x": tl.uniform(0, 1), "z": tl.randint(0, 9)})


def earlier(folder: Path) -> Path:
    """Record a sweep with an end of each kind."""
    sweep = Sweep(folder)
    for number, (x, z) in enumerate([(0.1, 1), (0.2, 2), (0.3, 3), (0.4, 4), (7.0, 5)]):
        trial = sweep.run(x=x, z=z)
        sweep.report(trial, 1, 1.0 - x, acc=x, latency=3.0)
        sweep.report(trial, 2, 2.0 - x, acc=x / 2, latency=4.0, done=number == 1)
        if number in (0, 1, 4):
            sweep.end_by_itself(trial)
        else:
            sweep.fail(trial, **({} if number == 2 else {"state": "DIVERGED"}))
    sweep.end()
    return folder


def test_a_warm_start_knows_what_earlier_sweeps_found(tmp_path):
    one = build("tpe", EARLIER, warm_start=[earlier(tmp_path / "a")])
    assert one.notes == ["warm start: 4 of 4 trials of earlier sweeps are known to the searcher"]
    finished, stopped, diverged, outside = one.study.trials
    assert (finished.params, finished.value, finished.state.name) == ({"x": 0.1, "z": 1}, 0.9, "COMPLETE")
    assert (stopped.value, stopped.intermediate_values) == (1.8, {1: 0.8, 2: 1.8})
    assert stopped.state.name == "PRUNED"
    assert constraints_of(diverged) == {"infeasible": 1.0}
    assert (outside.params, outside.user_attrs["x"]) == ({"z": 5}, 7.0)
    assert outside.user_attrs["trial"] == f"{tmp_path / 'a'}/00004"


def test_only_keys_that_both_spaces_have_are_taken_over(tmp_path):
    one = build("tpe", FLAT, warm_start=earlier(tmp_path / "a"))
    assert one.notes == ["warm start: 3 of 4 trials of earlier sweeps are known to the searcher"]
    assert [trial.params.keys() for trial in one.study.trials] == [{"x"}] * 3
    for number in range(12):
        assert one.suggest(f"{number:05d}").keys() == {"x", "y"}
    with pytest.raises(SettingsError, match="of the 4 trials of earlier sweeps, none has a value"):
        build("cmaes", FLAT, warm_start=earlier(tmp_path / "b"))
    with pytest.raises(SettingsError, match="none has a value for a key of this search space"):
        build("tpe", SearchSpace({"lr": tl.uniform(0, 1)}), warm_start=earlier(tmp_path / "c"))


def test_a_warm_start_judges_by_the_metrics_of_the_new_sweep(tmp_path):
    folder = earlier(tmp_path / "a")
    one = build("nsgaii", EARLIER, metric=["acc", "latency"], mode=["max", "min"], warm_start=[folder, folder])
    assert [trial.values for trial in one.study.trials if trial.values] == [[0.1, 3.0], [-float("inf"), float("inf")]]
    with pytest.raises(SettingsError, match=r"metric 'accuracy'.*They reported: loss, acc"):
        build("tpe", EARLIER, metric="accuracy", warm_start=folder)
    with pytest.raises(StorageError, match="no sweep that can be read"):
        build("tpe", EARLIER, warm_start=tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["tpe", "cmaes", "nsgaii", "nsgaiii"])
def test_every_sampler_that_learns_takes_a_warm_start(tmp_path, kind):
    one = build(kind, EARLIER, warm_start=earlier(tmp_path / "a"))
    for number in range(6):
        one.end(f"{number:05d}", "FINISHED", report(1, one.suggest(f"{number:05d}")["x"]))
    assert counts(one.study)["COMPLETE"] >= 8


def test_a_sweep_may_be_resumed_under_another_searcher_but_not_with_other_metrics(tmp_path):
    told = {"metric": ["loss", "acc"], "mode": ["min", "max"]}
    past = SavedSweep(tmp_path, told, Sweep(tmp_path).state)
    assert past._differences({**told, "searcher": "tpe"}) == []
    assert past._differences({**told, "metric": "loss"}) == ["metric was ['loss', 'acc'] and is 'loss'"]


def test_a_trial_that_is_over_keeps_no_object_of_ray_s_and_no_statistics_and_still_says_that_it_is_done():
    search = queued(RandomSearcher(FLAT, 1), 2)
    search._make = lambda trial_id, config: SweepTrial(  # type: ignore[method-assign]
        "none", stub=True, trial_id=trial_id, config=config, placement_group_factory=None
    )
    trial: Any = search.next_trial()
    for number in (1, 2):
        trial.update_last_result({"loss": 1 / number, "training_iteration": number, "done": number == 2})
    trial._default_result_or_future = ray.ObjectRef.nil()
    search.on_trial_complete("00000", result=trial.last_result)
    assert trial._default_result_or_future is None
    assert trial.last_result["loss"] == 0.5
    assert trial.metric_analysis == {}
    # One that went on and had nothing left: Tune marks it in the result that stands for a report.
    again: Any = search.next_trial()
    again._default_result_or_future = {"training_iteration": 3}
    again.last_result.update(done=True)
    search.on_trial_complete("00001", result=dict(again.last_result))
    assert again.last_result["done"]


def recorded(storage: Path, name: str, configs: Any = None, count: int = 6) -> Path:
    """Record a sweep whose trials get better and better."""
    made = Sweep(storage / name)
    for number in range(count):
        trial = made.run(**(configs(number) if configs else {"x": (number + 1) / 10}))
        made.report(trial, 1, 1.0 - number / 10, done=True)
        made.end_by_itself(trial)
    made.end()
    return made.folder


def test_a_folder_of_sweeps_stands_for_those_that_reported_the_metric(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first, second = recorded(runs, "first"), recorded(runs, "second")
    recorded(runs, "empty", count=0)
    (runs / "broken").mkdir()
    (runs / "broken" / "record.jsonl").write_text("{")
    (runs / "notes").mkdir()
    trials, sweeps = read_earlier([runs], [("loss", "min")])
    assert (sorted(sweeps), len(trials)) == ([first, second], 12)
    assert read_earlier([runs, first], [("loss", "min")], but=second)[1] == [first]
    searcher = build("tpe", warm_start=[runs])
    told = {**GIVEN, "train": print, "storage": tmp_path, "name": "new", "searcher": "tpe", "warm_start": runs}
    with claimed(_prepare(FLAT, Settings(**told), None, SweepControl()), None) as sweep:
        assert sorted(read_sweep_file(sweep.folder)["warm_start"]) == [str(first), str(second)]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    auto = build("auto", warm_start=[runs], scheduler="fifo")
    assert isinstance(auto.study.sampler, optuna.samplers.TPESampler)  # GP needs trials that have all keys
    with pytest.raises(SettingsError, match=r"no sweep in .*runs has a trial that reported this sweep's metric acc"):
        read_earlier([runs], [("acc", "min")])


def test_a_key_that_was_fixed_counts_at_its_value(tmp_path: Path) -> None:
    fixed = SearchSpace({"lr": tl.uniform(0, 1), "width": 64})
    recorded(tmp_path, "first", lambda number: fixed.written({"lr": number / 10, "width": 64}))
    keys: dict[str, Any] = {"lr": tl.uniform(0, 1), "width": tl.choice([32, 64, 128])}
    known = [{"lr": number / 10, "width": 64} for number in range(6)]
    for searcher, space in (("tpe", {**keys, "new": tl.uniform(0, 1)}), ("cmaes", keys)):
        study = build(searcher, SearchSpace(space), warm_start=[tmp_path]).study
        assert [trial.params for trial in study.trials] == known
