"""The Ray that a sweep runs on: connect or start, look whether a gang fits, shut down what we started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.cluster.runtime_env import for_job, refuse_local
from tunelight.errors import ResourceError, SettingsError, unknown
from tunelight.record.names import SWEEP_FILE
from tunelight.resources import Reservation, fitted, trials_at_once

if TYPE_CHECKING:
    from tunelight.cluster.gcs_watch import HeadWatch
    from tunelight.machine.signals import StopSignals
    from tunelight.settings import Settings

_LOCAL_RAY = {"prestart_worker_first_driver": False}
"""A Ray of our own starts no idle task workers: a sweep has actors only, which cannot use them."""


_REACH_S = 5.0
"""How long a cluster's head that refuses connections may take: it may be starting."""


@contextlib.contextmanager
def connected(
    settings: Settings, reservation: Reservation, folder: Path, signals: StopSignals
) -> Iterator[tuple[Reservation, HeadWatch]]:
    """Use the Ray that is there, or start one for the sweep and shut that one down; watch its head meanwhile.

    Yields the reservation, smaller than asked for where it is elastic and the cluster holds no more; and the watch.
    """
    import ray  # half a second that bad input need not wait for

    ours = not ray.is_initialized()
    environment = dict(os.environ)
    watch: HeadWatch | None = None
    try:
        if ours:
            _init_ray(settings.address, settings.runtime_env, settings.verbose, folder.parent)
        else:
            refuse_local(settings.runtime_env)
        _refuse_client()
        reservation = check_cluster(reservation, data_cpus=settings.room_for_data)
        watch = _watched(folder, settings, signals)
        yield reservation, watch
    finally:
        if ours:
            with _undisturbed():
                ray.shutdown()
        if watch is not None:
            watch.close()  # only now: without a head, the shutdown may wait for it
        if ours:
            for name in os.environ.keys() - environment.keys():  # RAY_AUTH_MODE, PYTHONBREAKPOINT: Ray's own
                del os.environ[name]


def check_ray(settings: Settings) -> None:
    """Raise SettingsError for what can be known to be wrong with ``address`` and ``runtime_env`` without a cluster."""
    if settings.runtime_env:
        check_runtime_env(settings.runtime_env)
    if settings.address is not None and "ray" in sys.modules and sys.modules["ray"].is_initialized():
        raise SettingsError(
            f"address={settings.address!r} was given, but this process is connected to a Ray already. Leave "
            "address out to use that one, or call ray.shutdown() first."
        )


def _watched(folder: Path, settings: Settings, signals: StopSignals) -> HeadWatch:
    import ray

    from tunelight.cluster.gcs_watch import HeadWatch  # imports Ray Tune
    from tunelight.cluster.nodes import NodeCheck  # imports Ray

    check = NodeCheck(None if settings.checkpoints is None else folder / SWEEP_FILE)
    watch = HeadWatch(ray.get_runtime_context().gcs_address, folder, check.trouble, lambda: signals.received)
    watch.start()
    return watch


def use_ray() -> None:
    """Use the Ray that is there, or RAY_ADDRESS; else start a local one, which ends with this process."""
    import ray

    if not ray.is_initialized():
        _init_ray(None, None, 0)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no further Ctrl-C cut this short: it takes a second or two, and half of it leaves processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _refuse_client() -> None:
    import ray

    if ray.util.client.ray.is_connected():
        raise SettingsError(
            "This process is connected by Ray Client (ray://...), where a sweep cannot run yet: its record is written "
            "by the driver. Submit the script to the cluster: ray job submit -- python your_script.py"
        )


def _init_ray(
    address: str | None, runtime_env: Mapping[str, Any] | None, verbose: int, storage: Path | None = None
) -> None:
    """Connect, or start a Ray here. With ``storage``, code is to run there: this process's folder goes along."""
    import ray

    common: dict[str, Any] = {
        "runtime_env": dict(runtime_env) if runtime_env else None,
        "log_to_driver": verbose > 0,
        "logging_level": logging.INFO if verbose > 1 else logging.ERROR,
    }
    address = address or os.environ.get("RAY_ADDRESS")
    with quiet(verbose):
        if address and address != "local":
            if storage is not None:
                from tunelight.machine.network import addresses  # imports psutil

                common["runtime_env"] = for_job(runtime_env, address, storage, addresses()) or None
            try:
                _reach(address)
                ray.init(address=address, **common)
            except (OSError, RuntimeError, ValueError) as error:
                raise ResourceError(
                    f"The Ray cluster at {address} does not answer: {error}. Is it up, and the address right "
                    "(RAY_ADDRESS)?"
                ) from error
        else:
            ray.init(
                address="local",
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                _system_config=_LOCAL_RAY,
                **common,
            )


def _reach(address: str) -> None:
    """Raise OSError where nothing listens at ``host:port``: Ray itself looks for minutes."""
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


def nodes_of(address: str | None = None) -> tuple[str, list[dict[str, float]]]:
    """Return which cluster a sweep would run on, in words, and what each of its nodes holds.

    That of ``address`` or RAY_ADDRESS is asked; otherwise it is this machine, on which no Ray is started. Raises:
    ResourceError where the address does not answer.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return "this machine", [{"CPU": float(_cpus_here()), "GPU": float(_gpus_here())}]
    with attached(address) as known:
        import ray

        return f"the cluster at {known}", [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def attached(address: str) -> Iterator[str]:
    """Use the Ray that this process is connected to, else the cluster at ``address`` for a while; yield its address.

    "auto" is RAY_ADDRESS, or else a cluster of which this machine is a node. Raises: ResourceError where none answers.
    """
    import ray

    ours = not ray.is_initialized()
    try:
        if ours:
            _init_ray(address, None, 0)
        yield ray.get_runtime_context().gcs_address if address == "auto" else address
    finally:
        if ours:
            ray.shutdown()


def check_runtime_env(given: Mapping[str, Any]) -> None:
    """Raise SettingsError where Ray would not take ``runtime_env``, or leave a part of it out with a warning."""
    from ray.runtime_env import RuntimeEnv  # half a second

    valid = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
    for name in given if "RAY_RUNTIME_ENV_PLUGINS" not in os.environ else ():
        if name not in RuntimeEnv.known_fields:
            raise SettingsError(unknown("runtime_env has no", name, valid))
    for name, value in variables.items() if isinstance(variables := given.get("env_vars"), Mapping) else ():
        if not isinstance(value, str):  # Ray's own error would show the value
            raise SettingsError(f"runtime_env: env_vars[{name!r}] must be text, not {type(value).__name__}. Quote it.")
    try:
        RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"Ray does not take this runtime_env: {error}. See Ray's RuntimeEnv.") from error


def _cpus_here() -> int:
    """Return how many CPUs a Ray that is started here has: in a container, its share of the machine's."""
    from ray._private.utils import get_num_cpus  # half a second

    return int(get_num_cpus(override_docker_cpu_warning=True))


def _gpus_here() -> int:
    """Return how many GPUs this process may use, without importing anything that takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def check_cluster(
    reservation: Reservation, *, who: str = "A trial", spread: bool = False, data_cpus: float = 0
) -> Reservation:
    """Refuse a gang that this cluster can never hold; where it may grow, warn and wait.

    Returns the reservation, smaller where it is elastic and the cluster holds no more. ``spread`` wants each bundle on
    a node of its own; ``data_cpus`` CPUs are to be left beside it. Raises: ResourceError.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    try:
        return fitted(reservation, nodes, who=who, spread=spread, data_cpus=data_cpus)
    except ResourceError as error:
        if not _may_grow():
            raise
        warnings.warn(f"{error} The cluster may grow: waiting for it.", stacklevel=2)
    return reservation


def at_once(reservation: Reservation, settings: Settings) -> int | None:
    """Return how many trials may run at once (None: as many as fit): those that leave room for preprocessing.

    The cluster is counted as it is now, at the sweep's start.
    """
    import ray

    if not settings.room_for_data:
        return settings.max_concurrent
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = max(1, trials_at_once(reservation, nodes, settings.room_for_data))  # a cluster that may grow has none yet
    return room if settings.max_concurrent is None else min(room, settings.max_concurrent)


def _may_grow() -> bool:
    """Tell whether an autoscaler looks after this cluster: it then reports its node types to Ray."""
    from ray.experimental.internal_kv import _internal_kv_get

    try:
        import json

        status = json.loads(_internal_kv_get("__autoscaling_status") or b"{}")
    except Exception:  # noqa: BLE001 - no answer means that nobody looks after it
        return False
    types = (status.get("autoscaler_report") or {}).get("active_nodes") or {}
    return any(not str(kind).startswith("local") and not str(kind).startswith("node_") for kind in types)


@contextlib.contextmanager
def quiet(verbose: int) -> Iterator[None]:
    """Keep Ray's own talk down unless it was asked for."""
    if verbose > 1:
        yield
        return
    names = ("ray", "ray.tune", "ray.tune.tune", "ray.train")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"ray\.")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if callable(flush := getattr(sys.stdout, "flush", None)):  # any object may stand for standard output
            flush()


@contextlib.contextmanager
def tune_environment(verbose: int) -> Iterator[None]:
    """Set what Tune only takes from the environment, and put everything back afterwards."""
    wanted = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # tunelight keeps its own record
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial's last word holds no metric
        "TUNE_GLOBAL_CHECKPOINT_S": "600",  # Tune's own snapshot is not what a sweep is resumed from
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # StopSignals says at once that a sweep stops
        "RAY_AIR_NEW_OUTPUT": "0",
    }
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update({key: value for key, value in wanted.items() if before[key] is None})
    try:
        with quiet(verbose):
            yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
