"""plan(): estimate the time and cost of a sweep by simulating it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.tune.schedulers import TrialScheduler

from tunelight.compat.arguments import known_arguments
from tunelight.errors import ResourceError, SettingsError
from tunelight.record import is_folder
from tunelight.resources import reserve
from tunelight.schedulers.choose import build_scheduler
from tunelight.searchers.choose import count_trials
from tunelight.settings import Settings
from tunelight.simulation.actors import slots_of
from tunelight.simulation.cluster import Cluster
from tunelight.simulation.costs import Costs
from tunelight.simulation.curves import Curves, SteadyCurves
from tunelight.simulation.plans import Compared, Option, Plan, Spread, Stage, duration
from tunelight.simulation.result import Simulation
from tunelight.simulation.run import simulate
from tunelight.simulation.sources import SweepCurves, recorded, tasks
from tunelight.space import SearchSpace

_SEEDS = 5
_HOUR = 3600.0
_MOST_RUNGS = 12
_AGAIN = "the best again, as long as each can win"
_COMPARED = ("asha", "elastic_asha")
"""Schedulers that the sweep's own is compared with."""


@known_arguments
def plan(
    space: SearchSpace | Mapping[str, Any] | str | os.PathLike[str],
    *,
    seconds_per_epoch: float,
    cluster: str | tuple[int, int],
    scheduler: Any = None,
    num_samples: int | None = None,
    workers: int | tuple[int, int] | None = None,
    max_epochs: int | None = None,
    searcher: Any = None,
    repeats: Any = None,
    time_budget: float | str | None = None,
    proxy: Mapping[str, Any] | None = None,
    proxy_seconds_per_epoch: float | None = None,
    price_per_gpu_hour: float | None = None,
    deadline: float | str | None = None,
    costs: Costs | None = None,
    curves: Curves | str | os.PathLike[str] | None = None,
    seeds: int = _SEEDS,
) -> Plan:
    """Estimate what a sweep over ``space`` would take on a cluster, by simulating it with its own scheduler.

    Settings default to the space's, else to those of ``tunelight.run``. The sweep is simulated under "asha" and
    "elastic_asha", too: one that takes less and finds no worse a trial is recommended.

    Args:
        space: as ``tunelight.run`` takes it.
        seconds_per_epoch: of one trial, on a gang of ``workers`` (of an elastic one: the fewest).
        cluster: nodes x slots a node, "16x8"; a worker takes one slot, with its GPU if it has one.
        scheduler, num_samples, workers, max_epochs, searcher, repeats, time_budget, proxy: as in ``tunelight.run``.
            With ``proxy`` or ``repeats``, the plan is of the last stage, and ``plan.first`` of what comes before.
        proxy_seconds_per_epoch: of a cheap trial, on its workers.
        price_per_gpu_hour: what a slot costs an hour (None: no costs are given).
        deadline: seconds, or text as "8h"; other sizes of gang and cluster are tried, too, and the cheapest is named.
        costs: what starts, pauses and more workers cost (``Costs()``: perfect scaling).
        curves: what trials learn: a recorded task, or the folder of a sweep (None: the recorded tasks, in turn).
        seeds: how many simulations the figures are of (5).

    Raises: subclasses of TunelightError. Runs on: driver, without Ray.
    """
    told = {"scheduler": scheduler, "num_samples": num_samples, "workers": workers, "max_epochs": max_epochs}
    told |= {"searcher": searcher, "repeats": repeats, "time_budget": time_budget, "proxy": proxy}
    settings = _settings(space, told)
    ends_s = settings.budget_s
    try:
        settings = replace(settings, time_budget=deadline)
    except SettingsError as error:
        raise SettingsError(str(error).replace("time_budget", "deadline")) from error
    for name, value in (
        ("seconds_per_epoch", seconds_per_epoch),
        ("proxy_seconds_per_epoch", proxy_seconds_per_epoch),
        ("price_per_gpu_hour", price_per_gpu_hour),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SettingsError(f"{name} must be a number above 0, not {value!r}.")
    where, costs = Cluster.of(cluster), costs or Costs()
    how: dict[str, Any] = {"where": where, "costs": costs, "curves": curves, "seeds": seeds}
    how["price_per_gpu_hour"] = price_per_gpu_hour
    cheap, again = settings.proxy, settings.repeats
    if cheap is None and again is None:
        return _planned(settings, seconds_per_epoch, ends_s=ends_s, **how)
    one = replace(settings, proxy=None, repeats=None, time_budget=None)
    stages = [("the search", one, seconds_per_epoch)]
    if cheap is not None:
        if proxy_seconds_per_epoch is None:
            raise SettingsError(
                "The sweep has proxy=, and how long an epoch of its cheap trials takes is not known. Give "
                "proxy_seconds_per_epoch= (--proxy-seconds-per-epoch)."
            )
        one = replace(one, num_samples=min(cheap.top, one.num_samples))
        first = replace(stages[0][1], workers=cheap.workers or settings.workers)
        stages = [("cheap trials", first, proxy_seconds_per_epoch), ("the best in full", one, seconds_per_epoch)]
    if again is not None and (more := min(again.top, one.num_samples) * (again.repeats - 1)):
        repeated = replace(one, num_samples=more, scheduler="fifo")
        stages.append((_AGAIN, repeated, seconds_per_epoch))
    return _in_turn(stages, settings.budget_s, ends_s, how)


def _in_turn(
    stages: Sequence[tuple[str, Settings, float]],
    deadline_s: float | None,
    ends_s: float | None,
    how: Mapping[str, Any],
) -> Plan:
    """Return the plan of stages that follow one another: the last one's, with a verdict on all."""
    made: Plan | None = None
    both = Spread(0.0, 0.0)
    for title, settings, seconds in stages:
        left_s = None if ends_s is None else ends_s - both.p50 * _HOUR
        if made is not None and left_s is not None and left_s <= 0:
            made = replace(made, notes=[*made.notes, f"time_budget ends the sweep before {title}"])
            break
        made = replace(_planned(settings, seconds, ends_s=left_s, **how), stage=title, first=made)
        if title == _AGAIN:  # no scheduler decides on these
            made = replace(made, schedulers=(), notes=())
        if made.makespan_h is None:
            return made
        both = Spread(both.p50 + made.makespan_h.p50, both.p90 + made.makespan_h.p90)
    assert made is not None  # there is a first stage
    in_time = deadline_s is None or both.p90 * _HOUR <= deadline_s
    return replace(made, feasible=in_time, verdict=f"All stages: {_verdict(both, in_time, deadline_s, [])}")


def _planned(
    settings: Settings,
    seconds_per_epoch: float,
    *,
    where: Cluster,
    price_per_gpu_hour: float | None,
    costs: Costs,
    curves: Curves | str | os.PathLike[str] | None,
    seeds: int,
    ends_s: float | None,
) -> Plan:
    """Return the plan of one sweep."""
    reservation = reserve(settings.workers)
    least = reservation.least or reservation.workers
    alone_s = seconds_per_epoch * costs.speedup(least)
    sweep = _Sweep(settings, where, price_per_gpu_hour, costs, alone_s, curves, ends_s)
    about = Plan(
        scheduler=_name(settings.scheduler),
        num_samples=settings.num_samples,
        max_epochs=sweep.epochs,
        workers=least,
        cluster=f"{where.nodes}x{where.slots}",
        at_once=min(settings.num_samples, _gangs(where, least)),
        feasible=False,
        verdict="",
    )
    try:
        runs = [sweep.run(seed) for seed in range(seeds)]
    except ResourceError as error:
        return replace(about, verdict=f"Not feasible: {error}")
    return _judged(about, sweep, runs)


@dataclass
class _Sweep:
    """A sweep that can be simulated on any cluster, with any size of gang.

    ``price``: of a slot's hour; ``alone_s``: seconds of an epoch on one worker; ``given``: its curves; ``ends_s``: its
    time budget.
    """

    settings: Settings
    where: Cluster
    price: float | None
    costs: Costs
    alone_s: float
    given: Curves | str | os.PathLike[str] | None
    ends_s: float | None

    def __post_init__(self) -> None:
        self.scheduler = build_scheduler(replace(self.settings, metric="loss", mode="min"))
        self.epochs = self.settings.max_epochs or self._own_epochs()
        self._curves: Any = os.fspath(self.given) if isinstance(self.given, os.PathLike) else self.given
        if isinstance(self._curves, str) and self._curves not in tasks() and is_folder(self._curves):
            self._curves = SweepCurves(self._curves, costs=self.costs, seconds=self.alone_s)

    def _own_epochs(self) -> int:
        own = self.scheduler.max_t
        if own is None:
            raise SettingsError(
                "How long trials train is not known: neither the space nor the scheduler says. Give max_epochs=."
            )
        return int(own)

    def rungs(self, run: Simulation) -> list[int]:
        """Return the epochs at which the scheduler stops or pauses trials: its milestones, or as seen in ``run``."""
        found = {math.ceil(rung) for rung in self.scheduler.milestones()}
        if not found:
            found = {e.detail[0] for e in run.events if e.what == "result" and e.detail[1] != TrialScheduler.CONTINUE}
        if len(found) > _MOST_RUNGS:  # it decides at every report
            found = set(_doublings(self.epochs))
        return [*(rung for rung in sorted(found) if rung < self.epochs), self.epochs]

    def curves(self, number: int) -> Curves:
        """Return the curves for the simulation with this number."""
        if self._curves is not None and not isinstance(self._curves, str):
            curves: Curves = self._curves
            return curves
        names = tasks() if self._curves is None else [self._curves]
        if not names:
            return SteadyCurves(self.epochs, self.alone_s)
        return recorded(names[number % len(names)], epochs=self.epochs, epoch_s=self.alone_s)

    def run(self, seed: int, **changes: Any) -> Simulation:
        """Simulate it once, with changed arguments of ``simulate``."""
        arguments: dict[str, Any] = {
            "scheduler": self.settings.scheduler,
            "num_samples": self.settings.num_samples,
            "workers": self.settings.workers,
            "cluster": self.where,
            "max_epochs": self.epochs,
            "max_concurrent": self.settings.most_trials,
            "seed": seed,
            "costs": self.costs,
            "time_budget": self.ends_s,
        }
        return simulate(self.curves(seed), **{**arguments, **changes})

    def cost_of(self, slot_hours: Sequence[float]) -> Spread | None:
        """Return what slots cost for so many hours in each simulation; None without a price."""
        return None if self.price is None else Spread.of([self.price * hours for hours in slot_hours])


def _settings(given: Any, told: Mapping[str, Any]) -> Settings:
    """Return the sweep's settings: those of ``plan``, else the space's."""
    space = SearchSpace.of(given)
    names = {*told, "max_concurrent", "max_workers"}
    own = {name: value for name, value in space.settings.items() if name in names}
    settings = Settings(**{**own, **{name: value for name, value in told.items() if value is not None}})
    total = count_trials(space, settings)
    return replace(settings, num_samples=total, workers=settings.workers or 1)


def _name(scheduler: Any) -> str:
    if isinstance(scheduler, Mapping):
        return str(scheduler.get("name", "asha"))
    return scheduler if isinstance(scheduler, str) else type(scheduler).__name__


def _gangs(where: Cluster, workers: int) -> int:
    """Return how many gangs fit at once."""
    empty, demands = Cluster.of(where), slots_of(reserve(workers).factory)
    return sum(1 for _ in itertools.takewhile(lambda _: empty.take(demands) is not None, itertools.count()))


def _judged(about: Plan, sweep: _Sweep, runs: Sequence[Simulation]) -> Plan:
    """Complete a plan with figures, a verdict and, for a deadline, the other options."""
    deadline_s = sweep.settings.budget_s
    hours = [run.makespan_s / _HOUR for run in runs]
    worker_hours = [run.worker_seconds / _HOUR for run in runs]
    makespan = Spread.of(hours)
    median = sorted(range(len(runs)), key=hours.__getitem__)[(len(runs) - 1) // 2]
    options = _options(sweep, deadline_s) if deadline_s is not None else []
    schedulers = _compared(sweep, runs, about.scheduler)
    in_time = deadline_s is None or makespan.p90 * _HOUR <= deadline_s
    return replace(
        about,
        feasible=in_time,
        verdict=_verdict(makespan, in_time, deadline_s, options),
        makespan_h=makespan,
        worker_hours=Spread.of(worker_hours),
        idle_share=Spread.of([run.idle_share for run in runs]),
        tail_idle_share=Spread.of([run.tail_idle_share for run in runs]),
        cost=sweep.cost_of(worker_hours),
        rent=sweep.cost_of([sweep.where.size * of_run for of_run in hours]),
        stages=_stages(sweep, sweep.run(median, events=True), about.workers),
        options=options,
        schedulers=schedulers,
        notes=[*_recommended(schedulers), *_notes(sweep, runs)],
    )


def _stages(sweep: _Sweep, run: Simulation, workers: int) -> list[Stage]:
    """Return the slots that trials held between rungs. Gangs that grew count with their smallest size."""
    entered: dict[str, float] = {}
    spans: dict[int, list[tuple[float, float]]] = {rung: [] for rung in sweep.rungs(run)}
    for event in run.events:
        if event.what == "start":
            entered[event.trial] = event.time
        elif event.what == "result" and event.detail[0] in spans:
            spans[event.detail[0]].append((entered[event.trial], event.time))
            entered[event.trial] = event.time
    return [
        Stage(rung, len(found), workers * _most_at_once(found), workers * sum(b - a for a, b in found) / _HOUR)
        for rung, found in spans.items()
    ]


def _most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(change for _, change in changes), default=0)


def _options(sweep: _Sweep, deadline_s: float) -> list[Option]:
    """Simulate gangs and clusters of powers of two, once each; the cheapest in time comes first."""
    options = []
    for nodes, workers in itertools.product(_doublings(sweep.where.nodes), _doublings(min(sweep.where.size, 64))):
        smaller = Cluster(nodes, sweep.where.slots)
        if workers > smaller.size:
            continue
        hours = sweep.run(0, cluster=smaller, workers=workers).makespan_s / _HOUR
        cost = None if sweep.price is None else sweep.price * hours * smaller.size
        options.append(Option(workers, nodes, smaller.size, hours, cost, hours * _HOUR <= deadline_s))
    return sorted(options, key=lambda way: (not way.in_time, way.makespan_h * (way.slots if way.in_time else 1)))


def _compared(sweep: _Sweep, runs: Sequence[Simulation], own: str) -> list[Compared]:
    """Simulate the sweep under other schedulers for which its curves are long enough; none if nobody measured them."""
    if isinstance(sweep.curves(0), SteadyCurves) or any(math.isinf(run.regret()) for run in runs):
        return []
    schedulers = [_figures_of(own, runs)]
    for name in _COMPARED:
        if name != own:
            others = [sweep.run(seed, scheduler=name) for seed in range(len(runs))]
            if not any(trial.extrapolated for run in others for trial in run.trials):
                schedulers.append(_figures_of(name, others))
    return schedulers if len(schedulers) > 1 else []


def _figures_of(scheduler: str, runs: Sequence[Simulation]) -> Compared:
    return Compared(
        scheduler,
        makespan_h=Spread.of([run.makespan_s / _HOUR for run in runs]),
        worker_hours=Spread.of([run.worker_seconds / _HOUR for run in runs]),
        regret=Spread.of([run.regret() for run in runs]),
    )


def _recommended(schedulers: Sequence[Compared]) -> list[str]:
    """Return a note that names the cheapest scheduler that is better than the sweep's own, which is the first."""
    better = [other for other in schedulers[1:] if other.is_better_than(schedulers[0])]
    if not better:
        return []
    own, best = schedulers[0], min(better, key=lambda other: other.worker_hours.p50)
    note = (
        f"scheduler={best.scheduler!r} is recommended: on these curves it finds no worse a trial than "
        f"{own.scheduler!r} for {best.worker_hours.p50:.2g} worker-hours instead of {own.worker_hours.p50:.2g}, in "
        f"{duration(best.makespan_h.p50)} instead of {duration(own.makespan_h.p50)}"
    )
    return [note]


def _doublings(most: int) -> list[int]:
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def _verdict(hours: Spread, in_time: bool, deadline_s: float | None, options: Sequence[Option]) -> str:
    both = f"about {duration(hours.p50)} (p50), {duration(hours.p90)} (p90)"
    if deadline_s is None:
        return f"Feasible: {both}."
    first = f"{'Meets' if in_time else 'Misses'} the deadline of {duration(deadline_s / _HOUR)}: {both}."
    if not options:
        return first
    best = options[0]
    if best.in_time:
        return (
            f"{first} The cheapest of {len(options)} ways to meet it: {best.workers} workers a trial on {best.nodes} "
            f"nodes ({best.slots} slots), {duration(best.makespan_h)}."
        )
    return (
        f"{first} None of {len(options)} ways meets it: the fastest, {best.workers} workers a trial on {best.nodes} "
        f"nodes, takes {duration(best.makespan_h)}. Ask for fewer trials or epochs, or a larger cluster."
    )


def _notes(sweep: _Sweep, runs: Sequence[Simulation]) -> list[str]:
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    if sweep.ends_s is not None and any(run.makespan_s >= sweep.ends_s for run in runs):
        notes.append(f"time_budget ends it after {duration(sweep.ends_s / _HOUR)}, before all trials have ended")
    if sweep.costs.efficiency == 1:
        notes.append("more workers were taken to be faster without loss; say Costs(efficiency=0.8) for 20 % a doubling")
    return notes
