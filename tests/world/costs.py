"""The costs of a simulation, in virtual seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL = NormalDist()
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Costs:
    """The costs of a simulation, in seconds unless stated otherwise.

    Starts and resizes default to what two CPU workers took on one 2-core machine; ``reserve_s`` is
    assumed, and the rest is not charged. ``benchmarks/fidelity.py`` measures yours.

    Args:
        reserve_s: a placement group and the trial's head, until Tune calls the trial running.
        start_cold_s: the start of a gang's workers up to the first epoch: processes, imports, meeting.
        start_warm_s: the same for a gang that has trained another trial before.
        report_s: a report whose answer is awaited, until the gang goes on.
        end_s: from a trial's last report until Tune gets its end.
        checkpoint_s: a checkpoint for a pause, until it is written, or read.
        grow_s: new workers of a gang that grows, while the others train on.
        resize_s: a change of a gang's size at a report's boundary, while all wait.
        efficiency: of each doubling of workers (1: twice as fast; 0.8: 1.6 times; below 0.5: slower than before).
        noise: sigma of the lognormal noise of one rank's epoch; the gang takes as long as its slowest rank.
    """

    reserve_s: float = 0.2
    start_cold_s: float = 5.4
    start_warm_s: float = 0.1
    report_s: float = 0.0
    end_s: float = 0.0
    checkpoint_s: float = 0.0
    grow_s: float = 5.4
    resize_s: float = 0.1
    efficiency: float = 1.0
    noise: float = 0.0

    def speedup(self, workers: int) -> float:
        """Return how many times as fast as one worker a gang is."""
        return float((2 * self.efficiency) ** math.log2(workers))

    def epoch_s(self, alone_s: float, workers: int, max_workers: int, draw: float) -> float:
        """Return the seconds of an epoch that takes ``alone_s`` on one worker.

        ``workers`` play the parts of ``max_workers`` logical ones, in ceil(max_workers / workers) turns per step
        (decision 0004). ``draw`` in (0, 1) sets the noise: the maximum of n draws is the quantile draw ** (1 / n).
        """
        turns = math.ceil(max_workers / workers)
        overhead = workers / self.speedup(workers)
        seconds = alone_s * turns / max_workers * overhead
        if self.noise:
            seconds *= math.exp(self.noise * _NORMAL.inv_cdf(draw ** (1 / workers)))
        return seconds


def uniform(*key: int) -> float:
    """Return a number in (0, 1) determined by whole numbers, by splitmix64 (Steele et al., OOPSLA 2014)."""
    state = 0
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state + 0.5) / (_MASK + 1)
