"""Finds the fastest setting within a time budget.

Each gang is measured once, and then those that may win are varied in one visit each, for a gang of another size costs a
start. What a step waits for bounds what a factor can win: settings that cannot reach the best are not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median, quantiles

SMALL = 0.05
"""The share of a step below which nothing is to be won by removing it."""
_SLOWER = 0.85
"""The part of the best speed that a setting has to reach, were there nothing to wait for, to be varied further."""
_CLOSE = 0.93
"""Settings with at least this part of the best speed are measured again before one of them is called the best."""
ALIKE = 0.97
"""A setting with at least this part of the best speed counts as equally fast."""
_ROUNDS, _CANDIDATES = 3, 4
_LIMITS = 0.25
"""The share of a step from which on waiting for data is what limits training."""


class UnmeasuredError(Exception):
    """A setting under which training fails, and why."""


@dataclass(frozen=True)
class Setting:
    """A way to train one configuration with the same global batch.

    Attributes:
        workers, cpus: the gang's size, and ``cpus_per_worker``, which is also how many threads torch uses.
        loader_workers: the DataLoader's ``num_workers``; None: as the data has it.
    """

    workers: int
    cpus: float = 1
    loader_workers: int | None = None

    @property
    def gang(self) -> tuple[int, float]:
        """Its workers and their CPUs: settings with the same share a gang."""
        return self.workers, self.cpus

    def __str__(self) -> str:
        parts = [f"{self.workers} worker{'s' * (self.workers != 1)} x {self.cpus:g} CPU"]
        parts += [] if self.loader_workers is None else [f"num_workers={self.loader_workers}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Figures:
    """Seconds of training under a setting. A step is one of the global batch.

    Attributes:
        steps: seconds a step, in each slice of the measurement.
        data_s: of a step, how long the loader was waited for.
        gap_s: between two epochs, beside their steps.
        batches: steps an epoch.
        samples: in a global batch.
        batch_norm: whether the model has a BatchNorm layer, to which a worker's batch matters.
        left_out: the callbacks that did not take part.
    """

    steps: tuple[float, ...]
    data_s: float
    gap_s: float
    batches: int
    samples: int
    batch_norm: bool = False
    left_out: tuple[str, ...] = ()

    def __add__(self, later: Figures) -> Figures:
        """Pool the slices of two measurements; shares of a step are the mean's, all else is the later one's."""
        mine = len(self.steps) / (len(self.steps) + len(later.steps))
        return replace(
            later,
            steps=self.steps + later.steps,
            data_s=mine * self.data_s + (1 - mine) * later.data_s,
            gap_s=min(self.gap_s, later.gap_s),
        )

    @cached_property
    def step_s(self) -> float:
        """Seconds a step, with its part of the pause between epochs."""
        return median(self.steps) + self.gap_s / self.batches

    @cached_property
    def rates(self) -> tuple[float, float, float]:
        """Steps a second: the lower quartile of the slices, the median and the upper quartile."""
        rest = self.gap_s / self.batches
        fast, _, slow = quantiles(self.steps, n=4, method="inclusive") if len(self.steps) > 1 else self.steps * 3
        return 1 / (slow + rest), 1 / self.step_s, 1 / (fast + rest)

    @property
    def data_share(self) -> float:
        """The share of a step that waits for the loader, with its start at each epoch."""
        return (self.data_s + self.gap_s / self.batches) / self.step_s

    @property
    def speed(self) -> float:
        """Steps a second by which settings are compared: the upper quartile, for other programs only slow it down."""
        return self.rates[2]


@dataclass(frozen=True)
class Choices:
    """The values that are tried of each factor. The first of each is what the sweep has now.

    ``gangs``: numbers of workers, each with their CPUs.
    """

    gangs: Sequence[tuple[int, float]]
    loader_workers: Sequence[int | None] = (None,)

    def start(self, gang: tuple[int, float]) -> Setting:
        """Return a gang's setting that has the first value of everything else."""
        return Setting(*gang, self.loader_workers[0])

    def all(self) -> list[Setting]:
        """Return every setting, gang by gang."""
        return [Setting(*gang, loaders) for gang in self.gangs for loaders in self.loader_workers]


@dataclass
class Search:
    """Measures settings until the best is known, or ``budget_s`` seconds are over.

    Attributes:
        measure: measures a setting for some seconds; raises UnmeasuredError.
        measured: the figures of each setting.
        failed: why a setting could not be measured.
        out_of_time: whether the budget ended the search.
    """

    measure: Callable[[Setting, float], Figures]
    choices: Choices
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], object] = lambda _: None
    measured: dict[Setting, Figures] = field(default_factory=dict)
    failed: dict[Setting, str] = field(default_factory=dict)
    out_of_time: bool = False

    def __post_init__(self) -> None:
        self.began = self.clock()
        self._gang: tuple[int, float] | None = None
        self._took_s: dict[bool, float] = {}  # the last measurement, by whether it had to start another gang
        self.seconds = min(5.0, max(0.4, self.budget_s / 40))
        """Of one measurement."""

    @property
    def best(self) -> Setting:
        """The fastest setting of those measured."""
        return max(self.measured, key=lambda setting: self.measured[setting].speed)

    @property
    def fastest(self) -> Setting:
        """The fastest setting; of those that are nearly as fast the sweep's own, else that of the fewest CPUs."""
        least, now = ALIKE * self.measured[self.best].speed, self.choices.start(self.choices.gangs[0])
        alike = [setting for setting, figures in self.measured.items() if figures.speed >= least]
        return now if now in alike else min(alike, key=lambda s: (s.workers * s.cpus, -self.measured[s].speed))

    @property
    def spared(self) -> int:
        """How many settings were not measured."""
        return len(self.choices.all()) - len(self.measured) - len(self.failed)

    def run(self) -> None:
        """Search. The first setting is measured whatever the budget is."""
        firsts = [*filter(self._measure, map(self.choices.start, self.choices.gangs))]
        for first in sorted(firsts, key=lambda s: -self.measured[s].speed):
            self._vary(first)
        self._settle()

    def _measure(self, setting: Setting) -> bool:
        """Measure a setting once more; return whether there are figures of it."""
        other = setting.gang != self._gang
        if setting in self.failed or (self.measured and (self._regroups(setting) or self._over(other_gang=other))):
            return setting in self.measured
        self.say(f"measuring {setting}")
        self._gang, began = setting.gang, self.clock()
        try:
            figures = self.measure(setting, self.seconds)
            self._took_s[other] = self.clock() - began
        except UnmeasuredError as error:
            if setting not in self.measured:
                self.failed[setting] = str(error)
            return setting in self.measured
        before = self.measured.get(setting)
        self.measured[setting] = figures if before is None else before + figures
        return True

    def _regroups(self, setting: Setting) -> bool:
        """Tell whether the model has BatchNorm, and a forward another number of samples than in the sweep."""
        norm = next(iter(self.measured.values())).batch_norm
        return norm and setting.workers != self.choices.gangs[0][0]

    def _over(self, *, other_gang: bool = False) -> bool:
        """Tell whether the budget is over before another measurement, if that takes as long as the last such one."""
        takes = self._took_s.get(other_gang, self._took_s.get(True, 0.0))
        self.out_of_time = self.out_of_time or self.clock() + takes - self.began > self.budget_s
        return self.out_of_time

    def _vary(self, setting: Setting) -> None:
        """Vary the loader's workers, if a gang's setting comes near the best without what it waits for."""
        figures = self.measured[setting]
        least = _SLOWER * self.measured[self.best].speed * max(0.01, 1 - figures.data_share - SMALL)
        if figures.data_share >= SMALL and figures.speed >= least:
            for loaders in self.choices.loader_workers[1:]:
                self._measure(replace(setting, loader_workers=loaders))

    def _settle(self) -> None:
        """Measure the best settings again, in turns, so that a machine that slows down hits all alike."""
        for _ in range(_ROUNDS if self.measured else 0):
            least = _CLOSE * self.measured[self.best].speed
            ordered = sorted(self.measured, key=lambda setting: -self.measured[setting].speed)
            left = [setting for setting in ordered[:_CANDIDATES] if self.measured[setting].speed >= least]
            for setting in sorted(left, key=lambda s: (s.gang != self._gang, s.gang)) if len(left) > 1 else ():
                self._measure(setting)


def bottleneck(figures: Figures, *, adjustable: bool) -> str:
    """Say what limits training, by which figure, and what to try. ``adjustable``: whether the loader's workers are."""
    gap = figures.gap_s / figures.batches / figures.step_s
    if figures.data_share < _LIMITS:
        return f"compute-bound: {1 - figures.data_share:.0%} of a step computes. Try precision, torch.compile, or GPUs."
    start = f", {gap:.0%} of it for the loader's start at each epoch (persistent_workers=True)" if gap > 0.1 else ""
    try_ = "a cheaper transform, or a cache" if adjustable else "num_workers as an argument of the data"
    return f"loader-bound: {figures.data_share:.0%} of a step waits for data{start}. Try {try_}."
