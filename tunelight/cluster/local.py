"""The Ray that tunelight starts on this machine, which stays for a while after the run that it was started for.

Its workers are forked (:mod:`tunelight.extras.forks`), so that a second run waits for neither Ray nor imports.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ray

from tunelight.compat.lightning import FABRIC, flavour
from tunelight.compat.ray import JOB_VARIABLE, LOCAL_RAY, is_client, session_folder, setup_worker
from tunelight.errors import SettingsError

if TYPE_CHECKING:
    from tunelight.extras.forks.ready import ForkServer
    from tunelight.resources import Reservation
    from tunelight.settings import Settings

_LOCK = threading.RLock()
"""Held while what is kept begins, ends or is looked at: a timer may end it meanwhile."""
KEEP_S = 300.0
"""How long it stays without a run."""


@dataclass(eq=False)
class LocalRay:
    """A local Ray of this process's own.

    Attributes:
        asked: what it was started with.
        inherited: what its workers have from this process: environment, working directory, import paths.
        added: environment variables that Ray set when it started.
        pid: the process that has started it; a fork of that process does not own it.
        stays: until this process ends, since objects of the user's may be there.
    """

    asked: tuple[Any, ...]
    inherited: tuple[Any, ...]
    added: frozenset[str]
    server: ForkServer | None
    session: str
    pid: int
    stays: bool
    timer: threading.Timer | None = None

    @property
    def lives(self) -> bool:
        """Whether this process is still connected to it."""
        return ray.is_initialized() and session_folder() == self.session

    def fits(self, asked: tuple[Any, ...]) -> bool:
        """Whether one that would be started now would be the same."""
        return (self.asked, self.inherited) == (asked, _inherited(self.added))

    def hold(self) -> None:
        """Keep it until ``schedule_shutdown``."""
        with _LOCK:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    def schedule_shutdown(self) -> None:
        """End it after ``KEEP_S`` seconds, unless it is held again or stays."""
        with _LOCK:
            self.hold()
            self.inherited = _inherited(self.added)  # libraries that were imported meanwhile have set variables
            if self.stays or _Process.blocks:
                return
            self.timer = threading.Timer(KEEP_S, self._end_of_rest)
            self.timer.daemon = True
            self.timer.name = "tunelight-local-ray"
            self.timer.start()

    def _end_of_rest(self) -> None:
        with _LOCK:
            if self.timer is not threading.current_thread() or _Process.kept is not self:
                return
            if self.lives and _in_use():
                self.schedule_shutdown()
            else:
                shutdown()


class _Process:
    """What this process has started, and who forks workers on a Ray that it found."""

    kept: LocalRay | None = None
    found: tuple[str, int, ForkServer] | None = None
    blocks: int = 0
    """How many blocks of ``ready`` there are, one within another."""


def kept() -> LocalRay | None:
    """Return the Ray that this process has started by :func:`start`, if it is still there."""
    with _LOCK:
        mine = _Process.kept
        return mine if mine is not None and mine.pid == os.getpid() and mine.lives else None


def start(
    runtime_env: Mapping[str, Any] | None,
    verbose: int,
    threads: int = 1,
    *,
    fork: bool = True,
    as_it_is: bool = False,
    stays: bool = False,
) -> LocalRay:
    """Start a Ray on this machine, or take the one that was kept, if it was started in the same way.

    Args:
        runtime_env: of the job.
        threads: how many CPUs each worker has.
        fork: fork workers where that is possible.
        as_it_is: take a kept one however it was started, for the caller may have objects there.
        stays: keep a Ray that is started here until this process ends.

    Raises: SettingsError if the kept Ray has to be taken, and its workers cannot have the ``runtime_env``.
    """
    with _LOCK:
        modules = (flavour(), FABRIC[flavour()])
        asked = (dict(runtime_env or {}), verbose, threads, fork, modules)
        before = kept()
        if before is not None and (as_it_is or before.stays or before.fits(asked)):
            if not before.fits(asked):
                _refuse(runtime_env)
            before.hold()
            before.stays = before.stays or stays
            return before
        if _Process.kept is not None:
            shutdown()
        variables = set(os.environ)
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15: beside other work a fraction of a core
        env = dict(runtime_env or {})
        server = fork_server(env, threads) if fork else None
        try:
            if server is not None:
                server.start(env.get("env_vars") or {})
                env["py_executable"] = server.py_executable
            with setup_worker(server.setup_worker) if server is not None else contextlib.nullcontext():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    runtime_env=env or None,
                    log_to_driver=verbose > 0,
                    logging_level=logging.INFO if verbose > 1 else logging.ERROR,
                    **LOCAL_RAY,
                )
        except BaseException:
            for name in os.environ.keys() - variables:
                del os.environ[name]
            if server is not None:
                server.remove()
            raise
        added = frozenset(os.environ.keys() - variables)
        _Process.kept = LocalRay(asked, _inherited(added), added, server, session_folder(), os.getpid(), stays)
        return _Process.kept


def env_of_workers(settings: Settings, reservation: Reservation) -> dict[str, Any] | None:
    """Return the ``runtime_env`` of a sweep's workers."""
    env = for_workers(settings.runtime_env)
    return with_forks(env, reservation.cpus_per_worker) if settings.reuse_gangs is not False else env


def with_forks(runtime_env: Mapping[str, Any] | None, cpus: float) -> dict[str, Any] | None:
    """Return the ``runtime_env`` with which workers are forked: on a Ray that tunelight started, they are anyway.

    Another Ray can fork them if all its nodes are on this machine, with the same Python and folders.
    """
    env = dict(runtime_env or {})
    threads = threads_of(cpus)
    server = fork_server({**ray.get_runtime_context().runtime_env, **env}, threads) if kept() is None else None
    if server is None or not _alone():
        return env or None
    if _Process.found is None or _Process.found[:2] != (session_folder(), threads):
        _Process.found = session_folder(), threads, server
    return env | {"py_executable": _Process.found[2].py_executable}


def fork_server(runtime_env: Mapping[str, Any] | None, threads: int) -> ForkServer | None:
    """Return a server that forks workers; None where they cannot be forked."""
    try:
        from tunelight.extras.forks.ready import ForkServer, possible
    except ModuleNotFoundError:  # a package without its extras: Ray starts each worker as a new Python
        return None
    if not possible() or OTHER_PYTHON & (runtime_env or {}).keys():
        return None
    return ForkServer((flavour(), FABRIC[flavour()]), threads)


def threads_of(cpus: float) -> int:
    """Return how many threads Ray lets a worker's libraries use, with that many CPUs."""
    return max(1, int(cpus))


def _alone() -> bool:
    """Tell whether all nodes of the cluster are on this machine, and so is this process."""
    if is_client():
        return False
    here = ray.util.get_node_ip_address()
    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} == {here}


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """Keep what is ready for the next run until the end of a ``with`` block, and end it there.

    Without it the Ray that a run has started stays for five minutes. Blocks may be nested; the outermost ends it. Runs
    on: driver.
    """
    _Process.blocks += 1
    try:
        yield
    finally:
        _Process.blocks -= 1
        if not _Process.blocks:
            shutdown()


def _refuse(runtime_env: Mapping[str, Any] | None) -> None:
    """Raise SettingsError for parts of ``runtime_env`` that only a new Ray could have."""
    refuse_local(runtime_env)
    if other := sorted(OTHER_PYTHON & (runtime_env or {}).keys()):
        raise SettingsError(
            f"runtime_env has {', '.join(other)}, which needs a new Ray, but the one of this process may hold datasets "
            "or a Trainer's workers, and stays. Call tunelight.shutdown() first, and make such objects after it."
        )


def shutdown() -> None:
    """End what tunelight keeps ready in this process for five minutes after a run: idle gangs, and its own Ray.

    The end of the process ends them too. It may be called more than once. Runs on: driver.
    """
    with _LOCK:
        if (pools := sys.modules.get("tunelight.extras.standalone.pool")) is not None:
            pools.pool.close()
        ended, _Process.kept = _Process.kept, None
        if ended is None or ended.pid != os.getpid():
            return
        ended.hold()
        if ended.lives:
            ray.shutdown()
        for name in ended.added & os.environ.keys():  # RAY_AUTH_MODE, PYTHONBREAKPOINT: Ray's own
            del os.environ[name]
        if ended.server is not None:
            ended.server.remove()


def _in_use() -> bool:
    """Tell whether anybody holds resources of this Ray, such as the user's own tasks."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return any(free.get(name, 0.0) < total[name] for name in ("CPU", "GPU") if name in total)


def _inherited(added: frozenset[str]) -> tuple[Any, ...]:
    """Return what processes of a Ray have from the process that starts it, beside what Ray ``added``."""
    variables = {name: value for name, value in os.environ.items() if name not in added}
    packages = f"{sysconfig.get_path('purelib')}/"  # Ray adds a folder of its own in every process
    paths = dict.fromkeys(path for path in sys.path if not path.startswith(packages))  # once each
    return variables, str(Path.cwd()), tuple(paths)


@atexit.register
def _remove() -> None:
    mine = _Process.kept
    if mine is not None and mine.server is not None and mine.pid == os.getpid():
        mine.server.remove()


# --- Ray's runtime environment, by which a sweep's code reaches other nodes ------------------------


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
