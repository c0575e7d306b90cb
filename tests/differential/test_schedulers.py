"""ASHA against its paper's rule in its stopping form, written for reading; saved and restored at any point."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.messages import Stop
from tunelight.schedulers import ASHA

TUNE: Any = None
"""Stands for the controller, which ASHA never asks anything."""


class Rule:
    """The rule: who comes to a rung goes on if it is among the best 1/eta of those that came there so far."""

    def __init__(self, mode: str, eta: float, milestones: dict[int, list[float]], max_t: float | None) -> None:
        self.mode, self.eta, self.milestones, self.max_t = mode, eta, milestones, max_t
        self.came: list[tuple[int, float, str, float]] = []
        """In order: bracket, rung, trial, loss."""

    def goes_on(self, bracket: int, trial: str, at: float, value: Any) -> bool:
        if not isinstance(value, int | float):
            return self.max_t is None or at <= self.max_t
        if not self.milestones[bracket]:
            return self.max_t is None or at <= self.max_t
        loss = math.inf if not math.isfinite(value) else value if self.mode == "min" else -value
        good = loss < math.inf or at < self.milestones[bracket][0]
        for milestone in self.milestones[bracket]:
            rung = [one for one in self.came if one[:2] == (bracket, milestone)]
            if at < milestone or any(one[2] == trial for one in rung):
                continue
            self.came.append((bracket, milestone, trial, loss))
            rung.append(self.came[-1])
            best = sorted(rung, key=lambda one: one[3])[: max(1, math.floor(len(rung) / self.eta))]
            good = good and self.came[-1] in best
        if self.max_t is not None and at >= self.max_t:
            return at == self.max_t
        return good


def make_trial(name: str) -> Any:
    told: list[Any] = []
    handle = SimpleNamespace(told=told, decide=SimpleNamespace(remote=told.append))
    return SimpleNamespace(trial_id=name, temporary_state=SimpleNamespace(ray_actor=handle))


def drawn(rng: random.Random, unit: str) -> tuple[dict[str, Any], dict[int, list[float]]]:
    """Return settings of ASHA, and the rungs of each of its brackets."""
    settings: dict[str, Any] = {
        "metric": "loss", "mode": rng.choice(["min", "max"]), "max_t": rng.choice([None, 1, 9, 30, 64]),
        "grace_period": rng.choice([1, 1, 2]), "reduction_factor": rng.choice([1.5, 2, 3, 4]),
        "brackets": rng.choice([1, 1, 2, 3]), "unit": unit,
    }  # fmt: skip
    last = settings["max_t"] or 100
    settings["grace_period"] = min(settings["grace_period"], last)
    first = [settings["grace_period"] * settings["reduction_factor"] ** power for power in range(20)]
    settings["brackets"] = min(settings["brackets"], 1 + sum(rung < last for rung in first[1:3]))
    return settings, {b: [rung for rung in first[b:] if rung < last] for b in range(settings["brackets"])}


@pytest.mark.parametrize("seed", range(120))
def test_asha_decides_as_the_rule_in_any_order_and_after_any_resume(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    name, unit = rng.choice([("training_iteration", "epochs"), ("samples", "samples"), ("time_total_s", "seconds")])
    settings, rungs = drawn(rng, unit)
    asha = ASHA(**settings)
    for bracket, milestones in rungs.items():
        assert asha.milestones(bracket) == pytest.approx(milestones)
    rule = Rule(settings["mode"], settings["reduction_factor"], rungs, settings["max_t"])
    trials: dict[str, Any] = {}
    at: dict[str, float] = {}
    stopped, added = 0, 0
    for event in range(300):
        kind = rng.choice(["add", "report", "report", "report", "report", "error", "resume"])
        if kind == "add" and added < 40:
            trial = f"t{added}"
            added += 1
            trials[trial], at[trial] = make_trial(trial), 0
            asha.on_trial_add(TUNE, trials[trial])
        elif kind == "resume" and rng.random() < 0.5:
            path = str(tmp_path / str(event))
            asha.save(path)
            asha = ASHA(**settings)
            asha.restore(path)
            trials = {trial: make_trial(trial) for trial in trials}  # on other gangs
            for one in trials.values():
                asha.on_trial_add(TUNE, one)
        elif kind == "error" and trials:
            trial = rng.choice(list(trials))
            asha.on_trial_error(TUNE, trials[trial])
            at[trial] = max(0, at[trial] - rng.choice([0, 1, 3]))  # goes on from its last checkpoint
            trials[trial] = make_trial(trial)
            asha.on_trial_add(TUNE, trials[trial])
        elif kind == "report" and trials:
            trial = rng.choice(list(trials))
            at[trial] += rng.choice([1, 1, 1, 2, 5]) * (1 if unit == "epochs" else rng.choice([0.5, 1, 1.7]))
            value = rng.choice([rng.random(), round(rng.random(), 1), math.nan, -math.inf, None, "text"])
            value = rng.random() if rng.random() < 0.7 else value
            result = {name: at[trial], "loss": value, "training_iteration": event}
            result |= {"training_iteration": at[trial]} if unit == "epochs" else {}
            wanted = rule.goes_on(asha.bracket_of(trial), trial, at[trial], value)
            got = asha.on_trial_result(TUNE, trials[trial], result)
            assert (got == "CONTINUE") is wanted, (event, trial, at[trial], value)
            told = trials[trial].temporary_state.ray_actor.told
            assert any(isinstance(one, Stop) for one in told) is not wanted
            if not wanted:
                stopped += 1
                del trials[trial]
    assert asha.num_stopped == stopped
    assert settings["max_t"] == 1 or stopped
