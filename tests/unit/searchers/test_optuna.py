"""OptunaSearcher: what it suggests, what its study is told, and what comes back from a record."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import tunelight as tl
from tests.kit.recording import Sweep, Tune, queued, read_lines, replay_searcher
from tunelight.errors import SettingsError
from tunelight.extras.optuna import KINDS, OptunaSearcher
from tunelight.extras.optuna_versions import constraints_of
from tunelight.space import SearchSpace
from tunelight.space.kinds import kind_of

SPACE = SearchSpace({"lr": tl.loguniform(1e-4, 1.0), "net": {"width": tl.randint(8, 65), "act": tl.choice(["a", "b"])}})
FLAT = SearchSpace({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)})
SMALL: dict[str, dict[str, Any]] = {
    "nsgaii": {"population_size": 4},
    "nsgaiii": {"population_size": 4},
    "tpe": {"n_startup_trials": 4},
    "gp": {"n_startup_trials": 3},
}


def searcher(kind: Any = "tpe", space: SearchSpace = SPACE, metric: Any = "loss", seed: int = 3, **more: Any) -> Any:
    return OptunaSearcher(kind, **more).for_sweep(space, metric, "min", seed)


def loss_of(config: dict[str, Any]) -> float:
    if "x" in config:
        return float((config["x"] - 0.3) ** 2 + config["y"])
    return float((math.log10(config["lr"]) + 2) ** 2 + config["net"]["width"] / 100)


def report(number: int, loss: Any, **more: Any) -> dict[str, Any]:
    return {"loss": loss, "training_iteration": number, "timestamp": float(number), **more}


def counts(study: optuna.Study) -> dict[str, int]:
    states = [trial.state.name for trial in study.trials]
    return {name: states.count(name) for name in sorted(set(states))}


@pytest.mark.parametrize("kind", [*KINDS, optuna.samplers.RandomSampler(seed=1), optuna.samplers.TPESampler()])
def test_every_sampler_suggests_from_the_space_and_the_same_for_a_seed(kind):
    one, two = (searcher(kind, **SMALL.get(str(kind), {})) for _ in range(2))
    count = 5 if kind == "gp" else 12
    for number in range(count):
        config = one.suggest(f"{number:05d}")
        assert config == two.suggest(f"{number:05d}")
        assert 1e-4 <= config["lr"] <= 1
        assert config["net"]["width"] in range(8, 65)
        assert config["net"]["act"] in ("a", "b")
        for each in (one, two):
            each.end(f"{number:05d}", "FINISHED", report(1, loss_of(config)))
    assert counts(one.study) == {"COMPLETE": count}
    assert searcher(kind, seed=4).suggest("00000") != searcher(kind, seed=5).suggest("00000")


@pytest.mark.parametrize("kind", ["tpe", "cmaes", "sobol", "nsgaii", "nsgaiii"])
def test_a_study_rebuilt_from_the_record_suggests_what_the_live_one_would(tmp_path, kind):
    live = searcher(kind, FLAT, **SMALL.get(kind, {}))
    sweep = Sweep(tmp_path)
    running: list[Any] = []
    rng = np.random.default_rng(0)
    for number in range(24):
        running.append(sweep.run(**live.suggest(f"{number:05d}")))
        for one in list(running[: len(running) - 1 + (number == 23)]):
            step = one.last_result.get("training_iteration", 0) + 1
            stop = step == 1 and rng.random() < 0.3
            sweep.report(one, step, loss_of(one.config) + 1 / step, done=stop)
            if stop or step == 2:
                if not stop:
                    live.on_trial_result(one.trial_id, one.last_result)
                live.end(one.trial_id, "STOPPED" if stop else "FINISHED", one.last_result)
                sweep.end_by_itself(one)
                running.remove(one)
            else:
                live.on_trial_result(one.trial_id, one.last_result)
    again = searcher(kind, FLAT, **SMALL.get(kind, {}))
    start = replay_searcher(read_lines(tmp_path), again, FLAT, foreign=False, again=[one.trial_id for one in running])
    assert start.created == 24
    assert set(start.known) == {one.trial_id for one in running}
    told = [(t.params, t.state, t.values, t.intermediate_values) for t in live.study.trials]
    assert [(t.params, t.state, t.values, t.intermediate_values) for t in again.study.trials] == told
    assert {TrialState.PRUNED, TrialState.COMPLETE, TrialState.RUNNING} <= {t.state for t in live.study.trials}
    assert [again.suggest(f"{n:05d}") for n in (24, 25)] == [live.suggest(f"{n:05d}") for n in (24, 25)]


@pytest.mark.parametrize("values", [[(1, 2), (3,)], [dict, list], [1, True, 1.0], ["1", 1, [1]], [3, 3, 4]])
def test_choices_that_optuna_cannot_keep_stand_there_as_texts(values):
    parameter: Any = kind_of(domain := tl.choice(values)).parameter("key", domain)
    assert all(isinstance(one, str) for one in parameter.distribution.choices)
    assert len(parameter.distribution.choices) == len(values)
    for value in values:
        text = parameter.stored(value)
        assert type(parameter.choices[text]) is type(value)
        assert parameter.choices[text] == value


def test_points_of_a_grid_are_walked_through_and_are_parameters():
    twice = tl.sample_from(lambda config: 2 * config["depth"])
    one = searcher("tpe", SearchSpace({"depth": tl.grid_search([1, 2, 3]), "lr": tl.uniform(0, 1), "twice": twice}))
    assert [one.suggest(f"{n:05d}")["depth"] for n in range(6)] == [1, 2, 3, 1, 2, 3]
    told = [(trial.params["depth"], trial.user_attrs["twice"]) for trial in one.study.trials]
    assert told == [(1, 2), (2, 4), (3, 6)] * 2


def test_a_sampler_that_raises_does_not_end_the_sweep(caplog):
    class Broken(optuna.samplers.RandomSampler):
        def sample_independent(self, *given: Any, **more: Any) -> Any:
            raise np.linalg.LinAlgError("singular")

    one = searcher(Broken(), FLAT)
    with caplog.at_level(logging.WARNING, "tunelight"):
        configs = [one.suggest(f"{n:05d}") for n in range(3)]
    assert len({config["x"] for config in configs}) == 3
    assert [record.message for record in caplog.records] == [
        "Broken raised LinAlgError: singular. The configuration is drawn at random instead."
    ]
    one.end("00000", "FINISHED", report(1, 0.5))
    assert counts(one.study) == {"COMPLETE": 1, "FAIL": 3, "RUNNING": 2}


class Half(SearchSpace):
    """Only what lies below the diagonal may be run."""

    def broken(self, values: Any) -> str | None:
        return "x + y <= 0.7" if values["x"] + values["y"] > 0.7 else None

    def sample(self, rng: Any, grid_index: int = 0) -> dict[str, Any]:
        while self.broken(config := super().sample(rng, grid_index)):
            pass
        return config


@pytest.mark.parametrize("kind", ["tpe", "gp", "nsgaii", "cmaes", "sobol"])
def test_what_breaks_a_constraint_is_told_and_never_run(kind):
    one = searcher(kind, Half({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}), **SMALL.get(kind, {}))
    count = 5 if kind == "gp" else 16
    for number in range(count):
        config = one.suggest(f"{number:05d}")
        assert config["x"] + config["y"] <= 0.7
        one.end(f"{number:05d}", "FINISHED", report(1, loss_of(config)))
    run = [trial for trial in one.study.trials if "trial" in trial.user_attrs]
    rest = [trial for trial in one.study.trials if "trial" not in trial.user_attrs]
    assert len(run) == count
    assert rest
    assert all(
        constraints_of(trial) == {"infeasible": 1.0} and trial.params["x"] + trial.params["y"] > 0.7 for trial in rest
    )
    assert one.study.best_trial in run


def test_when_suggestions_keep_breaking_a_constraint_one_is_drawn_at_random(caplog):
    class Corner(Half):
        def broken(self, values: Any) -> str | None:
            return "x <= 1e-3" if values["x"] > 1e-3 else None

    one = searcher("sobol", Corner({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}))
    with caplog.at_level(logging.WARNING, "tunelight"):
        assert one.suggest("00000")["x"] <= 1e-3
    assert "50 suggestions of QMCSampler in a row broke 'x <= 1e-3'" in caplog.text


def test_ends_are_told_as_they_are(tmp_path):
    one = searcher()
    sweep = Tune(queued(one, 10))
    ids = [sweep.begin() for _ in range(9)]
    for trial_id in ids:
        sweep.report(trial_id, 1, 1.0)
    finished, stopped, stopped_later, waited, failed, lost, diverged, oom, live = ids
    for number, loss in ((2, 0.25), (2, 0.75), (3, 0.5)):  # one is made again: it counts once
        sweep.report(finished, number, loss)
    sweep.end(finished)
    sweep.report(stopped, 2, 0.75, stop=True)  # not told as a report before
    sweep.end(stopped)
    sweep.end(stopped_later, by_itself=False)  # at another's report
    sweep.trials[waited].status = "PAUSED"
    sweep.end(waited)
    for trial_id, state in ((failed, "ERROR"), (diverged, "DIVERGED"), (oom, "OOM")):
        sweep.report(trial_id, 2, math.nan, error=state)
        sweep.end(trial_id)
    sweep.end(lost, lost=True)

    told = {trial.user_attrs["trial"]: trial for trial in one.study.trials}
    assert (told[finished].state, told[finished].value) == (TrialState.COMPLETE, 0.25)
    assert told[finished].intermediate_values == {1: 1.0, 2: 0.25, 3: 0.5}
    assert (told[stopped].state, told[stopped].intermediate_values) == (TrialState.PRUNED, {1: 1.0, 2: 0.75})
    for trial_id in (stopped_later, waited):
        assert (told[trial_id].state, told[trial_id].intermediate_values) == (TrialState.PRUNED, {1: 1.0})
    assert told[failed].state == told[lost].state == TrialState.FAIL
    for trial_id in (diverged, oom):
        assert (told[trial_id].state, told[trial_id].value) == (TrialState.COMPLETE, math.inf)
        assert constraints_of(told[trial_id]) == {"infeasible": 1.0}
        assert told[trial_id].intermediate_values == {1: 1.0}
    assert told[live].state == TrialState.RUNNING
    assert one.study.best_trial.user_attrs["trial"] == finished
    one.close({live: "INTERRUPTED"})
    assert (one.study.trials[-1].state, one.study.trials[-1].user_attrs["state"]) == (TrialState.FAIL, "INTERRUPTED")


def test_baselines_are_trials_of_the_study_also_where_they_lie_outside_of_the_space():
    one = searcher("tpe", FLAT)
    sweep = Tune(queued(one, 10, [{"x": 0.5, "y": 0.25}, {"x": 0.5, "y": 7.0}]))
    for _ in range(3):
        sweep.begin()
    first, second, third = one.study.trials
    assert first.params == {"x": 0.5, "y": 0.25}
    assert (second.params, second.user_attrs["y"]) == ({"x": 0.5}, 7.0)
    assert third.params.keys() == {"x", "y"}
    sweep.report("00000", 1, 0.5, stop=True)
    sweep.end("00000")
    assert one.study.trials[0].state == TrialState.PRUNED


def test_several_metrics_are_all_told_as_of_the_best_report_by_the_first():
    one = searcher(None, FLAT, metric=["loss", "latency"])
    assert isinstance(one.study.sampler, optuna.samplers.NSGAIISampler)
    for number in range(3):
        one.suggest(f"{number:05d}")
        for step, (loss, latency) in enumerate([(1.0, 5.0), (0.5, 6.0), (0.75, 4.0)], start=1):
            one.on_trial_result(f"{number:05d}", report(step, loss, latency=latency + number))
    one.end("00000", "FINISHED")
    one.end("00001", "STOPPED")
    one.end("00002", "DIVERGED")
    assert [trial.values for trial in one.study.trials] == [[0.5, 6.0], None, [math.inf, math.inf]]
    assert [trial.user_attrs["trial"] for trial in one.study.best_trials] == ["00000"]


def test_a_metric_that_is_never_reported_is_said_once_and_the_trial_fails(caplog):
    one = searcher("tpe", FLAT, metric=["loss", "latency"])
    with caplog.at_level(logging.WARNING, "tunelight"):
        for trial_id in ("00000", "00001"):
            one.suggest(trial_id)
            one.end(trial_id, "FINISHED", report(1, 0.5))
    assert caplog.messages == ["A trial reported no latency: such reports are left out of the study."]
    assert counts(one.study) == {"FAIL": 2}


def test_it_also_serves_plain_tune():
    one = OptunaSearcher("tpe", seed=1)
    assert one.set_search_properties("loss", "max", {"x": tl.uniform(0, 1)})
    first, second = (one.suggest(name) for name in ("abc_00000", "abc_00001"))
    assert first != second
    one.on_trial_result("abc_00000", report(1, 0.5))
    one.on_trial_complete("abc_00000", report(1, 0.5))
    one.on_trial_complete("abc_00001", report(1, 0.75))
    assert [trial.state.name for trial in one.study.trials] == ["COMPLETE", "PRUNED"]
    assert one.study.direction.name == "MAXIMIZE"
    assert not one.set_search_properties("loss", "min", {})


def test_without_a_space_or_metric_it_says_what_is_missing():
    with pytest.raises(SettingsError, match="nothing to search"):
        OptunaSearcher(metric="loss").suggest("00000")
    with pytest.raises(SettingsError, match="no metric"):
        OptunaSearcher(space=FLAT).suggest("00000")


def test_a_killed_driver_s_study_is_rebuilt_without_lost_lines_and_by_force_in_another_space(tmp_path):
    sweep = Sweep(tmp_path)
    for number in range(3):  # the first was told to stop when the driver died
        trial = sweep.run(x=0.25 * number, y=0.5)
        sweep.report(trial, 1, 1.0 + number, done=number == 0)
    lines, again = read_lines(tmp_path), ["00001", "00002"]
    one = searcher("tpe", FLAT)
    start = replay_searcher(lines, one, FLAT, foreign=False, again=again)
    assert counts(one.study) == {"PRUNED": 1, "RUNNING": 2}
    assert one.study.trials[0].intermediate_values == {1: 1.0}
    assert start.known == set(again)

    one = searcher("tpe", FLAT)
    lost = [line for line in lines if line.get("trial") != "00001"]
    assert replay_searcher(lost, one, FLAT, foreign=False, again=["00002"]).created == 3
    assert [trial.user_attrs["trial"] for trial in one.study.trials] == ["00000", "00002"]
    assert one.suggest("00003") == searcher("tpe", FLAT).suggest("00003")  # chance still: too few have ended

    space = tl.SearchSpace({"x": tl.uniform(0, 0.4), "z": tl.uniform(0, 1)})
    one = searcher("tpe", space)
    replay_searcher(lines, one, space, foreign=False, again=again)
    assert [trial.params for trial in one.study.trials] == [{"x": 0.0}, {"x": 0.25}, {}]
    assert one.study.trials[2].user_attrs["x"] == 0.5
    assert one.suggest("00003").keys() == {"x", "z"}
