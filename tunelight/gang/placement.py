"""The order of ranks: those of a node follow one another, and the head's node comes first."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup

from tunelight.compat.ray import session_folder
from tunelight.errors import GangError
from tunelight.gang.meeting.rendezvous import LOOPBACK
from tunelight.messages import Place


@dataclass(frozen=True, slots=True)
class Location:
    """Where a worker runs."""

    node_id: str
    address: str
    pid: int
    hostname: str
    gpus: tuple[str, ...] = ()
    """The GPUs that Ray gave it: numbers in PCI order, or UUIDs."""
    seen: tuple[str, ...] = ()
    """The GPUs that CUDA shows its process, in CUDA's order; fixed at its first meeting, empty before."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Installed versions of what has to be the same on all ranks."""


class Assigned(NamedTuple):
    """What Ray knows of a worker: its node, its GPUs, how much of them it has, and the session's folder there."""

    node_id: str
    address: str
    gpus: tuple[str, ...]
    share: float
    folder: str

    @classmethod
    def here(cls) -> Assigned:
        """Return this worker's."""
        context = ray.get_runtime_context()
        gpus = in_order(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
        share = float(context.get_assigned_resources().get("GPU", 0))
        return cls(context.get_node_id(), ray.util.get_node_ip_address(), gpus, share, str(session_folder()))


def arrange(
    locations: Sequence[Location], head_node: str | None = None, *, roams: bool = False
) -> list[tuple[int, Place]]:
    """Return (index of the worker, its place) in rank order.

    The gang meets on the loopback interface if all its workers share one node and it does not ``roam`` (see
    :attr:`tunelight.gang.spec.GangSpec.roams`), else at the nodes' addresses. A process that has met before keeps the
    list of GPUs that it saw then, and the index of its own GPU counts in that list. Ranks of a node are in the order of
    their GPUs, so that in a new gang with a GPU for each rank the local rank is the GPU's index, as libraries expect.
    """
    by_node: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        by_node.setdefault(location.node_id, []).append(index)
    nodes = list(by_node)
    if head_node in by_node:
        nodes.sort(key=lambda node: node != head_node)
    alone = len(nodes) == 1 and not roams
    placed: list[tuple[int, Place]] = []
    for node_rank, node in enumerate(nodes):
        here = by_node[node]
        gpus = in_order(gpu for index in here for gpu in locations[index].gpus)
        here.sort(key=lambda index: gpus.index(locations[index].gpus[0]) if locations[index].gpus else 0)
        for local_rank, index in enumerate(here):
            location = locations[index]
            seen = location.seen or seen_by(location.gpus, gpus)
            place = Place(
                rank=len(placed),
                world_size=len(locations),
                local_rank=local_rank,
                local_world_size=len(here),
                node_rank=node_rank,
                interface=LOOPBACK if alone else location.address,
                gpus=seen,
                gpu=seen.index(location.gpus[0]) if location.gpus else None,
                nodes=len(nodes),
            )
            placed.append((index, place))
    return placed


def layout(places: Sequence[Place]) -> tuple[int, ...]:
    """Return how many ranks each node has, in node order."""
    nodes = [place.node_rank for place in places]
    return tuple(nodes.count(node) for node in dict.fromkeys(nodes))


def current_group() -> PlacementGroup | None:
    """Return the placement group of the trial in this process, or None outside of trials."""
    return ray.util.get_current_placement_group() if ray.is_initialized() else None


def assigned() -> dict[str, float]:
    """Return the resources that Ray has assigned to this worker process; none where this process is no worker."""
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return {}
    return dict(ray.get_runtime_context().get_assigned_resources())


# --- Which GPUs a process sees ---------------------------------------------------------------------


CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP_VISIBLE = "HIP_VISIBLE_DEVICES"
_DRIVER = "libcuda.so.1"
_MIG = "MIG-"


def in_order(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return GPUs, each once: numbers in PCI order, then names (UUIDs, MIG) sorted. Ray lists them in any order."""
    return tuple(sorted(set(gpus), key=lambda gpu: (not gpu.isdecimal(), int(gpu) if gpu.isdecimal() else 0, gpu)))


def is_mig(gpu: str) -> bool:
    """Tell whether this is an instance of a GPU that is divided by MIG, which Ray names by its UUID."""
    return gpu.startswith(_MIG)


def seen_by(given: tuple[str, ...], gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of a node's ``gpus`` a process with the GPUs ``given`` can see, in CUDA's order.

    A process sees one MIG instance and no other GPU, or GPUs that are not divided.
    """
    if given and is_mig(given[0]):
        return given[:1]
    return tuple(gpu for gpu in gpus if not is_mig(gpu))


def visible_variable(build: Any) -> str:
    """Return the variable that hides GPUs from torch; ``build`` is ``torch.version``."""
    return CUDA_VISIBLE if getattr(build, "hip", None) is None else HIP_VISIBLE


def check_usable(gpus: tuple[str, ...], amount: float, build: Any) -> None:
    """Raise GangError where torch cannot train on the GPUs ``gpus``, or they are more than Ray gave this worker.

    ``amount``: how many GPUs Ray has assigned; ``build``: ``torch.version``.
    """
    if gpus and build.cuda is None and getattr(build, "hip", None) is None:
        raise GangError(
            f"Ray gave this worker the GPU {gpus[0]}, but torch {build.__version__} on {os.uname().nodename} is a "
            "build without CUDA and ROCm. Workers train on NVIDIA's and AMD's GPUs: install such a build of torch "
            "there (https://pytorch.org/get-started/locally), or leave GPUs out (gpus_per_worker=0).",
            "exception",
        )
    variable = visible_variable(build)
    if len(gpus) > max(1, math.ceil(amount)):
        raise GangError(
            f"Ray gave this worker {amount:g} GPU, and says that it is one of {', '.join(gpus)}, because {variable} is "
            f"set in its runtime_env. Leave it out there; to hide GPUs from a sweep set {variable} where Ray starts.",
            "exception",
        )


def fixed_gpus(given: tuple[str, ...], count: int | None, variable: str = CUDA_VISIBLE) -> tuple[str, ...]:
    """Return the GPUs that CUDA shows this process from now on; none where the process has not used CUDA yet.

    ``given`` are those that Ray gave it, and ``count`` is how many CUDA shows, None where it is not in use yet. Raises:
    GangError where CUDA does not show the first of ``given``.
    """
    if not given or count is None:
        return ()
    listed = os.environ.get(variable)
    every = tuple(map(str, range(count)))
    shown = every if listed is None else seen_by(given, tuple(gpu.strip() for gpu in listed.split(",") if gpu.strip()))
    if given[0] not in shown:
        was = "was not set" if listed is None else f"was {listed!r}"
        raise GangError(
            f"Ray gave this worker the GPU {given[0]}, but CUDA was first used in its process while {variable} {was}, "
            "and it never reads that again. Leave the variable as Ray sets it in init_hook= and in what it imports.",
            "exception",
        )
    return shown


def cuda_devices(load: Callable[[str], Any] = ctypes.CDLL) -> int | None:
    """Return how many GPUs CUDA shows this process, by a call to its driver that does not initialise it.

    None where CUDA is not initialised.
    """
    try:
        driver = load(_DRIVER)
    except OSError:
        return None
    count = ctypes.c_int()
    return count.value if driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else None
