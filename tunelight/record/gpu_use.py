"""How busy the GPUs of trials were, what likely keeps them waiting, and the energy that they took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.machine.usage import mean
from tunelight.record.outcomes import FINISHED, STOPPED
from tunelight.record.state import TrialState

BUSY: Final = 0.6
"""The part of the time from which on GPUs count as busy."""
LEAST_SAMPLES: Final = 5
_ALL: Final = 0.85
"""The part of the reserved CPUs from which on all count as in use."""
_ONE: Final = (0.7, 1.3)
"""So many CPUs a process uses whose Python is always at work, with what its libraries add."""
_WAITING: Final = 0.5
"""CPUs below which a process mostly waits."""
_LITTLE: Final = 0.2
"""The part of the GPUs' memory below which little of it is in use."""
_OUTSIDE: Final = 0.2
"""The part of the time outside of training from which on it is worth a word."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What was measured of the workers of some trials: means over all samples, and of memory the most.

    What is not known is None.
    """

    busy: float
    """The part of the time, 0 to 1, in which their GPUs were busy."""
    samples: int
    cpu: float | None = None
    """CPUs that a worker used."""
    cpus: float | None = None
    """CPUs that a worker had."""
    memory: float | None = None
    """MB in use on the GPUs of a worker."""
    memory_total: float | None = None
    gpus: float | None = None
    """GPUs that a worker had."""
    outside: float | None = None
    """The part of the trials' time that was no training, 0 to 1."""

    @property
    def idle(self) -> bool:
        """Tell whether the GPUs were busy for less than ``BUSY`` of the time, by enough samples."""
        return self.samples >= LEAST_SAMPLES and self.busy < BUSY


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause of idle GPUs: what it is, the numbers that speak for it, and what to try."""

    why: str
    numbers: str
    advice: str


def gpu_use(
    peaks: Iterable[Mapping[str, float]], told: Mapping[str, Any], trials: Iterable[TrialState] = ()
) -> GpuUse | None:
    """Return how the GPUs of some trials were used; None where no utilisation of a GPU is known.

    Args:
        peaks: what each trial used (``TrialState.peak``).
        told: facts of the sweep; ``cpus_per_worker`` and ``gpus_per_worker``, if it has them.
        trials: the trials, to tell how much of their time was no training.
    """
    measured = [peak for peak in peaks if "mean_gpu" in peak and peak.get("samples")]
    busy = mean([(peak["mean_gpu"], int(peak["samples"])) for peak in measured])
    if busy is None:
        return None
    fullest = max(
        (peak for peak in measured if peak.get("gpu_memory_total")),
        key=lambda peak: peak.get("gpu_memory", 0.0) / peak["gpu_memory_total"],
        default={},
    )
    return GpuUse(
        busy=busy,
        samples=sum(int(peak["samples"]) for peak in measured),
        cpu=mean([(peak.get("mean_cpu"), int(peak["samples"])) for peak in measured]),
        cpus=told.get("cpus_per_worker"),
        memory=fullest.get("gpu_memory"),
        memory_total=fullest.get("gpu_memory_total"),
        gpus=told.get("gpus_per_worker"),
        outside=_outside(trials),
    )


def causes(use: GpuUse) -> list[Cause]:
    """Return the likely causes of idle GPUs that the numbers speak for; none where they speak for none."""
    return [cause for cause in (_of_cpus(use), _of_memory(use)) if cause is not None] if use.idle else []


def idle_gpus(use: GpuUse | None) -> str | None:
    """Return in one sentence how busy GPUs were, why likely, and what to try; None where they were busy, or unknown."""
    if use is None or not use.idle:
        return None
    said = f"GPUs {percent(use.busy)} busy"
    if found := causes(use):
        said += ", likely because " + "; or because ".join(
            f"{cause.why} ({cause.numbers}): try {cause.advice}" for cause in found
        )
    elif numbers := [text for text in (_cpus(use), _memory(use)) if text]:
        said += f" ({', '.join(numbers)}; that shows no likely cause)"
    if use.outside is not None and use.outside >= _OUTSIDE:
        said += f". Beside that, {percent(use.outside)} of the time went into starts and waiting, outside of training"
    return said


def energy_wh(trial: TrialState, told: Mapping[str, Any]) -> float | None:
    """Return the energy in Wh that a trial's GPUs took while it trained, as mean power times time.

    None where that does not follow: where their power is not known, workers share GPUs, whose power is that of all who
    use them, or the trial had several numbers of workers.
    """
    power, gpus = trial.peak.get("mean_gpu_power"), told.get("gpus_per_worker")
    sizes = {len(gang["nodes"]) for gang in trial.gangs}
    if power is None or not gpus or gpus < 1 or len(sizes) > 1 or not trial.workers:
        return None
    return power * trial.workers * trial.trained / 3600


def percent(part: float) -> str:
    """Return a part as text: ``31 %``."""
    return f"{100 * part:.0f} %"


def _of_cpus(use: GpuUse) -> Cause | None:
    if use.cpu is None:
        return None
    if use.cpus is not None and use.cpu >= _ALL * use.cpus:
        advice = "more cpus_per_worker=, and as many num_workers= in the DataLoaders"
        return Cause("loading data or other Python code takes all CPUs", _cpus(use), advice)
    if use.cpu < _WAITING:
        advice = "data on a local disk or in memory, or fewer workers for each trial"
        return Cause("workers wait for storage, the network or one another", _cpus(use), advice)
    if use.cpus is not None and use.cpus >= 2 and _ONE[0] <= use.cpu <= _ONE[1]:
        return Cause("one process does all work and also loads the data", _cpus(use), "num_workers= in the DataLoaders")
    return None


def _of_memory(use: GpuUse) -> Cause | None:
    if use.memory is None or not use.memory_total or use.memory >= _LITTLE * use.memory_total:
        return None
    advice = "larger batches"
    if use.gpus is not None and use.gpus > 1:
        advice += ", or fewer GPUs for each worker"
    elif use.gpus:
        advice += f", or gpus_per_worker={use.gpus / 2:g} for twice as many trials on a GPU"
    return Cause("batches or the model are small", _memory(use), advice)


def _cpus(use: GpuUse) -> str:
    if use.cpu is None:
        return ""
    of = "CPUs" if use.cpus is None else f"of its {use.cpus:g} {'CPU' if use.cpus == 1 else 'CPUs'}"
    return f"a worker uses {use.cpu:.1f} {of}"


def _memory(use: GpuUse) -> str:
    if use.memory is None or not use.memory_total:
        return ""
    return f"at most {use.memory / 1000:.1f} of {use.memory_total / 1000:.1f} GB of GPU memory in use"


def _outside(trials: Iterable[TrialState]) -> float | None:
    """Return the part of the time of trials that came to their end in which they did not train."""
    ended = [trial for trial in trials if trial.state in (FINISHED, STOPPED) and trial.history]
    total = sum(trial.seconds for trial in ended)
    return max(0.0, 1 - sum(trial.trained for trial in ended) / total) if total else None
