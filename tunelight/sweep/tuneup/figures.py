"""What is measured: a setting, and the figures of training under it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, quantiles

SMALL = 0.05
"""The share of a step below which nothing is to be won by removing it."""


class UnmeasuredError(Exception):
    """A setting under which training fails, and why."""


@dataclass(frozen=True)
class Setting:
    """A way to train one configuration with the same global batch.

    Attributes:
        workers, cpus: the gang's size, and ``cpus_per_worker``, which is also how many threads torch uses.
        loader_workers: the DataLoader's ``num_workers``; None: as the data has it.
        pieces: into how many batches a worker cuts its share of the global batch; it accumulates their gradients.
        bucket_mb, view: DDP's ``bucket_cap_mb`` and ``gradient_as_bucket_view``; None: as the strategy has them.
        precision: the Trainer's, where another than the sweep's is tried.
        compiled: whether torch.compile is used on the module.
    """

    workers: int
    cpus: float = 1
    loader_workers: int | None = None
    pieces: int = 1
    bucket_mb: int | None = None
    view: bool | None = None
    precision: str | None = None
    compiled: bool = False

    @property
    def gang(self) -> tuple[int, float]:
        """Its workers and their CPUs: settings with the same share a gang."""
        return self.workers, self.cpus

    @property
    def changes_results(self) -> bool:
        """Whether models trained so differ by more than rounding."""
        return self.precision is not None or self.compiled

    def __str__(self) -> str:
        parts = [f"{self.workers} worker{'s' * (self.workers != 1)} x {self.cpus:g} CPU"]
        parts += [] if self.loader_workers is None else [f"num_workers={self.loader_workers}"]
        parts += [f"{self.pieces} pieces"] if self.pieces > 1 else []
        parts += [] if self.bucket_mb is None else [f"buckets of {self.bucket_mb} MB"]
        parts += ["gradients as views"] if self.view else []
        parts += [] if self.precision is None else [self.precision]
        parts += ["compiled"] if self.compiled else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Figures:
    """Seconds of training under a setting. A step is one of the global batch.

    Attributes:
        steps: seconds a step, in each slice of the measurement.
        data_s, wait_s: of a step, how long the loader was waited for, and the other ranks (the part of the all-reduce
            that does not overlap with the backward pass).
        gap_s: between two epochs, beside their steps.
        batches: steps an epoch.
        start_s: from the task's start to the first step.
        val_s: one validation; None where it was not measured.
        samples: in a global batch.
        batch_norm: whether the model has a BatchNorm layer, to which a worker's batch matters.
        left_out: the callbacks that did not take part.
    """

    steps: tuple[float, ...]
    data_s: float
    wait_s: float
    gap_s: float
    batches: int
    start_s: float
    samples: int
    val_s: float | None = None
    batch_norm: bool = False
    left_out: tuple[str, ...] = ()

    def __add__(self, later: Figures) -> Figures:
        """Pool the slices of two measurements; shares of a step are the mean's, all else is the later one's."""
        mine = len(self.steps) / (len(self.steps) + len(later.steps))
        return replace(
            later,
            steps=self.steps + later.steps,
            data_s=mine * self.data_s + (1 - mine) * later.data_s,
            wait_s=mine * self.wait_s + (1 - mine) * later.wait_s,
            gap_s=min(self.gap_s, later.gap_s),
            val_s=self.val_s if later.val_s is None else later.val_s,
        )

    @cached_property
    def step_s(self) -> float:
        """Seconds a step, with its part of the pause between epochs."""
        return median(self.steps) + self.gap_s / self.batches

    @property
    def epoch_s(self) -> float:
        """Seconds an epoch of a sweep: the mean of its steps, for a sweep has the slow ones too, and its validation."""
        return fmean(self.steps) * self.batches + self.gap_s + (self.val_s or 0.0)

    @cached_property
    def rates(self) -> tuple[float, float, float]:
        """Steps a second: the lower quartile of the slices, the median and the upper quartile."""
        rest = self.gap_s / self.batches
        fast, _, slow = quantiles(self.steps, n=4, method="inclusive") if len(self.steps) > 1 else self.steps * 3
        return 1 / (slow + rest), 1 / self.step_s, 1 / (fast + rest)

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.rates[1]

    @property
    def speed(self) -> float:
        """Steps a second by which settings are compared: the upper quartile, for other programs only slow it down."""
        return self.rates[2]
