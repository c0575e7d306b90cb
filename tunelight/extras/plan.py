"""plan(): what a sweep takes on a cluster, by an event loop of slots in which chance stops the trials."""

from __future__ import annotations

import heapq
import math
import os
import random
import re
from bisect import bisect, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Final

from tunelight.errors import SettingsError, known_arguments, unknown
from tunelight.schedulers.choose import build_scheduler
from tunelight.searchers.choose import count_trials
from tunelight.settings import Settings, checks
from tunelight.space import SearchSpace

_OWN: Final = (
    "num_samples", "workers", "max_epochs", "scheduler", "searcher", "repeats", "time_budget", "max_concurrent",
)  # fmt: skip
_DRAWS, _HOUR = 200, 3600.0
_LUCK = 0.3
"""The part of a trial's rank at a rung that is drawn there; the rest is its own at every rung."""
_GROWS_AFTER = 7
"""How many epochs pass until an elastic gang has more workers: ElasticASHA's cooldown, and those in which they come."""


@dataclass(frozen=True)
class Spread:
    """The median and the 90th percentile of the draws."""

    p50: float
    p90: float


@dataclass(frozen=True)
class Plan:
    """The estimated time and cost of a sweep. Print it, or use :meth:`asdict`.

    ``cost`` is that of what gangs hold, ``rent`` that of the whole cluster, at the price of a slot's hour. ``stages``:
    how many trials come to each rung; ``verdict``: whether it can be done (in time), in words.
    """

    scheduler: str
    num_samples: int
    max_epochs: int
    workers: int
    cluster: str
    at_once: int
    feasible: bool = False
    verdict: str = "Not feasible: a trial takes more slots than there are. Ask for fewer workers, or a larger cluster."
    makespan_h: Spread | None = None
    worker_hours: Spread | None = None
    idle_share: Spread | None = None
    cost: Spread | None = None
    rent: Spread | None = None
    stages: Sequence[Mapping[str, float]] = ()

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        about = f"{self.num_samples} trials of up to {self.max_epochs} epochs, {self.workers} workers each, under "
        about += f"{self.scheduler}, on {self.cluster} slots: {self.at_once} at once"
        figures = {name: value for name, value in vars(self).items() if isinstance(value, Spread)}
        lines = [f"{name:14} {value.p50:10.3g} {value.p90:10.3g}" for name, value in figures.items()]
        rungs = [f"to epoch {stage['epoch']:5} {stage['trials']:10.1f} trials" for stage in self.stages]
        head = [f"{'':14} {'p50':>10} {'p90':>10}"] if lines else []
        return "\n".join([about, self.verdict, *head, *lines, *rungs])


@known_arguments
def plan(
    space: SearchSpace | Mapping[str, Any] | str | os.PathLike[str],
    *,
    seconds_per_epoch: float,
    cluster: str | tuple[int, int],
    price_per_gpu_hour: float | None = None,
    deadline: float | str | None = None,
    start_s: float = 5.6,
    restart_s: float = 0.1,
    **settings: Any,
) -> Plan:
    """Estimate what a sweep over ``space`` would take on a cluster; ``settings`` of ``tunelight.run`` override its own.

    Chance decides which trials go on at a rung of "asha" and "elastic_asha", in 200 draws. Under other schedulers all
    are taken to train to their end. Gangs that grow are taken to be faster without loss.

    Args:
        seconds_per_epoch: of one trial, on a gang of ``workers`` (of an elastic one: the fewest).
        cluster: nodes x slots a node, "16x8"; a worker takes one slot, with its GPU if it has one.
        price_per_gpu_hour: what a slot costs an hour (None: no costs are given).
        deadline: seconds, or text as "8h"; the verdict says whether nine of ten draws meet it.
        start_s, restart_s: until a new gang trains, and one that has trained another trial (a small CPU machine's).

    Raises: subclasses of TunelightError. Runs on: driver, without Ray.
    """
    space = SearchSpace.of(space)
    if other := settings.keys() - set(_OWN):
        raise SettingsError(unknown("A plan does not depend on", min(other), _OWN, listed="It takes"))
    epoch_s = checks.number("seconds_per_epoch", seconds_per_epoch)
    price = None if price_per_gpu_hour is None else checks.number("price_per_gpu_hour", price_per_gpu_hour)
    in_h = math.inf if deadline is None else checks.seconds(deadline, "deadline") / _HOUR
    shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", cluster if isinstance(cluster, str) else "x".join(map(str, cluster)))
    if shape is None:
        raise SettingsError(f"cluster must be nodes x slots a node, '16x8' or (16, 8) for example, not {cluster!r}.")
    slots = int(shape[1]) * int(shape[2])
    of_space: dict[str, Any] = {name: space.settings[name] for name in _OWN if name in space.settings}
    asked = Settings(**{**of_space, **settings})
    asked = replace(asked, num_samples=count_trials(space, asked), workers=asked.workers or 1)
    sweep = _Sweep.of(asked, epoch_s, (start_s, restart_s))
    kind = asked.scheduler.get("name", "asha") if isinstance(asked.scheduler, Mapping) else asked.scheduler
    name, at_once = kind if isinstance(kind, str) else type(kind).__name__, min(asked.num_samples, sweep.gangs(slots))
    made = Plan(name, asked.num_samples, sweep.rungs[-1], sweep.workers[0], shape[0], at_once)
    if not at_once:
        return made
    chance = random.Random(0)  # noqa: S311 - a plan is the same each time
    draws = [sweep.draw(slots, chance) for _ in range(_DRAWS)]
    took, ended = _spread(hours for hours, _, _ in draws), sum((each for *_, each in draws), Counter[int]())
    judged = "Feasible" if deadline is None else "Meets the deadline" if took.p90 <= in_h else "Misses the deadline"
    cut = ", where time_budget ends it" if took.p90 * _HOUR >= (asked.budget_s or math.inf) else ""
    return replace(
        made, feasible=took.p90 <= in_h, makespan_h=took,
        verdict=f"{judged}: about {_words(took.p50)} (p50), {_words(took.p90)} (p90){cut}.",
        worker_hours=_spread(held for _, held, _ in draws),
        idle_share=_spread(1 - held / (slots * hours) for hours, held, _ in draws),
        cost=None if price is None else _spread(price * held for _, held, _ in draws),
        rent=None if price is None else _spread(price * slots * hours for hours, _, _ in draws),
        stages=[{"epoch": rung, "trials": sum(ended[last] for last in sweep.rungs if last >= rung) / _DRAWS}
                for rung in sweep.rungs],
    )  # fmt: skip


@dataclass(frozen=True)
class _Sweep:
    """What is drawn; ``epoch_s``: on the fewest ``workers``; ``starts_s``: of a new gang, and of a warm one."""

    told: Settings
    rungs: Sequence[int]
    eta: float
    pauses: bool
    epoch_s: float
    workers: tuple[int, int]
    starts_s: tuple[float, float]

    @classmethod
    def of(cls, asked: Settings, epoch_s: float, starts_s: tuple[float, float]) -> _Sweep:
        """Return what settings and scheduler say. Raises: SettingsError where nobody says how long trials train."""
        scheduler = build_scheduler(replace(asked, metric="loss", mode="min"))
        if (end := asked.max_epochs or scheduler.max_t) is None:
            raise SettingsError("Neither the space nor the scheduler says how long trials train. Give max_epochs=.")
        eta = getattr(scheduler, "reduction_factor", 0) if scheduler.longest < math.inf else 0  # rungs are epochs
        rungs = [math.ceil(rung) for rung in scheduler.milestones() if eta and rung < end]
        least, most = asked.workers if isinstance(asked.workers, tuple) else (asked.workers or 1, asked.workers or 1)
        if not scheduler.resizes:
            least, epoch_s = most, epoch_s * least / most
        return cls(asked, [*rungs, int(end)], eta or 1, scheduler.pauses, epoch_s, (least, most), starts_s)

    def gangs(self, slots: int) -> int:
        """Return how many of the smallest gangs fit at once."""
        return min(slots // self.workers[0], self.told.max_concurrent or slots)

    def draw(self, slots: int, chance: random.Random) -> tuple[float, float, Counter[int]]:
        """Return the hours it takes, the slot-hours that gangs hold, and how many trials end after which epoch."""
        now, held, ended, (least, most), again = 0.0, 0.0, Counter[int](), self.workers, self.told.repeats
        grown, until_s = max(0.0, 1 - _GROWS_AFTER / self.rungs[-1]), self.told.budget_s or math.inf
        more = 0 if again is None else min(again.top, self.told.num_samples) * (again.repeats - 1)
        for lasts in (self._searched(chance), iter([self.rungs[-1]] * more)):
            first, done = islice(lasts, self.gangs(slots)), 0.0
            ends = sorted((self.starts_s[0] + last * self.epoch_s, last) for last in first)
            while ends and now < until_s:
                workers = least + grown * (min(most, max(least, slots / len(ends))) - least)
                took = min((ends[0][0] - done) * least / workers, until_s - now)
                now, held = now + took, held + took * workers * len(ends)
                done, last = ends[0]
                ended[last] += now < until_s
                if following := next(lasts, None):
                    heapq.heapreplace(ends, (done + self.starts_s[1] + following * self.epoch_s, following))
                else:
                    heapq.heappop(ends)
        return now / _HOUR, held / _HOUR, ended

    def _searched(self, chance: random.Random) -> Iterator[int]:
        """Yield each trial's last epoch: the n-th at a rung goes on if it is among the best n / eta there, or the best.

        Where trials pause, only the first of fewer than eta goes on: it stands for the one that is promoted later.
        """
        filed: dict[int, list[float]] = {rung: [] for rung in self.rungs}
        for _ in range(self.told.num_samples):
            quality = chance.random()
            for last in self.rungs:
                value, at_rung = (1 - _LUCK) * quality + _LUCK * chance.random(), filed[last]
                insort(at_rung, value)
                if bisect(at_rung, value) > max(len(at_rung) == 1 or not self.pauses, len(at_rung) // self.eta):
                    break
            yield last


def _words(hours: float) -> str:
    return f"{hours * _HOUR:.0f} s" if hours < 1 / 60 else f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.3g} h"


def _spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    return Spread(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9)))
