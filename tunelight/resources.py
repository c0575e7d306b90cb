"""The resources of a trial: one placement group with a bundle for the head and one for each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tunelight.errors import ResourceError, SettingsError, refuse_unknown
from tunelight.messages import Evaluation
from tunelight.settings import check_setting, checks

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

_CLOSE = 1e-9
_OTHER_DEVICES = ("TPU", "HPU", "NPU", "neuron_cores", "RBLN", "FURIOSA", "MBLT", "TTNPU")
"""Names under which Ray counts accelerators that are no GPUs. Read in 2.60.0."""
_WORDS = ("cpu", "gpu", "extra_cpu", "extra_gpu", "custom_resources", "extra_custom_resources")


@dataclass(frozen=True)
class Reservation:
    """The resources of one trial: a head, and ``workers`` equal workers (CPUs and GPUs may be fractions).

    An elastic gang can train with ``least`` workers. ``most``: its wanted size, if it starts with fewer.
    """

    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    head_cpus: float = 0
    head_gpus: float = 0
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    head_resources: Mapping[str, float] = field(default_factory=dict)
    least: int | None = None
    most: int | None = None

    @property
    def head(self) -> dict[str, float]:
        """The head's bundle; empty if it reserves nothing."""
        return _bundle(self.head_cpus, self.head_gpus, self.head_resources)

    @property
    def worker(self) -> dict[str, float]:
        """One worker's bundle."""
        return _bundle(self.cpus_per_worker, self.gpus_per_worker, self.resources_per_worker)

    @property
    def bundles(self) -> list[dict[str, float]]:
        """All bundles that are not empty, the head's first."""
        return [bundle for bundle in (self.head, *[self.worker] * self.workers) if bundle]

    @property
    def evaluation(self) -> Evaluation:
        """How its gang evaluates unless something else is chosen: a gang that changes its size, exactly."""
        return "ddp" if self.least is None else "exact"

    @property
    def wanted(self) -> int:
        """The size that its gang is meant to have."""
        return max(self.workers, self.most or 0)

    def nearest(self, size: int) -> int | None:
        """Return the size of its gang that is nearest to ``size``; None where that is fixed."""
        return None if self.least is None else min(max(size, self.least), self.wanted)

    @property
    def first_bundle(self) -> int:
        """The index of worker 0's bundle."""
        return 1 if self.head else 0

    @cached_property
    def factory(self) -> PlacementGroupFactory:
        """The reservation for Ray Tune, one object for all trials. An empty head is placed on worker 0's bundle."""
        from ray.tune import PlacementGroupFactory  # an import of a second

        return PlacementGroupFactory([self.head, *[self.worker] * self.workers], strategy="PACK")

    def starting(self, size: int) -> Reservation:
        """Return the reservation of an elastic gang that starts with ``size`` workers, for a scheduler that resizes it.

        Raises: SettingsError unless the gang is elastic and can have that size.
        """
        if self.nearest(size) != size:
            possible = f"{self.wanted}" if self.least is None else f"{self.least} to {self.wanted}"
            raise SettingsError(
                f"A gang of {possible} workers cannot start with {size}. Give workers=(least, most), and a start= "
                "between the two."
            )
        return replace(self, workers=size, most=self.wanted)

    def __str__(self) -> str:
        each, head = (
            " + ".join(f"{amount:g} {name}" for name, amount in bundle.items()) or "0 CPU"
            for bundle in (self.worker, self.head)
        )
        return f"{self.workers} worker{'' if self.workers == 1 else 's'} x {each}, coordinator {head}"


def _bundle(cpus: float, gpus: float, custom: Mapping[str, float]) -> dict[str, float]:
    named = {"CPU": float(cpus), "GPU": float(gpus), **{name: float(n) for name, n in custom.items()}}
    return {name: amount for name, amount in named.items() if amount}


def reserve(
    workers: int | tuple[int, int] | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    resources_per_trial: Mapping[str, Any] | None = None,
) -> Reservation:
    """Return the reservation for workers given directly, or in Ray Tune's older terms ``cpu`` and ``extra_cpu``.

    Args:
        workers: their number, (least, wanted) for an elastic gang, or None: derived from ``resources_per_trial``.
        cpus_per_worker, gpus_per_worker: resources of each worker.
        resources_per_trial: {"cpu": head, "extra_cpu": all workers together, "gpu", "extra_gpu", ...}.

    Raises: SettingsError if the two contradict each other, do not divide evenly, or a word is unknown.
    """
    least = None
    if workers is not None:
        workers = check_setting("workers", workers)
    if isinstance(workers, tuple):
        least, workers = workers
    check_setting("cpus_per_worker", cpus_per_worker)
    check_setting("gpus_per_worker", gpus_per_worker)
    words = dict(resources_per_trial or {})
    refuse_unknown("resources_per_trial has no key", words, _WORDS)
    words = {word: _amount(word, value) for word, value in words.items() if value is not None}
    if words.get("gpu") and not (words.get("extra_gpu") or gpus_per_worker):
        raise SettingsError(
            f"resources_per_trial holds gpu={words['gpu']:g}, which is for the head of a trial, and the head trains "
            "nothing. For workers say gpus_per_worker=, or extra_gpu, the GPUs of all workers together."
        )
    extra = {name: float(words.get(name, 0) or 0) for name in ("extra_cpu", "extra_gpu")}
    of_each = {
        "extra_gpu": ("gpus_per_worker", gpus_per_worker),
        "extra_cpu": ("cpus_per_worker", cpus_per_worker),
    }
    if workers is None:
        workers = _derived(extra, of_each)
    for word, (name, each) in of_each.items():
        if word in words and abs(extra[word] - workers * each) > 1e-9:
            raise SettingsError(
                f"resources_per_trial holds {word}={extra[word]:g}, but workers={workers} with {name}={each:g} "
                f"hold {workers * each:g} together. Make them agree, or leave one spelling out."
            )
    custom = {name: total / workers for name, total in dict(words.get("extra_custom_resources") or {}).items()}
    check_devices(gpus_per_worker, custom)
    return Reservation(
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        head_cpus=float(words.get("cpu", 0) or 0),
        head_gpus=float(words.get("gpu", 0) or 0),
        resources_per_worker=custom,
        head_resources=dict(words.get("custom_resources") or {}),
        least=least,
    )


def check_devices(gpus: float, custom: Mapping[str, float], name: str = "gpus_per_worker") -> None:
    """Raise SettingsError where a worker asks for more than one GPU, or for what it cannot train on.

    ``name``: how the number of GPUs is called where the user gave it; ``custom``: other resources of a worker.
    """
    checks.gpus(name, gpus)
    if custom.get("GPU"):
        raise SettingsError("GPUs are no custom resource: say gpus_per_worker=1, or extra_gpu in resources_per_trial.")
    for device in _OTHER_DEVICES:
        if custom.get(device):
            raise SettingsError(
                f"Workers cannot train on {device}, of which {custom[device]:g} is asked for each: they train on CPUs, "
                "on NVIDIA's GPUs (CUDA) and on AMD's (ROCm), with gpus_per_worker=1. Leave it out."
            )


def _amount(word: str, value: Any) -> Any:
    """Return one value of ``resources_per_trial``: a number, or numbers by name. Raises: SettingsError."""
    if word.endswith("custom_resources"):
        if not isinstance(value, Mapping):
            raise SettingsError(f"resources_per_trial: {word} must be a dict of names and numbers, not {value!r}.")
        return {str(name): _amount(f"{word}[{name!r}]", amount) for name, amount in value.items()}
    return checks.number(f"resources_per_trial: {word}", value, zero=True)


def _derived(extra: Mapping[str, float], of_each: Mapping[str, tuple[str, float]]) -> int:
    for word, (name, each) in of_each.items():
        if extra[word] and each:
            count = extra[word] / each
            if abs(count - round(count)) > 1e-9 or round(count) < 1:
                raise SettingsError(
                    f"{word}={extra[word]:g} is no multiple of {name}={each:g}: {count:g} workers. Change one "
                    "of them, or say workers=."
                )
            return round(count)
    return 1


def check_fits(
    reservation: Reservation,
    nodes: Sequence[Mapping[str, float]],
    *,
    who: str = "A trial",
    spread: bool = False,
    data_cpus: float = 0,
) -> None:
    """Raise ResourceError unless a cluster with these nodes could ever hold the gang.

    Args:
        reservation: the gang's.
        nodes: resources by name, for each node.
        who: what needs the gang, for the message.
        spread: place each bundle on a node of its own.
        data_cpus: CPUs to leave free for preprocessing datasets.
    """
    misfit = _misfit(reservation, nodes, who, "a node for each worker, " if spread else "")
    if any(amount > _held(name, nodes) + _CLOSE for name, amount in _wanted(reservation).items()):
        raise ResourceError(misfit)  # at once: a mistyped number of workers may be a very large one
    free = [dict(node) for node in nodes]
    if not _take(reservation, free, spread):
        raise ResourceError(misfit)
    if not _leaves(free, data_cpus):
        held = sum(bundle.get("CPU", 0) for bundle in reservation.bundles)
        raise ResourceError(
            f"{who} needs {reservation}, {held:g} of the {sum(node.get('CPU', 0) for node in nodes):g} CPUs here, and "
            f"that leaves too little for preprocessing its datasets, which runs outside of trials on data_cpus="
            f"{data_cpus:g} whole CPUs: trials would wait for data for ever. Ask for fewer workers, or for fewer CPUs "
            "for each, or add nodes; or say data_cpus=0 where datasets are cached and trials preprocess nothing."
        )


def trials_at_once(
    reservation: Reservation, nodes: Sequence[Mapping[str, float]], data_cpus: float, most: int = 1000
) -> int:
    """Return how many trials, up to ``most``, can run at once with ``data_cpus`` whole CPUs left free."""
    free = [dict(node) for node in nodes]
    for count in range(most):
        if not _take(reservation, free) or not _leaves(free, data_cpus):
            return count
    return most


def _leaves(free: Sequence[Mapping[str, float]], data_cpus: float) -> bool:
    """Tell whether ``data_cpus`` CPUs are free, counted in whole CPUs of a node: Ray Data's tasks take one each."""
    return not data_cpus or sum((node.get("CPU", 0) + 1e-9) // 1 for node in free) + 1e-9 >= data_cpus


def _take(reservation: Reservation, free: list[dict[str, float]], spread: bool = False) -> bool:
    """Take a gang's bundles from the nodes' free resources, each from the fullest node; False if one does not fit."""
    for bundle in sorted(reservation.bundles, key=lambda bundle: -sum(bundle.values())):
        for node in sorted(free, key=lambda node: sum(node.get(name, 0) for name in bundle)):
            if all(node.get(name, 0) + _CLOSE >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                if spread:
                    free.remove(node)
                break
        else:
            return False
    return True


def fitted(
    reservation: Reservation,
    nodes: Sequence[Mapping[str, float]],
    *,
    who: str = "A trial",
    spread: bool = False,
    data_cpus: float = 0,
) -> Reservation:
    """Return the largest reservation that a cluster with these nodes can hold; smaller only for an elastic gang.

    With ``data_cpus`` a smaller gang does not grow later: it would take what preprocessing needs. Arguments as in
    :func:`check_fits`. Raises: ResourceError if not even its least size fits.
    """
    wanted = reservation.workers

    def sized(workers: int) -> Reservation:
        if workers == wanted:
            return reservation
        return replace(reservation, workers=workers, most=None if data_cpus else wanted)

    fits, most = reservation.least or wanted, wanted
    check_fits(sized(fits), nodes, who=who, spread=spread, data_cpus=data_cpus)
    while fits < most:  # who fits, fits with less
        middle = (fits + most + 1) // 2
        try:
            check_fits(sized(middle), nodes, who=who, spread=spread, data_cpus=data_cpus)
            fits = middle
        except ResourceError:
            most = middle - 1
    return sized(fits)


def _wanted(reservation: Reservation) -> dict[str, float]:
    """Return the total resources of a gang, head and workers."""
    wanted = dict(reservation.head)
    for name, amount in reservation.worker.items():
        wanted[name] = wanted.get(name, 0) + amount * reservation.workers
    return wanted


def _held(name: str, nodes: Sequence[Mapping[str, float]]) -> float:
    return sum(node.get(name, 0) for node in nodes)


def _misfit(reservation: Reservation, nodes: Sequence[Mapping[str, float]], who: str, spread: str) -> str:
    wanted = _wanted(reservation)
    total = ", ".join(f"{amount:g} {name} (there are {_held(name, nodes):g})" for name, amount in wanted.items())
    largest = ", ".join(f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}" for name in wanted)
    return (
        f"{who} needs {reservation}: {spread}together {total}. This cluster of {len(nodes)} node"
        f"{'' if len(nodes) == 1 else 's'} (the largest has {largest}) can never hold it, so nothing would "
        "start. Ask for fewer workers, or for fewer CPUs or GPUs for each, or add nodes."
    )
