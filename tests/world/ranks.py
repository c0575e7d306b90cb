"""The ranks of the world: tunelight's own worker and session, over the world's store, collectives and training."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.world import kernel as kernels
from tests.world.kernel import Kernel, Process, Wait
from tunelight.checkpoints.files import fetch_local
from tunelight.gang import worker as workers
from tunelight.gang.meeting.rendezvous import StoreChannel
from tunelight.gang.placement import Assigned, Location
from tunelight.messages import Place
from tunelight.stores import store_of

PARTS = 4
"""Of each batch; ranks share them, whatever their number."""
BATCHES = 2
"""Of an epoch."""
STEP_S = 0.2
"""About how long one takes."""


class Store:
    """As ``torch.distributed.TCPStore``: values by key, in the process of rank 0."""

    def __init__(self, kernel: Kernel, server: Process) -> None:
        self._kernel, self._server = kernel, server
        self._values: dict[str, bytes] = {}
        self._waits: list[tuple[str, Wait]] = []
        self._timeout_s = 30.0
        server.at_exit.append(lambda _: self._wake())

    def _wake(self, key: str | None = None) -> None:
        for waited, wait in list(self._waits):
            if key in (None, waited):
                wait.end()

    def _reach(self) -> None:
        """Be there and back."""
        import torch.distributed as dist

        if self._kernel.here is not self._server:
            cut_s = self._kernel.cut_s(self._kernel.here, self._server)
            self._kernel.sleep(cut_s + self._kernel.rng.uniform(0.0001, 0.001))
        if not self._server.alive:
            raise dist.DistNetworkError("Connection reset by peer")

    def set(self, key: str, value: str) -> None:
        self._reach()
        self._values[key] = value.encode()
        self._wake(key)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        self._reach()
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        import torch.distributed as dist

        end = self._kernel.now + (self._timeout_s if timeout is None else timeout.total_seconds())
        self._reach()
        for key in keys:
            while key not in self._values:
                if self._kernel.now >= end:
                    raise dist.DistStoreError(f"wait timeout, keys: {key}")
                self._waits.append(entry := (key, Wait(self._kernel)))
                entry[1].wait(end - self._kernel.now)
                self._waits.remove(entry)
                if not self._server.alive:
                    raise dist.DistNetworkError("Connection reset by peer")

    def delete_key(self, key: str) -> bool:
        self._reach()
        return self._values.pop(key, None) is not None

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._reach()
        if self._values.get(key, b"").decode() == expected:
            self._values[key] = desired.encode()
        return self._values[key]

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()


class LostPeerError(RuntimeError):
    """A collective whose peer is gone."""


class Collectives:
    """Sums over all ranks of a meeting, as gloo's: they wait for one another, and fail once one is gone."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        self._kernel, self._size = kernel, size
        self._members: dict[int, Process] = {}
        self._left = False
        self._rounds: dict[tuple[int, int], dict[int, int]] = {}
        self._waits: list[Wait] = []

    def join(self, rank: int, limit_s: float) -> None:
        process = self._kernel.here
        self._members[rank] = process
        process.at_exit.append(lambda _: self._kernel.after(self._kernel.rng.uniform(0.0, 0.5), self._end))
        self._wake()
        end = self._kernel.now + limit_s
        while len(self._members) < self._size:
            if self._kernel.now >= end:
                raise RuntimeError("the ranks did not meet in time")
            self._wait(end - self._kernel.now)

    def _end(self) -> None:
        self._left = True
        self._wake()

    def leave(self) -> None:
        """Leave, which the others notice."""
        self._kernel.after(self._kernel.rng.uniform(0.0, 0.2), self._end)

    def sum(self, rank: int, number: tuple[int, int], value: int) -> int:
        """Return the sum of all ranks' values of this number."""
        values = self._rounds.setdefault(number, {})
        values[rank] = value
        self._wake()
        while len(values) < self._size:
            if self._left:
                raise LostPeerError("Connection closed by peer")
            self._wait(1800)
        return sum(values.values())

    def _wait(self, limit_s: float) -> None:
        self._waits.append(wait := Wait(self._kernel))
        wait.wait(limit_s)
        self._waits.remove(wait)

    def _wake(self) -> None:
        for wait in list(self._waits):
            wait.end()


class Meetings:
    """One rank's side of its gang's meetings, as ``Rendezvous``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._store: Store | None = None
        self._rank, self._size = 0, 1
        self.collectives: Collectives | None = None
        self._last: StoreChannel | None = None
        self.group = SimpleNamespace(leave=self._leave, settle=lambda: True, tidy=lambda: True, advice=lambda _: None)

    def host(self, address: str, backend: str, layout: tuple[int, ...]) -> tuple[int, int]:
        port = 20_000 + len(self._kernel.ports)
        self._kernel.ports[port] = Store(self._kernel, self._kernel.here), Collectives(self._kernel, sum(layout))
        return port, port

    def join(self, meeting: Any, place: Place) -> None:
        self._store, self.collectives = self._kernel.ports[meeting.port]
        self._rank, self._size = place.rank, place.world_size
        self._store._reach()
        self.collectives.join(place.rank, 120.0)

    def _leave(self) -> None:
        if self.collectives is not None:
            self.collectives.leave()

    def close(self) -> bool:
        self._leave()
        self._store = self.collectives = self._last = None
        return True

    def channel(self, name: str) -> StoreChannel:
        assert self._store is not None
        if self._last is not None:
            self._last.clear()
        self._last = StoreChannel(self._store, name, self._rank, self._size)  # type: ignore[arg-type]
        return self._last

    def lost_peer(self, error: BaseException) -> bool:
        return isinstance(error, LostPeerError) or "reset by peer" in str(error)


def worker_of(kernel: Kernel) -> type:
    """Return the class of the world's workers: tunelight's, without what concerns a real process and its libraries."""

    class GangWorker(workers.GangWorker):
        def __init__(self, home: Any, environ: Any, assigned: Any = None) -> None:
            node = kernel.here.node
            self._assigned = Assigned(node.id, f"10.0.0.{node.name.removeprefix('node')}", (), 0.0, "")
            self._rendezvous: Any = Meetings(kernel)
            self._task, self._trial = None, workers.TrialBox(0)
            self._lock = workers.threading.Lock()
            self._thread = self._session = self._unsettled = self._place = None
            self._left, self._began_ns = (), 0
            nothing = lambda *_, **__: None  # noqa: E731
            self._clean: Any = SimpleNamespace(
                freeze=nothing, begin=nothing, restore=lambda *_: (), remember_environment=nothing
            )
            self._compiled: Any = SimpleNamespace(begin=nothing, end=lambda: "", drop=nothing)
            kernel.sleep(kernel.rng.uniform(0.1, 1.5))  # its imports

        def locate(self) -> Location:
            one = self._assigned
            return Location(
                node_id=one.node_id, address=one.address, pid=kernel.here.pid, hostname=kernel.here.node.name, gpus=(),
                versions={},
            )  # fmt: skip

        def arrive(self, hook: bytes | None) -> Location:
            return self.locate()

        def join(self, meeting: Any, place: Place) -> None:
            self._place = place
            self._rendezvous.join(meeting, place)

        def collectives(self) -> Any:
            return ()

        def _output(self, *_: Any) -> Any:
            return contextlib.nullcontext()

        def _end_runs(self, *, failed: bool) -> tuple[str, ...]:
            return ()

        def _clean_up(self, task: Any, late: Any) -> bool:
            return False

        def _train(self, task: Any, start: Any, box: Any) -> Any:
            kernel.here.locals["collectives"] = self._rendezvous.collectives
            return super()._train(task, start, box)

    return GangWorker


# --- the training: a chain of hashes, in which any wrong, repeated or left out step shows -------------------------


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def begun(seed: int | None) -> int:
    """Return the state with which a training begins."""
    return _hash("begin", seed)


def advanced(state: int, lr: float, step: int) -> int:
    """Return the state after a step, whatever number of ranks takes it."""
    return state ^ (sum(part_of(state, lr, step, part) for part in range(PARTS)) & (2**48 - 1))


def part_of(state: int, lr: float, step: int, part: int) -> int:
    """Return what a part of a batch adds to a step."""
    return _hash(state, lr, step, part)


def loss_of(lr: float, state: int, number: int) -> float:
    """Return the metric of report ``number``: it falls, faster for a better lr, with some noise of the state's."""
    return abs(lr - 0.3) + 1.0 / (number + 1) + (state % 1000) / 3e3


class Training:
    """One rank's training: where it stands, as tunelight's exchange of states wants it."""

    def __init__(self, kernel: Kernel, config: dict[str, Any]) -> None:
        self.kernel, self.config = kernel, config
        self.session = kernel.here.locals["session"]
        self.collectives: Collectives = kernel.here.locals["collectives"]
        context = self.session.context
        self.rank, self.size = context.rank, context.world_size
        self.epoch = self.batch = 0
        self.state = begun(context.seed)
        self._rounds = 0
        if context.resume is not None:
            self.load(saved_in(fetch_local(context.resume.path)))

    def load(self, saved: Mapping[str, int]) -> None:
        """Stand where another training stood."""
        self.epoch, self.batch, self.state = saved["epoch"], saved["batch"], saved["state"]

    @property
    def saved(self) -> dict[str, int]:
        """Where it stands."""
        return {"epoch": self.epoch, "batch": self.batch, "state": self.state}

    @property
    def _on_one_node(self) -> bool:
        context = self.session.context
        return bool(context.local_world_size == context.world_size)

    def _breaks(self, kind: str, text: str) -> None:
        del self.kernel.here.locals["breaks"]
        self.kernel.broken.setdefault(self.session.context.trial_id, []).append((kind, text))

    def loss(self) -> float:
        """Return the metric of its next report."""
        kind, _ = self.kernel.here.locals.get("breaks", ("", ""))
        if kind == "DIVERGED" and self.rank == 0:
            self._breaks(kind, "nan")
            return math.nan
        return loss_of(self.config["lr"], self.state, self.epoch)

    def sum(self, value: int) -> int:
        """Return the sum over all ranks."""
        self._rounds += 1
        return self.collectives.sum(self.rank, (self.session.start.serial, self._rounds), value)

    def step(self) -> None:
        """Train a batch."""
        self.kernel.sleep(self.kernel.rng.uniform(0.5, 1.5) * STEP_S * self.kernel.here.locals.get("slow", 1))
        kind, text = self.kernel.here.locals.get("breaks", ("", ""))
        if kind in ("ERROR", "OOM"):
            self._breaks(kind, text)
            raise ValueError(text) if kind == "ERROR" else MemoryError(text)
        step = self.epoch * BATCHES + self.batch + 1
        parts = range(self.rank, PARTS, self.size)
        mine = sum(part_of(self.state, self.config["lr"], step, part) for part in parts)
        self.state ^= self.sum(mine) & (2**48 - 1)
        self.batch += 1
        if self.kernel.saves:
            self.session.boundary.end_step(self.write, epoch=self.epoch, step=step, batch=self.batch)

    def write(self, path: str) -> None:
        """Write a checkpoint, at once or in the background; of every other trial each rank its part of a folder.

        That needs a folder that all ranks share, which a store is on one node only.
        """
        text = json.dumps({**self.saved, "size": self.size})
        if self.session.context.trial_id[-1] in "13579" and (self._on_one_node or not store_of(Path(path))):
            Path(path).mkdir(exist_ok=True)
            _written(self.kernel, f"{path}/{self.rank}.json", text)
        elif self.rank == 0:
            if self.kernel.rng.random() < 0.5:
                self.session.writing.defer(lambda: _written(self.kernel, path, text))
            else:
                _written(self.kernel, path, text)

    # -- exchange of states

    def give(self) -> dict[str, int]:
        return self.saved

    def agree(self, yes: bool) -> bool:
        return bool(self.sum(int(yes)) == self.size)

    def take(self, state: Mapping[str, int], before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        self.state = state["state"]
        return None


def train(config: dict[str, Any]) -> None:
    """Train one configuration, as a user's loop would."""
    training = Training(kernels.running(), config)
    training.session.exchange.training = training
    while training.epoch < config["epochs"]:
        while training.batch < BATCHES:
            training.step()
        training.epoch, training.batch = training.epoch + 1, 0
        lr, state, epoch = config["lr"], training.state, training.epoch
        metrics = {"loss": training.loss(), "state": state, "used": lr, "epochs": epoch}
        write = training.write if training.kernel.saves else None
        training.session.context.report(metrics, write, epoch=epoch - 1, step=epoch * BATCHES)


def saved_in(path: Path) -> dict[str, int]:
    """Return what a checkpoint holds. Raises: ValueError where it lacks a part."""
    if not path.is_dir():
        return dict(json.loads(path.read_text()))
    parts = [json.loads(part.read_text()) for part in sorted(path.glob("*.json"))]
    if not parts or len(parts) != parts[0]["size"] or any(part != parts[0] for part in parts):
        raise ValueError(f"{path.name} has the parts {parts}")
    return dict(parts[0])


def _written(kernel: Kernel, path: str, text: str) -> None:
    kernel.sleep(kernel.rng.uniform(0.01, 1.0))
    if kernel.here.node.full:
        raise OSError(errno.ENOSPC, "No space left on device", path)
    Path(path).write_text(text)


@contextlib.contextmanager
def sessions_by_process(kernel: Kernel) -> Iterator[None]:
    """Keep each process's session, where a module keeps that of the only process that it knows."""
    from tunelight.session import session as sessions

    before = sessions.set_current
    sessions.set_current = lambda session: kernel.here.locals.__setitem__("session", session)
    try:
        yield
    finally:
        sessions.set_current = before
