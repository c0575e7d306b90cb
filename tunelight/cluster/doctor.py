"""doctor: checks this machine for everything that tunelight needs, with advice where something is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil
from packaging.requirements import Requirement

from tunelight.cluster.connect import nodes_of
from tunelight.compat.ray import HOW_TO_GET_RAY, missing_internals, untested
from tunelight.machine.metadata import is_installed
from tunelight.machine.versions import versions_of
from tunelight.settings.backends import BACKENDS

_GIB: Final = 1 << 30
_FULL: Final = 0.95
"""Ray places no objects on a disk that is fuller than this."""
_FILES: Final = 4096
"""How many open files a Ray with a dozen workers needs."""

Verdict = Literal["ok", "note", "wrong"]
_NO_SYSTEM: Final[tuple[Verdict, str]] = ("wrong", "tunelight runs on Linux: use a container or a virtual machine.")
_SYSTEMS: Final[dict[str, tuple[Verdict, str]]] = {
    "Linux": ("ok", ""),
    "Darwin": ("note", "Not tested on macOS. Workers train on CPUs; one alone also with accelerator='mps'."),
}


@dataclass(frozen=True)
class Finding:
    """The result of a check: "ok", "note" (it works all the same) or "wrong" (``advice`` says what to do)."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Run all checks. Nothing is started or changed; torch is imported, for its GPUs."""
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _machine, _packages, _gpus, _horovod, _ray, _host, _disks, _shared_memory,
    )  # fmt: skip
    findings: list[Finding] = []
    for look in looks:
        try:
            findings.extend(look())
        except Exception as error:  # noqa: BLE001 - a check that fails must not end the others
            findings.append(Finding(look.__name__.strip("_"), "wrong", f"{type(error).__name__}: {error}"))
    return findings


def _machine() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    text = f"{os.cpu_count()} CPUs, {memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB memory free"
    few = (os.cpu_count() or 1) < 2
    yield Finding("machine", "note" if few else "ok", text, "One CPU trains gangs of one worker only." if few else "")
    system = platform.system()
    level, advice = _SYSTEMS.get(system, _NO_SYSTEM)
    yield Finding("system", level, f"{system} {platform.release()}", advice)
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft < _FILES
    advice = f"ulimit -n {min(hard, 65536)}, before Ray starts" if low else ""
    yield Finding("open files", "note" if low else "ok", f"{soft} allowed", advice)


def _packages() -> Iterator[Finding]:
    if not is_installed():
        said = "on the import path, but not installed: what it requires is not checked"
        yield Finding("tunelight", "note", said, "pip install .")
        return
    for text in importlib.metadata.requires("tunelight") or []:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        version = versions_of([needed.name])[needed.name]
        fits = version is not None and needed.specifier.contains(version, prereleases=True)
        said = "not installed" if version is None else version if fits else f"{version}, wanted {needed.specifier}"
        advice = "" if fits else f"pip install '{needed.name}{needed.specifier}'"
        yield Finding(needed.name, "ok" if fits else "wrong", said, advice)


def _gpus() -> Iterator[Finding]:
    import torch  # seconds

    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield Finding("GPUs", "ok", f"{torch.cuda.device_count()} ({names}), CUDA {torch.version.cuda}")
    elif devices and torch.version.cuda is None:
        advice = "Install torch for your CUDA version: https://pytorch.org/get-started/locally"
        yield Finding("GPUs", "wrong", f"{devices} here, but torch {torch.__version__} is a build for CPUs", advice)
    elif devices:
        advice = "Look at nvidia-smi, and at CUDA_VISIBLE_DEVICES."
        yield Finding("GPUs", "wrong", f"{devices} here, but torch cannot use them", advice)
    else:
        yield Finding("GPUs", "note", "none: trials train on CPUs")


def _horovod() -> Iterator[Finding]:
    if importlib.util.find_spec("horovod") is None:
        advice = BACKENDS["horovod"].how_to_get
        yield Finding("horovod", "note", "not installed; only backend='horovod' needs it", advice)
        return
    version = importlib.metadata.version("horovod")
    try:
        import horovod.torch as hvd  # optional

        gloo = bool(hvd.gloo_built())
    except Exception as error:  # noqa: BLE001 - a build for another torch fails in many ways
        yield Finding("horovod", "wrong", f"{version} does not import: {error}", "Build it again for this torch.")
        return
    advice = "" if gloo else "Build it with HOROVOD_WITH_GLOO=1."
    yield Finding("horovod", "ok" if gloo else "wrong", f"{version}, {'with' if gloo else 'without'} gloo", advice)


def _ray() -> Iterator[Finding]:
    if (note := untested()) is not None:
        yield Finding("ray", "note", note, HOW_TO_GET_RAY)
    if lacking := missing_internals("core", "tune"):
        yield Finding("ray", "wrong", f"lacks {', '.join(lacking)}", HOW_TO_GET_RAY)
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        yield Finding("Ray", "ok", "no RAY_ADDRESS: a sweep starts a Ray of its own on this machine")
        return
    cluster, nodes = nodes_of(address)
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    yield Finding("Ray", "ok", f"{cluster}: {len(nodes)} nodes, {cpus:g} CPUs, {gpus:g} GPUs")


def _host() -> Iterator[Finding]:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        advice = "Add it to /etc/hosts: workers on several nodes meet by it."
        yield Finding("host name", "note", f"{socket.gethostname()} has no address: {error}", advice)


def _disks() -> Iterator[Finding]:
    places = {"sweeps": Path.cwd(), "Ray's files": Path(os.environ.get("RAY_TMPDIR") or "/tmp")}  # noqa: S108 - Ray's own
    for what, place in places.items():
        usage = shutil.disk_usage(place)
        text = f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free at {place}"
        full = usage.used / (usage.used + usage.free) > _FULL
        other = "storage=" if what == "sweeps" else "RAY_TMPDIR"
        advice = f"Make room, or choose another disk by {other}." if full else ""
        yield Finding(what, "wrong" if full else "ok", text, advice)
    if not os.access(Path.cwd(), os.W_OK):
        yield Finding("sweeps", "wrong", f"{Path.cwd()} cannot be written", "Choose another folder by storage=.")


def _shared_memory() -> Iterator[Finding]:
    shared = Path("/dev/shm")  # noqa: S108 - where Ray keeps its objects
    if not shared.is_dir():
        return
    size, memory = shutil.disk_usage(shared).total, psutil.virtual_memory().total
    small = size < 0.1 * memory and size < 2 * _GIB
    advice = "In Docker: --shm-size=2g. Ray keeps objects on disk otherwise, which is slow." if small else ""
    yield Finding("shared memory", "note" if small else "ok", f"{size / _GIB:.1f} GiB in {shared}", advice)
