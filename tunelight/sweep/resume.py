"""resume(): resume a sweep from its folder alone, with the settings in sweep.yaml."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tunelight import stores
from tunelight.compat.lightning import prefer
from tunelight.errors import (
    ImportPathError,
    SettingsError,
    SpaceError,
    StorageError,
    TunelightError,
    check_keywords,
    known_arguments,
)
from tunelight.record import RECORD_FILE, SWEEP_FILE, has_record, list_sweeps, reaching, read_sweep_file
from tunelight.results import SweepResults
from tunelight.settings import NAMES
from tunelight.space import SearchSpace
from tunelight.space.files import importable
from tunelight.space.plain import Objects
from tunelight.stores.masking import MASK, masked_in
from tunelight.sweep.past import CODE
from tunelight.sweep.run import run

_log = logging.getLogger("tunelight")

_LEFT: Final = ("storage", "name", "address", "resume", "seed", "web")
"""Settings that are not read back: storage, name and seed follow from the folder, the others are today's."""


@known_arguments
def resume(path: str | os.PathLike[str], **overrides: Any) -> SweepResults:
    """Resume the sweep in ``path``: ``run(..., resume=True)`` with the settings that it was run with.

    Args:
        path: the sweep's folder, storage/name, or its URL.
        overrides: settings of ``run`` to change: ``num_samples=40`` adds trials up to 40. ``address=`` and ``web=`` are
            not kept from the last run (None: an initialised Ray, RAY_ADDRESS, or a local one). Objects, which
            sweep.yaml cannot hold, have to be given again.

    Returns: the results; at once if nothing is left to do.
    Raises: StorageError if ``path`` is not a sweep; SettingsError, ImportPathError, SpaceError if a part of it cannot
        be read back; then call ``run(..., resume=True)`` from the sweep's script. Runs on: driver.
    """
    check_keywords("tl.resume()", overrides, [name for name in NAMES if name not in ("storage", "name")])
    folder = stores.working(path).absolute()
    with reaching(folder):
        known = has_record(folder)
    if not known:
        inside = sorted(sweep.folder.name for sweep in list_sweeps(folder))
        raise StorageError(
            f"{stores.shown(folder)} is no sweep: it holds no {RECORD_FILE}. Give the folder of one sweep, "
            "storage/name." + (f" Sweeps in it: {', '.join(inside)}." if inside else "")
        )
    sweep_file = read_sweep_file(folder)
    if not sweep_file:
        raise StorageError(
            f"{folder} holds no {SWEEP_FILE}, so what the sweep was told is not known. Call tunelight.run(..., "
            f"storage={str(folder.parent)!r}, name={folder.name!r}, resume=True) as the sweep was started."
        )
    prefer(sweep_file.get("lightning"))
    settings = {**_read_back(folder, sweep_file, overrides), "resume": True, **overrides}
    with beside(sweep_file):
        return run(_space(folder, sweep_file), storage=stores.shown(folder.parent), name=folder.name, **settings)


def beside(sweep_file: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Make modules beside the sweep's space file importable, as when it was started."""
    file = (sweep_file.get("run") or {}).get("file")
    return importable(Path(file).parent) if file else contextlib.nullcontext()


def _read_back(folder: Path, sweep_file: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of sweep.yaml that are not overridden."""
    left = {*_LEFT, *overrides, *(("workers",) if sweep_file.get("resources_per_trial") else ())}
    settings = {name: sweep_file[name] for name in NAMES if name in sweep_file and name not in left}
    if settings.get("runtime_env"):
        settings["runtime_env"] = _with_variables(folder, settings["runtime_env"])
    for name, value in settings.items():
        if secret := next(masked_in(name, value), None):
            raise SettingsError(
                f"{folder / SWEEP_FILE} does not hold the secret in {secret}, only {MASK} in its place. Give it again: "
                f"tunelight.resume(path, {name}=...), --set '{name}=...', or run(..., resume=True) from the sweep's "
                "script."
            )
        if name in CODE:
            if str(value).startswith("__main__:") or "<" in str(value):
                raise ImportPathError(
                    f"The sweep {folder} has {name}={value}, which only the script or notebook that started it can "
                    f"define. Start that again with run(..., name={folder.name!r}, resume=True), or give {name}= to "
                    "resume()."
                )
        elif place := next(_objects(name, value), None):
            where, kind = place
            raise SettingsError(
                f"{folder / SWEEP_FILE} holds only the name of {where}, an object of {kind}. Give it again: "
                f"tunelight.resume(path, {name}=...), or call run(..., resume=True) from the sweep's script."
            )
    return settings


def _with_variables(folder: Path, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded runtime environment, with the values of its variables from this process's environment.

    Raises: SettingsError if a variable is not set.
    """
    names = [name for name, value in (runtime_env.get("env_vars") or {}).items() if value == MASK]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SettingsError(
            f"{folder / SWEEP_FILE} holds the names of runtime_env's variables, not their values, and "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set here. Set that in this process's "
            "environment, or give it again: tunelight.resume(path, runtime_env={'env_vars': {...}}), or --set "
            "'runtime_env={env_vars: {...}}'."
        )
    if not names:
        return dict(runtime_env)
    _log.warning("runtime_env: the values of %s are those of this process's environment.", ", ".join(names))
    return {**runtime_env, "env_vars": {**runtime_env["env_vars"], **{name: os.environ[name] for name in names}}}


def _objects(where: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield place and kind of each object that sweep.yaml could not hold."""
    if isinstance(value, Mapping):
        if value.keys() == {"object"}:
            yield where, str(value["object"])
        else:
            for key, part in value.items():
                yield from _objects(f"{where}[{key!r}]", part)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _objects(f"{where}[{index}]", part)


def _space(folder: Path, sweep_file: Mapping[str, Any]) -> SearchSpace:
    try:
        script = {} if sweep_file.get("script") is None else {"script": sweep_file["script"]}
        space = SearchSpace(sweep_file.get("space") or {}, require=sweep_file.get("require") or (), **script)
        space.objects = Objects.recalled(sweep_file.get("space_objects"), strict=True)
        return space
    except TunelightError as error:
        raise SpaceError(
            f"The search space in {folder / SWEEP_FILE} cannot be read back: {error} Call run(..., "
            f"name={folder.name!r}, resume=True) from the sweep's script."
        ) from error
