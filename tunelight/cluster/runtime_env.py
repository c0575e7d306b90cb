"""Ray's runtime environment, by which a sweep's code reaches other nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunelight.compat.ray import JOB_VARIABLE
from tunelight.errors import SettingsError

_FOLDERS: Final = ("working_dir", "py_modules")
OTHER_PYTHON: Final = frozenset(
    {"py_executable", "pip", "conda", "uv", "container", "image_uri", "nsight", "rocprof_sys"}
)
"""Fields of a runtime_env that start workers by another Python, or by another program."""


def for_job(
    runtime_env: Mapping[str, Any] | None, address: str, storage: Path, here: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return the runtime environment of the job, with this process's folder where the head is another machine.

    Args:
        runtime_env: the user's; its working_dir is kept.
        storage: the folder of sweeps, which is not sent.
        here: this machine's addresses, by interface.
    """
    env = dict(runtime_env or {})
    host = address.rpartition(":")[0].strip("[]") if ":" in address else ""
    away = bool(host) and host != "localhost" and not any(host in held for held in here.values())
    if not away or "working_dir" in env or JOB_VARIABLE in os.environ:
        return env
    cwd, kept = Path.cwd(), storage.expanduser().absolute()
    excludes = list(env.get("excludes") or ())
    if kept != cwd and kept.is_relative_to(cwd):
        excludes.append(f"/{kept.relative_to(cwd)}")
    return env | {"working_dir": str(cwd), "excludes": excludes}


def for_workers(runtime_env: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the runtime environment of workers: without local folders, which Ray sends with the job."""
    items = (runtime_env or {}).items()
    kept = {name: value for name, value in items if not (name in _FOLDERS and local(value)) and name != "excludes"}
    return kept or None


def local(value: Any) -> bool:
    """Tell whether a working_dir, or one of py_modules, is a folder and no URI."""
    values = value if isinstance(value, list | tuple) else [value]
    return any("://" not in str(path) for path in values)


def refuse_local(runtime_env: Mapping[str, Any] | None) -> None:
    """Raise SettingsError for a local folder in this process, which is connected already: it can send none."""
    env = runtime_env or {}
    for name in _FOLDERS:
        if name in env and local(env[name]):
            raise SettingsError(
                f"runtime_env has {name}={env[name]!r}, a folder that Ray sends when a process connects, but "
                f"this one is connected already. Say it there: ray.init(..., runtime_env={{{name!r}: ...}}); or leave "
                "ray.init to tunelight.run(address=...)."
            )
