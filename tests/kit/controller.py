"""A small stand-in for Tune's controller: trials of given curves on a cluster of given size, in Tune's own order.

One step asks the search, asks the scheduler, starts what is pending and fits, and hears one event. Gangs of trials
that ended or paused are not kept. Seconds are counted, not waited for.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.messages import Continue, Resize

Curve = Callable[[int], Any]
"""From a report's number, from 1, to the metric; an exception is the trial's failure."""


def curves(n: int, seed: int = 3) -> list[Curve]:
    """Return ``n`` curves that fall to limits drawn at random; their order stays the same throughout."""
    rng = random.Random(seed)
    return [functools.partial(_curve, rng.random()) for _ in range(n)]


def _curve(limit: float, t: int) -> float:
    return limit + 1 / t


class Gang:
    """A trial's actor: it keeps what it is told, and has the size that it can get."""

    def __init__(self, trial: Trial, cluster: Cluster, workers: int) -> None:
        self.workers = workers
        self.told: list[Any] = []
        self.wanted = workers
        self.decide = SimpleNamespace(remote=self._take)
        self._trial, self._cluster = trial, cluster

    def _take(self, decision: Any) -> None:
        self.told.append(decision)
        assert isinstance(decision, Continue) or self._trial.status == Trial.RUNNING, "told something after its end"
        if isinstance(decision, Resize):
            grows = decision.workers > self.workers
            self.wanted = decision.workers
            assert not grows or self._cluster.asked() <= self._cluster.slots, "a slot was promised twice"


@dataclass
class Cluster:
    """Runs trials under a scheduler; ``slots`` workers of one CPU each.

    ``skip``: how many epochs lie between two reports of a trial. ``grants``: whether a gang can ever grow.
    ``every_s``: how many seconds the search takes from one suggestion (or ``pending_at_once`` of them) to the next.
    """

    scheduler: Any
    slots: int = 4
    workers: int = 1
    max_t: int = 9
    seed: int = 0
    metric: str = "loss"
    skip: int = 1
    grants: bool = True
    pending_at_once: int = 1
    every_s: float = 0.0
    now: float = 0.0
    log: list[tuple[Any, ...]] = field(default_factory=list)
    most_used: int = 0

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []
        self._events: list[tuple[float, int, str, Trial]] = []
        self._count = 0
        self._random = random.Random(self.seed)
        self._curves: dict[str, Curve] = {}
        self._gangs: dict[str, Gang] = {}
        self._at: dict[str, int] = {}
        self._spent: dict[str, float] = {}
        self._next_s = 0.0
        self._resource_updater = SimpleNamespace(get_num_cpus=lambda: self.slots, get_num_gpus=lambda: 0)
        self.search_alg = SimpleNamespace(is_finished=lambda: False)
        if hasattr(self.scheduler, "clock"):
            self.scheduler.clock = lambda: self.now

    # -- what schedulers ask of a controller

    def get_trials(self) -> list[Trial]:
        return self.trials

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self.trials if trial.status not in (Trial.TERMINATED, Trial.ERROR)}

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        trial.set_status(status)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        if trial.status == Trial.RUNNING:
            self._free(trial)
            trial.set_status(Trial.PAUSED)

    def stop_trial(self, trial: Trial) -> None:
        if trial.status in (Trial.PENDING, Trial.PAUSED):
            self.scheduler.on_trial_remove(self, trial)
        elif trial.status == Trial.RUNNING:
            self.scheduler.on_trial_complete(self, trial, trial.last_result)
        self._free(trial)
        if trial.status != Trial.ERROR:
            trial.set_status(Trial.TERMINATED)
        self.log.append(("ended", trial.trial_id, self._at[trial.trial_id]))

    # -- the run

    def run(self, curves: Sequence[Curve], steps: int = 20_000) -> Cluster:
        """Train trials of these curves until nothing is left to do; an AssertionError tells of a hang."""
        coming = list(enumerate(curves))
        for _ in range(steps):
            given = self.now >= self._next_s
            while given and coming and len(self.get_pending()) < self.pending_at_once:
                if not self._admits():
                    break
                self._next_s = self.now + self.every_s
                self._add(*coming.pop(0))
            chosen = self.scheduler.choose_trial_to_run(self)
            if chosen is not None and chosen.status == Trial.PAUSED:
                self.log.append(("promoted", chosen.trial_id, self._at[chosen.trial_id]))
                chosen.set_status(Trial.PENDING)
            for trial in sorted(self.get_pending(), key=lambda one: one is not chosen):
                self._start(trial)
            if self._events:
                self._hear()
            elif not self.get_live_trials() and (not coming or not self._admits()):
                return self
            elif coming:
                self.now = max(self.now, self._next_s)
        raise AssertionError(f"the sweep hangs: {[(one.trial_id, one.status) for one in self.get_live_trials()]}")

    def _admits(self) -> bool:
        return bool(getattr(self.scheduler, "admits", lambda: True)())

    def get_pending(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status == Trial.PENDING]

    def reached(self, number: int) -> int:
        """Return how far a trial came."""
        return self._at[f"{number:05d}"]

    def _add(self, number: int, curve: Curve) -> None:
        factory = PlacementGroupFactory([{}, *[{"CPU": 1.0}] * self.workers])
        trial: Any = Trial("stub", stub=True, trial_id=f"{number:05d}", config={"x": 0.5})
        trial.placement_group_factory = factory  # a stub trial reserves nothing
        self.trials.append(trial)
        self._curves[trial.trial_id], self._at[trial.trial_id], self._spent[trial.trial_id] = curve, 0, 0.0
        self.scheduler.on_trial_add(self, trial)

    def used(self) -> int:
        return sum(gang.workers for gang in self._gangs.values())

    def asked(self) -> int:
        """Return how many slots gangs hold or were told that they may have."""
        return sum(max(gang.workers, gang.wanted) for gang in self._gangs.values())

    def _start(self, trial: Trial) -> None:
        if self.used() + self.workers > self.slots:
            return
        gang = self._gangs[trial.trial_id] = Gang(trial, self, self.workers)
        self.most_used = max(self.most_used, self.used())
        trial.set_status(Trial.RUNNING)
        trial.temporary_state.ray_actor = cast("Any", gang)
        self._train(trial, start=0.5)

    def _free(self, trial: Trial) -> None:
        self._gangs.pop(trial.trial_id, None)
        trial.temporary_state.ray_actor = None

    def _train(self, trial: Trial, start: float = 0.0) -> None:
        gang = self._gangs[trial.trial_id]
        if gang.wanted < gang.workers or (self.grants and gang.wanted + self.used() - gang.workers <= self.slots):
            start += 0.2 * (gang.wanted != gang.workers)
            gang.workers = gang.wanted
        assert self.used() <= self.slots, "a slot is used twice"
        self.most_used = max(self.most_used, self.used())
        seconds = start + self.skip * self._random.uniform(0.9, 1.1) * self.workers / gang.workers
        self._spent[trial.trial_id] += seconds
        self._push(seconds, "report", trial)

    def _push(self, after: float, kind: str, trial: Trial) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + after, self._count, kind, trial))

    def _hear(self) -> None:
        self.now, _, kind, trial = heapq.heappop(self._events)
        if trial.status != Trial.RUNNING:
            return
        if kind == "paused":
            self.pause_trial(trial)
            return
        at = self._at[trial.trial_id] = min(self._at[trial.trial_id] + self.skip, self.max_t)
        try:
            value = self._curves[trial.trial_id](at)
        except RuntimeError:
            self.scheduler.on_trial_error(self, trial)
            self._free(trial)
            trial.set_status(Trial.ERROR)
            self.log.append(("failed", trial.trial_id, at))
            return
        result = {
            self.metric: value,
            "training_iteration": at,
            "time_total_s": self._spent[trial.trial_id],
            "_tunelight/workers": self._gangs[trial.trial_id].workers,
        }
        trial.run_metadata.last_result = result
        if at >= self.max_t:
            result["done"] = True
            self.log.append((at, trial.trial_id, "DONE"))
            self.stop_trial(trial)
            return
        decision = self.scheduler.on_trial_result(self, trial, result)
        self.log.append((at, trial.trial_id, decision, self._gangs[trial.trial_id].workers))
        if decision == TrialScheduler.CONTINUE:
            self._train(trial)
        elif decision == TrialScheduler.PAUSE:
            self._push(0.1, "paused", trial)
        elif decision == TrialScheduler.STOP:
            self.stop_trial(trial)
