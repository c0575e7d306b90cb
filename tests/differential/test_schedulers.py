"""ASHA, ElasticASHA and GangPBT against their rules, written for reading: any order of events."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial

from tunelight.messages import Adopt, Continue, Stop
from tunelight.schedulers import ASHA, ElasticASHA, GangPBT

TUNE: Any = None
"""Stands for the controller, which ASHA never asks anything."""


class Rule:
    """The rule: who comes to a rung goes on if it is among the best 1/eta of those that came there so far."""

    def __init__(self, mode: str, eta: float, milestones: dict[int, list[float]], max_t: float | None) -> None:
        self.mode, self.eta, self.milestones, self.max_t = mode, eta, milestones, max_t
        self.came: list[tuple[int, float, str, float]] = []
        """In order: bracket, rung, trial, loss."""

    def next_question(self, bracket: int, trial: str, at: float) -> int | None:
        """Return the next report that needs an answer."""
        came = {milestone for of, milestone, name, _ in self.came if (of, name) == (bracket, trial)}
        if ahead := [milestone for milestone in self.milestones[bracket] if milestone not in came]:
            return math.ceil(ahead[0])
        return None if self.max_t is None or at > self.max_t else math.floor(self.max_t) + 1

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


def stub(name: str) -> Any:
    """Return a trial whose actor keeps the decisions that are sent to it."""
    trial: Any = Trial("made", stub=True, trial_id=name, config={"lr": 0.01})
    told: list[Any] = []
    trial.temporary_state.ray_actor = SimpleNamespace(told=told, decide=SimpleNamespace(remote=told.append))
    return trial


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
def test_asha_decides_as_the_rule_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    name, unit = rng.choice([("training_iteration", "epochs"), ("samples", "samples"), ("time_total_s", "seconds")])
    settings, rungs = drawn(rng, unit)
    asha = ASHA(**settings)
    for bracket, milestones in rungs.items():
        assert asha.milestones(bracket) == pytest.approx(milestones)
    rule = Rule(settings["mode"], settings["reduction_factor"], rungs, settings["max_t"])
    trials: dict[str, Any] = {}
    at: dict[str, float] = {}
    dealt: dict[str, int] = {}
    stopped, added = 0, 0
    for event in range(300):
        kind = rng.choice(["add", "report", "report", "report", "report", "error"])
        if kind == "add" and added < 40:
            trial = f"t{added}"
            added += 1
            trials[trial], at[trial] = stub(trial), 0
            asha.on_trial_add(TUNE, trials[trial])
        elif kind == "error" and trials:
            trial = rng.choice(list(trials))
            asha.on_trial_error(TUNE, trials[trial])
            at[trial] = max(0, at[trial] - rng.choice([0, 1, 3]))  # goes on from its last checkpoint
            trials[trial] = stub(trial)
            asha.on_trial_add(TUNE, trials[trial])
        elif kind == "report" and trials:
            trial = rng.choice(list(trials))
            at[trial] += rng.choice([1, 1, 1, 2, 5]) * (1 if unit == "epochs" else rng.choice([0.5, 1, 1.7]))
            value = rng.choice([rng.random(), round(rng.random(), 1), math.nan, math.inf, -math.inf, None, "text", [1]])
            value = rng.random() if rng.random() < 0.7 else value
            result = {name: at[trial], "loss": value, "training_iteration": event}
            result |= {"training_iteration": at[trial]} if unit == "epochs" else {"epoch": event}  # counts nothing
            wanted = rule.goes_on(dealt.setdefault(trial, asha._bracket_of[trial]), trial, at[trial], value)
            got = asha.on_trial_result(TUNE, trials[trial], result)
            assert (got == "CONTINUE") is wanted, (event, trial, at[trial], value)
            told = trials[trial].temporary_state.ray_actor.told
            assert any(isinstance(one, Stop) for one in told) is not wanted
            if wanted:
                asks = rule.next_question(dealt[trial], trial, at[trial]) if unit == "epochs" else 1
                assert [asha.initial_decision(), *told][-1] == Continue(until=asks)
            if not wanted:
                stopped += 1
                del trials[trial]
    assert asha.num_stopped == stopped
    assert settings["max_t"] == 1 or stopped


# -- ElasticASHA


class Promotions:
    """The rule of ElasticASHA: who comes to a rung goes on in place, or waits for a late promotion.

    In place go the best 1/eta of those that have come to the rung; later, the best 1/eta^1.5, or the best once there
    are eta. The best also goes on where nobody else can come to its rung; the best that waits, if nobody went past it.
    """

    def __init__(self, eta: float, rungs: list[float], max_t: float) -> None:
        self.eta, self.rungs, self.max_t = eta, rungs, max_t
        self.came: list[list[tuple[float, int, str]]] = [[] for _ in rungs]
        """Of each rung: loss, order of arrival, trial."""
        self.passed: set[int] = set()
        """The rungs that somebody went past."""
        self.next: dict[str, int] = {}
        """Trial -> the rung that it has yet to come to; of those that train or are to start."""
        self.waits: dict[str, int] = {}
        """Trial -> the rung that it is paused at."""
        self.ending = 1

    def place(self, rung: int, trial: str) -> int:
        return [one[2] for one in sorted(self.came[rung])].index(trial)

    def closed(self, rung: int) -> bool:
        """Tell whether nobody who trains, or could be promoted below, can still come to a rung."""
        towards = any(rung_after <= rung for rung_after in self.next.values())
        return not towards and not any(self.late(below, closed=True) for below in range(rung))

    def in_place(self, rung: int, trial: str) -> bool:
        place = self.place(rung, trial)
        return place < math.floor(len(self.came[rung]) / self.eta) or (place == 0 and self.closed(rung))

    def late(self, rung: int, *, closed: bool) -> list[str]:
        """Return who may be promoted now, the best first."""
        count = len(self.came[rung])
        best = math.floor(count / self.eta**1.5 + 1e-9)
        if closed or count >= self.eta:
            best = max(best, 1)
        waiting = sorted((self.place(rung, trial), trial) for trial, at in self.waits.items() if at == rung)
        only = closed and rung not in self.passed
        return [trial for number, (place, trial) in enumerate(waiting) if place < best or (only and not number)]

    def report(self, trial: str, at: float, value: float) -> str:
        loss = value if math.isfinite(value) else math.inf
        first = self.next[trial]
        while self.next[trial] < len(self.rungs) and at >= self.rungs[self.next[trial]]:
            rung = self.came[self.next[trial]]
            rung.append((loss, len(rung), trial))
            self.next[trial] += 1
        if at > self.max_t or (loss == math.inf and self.rungs and self.rungs[0] <= at < self.max_t):
            del self.next[trial]
            return "STOP"
        if at == self.max_t:
            return "CONTINUE"
        if self.passes(trial, first):
            return "CONTINUE"
        del self.next[trial]
        return "PAUSE"

    def passes(self, trial: str, first: int, *, sure: bool = False) -> bool:
        """Let a trial go past the rungs that it has come to, as far as it may."""
        for rung in range(first, self.next[trial]):
            if not (sure and rung == first) and not self.in_place(rung, trial):
                self.waits[trial] = rung
                return False
            self.passed.add(rung)
        return True

    def promoted(self, *, idle: bool) -> str | None:
        """Promote the best of the highest rung where one may go on."""
        found = True
        while found:
            found = False
            for rung in reversed(range(len(self.rungs))):
                for trial in self.late(rung, closed=idle and self.closed(rung))[:1]:
                    del self.waits[trial]
                    self.next[trial] = max(
                        number + 1 for number, came in enumerate(self.came) if trial in (one[2] for one in came)
                    )
                    if self.passes(trial, rung, sure=True):
                        return trial
                    del self.next[trial]
                    found = True
                if found:
                    break
        return None

    def ended(self) -> list[str]:
        """End some of those that wait where nothing trains or can be promoted: the worst of the lowest rungs."""
        worst = sorted(self.waits, key=lambda one: (self.waits[one], -self.place(self.waits[one], one)))[: self.ending]
        for trial in worst:
            del self.waits[trial]
        self.ending *= 2
        return worst


class Ends:
    """Stands for the controller: notes the trials that are ended while they wait."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def stop_trial(self, trial: Any) -> None:
        self.ended.append(trial.trial_id)
        trial.set_status(Trial.TERMINATED)


class Elastic:
    """A sweep under ElasticASHA and under its rule, which get the same events."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        eta, max_t, grace = rng.choice([1.5, 2, 3, 4]), rng.choice([1, 9, 30, 64]), rng.choice([1, 1, 2])
        grace = min(grace, max_t)
        self.sign = rng.choice([1, -1])
        self.settings: Any = {
            "metric": "loss", "mode": "min" if self.sign == 1 else "max", "reduction_factor": eta, "max_t": max_t,
            "grace_period": grace,
        }  # fmt: skip
        self.scheduler = ElasticASHA(**self.settings)
        rungs = [grace * eta**power for power in range(20) if grace * eta**power < max_t]
        assert self.scheduler.milestones() == pytest.approx(rungs)
        self.rule = Promotions(eta, rungs, max_t)
        self.controller: Any = Ends()
        self.trials: dict[str, Any] = {}
        self.at: dict[str, float] = {}
        self.decided: set[str] = set()

    @property
    def going(self) -> list[str]:
        return [name for name, trial in self.trials.items() if trial.status == Trial.RUNNING]

    def add(self) -> None:
        name = f"{len(self.trials):05d}"
        self.trials[name], self.at[name], self.rule.next[name] = stub(name), 0, 0
        self.start(name)

    def start(self, name: str) -> None:
        self.trials[name].set_status(Trial.PENDING)
        self.scheduler.on_trial_add(self.controller, self.trials[name])
        self.trials[name].set_status(Trial.RUNNING)
        self.rule.ending = 1

    def error(self) -> None:
        name = self.rng.choice(self.going)
        self.scheduler.on_trial_error(self.controller, self.trials[name])
        self.at[name] = max(0, self.at[name] - self.rng.choice([0, 1, 3]))  # goes on from its last checkpoint
        self.start(name)

    def report(self) -> None:
        name = self.rng.choice(self.going)
        self.at[name] += self.rng.choice([1, 1, 1, 2, 5])
        value = self.rng.choice([self.rng.random(), self.rng.random(), round(self.rng.random(), 1), math.nan])
        result = {"training_iteration": self.at[name], "loss": self.sign * value}
        got = self.scheduler.on_trial_result(self.controller, self.trials[name], result)
        assert got == self.rule.report(name, self.at[name], value), (name, result)
        self.decided.add(got)
        if got == "STOP":
            self.scheduler.on_trial_complete(self.controller, self.trials[name], {})
        self.trials[name].set_status({"STOP": Trial.TERMINATED, "PAUSE": Trial.PAUSED}.get(got, Trial.RUNNING))

    def choose(self) -> None:
        self.controller.ended.clear()
        chosen = self.scheduler.choose_trial_to_run(self.controller)
        idle = not self.rule.next
        promoted = self.rule.promoted(idle=idle)
        assert (None if chosen is None else chosen.trial_id) == promoted
        assert self.controller.ended == (self.rule.ended() if idle and promoted is None else [])
        if chosen is not None:
            chosen.set_status(Trial.RUNNING)
            self.decided.add("promoted")


@pytest.mark.parametrize("seed", range(120))
def test_elastic_asha_decides_as_the_rule_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    sweep = Elastic(rng)
    for event in range(250):
        kind = rng.choice(["add", *["report"] * 8, "error", "error"])
        if kind == "add" and event < 150:
            sweep.add()
        elif kind in ("report", "error") and sweep.going:
            getattr(sweep, kind)()
        sweep.choose()
    assert sweep.decided >= {"CONTINUE", "STOP"}


# -- GangPBT


class Population:
    """The rule of truncation selection: of those that report, the worst take over from the best, which offer."""

    def __init__(self, interval: int, quantile: float, max_t: float) -> None:
        self.interval, self.quantile, self.max_t = interval, quantile, max_t
        self.loss: dict[str, float | None] = {}
        self.due: dict[str, int] = {}
        self.offered: dict[str, int | None] = {}
        self.ended: set[str] = set()

    def add(self, trial: str) -> None:
        self.loss.setdefault(trial, None)
        self.due.setdefault(trial, self.interval)
        self.offered.setdefault(trial, None)
        self.ended.discard(trial)

    def leave(self, trial: str) -> None:
        self.ended.add(trial)
        self.offered[trial] = None

    def report(self, trial: str, number: int, value: Any) -> tuple[str, list[str]]:
        """Return what a member does, and whom it may take over: "offers", "may adopt", "adopts" or "goes on"."""
        if isinstance(value, float):
            self.loss[trial] = value if math.isfinite(value) else math.inf
        if number < self.due[trial]:
            return "goes on", []
        self.due[trial] = number + self.interval
        if number >= self.max_t or not isinstance(value, float):
            return "goes on", []
        alive = [one for one in self.loss if one not in self.ended]
        ranked = sorted(alive, key=lambda one: (self.loss[one] is None, self._worth(one)))
        count = min(math.ceil(len(alive) * self.quantile), len(alive) // 2)
        best = [one for one in ranked[: max(count, 1)] if math.isfinite(self._worth(one))]
        if trial in ranked[len(ranked) - count :]:
            parents = [one for one in best if self.offered[one] is not None]
            better = [one for one in parents if self._worth(one) < self._worth(trial)]
            return ("adopts" if parents and better == parents else "may adopt" if better else "goes on"), better
        return ("offers", []) if trial in best else ("goes on", [])

    def offers(self, trial: str, number: int) -> None:
        self.offered[trial] = number

    def adopts(self, trial: str, parent: str) -> None:
        self.loss[trial], self.offered[trial] = self.loss[parent], None

    def _worth(self, trial: str) -> float:
        loss = self.loss[trial]
        return math.inf if loss is None else loss


class Members:
    """A population under GangPBT and under its rule, which get the same events."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        interval, quantile = rng.choice([1, 2, 4]), rng.choice([0.1, 0.25, 0.5])
        self.sign = rng.choice([1, -1])
        self.settings: Any = {
            "metric": "loss", "mode": "min" if self.sign == 1 else "max",
            "perturbation_interval": interval, "quantile_fraction": quantile,
            "hyperparam_mutations": {"lr": tune.loguniform(1e-4, 1.0)}, "max_lead": 10**6, "seed": rng.randrange(99),
            "max_t": rng.choice([None, 12]),
        }  # fmt: skip
        self.pbt = GangPBT(**self.settings)
        self.rule = Population(interval, quantile, self.settings["max_t"] or math.inf)
        self.trials: dict[str, Any] = {}
        self.at: dict[str, int] = {}
        self.until: dict[str, int | None] = {}
        """How far each gang may run without an answer."""
        self.adoptions = 0

    def add(self) -> None:
        name = f"{len(self.at):05d}"
        self.trials[name], self.at[name] = member(name), 0
        self.until[name] = self.pbt.initial_decision().until
        self.pbt.on_trial_add(TUNE, self.trials[name])
        self.rule.add(name)

    def error(self) -> None:
        name = self.rng.choice(list(self.trials))
        self.pbt.on_trial_error(TUNE, self.trials[name])
        self.rule.leave(name)
        if self.rng.random() < 0.3:
            del self.trials[name]
            return
        self.at[name] = max(0, self.at[name] - self.rng.choice([0, 1, 3]))
        self.pbt.on_trial_add(TUNE, self.trials[name])
        self.rule.add(name)

    def report(self) -> None:
        name = self.rng.choice(list(self.trials))
        self.at[name] += self.rng.choice([1, 1, 1, 2])
        value: Any = self.rng.choice([self.rng.random(), self.rng.random(), 0.5, math.nan, math.inf, "text", None])
        actor = self.trials[name].temporary_state.ray_actor
        actor.told.clear()
        offers = actor.offers
        did, parents = self.rule.report(name, self.at[name], value)
        result = {"training_iteration": self.at[name], "loss": self.sign * value if isinstance(value, float) else value}
        assert self.pbt.on_trial_result(TUNE, self.trials[name], result) == "CONTINUE"
        adopted = [one for one in actor.told if isinstance(one, Adopt)]
        assert len(adopted) <= (did in ("adopts", "may adopt")), (name, did)
        assert adopted or did != "adopts", (name, parents)
        assert (actor.offers > offers) is (did == "offers"), (name, did)
        self.until[name] = [self.until[name], *(one.until for one in actor.told)][-1]
        assert self.at[name] >= self.rule.max_t or self.until[name] == self.rule.due[name], (name, did)
        if did == "offers":
            self.rule.offers(name, self.at[name])
        for one in adopted:
            assert one.parent in parents
            assert one.number == self.rule.offered[one.parent]
            assert one.config == self.trials[name].config
            assert 1e-4 <= one.config["lr"] <= 1.0
            self.rule.adopts(name, one.parent)
            self.adoptions += 1


@pytest.mark.parametrize("seed", range(80))
def test_gang_pbt_decides_as_the_rule_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    population = Members(rng)
    for _ in range(300):
        kind = rng.choice(["add", *["report"] * 20, "error"])
        if kind == "add" or population.trials:
            getattr(population, kind)()
    assert population.pbt.num_exploits == population.adoptions


def member(name: str) -> Any:
    """Return a trial whose actor counts its offers, too."""
    trial = stub(name)
    trial.set_config({"lr": 0.01, "kept": name})
    actor = trial.temporary_state.ray_actor
    actor.offers = 0

    def offer() -> str:
        actor.offers += 1
        return f"{name}/{actor.offers}"

    actor.offer = SimpleNamespace(remote=offer)
    return trial
