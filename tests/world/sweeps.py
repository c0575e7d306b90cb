"""A sweep in the world, from `tunelight.run` down to its ranks, and what happens to it."""

from __future__ import annotations

import builtins
import contextlib
import errno
import importlib
import io
import math
import os
import random
import re
import secrets
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import tunelight as tl
from tests.world.kernel import BEGAN, Kernel, Process, StuckError, virtual
from tests.world.ranks import sessions_by_process, train, worker_of
from tests.world.rays import Rays, Ref, forget
from tests.world.stores import URL, Bucket, stored
from tunelight.compat.ray import TUNE_ENVIRONMENT
from tunelight.errors import PreemptedError, TunelightError
from tunelight.record.folder import versions
from tunelight.record.lease import Owner, Owners
from tunelight.stores import working

EPOCHS = 8
LIMIT_S = 900.0
"""How long a sweep may take, with all that happens to it."""
SETTLES_S = 30.0
"""How long what it leaves behind may take to be gone."""


_LATER = (
    "No space left",
    "was taken over by",
    "by another driver",
    "asked for again",
    "503 Slow Down",
    "connection was reset",
)
"""What a driver says that ends, where the sweep goes on later."""
_SILENT = ("stop", "cut", "store", "disk", "lose")
"""What of the faults may keep a driver from showing that it is alive."""
VERSIONS = versions()
"""Of the packages; a process asks for them once."""
_LOOKS_S = 2.0
"""How often is looked whether all that must hold at any time does."""


class World:
    """One sweep's world.

    Attributes:
        faults: what happened to it. done: the commands that its driver has answered, as carried out.
        results: what the last driver returned; error: what it raised instead.
        where: where each thread waits, if nothing goes on. wrong: what does not hold.
    """

    def __init__(self, seed: int, folder: Path, nodes: tuple[float, ...] = (4.0, 4.0)) -> None:
        self.kernel = Kernel(seed)
        self.kernel.bucket = self.bucket = Bucket(self.kernel)
        self.rays = Rays(self.kernel, nodes)
        self.nodes, self.folder = nodes, folder
        self.faults: list[str] = []
        self.results: Any = None
        self.error: BaseException | None = None
        self.where = ""
        self.wrong: list[str] = []
        self.drivers: list[Process] = []
        self.settings: dict[str, Any] = {"storage": str(folder)}
        self.done: list[tuple[str, Any]] = []
        self.recorded: Any = None
        """The state that this driver had as it closed the record."""

    def driven(self, *, but: Process | None = None) -> bool:
        """Tell whether a driver lives, other than this one."""
        return any(driver.alive and driver.threads for driver in self.drivers if driver is not but)

    def over(self) -> bool:
        """Tell whether a driver has returned results, or raised, and no other one goes on."""
        return (self.results is not None or self.error is not None) and not self.driven()

    @property
    def stored(self) -> bool:
        """Whether the sweep lies in the bucket."""
        return bool(self.settings["storage"] == URL)

    @property
    def sweep(self) -> Path:
        """The sweep's folder, or the working folder of a store's."""
        return working(self.settings["storage"]) / "sweep"

    def suffered(self, *words: str, since: float = -math.inf) -> bool:
        """Tell whether something has happened to it in whose text is one of these words, and lasted until ``since``."""
        return any(
            any(word in text for word in words) and float(text.split()[0]) + _lasted(text) >= since
            for text in self.faults
        )

    def owners(self) -> list[Owner]:
        """Return the sweep's owners, in order."""
        owners = Owners(self.sweep)
        return [owners.read(generation) for generation in range(1, owners.newest() + 1)]

    def resume(self) -> None:
        """Start another driver, which goes on with the sweep, unless one does."""
        if self.results is None and self.error is None and not self.driven():
            if self.rays.nodes_alive():
                self.drive()
            else:
                self.kernel.after(1.0, self.resume)

    def person(self, said: str, rng: random.Random) -> None:
        """Let a person give a command."""
        kernel, node = self.kernel, self.rays.nodes_alive()[0]
        process = kernel.process("person", node)
        node.processes.append(process)
        draws: dict[str, Callable[[], Any]] = {
            "enqueue": rng.random,
            "branch": lambda: (rng.randrange(8), rng.choice([None, rng.random()])),
            "max_concurrent": lambda: rng.choice([1, 2, 3]),
            "num_samples": lambda: self.settings["num_samples"] + rng.choice([1, 2, 3]),
        }
        given = draws.get(said, lambda: rng.randrange(8))()

        def tell() -> None:
            with contextlib.suppress(TunelightError, OSError):
                sweep = tl.attach("sweep", self.settings["storage"])
                answers: dict[str, Callable[[], str]] = {
                    "stop_trial": lambda: sweep.stop(given),
                    "stop_sweep": sweep.stop,
                    "enqueue": lambda: sweep.enqueue({"lr": given, "epochs": EPOCHS}),
                    "branch": lambda: sweep.branch(given[0], None if given[1] is None else {"lr": given[1]}),
                    "max_concurrent": lambda: sweep.set(max_concurrent=given),
                    "num_samples": lambda: sweep.set(num_samples=given),
                }
                answer = answers[said]()
                kernel.log("DONE", said, given, answer)
                if "will not know" not in answer:  # its disk is full, and the driver says so
                    self.done.append((said, given))

        kernel.spawn(process, tell, name="main")

    def drive(self, node: Any = None, *, second: bool = False) -> Process:
        """Start a driver, which begins the sweep or goes on with it; a ``second`` one beside another may be refused."""
        kernel = self.kernel
        node = node or self.rays.nodes_alive()[0]
        process = kernel.process(f"driver{len(self.drivers) + 1}", node)
        process.locals["kind"] = "driver"
        process.locals["job"] = f"job{len(self.drivers) + 1}"
        node.processes.append(process)
        self.drivers.append(process)
        began = len(self.drivers) > 1

        def drive() -> None:
            try:
                results = tl.run(
                    {"lr": tl.uniform(0.0, 1.0), "epochs": tl.choice([EPOCHS])},
                    train=train, metric="loss", mode="min", name="sweep", progress=False,
                    resume=began, **self.settings,
                )  # fmt: skip
            except PreemptedError:
                process.kill("exit code 75")
            except Exception as error:  # noqa: BLE001 - looked at afterwards
                late = not began and len(self.drivers) > 1 and "exists already" in str(error)  # the second was faster
                later = late or any(text in str(error) for text in _LATER)
                if not self.driven(but=process) and not second and not later:
                    self.error = error
                if "was taken over by" in str(error) and not self.suffered(*_SILENT):
                    self.wrong.append(f"owners: {process} has lost the sweep, and had never been silent")
                process.kill(f"{type(error).__name__}: {error}")
            else:
                self.results, self.recorded = results, process.locals.get("recorded")
                if not any(owner.pid == process.pid and owner.over for owner in self.owners()):
                    self.wrong.append(
                        f"owners: {process} has returned results of a sweep that it did not own to its end"
                    )
                process.kill("exit code 0")

        # As a platform that starts a job again.
        process.at_exit.append(lambda _: kernel.after(kernel.rng.uniform(0.1, 40), self.resume))
        process.locals["main"] = kernel.spawn(process, drive, name="main")
        return process


def _lasted(text: str) -> float:
    """Return for how many seconds a fault lasts, as its text says; else the most that any does."""
    said = re.search(r" for ([\d.]+) s", text)
    return float(said[1]) if said else 30.0


OF_RAY = (
    "wait", "get", "put", "kill", "cancel", "remote", "nodes", "cluster_resources", "available_resources",
    "get_runtime_context",
)  # fmt: skip
GROUPS = (
    "placement_group", "remove_placement_group", "placement_group_table", "get_placement_group",
    "get_current_placement_group",
)  # fmt: skip


def _patched(world: World) -> contextlib.ExitStack:
    """Put the world in the places of time, Ray and processes."""
    import ray
    from ray.train._internal.storage import StorageContext
    from ray.tune.experiment import Trial

    import tunelight.sweep.run as runs
    from tunelight.compat import ray as rays
    from tunelight.gang import seat
    from tunelight.gang import worker as workers
    from tunelight.record import lease, recorder

    records = importlib.import_module("tunelight.record.folder")
    kernel, fake, stack = world.kernel, world.rays, contextlib.ExitStack()

    close = recorder.RecordCallback.close

    def closing(callback: Any, reason: str | None = None) -> None:
        close(callback, reason)
        kernel.here.locals["recorded"] = callback.state

    @contextlib.contextmanager
    def connected(settings: Any, reservation: Any, *_: Any) -> Iterator[Any]:
        yield reservation, SimpleNamespace(check=lambda: None)

    kv = SimpleNamespace(
        _internal_kv_put=lambda key, value, namespace=None: fake.kept.__setitem__((str(namespace), _text(key)), value),
        _internal_kv_get=lambda key, namespace=None: fake.kept.get((str(namespace), _text(key))),
        _internal_kv_del=lambda key, namespace=None: fake.kept.pop((str(namespace), _text(key)), None),
        _internal_kv_list=lambda prefix, namespace=None: [
            key.encode() for space, key in fake.kept if space == str(namespace) and key.startswith(_text(prefix))
        ],
    )
    for name in OF_RAY:
        stack.enter_context(mock.patch.object(ray, name, getattr(fake, name)))
    stack.enter_context(mock.patch.object(ray, "ObjectRef", Ref))
    for module in [ray.util, ray.util.placement_group, *_modules()]:
        for name in GROUPS:
            if getattr(module.__dict__.get(name), "__module__", "").startswith("ray."):
                stack.enter_context(mock.patch.object(module, name, getattr(fake, name)))
    ray_node = SimpleNamespace(node_ip_address="10.0.0.1")
    for where, name, value in (
        (ray, "is_initialized", lambda: True),
        (ray._private.worker, "_global_node", ray_node),
        (StorageContext, "_get_session_path", lambda self: f"{world.folder}/{fake.get_runtime_context().get_job_id()}"),
        (rays, "_store", lambda: kv),
        (rays, "is_dead", lambda actor: fake.actors[actor].dead is not None if actor in fake.actors else True),
        (rays, "draining_nodes", fake.draining_nodes),
        (rays, "session_folder", lambda: str(world.folder)),
        (rays, "is_client", lambda: False),
        (seat, "is_dead", lambda actor: fake.actors[actor].dead is not None if actor in fake.actors else True),
        (seat, "GangWorker", worker_of(kernel)),
        (seat, "_all_gone", lambda _: None),
        (seat, "_kill", lambda pid: None),
        (runs, "connected", connected),
        (runs, "env_of_workers", lambda *_: None),
        (workers, "know_rank", lambda _: None),
        (workers, "_trackers", lambda: None),
        (workers, "_add_paths", lambda _: None),
        (lease, "process_table", lambda: "" if kernel.current is None else kernel.here.node.name),
        (lease, "is_running", lambda pid: _runs(world, pid)),
        (lease, "born", lambda pid: pid if _runs(world, pid) else 0),
        (Trial, "__hash__", lambda trial: hash(trial.trial_id)),  # Tune keeps trials in sets
        (os, "chdir", lambda _: None),
        *_of_storage(kernel),
        (recorder.RecordCallback, "close", closing),
        (records, "git_state", lambda _: None),
        (records, "versions", lambda: VERSIONS),
        (secrets, "token_hex", lambda number=8: f"{kernel.rng.getrandbits(8 * number):0{2 * number}x}"),
        (secrets, "randbelow", kernel.rng.randrange),
        (uuid, "uuid4", lambda: uuid.UUID(int=kernel.rng.getrandbits(128), version=4)),
        (workers, "sys", Proxy(sys, stderr=io.StringIO())),
    ):
        stack.enter_context(mock.patch.object(where, name, value))
    import ray._common.usage.usage_lib as usage

    stack.enter_context(mock.patch.object(usage, "record_library_usage"))
    stack.enter_context(mock.patch.object(usage, "record_extra_usage_tag"))
    stack.enter_context(sessions_by_process(kernel))
    stack.enter_context(stored(kernel, world.folder / "cache"))
    stack.enter_context(virtual(kernel, _modules()))
    return stack


def _of_storage(kernel: Kernel) -> list[tuple[Any, str, Any]]:
    """Return what stands for the disks of nodes, and for the clock of the storage that they share."""
    from tunelight.record import lease

    kernel.disk = disk = Disk(kernel)
    return [
        *((os, name, disk.cached(getattr(os, name))) for name in ("stat", "listdir", "scandir")),
        *((where, name, disk.opening(getattr(where, name))) for where, name in _OPENING),
        (os, "fsync", disk.crashing(disk.fsync)),
        (os, "write", disk.crashing(disk.write)),
        *((os, name, disk.crashing(getattr(os, name))) for name in ("replace", "link", "unlink", "mkdir")),
        (lease, "create_atomically", disk.dated(lease.create_atomically)),
        (lease, "write_atomically", disk.dated(lease.write_atomically)),
        (lease.Owners, "_probed", lambda _: disk.now()),
        (lease, "_offsets", Own(kernel, dict)),
        (lease, "_held_here", Own(kernel, set)),
        (lease, "os", Proxy(os, getpid=lambda: kernel.here.pid, utime=disk.touch)),
    ]


class Disk:
    """The disks of nodes: slow at times, full at others, and a process may end before it changes anything there."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._write = os.write
        self._unsynced: dict[str, tuple[Any, int]] = {}
        """Of files that grow: the node which writes, and how much is safe."""
        self.folder, self.caches_s = "", 0.0
        """What all nodes share, and for how long one may believe what it saw there, as NFS's clients do."""
        self._seen: dict[tuple[Any, str, str], tuple[float, Any]] = {}

    def now(self) -> float:
        """Return the time that files get."""
        return BEGAN + self._kernel.now

    @property
    def _full(self) -> bool:
        return self._kernel.current is not None and bool(self._kernel.here.node.full)

    def fsync(self, file: int) -> None:
        if self._kernel.current is not None:
            slow = self._kernel.rng.random() < 0.1
            self._kernel.sleep(self._kernel.rng.uniform(0.1, 1.0) if slow else self._kernel.rng.uniform(0.0001, 0.02))
            if self._full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._unsynced.pop(_path_of(file), None)

    def lose(self, node: Any, rng: random.Random) -> None:
        """Lose what a node has written and not synced: a file that grew ends somewhere after what was safe."""
        for path, (writer, safe) in list(self._unsynced.items()):
            if writer is node and Path(path).is_file():
                os.truncate(path, rng.randint(safe, max(safe, Path(path).stat().st_size)))
                del self._unsynced[path]

    def write(self, file: int, data: bytes) -> int:
        if self._kernel.current is not None:
            self._unsynced.setdefault(_path_of(file), (self._kernel.here.node, os.fstat(file).st_size))
        if not self._full:
            return self._write(file, data)
        if self._kernel.rng.random() < 0.5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, data[: len(data) // 2])  # as far as there is room

    def touch(self, path: Any) -> None:
        os.utime(path, (self.now(), self.now()))

    def cached(self, look: Callable[..., Any]) -> Callable[..., Any]:
        """Let a function that looks at a path tell what its node has seen before."""

        def call(path: Any = ".", *given: Any, **more: Any) -> Any:
            if not self.caches_s or self._kernel.current is None:
                return look(path, *given, **more)
            name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if not name.startswith(self.folder):
                return look(path, *given, **more)
            key = self._kernel.here.node, look.__name__, name
            at, found = self._seen.get(key, (-math.inf, None))
            if self._kernel.now - at >= self.caches_s:
                try:
                    found = look(path, *given, **more)
                except FileNotFoundError as error:
                    found = error
                found = Entries(found) if look.__name__ == "scandir" and not isinstance(found, OSError) else found
                self._seen[key] = self._kernel.now, found
            if isinstance(found, OSError):
                raise found
            return found

        return call

    def opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Let a node that opens a file ask anew."""

        def opened(path: Any, *given: Any, **more: Any) -> Any:
            self._forget(path)
            return call(path, *given, **more)

        return opened

    def _forget(self, *paths: Any) -> None:
        """Forget what this node has seen of paths, and of the folders that they are in."""
        if self.caches_s and self._kernel.current is not None:
            names = [os.fspath(path) for path in paths if isinstance(path, str | os.PathLike)]
            for name in [*names, *map(os.path.dirname, names)]:
                for look in ("stat", "listdir", "scandir"):
                    self._seen.pop((self._kernel.here.node, look, name), None)

    def dated(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Let a function that writes a file give it the storage's time."""

        def call(path: Path, *given: Any, **more: Any) -> Any:
            done = write(path, *given, **more)
            self.touch(path)
            return done

        return call

    def crashing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Let a process that is to be killed end before it changes anything.

        While a node loses answers, the second request for what the first one did may be refused, as on NFS.
        """
        refused = _REFUSED.get(call.__name__)

        def change(*given: Any, **more: Any) -> Any:
            kernel = self._kernel
            if kernel.current is not None:
                kernel.here.changes()
            done = call(*given, **more)
            self._forget(*given)
            loses = kernel.current is not None and kernel.here.node.loses_until > kernel.now
            if refused and loses and str(given[0]).startswith(self.folder) and kernel.rng.random() < 0.3:
                raise OSError(refused, "done, and asked for again", *map(str, given))
            return done

        return change


def _path_of(file: int) -> str:
    return os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115 - Path's takes five times as long


_OPENING = (io, "open"), (builtins, "open"), (os, "open"), (os, "utime")
_REFUSED = {"link": errno.EEXIST, "mkdir": errno.EEXIST, "replace": errno.ENOENT, "unlink": errno.ENOENT}


class Entries(list[Any]):
    """The entries of a folder, as ``os.scandir`` has them."""

    def __enter__(self) -> Iterator[Any]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class Own:
    """A global variable, of which each process has its own."""

    def __init__(self, kernel: Kernel, kind: Callable[[], Any]) -> None:
        self._kernel, self._kind = kernel, kind

    @property
    def _of_process(self) -> Any:
        return (self._kernel.here.locals if self._kernel.current else {}).setdefault(self, self._kind())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_process, name)

    def __contains__(self, key: Any) -> bool:
        return key in self._of_process

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of_process[key] = value


class Proxy:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _runs(world: World, pid: int) -> bool:
    return any(process.alive and process.pid == pid for node in world.rays.nodes_all for process in node.processes)


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


def _modules() -> list[Any]:
    """Return the modules whose time is the world's: tunelight's, and those of Tune's controller."""
    ours = ("tunelight", "ray.tune", "ray.air.execution", "ray.train._internal")
    return [module for name, module in list(sys.modules.items()) if name.startswith(ours) and module is not None]


_ASHA = {"name": "asha", "max_t": EPOCHS, "grace_period": 1}
_PBT = {
    "name": "gang_pbt", "max_t": EPOCHS, "perturbation_interval": 2,
    "hyperparam_mutations": {"lr": tl.uniform(0.0, 1.0)},
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "fifo": {"scheduler": "fifo"},
    "asha": {"scheduler": _ASHA},
    "elastic_asha": {"scheduler": {**_ASHA, "name": "elastic_asha"}, "workers": (1, 4)},
    "elastic": {"scheduler": "fifo", "workers": (1, 3)},
    "gang_pbt": {"scheduler": _PBT, "num_samples": 4},
    "repeats": {"scheduler": _ASHA, "num_samples": 4, "repeats": {"top": 2, "repeats": 2}},
    "sparse": {"scheduler": "fifo", "checkpoints": tl.Checkpoints(every=3, keep=2)},
    "stored": {"scheduler": _ASHA, "storage": URL},
}
KINDS |= {f"unsaved_{name}": {**KINDS[name], "checkpoints": tl.Checkpoints()} for name in ("asha", "elastic_asha")}
KINDS |= {f"nfs_{name}": KINDS[name] for name in ("asha", "elastic_asha", "gang_pbt")}
KINDS |= {f"stored_{name}": {**KINDS[name], "storage": URL} for name in ("elastic_asha", "gang_pbt")}
"""Sweeps, by their settings."""


def run(
    seed: int,
    kind: str,
    folder: Path,
    *,
    disturb: Callable[[World], None] = lambda _: None,
    judge: Callable[[World], Iterable[str]] = lambda _: (),
    look: Callable[[World], Iterable[str]] = lambda _: (),
) -> World:
    """Run one sweep in a world of its own, whose files are in a folder; return the world at its end.

    It is over once a driver has returned results. What happens within ``SETTLES_S`` after that belongs to it, too. Then
    ``judge`` says what is wrong, and ``look``, every ``_LOOKS_S``, what is wrong then.
    """
    world = World(seed, folder)
    random.seed(seed)
    forget()
    with _patched(world):
        failures = tl.FailurePolicy(max_failures=100, give_up_after=0)  # what a sweep survives is not counted here
        world.kernel.disk.folder, world.kernel.saves = str(folder), not kind.startswith("unsaved")
        if kind.startswith("nfs"):
            world.kernel.disk.caches_s = random.choice([3.0, 30.0])
        world.settings |= {"num_samples": 8, "workers": 2, "seed": seed, "failures": failures, **KINDS[kind]}
        world.drive()
        disturb(world)

        def again() -> None:
            world.wrong += look(world)
            world.kernel.after(_LOOKS_S, again)

        again()
        try:
            world.kernel.run(world.over, LIMIT_S)
            world.kernel.run(lambda: not any(one.alive and one.stopped for one in world.kernel.processes), LIMIT_S)
            world.kernel.settle(SETTLES_S)
        except StuckError as error:
            world.error = error
            world.where = world.kernel.threads_text(world.rays.nodes_all)
        if world.stored:
            world.bucket.copied_to(world.folder)
        world.wrong += judge(world)
        world.kernel.close()
    return world


def load() -> None:
    """Import what a sweep imports on its way, since its modules get the world's time before it begins."""
    os.environ.update(TUNE_ENVIRONMENT)  # for all drivers: the end of one would take it from another
    for name in (
        "cluster.gcs_watch", "extras.attach", "reporting", "searchers", "sweep.past", "sweep.replay", "sweep.run",
        "sweep.steering", "trial.trainable",
    ):  # fmt: skip
        importlib.import_module(f"tunelight.{name}")
