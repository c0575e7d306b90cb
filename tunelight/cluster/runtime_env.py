"""How a sweep's code reaches other nodes: Ray's runtime environment, and what of it is for whom."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunelight.compat.ray import JOB_VARIABLE
from tunelight.errors import SettingsError

_FOLDERS: Final = ("working_dir", "py_modules")


def for_job(
    runtime_env: Mapping[str, Any] | None, address: str, storage: Path, here: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return what to connect with: this process's folder goes along where the cluster's head is another machine.

    Args:
        runtime_env: what was asked for; its own working_dir comes first.
        storage: where sweeps lie; it stays here.
        here: this machine's addresses, by interface.
    """
    wanted = dict(runtime_env or {})
    host = address.rpartition(":")[0].strip("[]") if ":" in address else ""
    away = bool(host) and host != "localhost" and not any(host in held for held in here.values())
    if not away or "working_dir" in wanted or JOB_VARIABLE in os.environ:
        return wanted
    cwd, kept = Path.cwd(), storage.expanduser().absolute()
    excludes = list(wanted.get("excludes") or ())
    if kept != cwd and kept.is_relative_to(cwd):
        excludes.append(f"/{kept.relative_to(cwd)}")
    return wanted | {"working_dir": str(cwd), "excludes": excludes}


def for_workers(runtime_env: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what workers are started with: all but folders of this machine, which Ray sends with the job."""
    wanted = {name: value for name, value in (runtime_env or {}).items() if name != "excludes"}
    for name in _FOLDERS:
        if name in wanted and local(wanted[name]):
            del wanted[name]
    return wanted or None


def local(value: Any) -> bool:
    """Tell whether a working_dir, or one of py_modules, is no URI."""
    values = value if isinstance(value, list | tuple) else [value]
    return any("://" not in str(one) for one in values)


def refuse_local(runtime_env: Mapping[str, Any] | None) -> None:
    """Raise SettingsError where a folder was to be sent by a process that is connected already: it is too late."""
    wanted = runtime_env or {}
    for name in _FOLDERS:
        if name in wanted and local(wanted[name]):
            raise SettingsError(
                f"runtime_env has {name}={wanted[name]!r}, a folder that Ray sends when a process connects, but "
                f"this one is connected already. Say it there: ray.init(..., runtime_env={{{name!r}: ...}}); or leave "
                "ray.init to tunelight.run(address=...)."
            )
