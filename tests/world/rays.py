"""Ray, as far as tunelight and Tune's controller use it, on the world's processes and time.

Actors and tasks run in processes of their own on nodes; what is sent is copied, and takes its time; a process, a node
or the driver may be lost at any moment, which others learn later.
"""

from __future__ import annotations

import itertools
import pickle
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, ObjectLostError, RayTaskError, WorkerCrashedError

from tests.world.kernel import Kernel, Process, Wait

_BY_NAME: dict[str, Any] = {}
"""Actors and references, for those who get them in a message."""
_IDS = itertools.count()


def forget() -> None:
    """Forget all of the last world."""
    global _IDS  # noqa: PLW0603 - one world runs at a time
    _BY_NAME.clear()
    _IDS = itertools.count()


def _named(name: str) -> Any:
    return _BY_NAME[name]


def copied(value: Any) -> Any:
    """Return a value as another process gets it."""
    try:
        return pickle.loads(pickle.dumps(value))  # most are plain, and cloudpickle takes longer
    except Exception:  # noqa: BLE001 - cloudpickle tells what cannot be sent
        return pickle.loads(cloudpickle.dumps(value))


class Ref:
    """As ``ray.ObjectRef``."""

    def __init__(self, owner: Process | None) -> None:
        self.owner = owner
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._waits: list[Wait] = []
        self._calls: list[Callable[[], object]] = []
        self.name = f"ref-{next(_IDS)}"
        _BY_NAME[self.name] = self

    def __reduce__(self) -> Any:
        return _named, (self.name,)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def hex(self) -> str:
        return self.name

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        for wait in self._waits:
            wait.end()
        for call in self._calls:
            call()
        self._waits, self._calls = [], []

    def on_end(self, call: Callable[[], object]) -> None:
        call() if self.done else self._calls.append(call)


class Node:
    """A machine: its resources, its clocks, and the processes on it."""

    def __init__(self, name: str, cpus: float, rng: Any) -> None:
        self.name, self.cpus, self.free = name, cpus, cpus
        self.id = name.encode().hex().ljust(56, "0")
        self.alive = True
        self.draining: int | None = None
        self.processes: list[Process] = []
        self.booted_s = rng.uniform(100, 1e6)
        self.ahead_s = rng.uniform(-30, 30)
        self.cut_until = self.loses_until = -1.0
        self.full = False


class Group:
    """As ``ray.util.placement_group.PlacementGroup``."""

    def __init__(
        self, rays: Rays, bundles: Sequence[Mapping[str, float]], strategy: str, name: str, owner: Process
    ) -> None:
        self.rays, self.strategy, self.name, self.owner = rays, strategy, name, owner
        self.bundle_specs = [dict(one) for one in bundles]
        self._hex: str = f"pg-{next(rays.serials)}"
        self.id = SimpleNamespace(hex=lambda: self._hex, binary=self._binary)
        self.nodes: list[Node | None] = [None] * len(bundles)
        self.state = "PENDING"
        self.idle: float | None = None
        self._ready = Ref(owner)
        _BY_NAME[self._hex] = self

    def _binary(self) -> bytes:
        return self._hex.encode()

    def __reduce__(self) -> Any:
        return _named, (self._hex,)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(self._hex)

    def ready(self) -> Ref:
        return self._ready

    def wait(self, timeout_seconds: float = 30) -> bool:
        return bool(self.rays.wait([self._ready], timeout=timeout_seconds)[0])

    def place(self) -> bool:
        """Reserve what is missing, all or nothing; return whether nothing is missing now."""
        missing = [index for index, node in enumerate(self.nodes) if node is None]
        taken: list[tuple[int, Node]] = []
        for index in missing:
            cpus = self.bundle_specs[index].get("CPU", 0)
            used = {id(node) for _, node in taken} | {id(node) for node in self.nodes if node}
            nodes = [node for node in self.rays.nodes_alive() if node.free >= cpus]
            if self.strategy == "STRICT_SPREAD":
                nodes = [node for node in nodes if id(node) not in used]
            else:
                nodes.sort(key=lambda node: (id(node) not in used, -node.free))
            if not nodes:
                for at, node in taken:
                    node.free += self.bundle_specs[at].get("CPU", 0)
                return False
            nodes[0].free -= cpus
            taken.append((index, nodes[0]))
        for index, node in taken:
            self.nodes[index] = node
        self.state = "CREATED"
        self._ready.end(self)
        return True

    def remove(self) -> None:
        if self.state == "REMOVED":
            return
        self.state = "REMOVED"
        for index, node in enumerate(self.nodes):
            if node is not None and node.alive:
                node.free += self.bundle_specs[index].get("CPU", 0)
        self.nodes = [None] * len(self.nodes)
        for actor in list(self.rays.actors.values()):
            if actor.group is self:
                actor.die("its placement group was removed")
        self.rays.place_soon()


class Actor:
    """An actor: a process that answers calls, in their order, as many at a time as it may."""

    def __init__(self, rays: Rays, cls: type, options: Mapping[str, Any], args: Any, kwargs: Any) -> None:
        self.rays, self.cls, self.owner = rays, cls, rays.kernel.here
        self.id = f"actor-{next(rays.serials)}"
        self.most = options.get("max_concurrency") or 1
        strategy = options.get("scheduling_strategy")
        self.group: Group | None = getattr(strategy, "placement_group", None)
        self.bundle: int = getattr(strategy, "placement_group_bundle_index", -1)
        self.process: Process | None = None
        self.instance: Any = None
        self.dead: str | None = None
        self.init_error: BaseException | None = None
        self._args = copied((args, kwargs))
        self._calls: list[tuple[str, Any, Ref]] = []
        self._running: list[Ref] = []
        self._arrivals: dict[Process, float] = {}
        self._began = False
        _BY_NAME[self.id] = Handle(self)
        rays.actors[self.id] = self
        self.owner.at_exit.append(
            lambda _: self.rays.kernel.after(self.rays.notice_s(), lambda: self.die("its owner has died"))
        )
        if self.group is None:
            self._begin_soon()
        else:
            self.group.ready().on_end(self._begin_soon)

    def _begin_soon(self) -> None:
        self.rays.kernel.after(self.rays.start_s(), self._begin)

    def _begin(self) -> None:
        if self.dead or self._began:
            return
        node = self._node()
        if node is None:
            self.rays.kernel.after(1.0, self._begin)  # it waits for a place
            return
        self._began = True
        kernel = self.rays.kernel
        self.process = kernel.process(f"{self.cls.__name__}/{self.id}", node)
        self.process.locals["actor"] = self
        self.process.locals["kind"] = "worker" if self.cls.__name__ == "GangWorker" else "head"
        node.processes.append(self.process)
        self.process.at_exit.append(self._gone)
        kernel.spawn(self.process, self._init, name="main")

    def _node(self) -> Node | None:
        if self.group is None:
            return next(iter(self.rays.nodes_alive()), None)
        if self.group.state == "REMOVED":
            self.die("its placement group was removed")
            return None
        index = max(self.bundle, 0)
        return self.group.nodes[index]

    def _init(self) -> None:
        args, kwargs = self._args
        try:
            self.instance = self.cls(*[self.rays.resolved(one) for one in args], **kwargs)
        except Exception as error:  # noqa: BLE001 - as Ray, whatever it is
            self.init_error = _task_error("__init__", error)
            self.rays.kernel.log("constructor of", self.id, "".join(traceback.format_exception(error)))
            self.rays.kernel.soon(partial(self.die, "its constructor failed"))
            return
        self._next()

    def call(self, method: str, args: Any, kwargs: Any) -> Ref:
        """Send a call from the process that runs."""
        kernel, sender = self.rays.kernel, self.rays.kernel.here
        ref = Ref(sender)
        sent = copied((args, kwargs))
        arrives = max(
            self._arrivals.get(sender, 0.0) + 1e-9,
            kernel.now + kernel.cut_s(self.process, sender) + self.rays.latency_s(),
        )
        self._arrivals[sender] = arrives
        kernel.after(arrives - kernel.now, lambda: self._arrive(method, sent, ref))
        return ref

    def _arrive(self, method: str, sent: Any, ref: Ref) -> None:
        if self.dead is not None:
            self._answer(ref, error=self.error())
            return
        self._calls.append((method, sent, ref))
        self._next()

    def _next(self) -> None:
        while self._calls and self.instance is not None and len(self._running) < self.most and self.process:
            method, sent, ref = self._calls.pop(0)
            self._running.append(ref)
            self.rays.kernel.spawn(self.process, self._answer_call, method, sent, ref, name=method)

    def _answer_call(self, method: str, sent: Any, ref: Ref) -> None:
        args, kwargs = sent
        try:
            value = copied(self._run(method, [self.rays.resolved(one) for one in args], kwargs))
        except SystemExit:
            self.rays.kernel.soon(partial(self.die, "it has ended"))
            return
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self.rays.kernel.log("error of", self.process, method, f"{type(error).__name__}: {error}"[:300])
            self._answer(
                ref, error=error if isinstance(error, ray.exceptions.RayActorError) else _task_error(method, error)
            )
        else:
            self._answer(ref, value)
        if ref in self._running:
            self._running.remove(ref)
        self._next()

    def _run(self, method: str, args: Any, kwargs: Any) -> Any:
        if method == "__ray_ready__":
            return True
        if method == "__ray_terminate__":
            raise SystemExit
        if method == "__ray_call__":
            return args[0](self.instance, *args[1:], **kwargs)
        return getattr(self.instance, method)(*args, **kwargs)

    def _answer(self, ref: Ref, value: Any = None, error: BaseException | None = None) -> None:
        def arrive() -> None:
            if ref.owner is None or ref.owner.alive:
                ref.end(value, error)

        self.rays.kernel.after(self.rays.kernel.cut_s(self.process, ref.owner) + self.rays.latency_s(), arrive)

    def die(self, why: str) -> None:
        """End it, if it has not ended."""
        if self.process is not None:
            self.process.kill(why)
        elif self.dead is None:
            self._gone(why)

    def _gone(self, why: str) -> None:
        self.dead = why
        refs = [*self._running, *(ref for _, _, ref in self._calls)]
        self._running, self._calls = [], []
        notice_s = self.rays.notice_s()
        for ref in refs:
            self.rays.kernel.after(notice_s, partial(self._answer, ref, error=self.error()))

    def error(self) -> BaseException:
        if isinstance(self.init_error, RayTaskError):
            return ActorDiedError(self.init_error)
        error = ActorDiedError()
        error.error_msg = f"The actor died: {self.dead}"
        return error


def _task_error(method: str, error: BaseException) -> BaseException:
    text = "".join(traceback.format_exception(error))
    return RayTaskError(method, text, copied_error(error), proctitle="ray::world", pid=1, ip="10.0.0.1")


def copied_error(error: BaseException) -> BaseException:
    """Return an error as another process gets it."""
    try:
        sent: BaseException = copied(error)
        return sent
    except Exception:  # noqa: BLE001 - some cannot be sent
        return RuntimeError(str(error))


class Handle:
    """As ``ray.actor.ActorHandle``."""

    def __init__(self, actor: Actor) -> None:
        self.__dict__["_actor"] = actor
        self.__dict__["_actor_id"] = SimpleNamespace(hex=lambda: actor.id)
        self.__dict__["_ray_actor_id"] = self._actor_id

    def __reduce__(self) -> Any:
        return _named, (self._actor.id,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__ray_ready__", "__ray_terminate__", "__ray_call__"):
            raise AttributeError(name)
        return Method(self._actor, name)


class Method:
    """A method of an actor's handle."""

    def __init__(self, actor: Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        return self._actor.call(self._name, args, kwargs)


class Remote:
    """As what ``ray.remote`` returns, of a class or a function."""

    def __init__(self, rays: Rays, what: Any, options: Mapping[str, Any]) -> None:
        self._rays, self._what, self._options = rays, what, options

    def options(self, **options: Any) -> Remote:
        return Remote(self._rays, self._what, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._what, type):
            return _BY_NAME[Actor(self._rays, self._what, self._options, args, kwargs).id]
        return self._rays.run_task(self._what, self._options, args, kwargs)


class Rays:
    """The part of the module ``ray`` that is used. ``delays``: what faults make slower."""

    def __init__(self, kernel: Kernel, nodes: Iterable[float]) -> None:
        self.kernel = kernel
        self.serials = itertools.count()
        self.nodes_all = [Node(f"node{index}", cpus, kernel.rng) for index, cpus in enumerate(nodes)]
        self.actors: dict[str, Actor] = {}
        self.groups: list[Group] = []
        self.kept: dict[tuple[str, str], bytes] = {}
        self.slow = 1.0
        """How many times as long messages take."""
        self._placing = False

    # -- what takes how long

    def latency_s(self) -> float:
        return self.kernel.rng.uniform(0.0003, 0.003) * self.slow

    def start_s(self) -> float:
        return self.kernel.rng.uniform(0.1, 0.7)

    def notice_s(self) -> float:
        return self.kernel.rng.uniform(0.01, 2.0)

    # -- nodes

    def nodes_alive(self) -> list[Node]:
        return [node for node in self.nodes_all if node.alive]

    def draining_nodes(self) -> dict[str, int]:
        return {node.id: node.draining for node in self.nodes_alive() if node.draining is not None}

    def lose(self, node: Node) -> None:
        """Lose a node, with all that runs on it."""
        node.alive = False
        for process in list(node.processes):
            process.kill("its node was lost")
        for group in self.groups:
            if group.state == "CREATED" and node in group.nodes:
                group.nodes = [None if one is node else one for one in group.nodes]
                group.state = "RESCHEDULING"
        self.place_soon()

    def add(self, cpus: float) -> Node:
        """Add a node."""
        self.nodes_all.append(node := Node(f"node{len(self.nodes_all)}", cpus, self.kernel.rng))
        self.place_soon()
        return node

    def place_soon(self) -> None:
        """Place waiting groups, in a moment."""
        if not self._placing:
            self._placing = True
            self.kernel.after(self.latency_s(), self._place)

    def _place(self) -> None:
        self._placing = False
        for group in self.groups:
            if group.state in ("PENDING", "RESCHEDULING"):
                group.place()
        self.groups = [group for group in self.groups if group.state != "REMOVED"]

    # -- ray's functions

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
    ) -> tuple[list[Ref], list[Ref]]:
        if len(set(refs)) != len(refs):
            raise ValueError("Wait requires a list of unique object refs.")
        end = None if timeout is None else self.kernel.now + timeout
        while sum(ref.done for ref in refs) < min(num_returns, len(refs)):
            left = None if end is None else end - self.kernel.now
            if left is not None and left <= 0:
                break
            wait = Wait(self.kernel)
            for ref in refs:
                if not ref.done:
                    ref._waits.append(wait)
            wait.wait(left)
            for ref in refs:
                if wait in ref._waits:
                    ref._waits.remove(wait)
        ready = [ref for ref in refs if ref.done][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, refs: Any, *, timeout: float | None = None) -> Any:
        if isinstance(refs, list):
            return [self.get(ref, timeout=timeout) for ref in refs]
        if not self.wait([refs], timeout=timeout)[0]:
            raise GetTimeoutError(f"Get timed out: {refs.name}")
        if refs.error is not None:
            raise refs.error.as_instanceof_cause() if isinstance(refs.error, RayTaskError) else refs.error
        return refs.value

    def resolved(self, value: Any) -> Any:
        """Return an argument as the callee gets it: a reference's value."""
        return self.get(value) if isinstance(value, Ref) else value

    def put(self, value: Any) -> Ref:
        ref = Ref(self.kernel.here)
        ref.end(copied(value))

        def lost(_: str) -> None:
            ref.value, ref.error = None, ObjectLostError(ref.name.encode().ljust(28, b"0").hex(), None, "")

        self.kernel.here.at_exit.append(lost)
        return ref

    def kill(self, handle: Handle, *, no_restart: bool = True) -> None:
        self.kernel.after(self.latency_s(), lambda: handle._actor.die("it was killed by ray.kill"))

    def cancel(self, ref: Ref, **_: Any) -> None:
        """Do nothing."""

    def remote(self, *args: Any, **options: Any) -> Any:
        if not args:
            return lambda what: Remote(self, what, options)
        return args[0] if isinstance(args[0], Remote) else Remote(self, args[0], {})

    def run_task(self, function: Callable[..., Any], options: Mapping[str, Any], args: Any, kwargs: Any) -> Ref:
        """Run a function, which waits for nothing, on a node."""
        ref, node_id = Ref(self.kernel.here), getattr(options.get("scheduling_strategy"), "node_id", None)
        sent = copied((args, kwargs))

        def run() -> None:
            if any(node_id in (None, node.id) for node in self.nodes_alive()):
                ref.end(copied(function(*sent[0], **sent[1])))
            else:
                ref.end(error=WorkerCrashedError())

        self.kernel.after(self.start_s(), run)
        return ref

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node.id, "Alive": node.alive, "NodeManagerAddress": f"10.0.0.{index + 1}",
                "NodeManagerHostname": node.name, "Resources": {"CPU": node.cpus} if node.alive else {}, "Labels": {},
            }
            for index, node in enumerate(self.nodes_all)
        ]  # fmt: skip

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(node.cpus for node in self.nodes_alive()))}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(node.free for node in self.nodes_alive()))}

    def get_runtime_context(self) -> Any:
        process = self.kernel.here
        actor = process.locals.get("actor")
        return SimpleNamespace(
            get_node_id=lambda: process.node.id, get_worker_id=lambda: f"{process.pid:056d}",
            get_actor_id=lambda: actor and actor.id, get_assigned_resources=dict, get_accelerator_ids=dict,
            get_job_id=lambda: self._driver_of(process).locals.get("job", "no job"), runtime_env={}, namespace="",
            worker=SimpleNamespace(mode=ray.WORKER_MODE if actor else ray.SCRIPT_MODE),
        )  # fmt: skip

    def _driver_of(self, process: Process) -> Process:
        """Return the driver of a process's job; the process, if it has none."""
        while (actor := process.locals.get("actor")) is not None:
            process = actor.owner
        return process

    # -- placement groups

    def placement_group(
        self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK", name: str = "", **_: Any
    ) -> Group:
        self.groups.append(group := Group(self, bundles, strategy, name, self.kernel.here))
        driver = self._driver_of(self.kernel.here)  # with which Ray removes its job's groups
        driver.at_exit.append(lambda _: self.kernel.after(self.notice_s(), group.remove))
        self.place_soon()
        return group

    def remove_placement_group(self, group: Group) -> None:
        self.kernel.after(self.latency_s(), group.remove)

    def placement_group_table(self, group: Group | None = None) -> dict[str, Any]:
        return {
            one._hex: {"name": one.name, "state": one.state, "bundles": dict(enumerate(one.bundle_specs))}
            for one in self.groups
        }

    def get_placement_group(self, name: str) -> Group:
        found = next((group for group in self.groups if group.name == name and group.state != "REMOVED"), None)
        if found is None:
            raise ValueError(f"Failed to look up placement group with name: {name}")
        return found

    def get_current_placement_group(self) -> Group | None:
        actor = self.kernel.here.locals.get("actor")
        return None if actor is None else actor.group
