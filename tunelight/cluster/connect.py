"""The Ray that a sweep runs on: connect or start it, check whether a gang fits, shut it down."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ray

from tunelight import stores
from tunelight.cluster import local
from tunelight.cluster.local import for_job, refuse_local
from tunelight.compat.ray import (
    PLUGINS_VARIABLE,
    TUNE_ENVIRONMENT,
    check_version,
    cluster_versions,
    has_autoscaler,
    is_client,
    own_versions,
    runtime_env_fields,
    task_on,
    uncounted_callbacks,
    without_hints_on_deaths,
)
from tunelight.errors import ResourceError, SettingsError, last_line, unknown
from tunelight.machine.processes import write
from tunelight.machine.versions import ADVICE, differences, installed, node_name
from tunelight.messages import Text
from tunelight.resources import Reservation, fitted, trials_at_once

if TYPE_CHECKING:
    from tunelight.cluster.gcs_watch import GcsWatch
    from tunelight.machine.signals import StopSignals
    from tunelight.settings import Settings


_REACH_S = 5.0
"""How long a cluster's head may refuse connections: it may be starting."""


@contextlib.contextmanager
def connected(
    settings: Settings, reservation: Reservation, sweep_file: Path, signals: StopSignals
) -> Iterator[tuple[Reservation, GcsWatch]]:
    """Use the Ray of this process, or start one and shut it down afterwards; watch its head meanwhile.

    ``sweep_file`` is a file in the sweep's folder that every node has to see if there are checkpoints. Yields the
    reservation, made smaller if it is elastic and the cluster holds no more, and the watch.
    """
    ours = local.kept() is not None or not ray.is_initialized()  # in this order: a kept one may be about to end
    environment = dict(os.environ)
    watch: GcsWatch | None = None
    mine: local.LocalRay | None = None
    done = False
    threads, stays = local.threads_of(reservation.cpus_per_worker), settings.reuse_gangs is not False
    try:
        if ours and _remote(settings.address) is None:
            kept_as_it_is = settings.datasets is not None
            with quiet(settings.verbose):
                mine = local.start(settings.runtime_env, settings.verbose, threads, fork=stays, as_it_is=kept_as_it_is)
        elif ours:
            local.shutdown()
            init_ray(settings.address, settings.runtime_env, settings.verbose, sweep_file.parent.parent)
        else:
            refuse_local(settings.runtime_env)
        if is_client():
            raise SettingsError(
                "This process is connected by Ray Client (ray://...), where a sweep cannot run yet: its record is "
                "written by the driver. Submit the script to the cluster: ray job submit -- python your_script.py"
            )
        reservation = check_cluster(reservation, data_cpus=settings.room_for_data)
        watch = _watched(sweep_file, settings, signals)
        yield reservation, watch
        done = True
    finally:
        keep = mine is not None and done and stays and mine.lives and signals.received is None
        if mine is not None and (keep or mine.stays):
            mine.schedule_shutdown()
        elif ours:
            with _undisturbed():
                (ray.shutdown if mine is None else local.shutdown)()
        if watch is not None:
            watch.close()  # last, because without a head the shutdown may hang
        if ours and mine is None:
            for name in os.environ.keys() - environment.keys():  # RAY_AUTH_MODE, PYTHONBREAKPOINT: Ray's own
                del os.environ[name]


def step_of(address: str | None) -> str:
    """Return what ``connected`` will do, in words."""
    known = None if ray.is_initialized() and local.kept() is None else _remote(address)
    return "Starting Ray" if known is None else f"Connecting to the Ray cluster at {known}"


def check_ray(settings: Settings) -> None:
    """Raise SettingsError for errors in ``address`` and ``runtime_env`` that are known without a cluster."""
    if settings.runtime_env:
        check_runtime_env(settings.runtime_env)
    if settings.address is not None and ray.is_initialized() and not local.kept():
        raise SettingsError(
            f"address={settings.address!r} was given, but this process is connected to a Ray already. Leave "
            "address out to use that one, or call ray.shutdown() first."
        )


def _watched(sweep_file: Path, settings: Settings, signals: StopSignals) -> GcsWatch:
    from tunelight.cluster.gcs_watch import GcsWatch  # imports Ray Tune

    check = NodeCheck(None if settings.checkpoints is None else sweep_file, settings.lightning)
    watch = GcsWatch(ray.get_runtime_context().gcs_address, sweep_file.parent, check.trouble, lambda: signals.received)
    watch.start()
    return watch


def use_ray() -> None:
    """Use the Ray of this process, or RAY_ADDRESS; else start a local one, which ends with this process."""
    check_version()
    if local.kept() is not None or (not ray.is_initialized() and _remote(None) is None):
        with quiet(0):
            local.start(None, 0, as_it_is=True, stays=True)
    elif not ray.is_initialized():
        init_ray(None, None, 0)


def _remote(address: str | None) -> str | None:
    """Return the address of the cluster to connect to; None to start a Ray here."""
    address = address or os.environ.get("RAY_ADDRESS")
    return None if address == "local" else address or None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C meanwhile: an interrupted shutdown, which takes a second or two, leaves processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def init_ray(
    address: str | None, runtime_env: Mapping[str, Any] | None, verbose: int, storage: Path | None = None
) -> None:
    """Connect to a cluster. With ``storage`` code will run there, and this process's folder is sent along."""
    common: dict[str, Any] = {
        "runtime_env": dict(runtime_env) if runtime_env else None,
        "log_to_driver": verbose > 0,
        "logging_level": logging.INFO if verbose > 1 else logging.ERROR,
    }
    address = _remote(address)
    assert address is not None  # a local one is cluster.local's
    with quiet(verbose):
        if storage is not None:
            from tunelight.machine.network import addresses  # imports psutil

            common["runtime_env"] = for_job(runtime_env, address, storage, addresses()) or None
        try:
            _reach(address)
            _check_versions(address)
            ray.init(address=address, **common)
        except ResourceError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise ResourceError(
                f"The Ray cluster at {address} does not answer: {error}. Is it up, and the address right (RAY_ADDRESS)?"
            ) from error


def _reach(address: str) -> None:
    """Raise OSError where nothing listens at ``host:port``, which Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address or not port.isdecimal():
        return
    end = time.monotonic() + _REACH_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _check_versions(address: str) -> None:
    """Raise ResourceError for another Ray, Python or token at ``host:port``, of which Ray itself gives no reason."""
    if "://" in address or not address.rpartition(":")[2].isdecimal():
        return
    try:
        theirs, mine = cluster_versions(address), own_versions()
    except PermissionError as error:
        raise ResourceError(
            f"The Ray cluster at {address} asks for a token, and this process has none, or another one. Set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH unless it is in ~/.ray/auth_token."
        ) from error
    count = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    if theirs is None or (theirs[0], theirs[1].split(".")[:count]) == (mine[0], mine[1].split(".")[:count]):
        return
    raise ResourceError(
        f"The Ray cluster at {address} was started with Ray {theirs[0]} and Python {theirs[1]}, and this process has "
        f"Ray {mine[0]} and Python {mine[1]}, which do not work together. {ADVICE}"
    )


def live_nodes() -> list[dict[str, float]]:
    """Return the resources of each node of the cluster that lives."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def check_runtime_env(given: Mapping[str, Any]) -> None:
    """Raise SettingsError where Ray would reject ``runtime_env``, or ignore a part of it with a warning."""
    from ray.runtime_env import RuntimeEnv  # half a second

    fields = runtime_env_fields()
    valid = sorted(name for name in fields if not name.startswith("_"))
    for name in given if PLUGINS_VARIABLE not in os.environ else ():
        if name not in fields:
            raise SettingsError(unknown("runtime_env has no", name, valid))
    for name, value in variables.items() if isinstance(variables := given.get("env_vars"), Mapping) else ():
        if not isinstance(value, str):  # Ray's error would show the value
            raise SettingsError(f"runtime_env: env_vars[{name!r}] must be text, not {type(value).__name__}. Quote it.")
    try:
        RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"Ray does not take this runtime_env: {error}. See Ray's RuntimeEnv.") from error


def check_cluster(
    reservation: Reservation, *, who: str = "A trial", spread: bool = False, data_cpus: float = 0
) -> Reservation:
    """Return the reservation, made smaller if it is elastic and the cluster holds no more.

    ``spread`` needs each bundle on another node; ``data_cpus`` CPUs have to stay free. Raises: ResourceError if the
    cluster can never hold it. Warns in its place where the cluster may grow.
    """
    try:
        return fitted(reservation, live_nodes(), who=who, spread=spread, data_cpus=data_cpus)
    except ResourceError as error:
        grows = False
        with contextlib.suppress(Exception):  # no answer means that there is no autoscaler
            grows = has_autoscaler()
        if not grows:
            raise
        warnings.warn(f"{error} The cluster may grow: waiting for it.", stacklevel=2)
    return reservation


def at_once(reservation: Reservation, settings: Settings) -> int | None:
    """Return how many trials may run at a time (None: as many as fit), to leave CPUs for preprocessing."""
    if not settings.room_for_data:
        return settings.max_concurrent
    room = max(1, trials_at_once(reservation, live_nodes(), settings.room_for_data))  # it may have none yet, and grow
    return room if settings.max_concurrent is None else min(room, settings.max_concurrent)


def waits_for(reservation: Reservation) -> str:
    """Return what a trial that does not start waits for, in words; empty where nothing is lacking now."""
    from ray.util import placement_group_table

    if all(group["state"] != "PENDING" for group in placement_group_table().values()):
        return ""
    has, free = ray.cluster_resources(), ray.available_resources()
    wanted = sum((Counter(bundle) for bundle in reservation.bundles), Counter[str]())
    lacks = [
        f"{number:g} {name}{'s' * (number != 1 and name.isupper())}, "
        f"and {free.get(name, 0):g} of {has.get(name, 0):g} are free"
        for name, number in wanted.items()
        if free.get(name, 0) < number <= has.get(name, 0)
    ]
    return f"No trial has started yet: it needs {'; '.join(lacks)}. Others hold the rest." if lacks else ""


@contextlib.contextmanager
def quiet(verbose: int) -> Iterator[None]:
    """Silence Ray's logs, warnings and advice on dead workers, unless ``verbose`` is more than 1."""
    if verbose > 1:
        yield
        return
    names = ("ray", "ray.tune", "ray.tune.tune", "ray.train")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), without_hints_on_deaths():
            warnings.filterwarnings("ignore", module=r"ray\.")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        write(Text(""))  # with what Ray has printed


@contextlib.contextmanager
def tune_environment(verbose: int) -> Iterator[None]:
    """Set Tune's environment variables, and reset them afterwards."""
    new = TUNE_ENVIRONMENT.keys() - os.environ.keys()
    os.environ.update({key: TUNE_ENVIRONMENT[key] for key in new})
    try:
        with quiet(verbose), uncounted_callbacks():
            yield
    finally:
        for key in new:
            os.environ.pop(key, None)


# --- Checks of a cluster's nodes, by a task on each that takes no CPUs ----------------------------


ANSWER_LIMIT_S: Final = 20.0
"""How long a sweep's first trial waits for what all nodes have installed: a process has to start there."""


@dataclass(frozen=True)
class Here:
    """A node's answer about itself."""

    versions: Mapping[str, str | None]
    sees: bool | None
    """Whether the file in question is visible there (None: none was)."""


def here(file: str | None) -> Here:
    """Describe this node. Runs on: every node. Raises: OSError where a store's working folder cannot be made."""
    sees = None if file is None else Path(file).exists()
    if file is not None and (store := stores.store_of(file)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        sees = store.stat(Path(file)) is not None
    return Here(installed(), sees)


def ask_others(look: Callable[..., Any], *given: Any) -> dict[Any, dict[str, Any]]:
    """Call a function on every other node that lives, in a task without resources; return the calls and their nodes."""
    calls, mine = {}, ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] != mine:
            calls[task_on(node["NodeID"], look).remote(*given)] = node
    return calls


class NodeCheck:
    """Checks while a sweep starts that all nodes can take part in it. Runs on: driver.

    The nodes are asked when it is made. The first look waits for their answers, so that no trial starts before; those
    that are later than that are read as they come.

    Args:
        file: a file that every node must see (None: there is none).
        lightning: the module of Lightning that the sweep trains with.
    """

    def __init__(self, file: Path | None, lightning: str) -> None:
        self._file, self._lightning = file, lightning
        self._patience_s = ANSWER_LIMIT_S
        self._asked = ask_others(here, None if file is None else str(file))
        self._versions: dict[str, Mapping[str, str | None]] = {"this one": installed()} if self._asked else {}

    def trouble(self) -> str | None:
        """Return what is wrong with the nodes that have answered by now, or None."""
        if not self._asked:
            return None
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=self._patience_s)
        self._patience_s = 0.0
        for call in done:
            node = self._asked.pop(call)
            name = node_name(node["NodeManagerHostname"], node["NodeID"], node["NodeManagerAddress"])
            try:
                answer: Here = ray.get(call)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.RayTaskError):
                    return f"The node {name} cannot take part: {last_line(error) or type(error).__name__}. {ADVICE}"
                continue  # the node or its worker is gone, which is no reason to end a sweep
            self._versions[name] = answer.versions
            if answer.sees is False:
                return (
                    f"The node {name} does not see {stores.shown(self._file or Path())}, which this one has just "
                    "written: checkpoints of trials there would lie on its own disk, where nobody finds them. Choose a "
                    "folder that all nodes share by storage= (NFS, say) or an object store, or give checkpoints=None "
                    "to go without any."
                )
        conflicts = differences(self._versions, self._lightning) if done else []
        return f"{' '.join(conflicts)} {ADVICE}" if conflicts else None
