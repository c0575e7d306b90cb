"""Which GPUs a process sees: CUDA reads CUDA_VISIBLE_DEVICES once, when the process first uses it.

torch's builds for AMD GPUs call ROCm ``torch.cuda``; there HIP_VISIBLE_DEVICES hides GPUs in the same way.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tunelight.errors import GangError

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP_VISIBLE = "HIP_VISIBLE_DEVICES"
_DRIVER = "libcuda.so.1"
_MIG = "MIG-"


def in_order(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return GPUs, each once: numbers in PCI order, then names (UUIDs, MIG) sorted. Ray lists them in any order."""
    return tuple(sorted(set(gpus), key=lambda gpu: (not gpu.isdecimal(), int(gpu) if gpu.isdecimal() else 0, gpu)))


def visible_gpus(by_rank: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the GPUs of a node's ranks, each once."""
    return in_order(gpu for gpus in by_rank for gpu in gpus)


def is_mig(gpu: str) -> bool:
    """Tell whether this is an instance of a GPU that is divided by MIG, which Ray names by its UUID."""
    return gpu.startswith(_MIG)


def seen_by(own: tuple[str, ...], gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of a node's ``gpus`` a process with the GPUs ``own`` can see, in CUDA's order.

    A process sees one MIG instance and no other GPU, or GPUs that are not divided.
    """
    if own and is_mig(own[0]):
        return own[:1]
    return tuple(gpu for gpu in gpus if not is_mig(gpu))


def visible_variable(build: Any) -> str:
    """Return the variable that hides GPUs from torch; ``build`` is ``torch.version``."""
    return CUDA_VISIBLE if getattr(build, "hip", None) is None else HIP_VISIBLE


def check_usable(own: tuple[str, ...], amount: float, build: Any) -> None:
    """Raise GangError where torch cannot train on the GPUs ``own``, or they are more than Ray gave this worker.

    ``amount``: how many GPUs Ray has assigned; ``build``: ``torch.version``.
    """
    if own and build.cuda is None and getattr(build, "hip", None) is None:
        raise GangError(
            f"Ray gave this worker the GPU {own[0]}, but torch {build.__version__} on {os.uname().nodename} is a build "
            "without CUDA and ROCm. Workers train on NVIDIA's and AMD's GPUs: install such a build of torch there "
            "(https://pytorch.org/get-started/locally), or leave GPUs out (gpus_per_worker=0).",
            "exception",
        )
    variable = visible_variable(build)
    if len(own) > max(1, math.ceil(amount)):
        raise GangError(
            f"Ray gave this worker {amount:g} GPU, and says that it is one of {', '.join(own)}, because {variable} is "
            f"set in its runtime_env. Leave it out there; to hide GPUs from a sweep set {variable} where Ray starts.",
            "exception",
        )


def fixed_gpus(own: tuple[str, ...], count: int | None, variable: str = CUDA_VISIBLE) -> tuple[str, ...]:
    """Return the GPUs that CUDA shows this process from now on; none where the process has not used CUDA yet.

    ``own`` are those that Ray gave it, and ``count`` is how many CUDA shows, None where it is not in use yet. Raises:
    GangError where CUDA does not show the first of ``own``.
    """
    if not own or count is None:
        return ()
    listed = os.environ.get(variable)
    every = tuple(map(str, range(count)))
    shown = every if listed is None else seen_by(own, tuple(gpu.strip() for gpu in listed.split(",") if gpu.strip()))
    if own[0] not in shown:
        was = "was not set" if listed is None else f"was {listed!r}"
        raise GangError(
            f"Ray gave this worker the GPU {own[0]}, but CUDA was first used in its process while {variable} {was}, "
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
