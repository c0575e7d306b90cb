"""What happens to a sweep. A seed plans it: when, what, and a seed of its own for each, so that one can be left out."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.world.kernel import Process

_TRIES = 20
"""How often a fault is tried."""
Fault = Callable[[Any, random.Random], str | None]
"""Does it, and returns what it did; None where there is nothing to do it to."""


class Planned(NamedTuple):
    """A fault to come."""

    at_s: float
    name: str
    seed: int


def plan(seed: int, kind: str, most: int = 18, within_s: float = 25.0) -> list[Planned]:
    """Draw what is to happen to a sweep of a kind: some of the faults that it can have, again and again."""
    rng = random.Random(seed)
    possible = [name for name in FAULTS if kind.startswith("stored") or name not in OF_STORES]
    names = rng.sample(possible, rng.randint(1, len(possible)))
    return [
        Planned(round(rng.uniform(0.0, within_s), 3), rng.choice(names), rng.getrandbits(32))
        for _ in range(rng.randint(1, most))
    ]


def disturb(world: Any, planned: Iterable[Planned]) -> None:
    """Let it happen; where there is nothing to do it to, a little later."""

    def happen(one: Planned, tries: int = 0) -> None:
        said = FAULTS[one.name](world, random.Random(one.seed + tries))
        if said is not None:
            world.faults.append(f"{world.kernel.now:.3f} {said}")
            world.kernel.log("FAULT", said)
        elif tries < _TRIES:
            world.kernel.after(0.3, lambda: happen(one, tries + 1))

    for one in planned:
        world.kernel.after(one.at_s, lambda one=one: happen(one))


# --- processes ---------------------------------------------------------------------------------------------------


def _running(world: Any, *kinds: str) -> Iterator[Process]:
    for node in world.rays.nodes_alive():
        for process in node.processes:
            if process.alive and not process.stopped and process.threads and process.locals.get("kind") in kinds:
                yield process


def _pick(world: Any, rng: random.Random, *kinds: str) -> Process | None:
    found = list(_running(world, *kinds))
    return rng.choice(found) if found else None


def kill_process(world: Any, rng: random.Random) -> str | None:
    if (process := _pick(world, rng, rng.choice(["worker", "head", "driver"]))) is None:
        return None
    process.kill("SIGKILL")
    return f"kill {process}"


def crash_process(world: Any, rng: random.Random) -> str | None:
    """Kill a process right before one of its next changes on a disk or in a store."""
    if (process := _pick(world, rng, rng.choice(["worker", "head", "driver"]))) is None:
        return None
    process.dies_in = rng.randrange(1, 20)
    return f"kill {process} before its change {process.dies_in}"


def sleep_process(world: Any, rng: random.Random) -> str | None:
    """Stop a process right before one of its next changes on a disk or in a store."""
    if (process := _pick(world, rng, rng.choice(["worker", "head", "driver"]))) is None:
        return None
    count, seconds = rng.randrange(1, 20), rng.choice([3.0, 20.0, 60.0])
    process.stops_in = count, seconds
    return f"stop {process} before its change {count} for {seconds} s"


def stop_process(world: Any, rng: random.Random) -> str | None:
    if (process := _pick(world, rng, rng.choice(["worker", "head", "driver"]))) is None:
        return None
    seconds = rng.choice([0.5, 3.0, 20.0, 60.0])
    process.stop()
    world.kernel.after(seconds, process.go_on)
    return f"stop {process} for {seconds} s"


def end_driver(world: Any, rng: random.Random) -> str | None:
    """Send SIGTERM, as before a preemption."""
    if (process := _pick(world, rng, "driver")) is None:
        return None
    process.signal(signal.SIGTERM)
    world.kernel.after(30.0, lambda: process.kill("SIGKILL, 30 s after SIGTERM"))
    return f"SIGTERM to {process}"


def second_driver(world: Any, rng: random.Random) -> str | None:
    """Start another driver on the sweep, from another node, with the first stopped or at work."""
    if (process := _pick(world, rng, "driver")) is None:
        return None
    seconds = rng.choice([0.0, 40.0])
    if seconds:
        process.stop()
        world.kernel.after(seconds, process.go_on)
    node = rng.choice(world.rays.nodes_alive())
    world.kernel.after(1.0, lambda: node.alive and not world.over() and world.drive(node, second=True))
    return f"a second driver on {node.name}, {process} {'stopped for 40 s' if seconds else 'at work'}"


# --- nodes and messages ------------------------------------------------------------------------------------------


def _other_node(world: Any, rng: random.Random) -> Any:
    with_drivers = {id(process.node) for process in _running(world, "driver")}
    nodes = [node for node in world.rays.nodes_alive() if id(node) not in with_drivers]
    return rng.choice(nodes) if nodes else None


def lose_node(world: Any, rng: random.Random) -> str | None:
    if (node := _other_node(world, rng)) is None:
        return None
    world.rays.lose(node)
    world.kernel.disk.lose(node, rng)
    world.kernel.after(rng.uniform(1, 40), lambda: world.rays.add(node.cpus))
    return f"lose {node.name}"


def drain_node(world: Any, rng: random.Random) -> str | None:
    """Give notice of a node's end, as of a spot instance."""
    if (node := _other_node(world, rng)) is None or node.draining is not None:
        return None
    node.draining = 0
    world.kernel.after(30.0, lambda: node.alive and world.rays.lose(node))
    world.kernel.after(rng.uniform(1, 40), lambda: world.rays.add(node.cpus))
    return f"drain {node.name}"


def lose_cluster(world: Any, rng: random.Random) -> str:
    """Lose all nodes, with the driver; another cluster comes later."""
    for node in world.rays.nodes_alive():
        world.rays.lose(node)
        world.kernel.disk.lose(node, rng)
    world.rays.kept.clear()
    shutil.rmtree(world.folder / "cache", ignore_errors=True)  # what its nodes had of a store

    def again() -> None:
        while sum(node.cpus for node in world.rays.nodes_alive()) < sum(world.nodes):
            world.rays.add(world.nodes[0])

    world.kernel.after(rng.uniform(1, 40), again)
    return "lose the cluster"


def add_node(world: Any, rng: random.Random) -> str:
    return f"add {world.rays.add(rng.choice([1.0, 4.0])).name}"


def _slow(world: Any, rng: random.Random, what: Any) -> float:
    """Make something slower for a while; return how many times."""
    times: float = rng.choice([10, 100, 1000])
    what.slow = times
    world.kernel.after(rng.uniform(1, 20), lambda: setattr(what, "slow", 1.0))
    return times


def slow_messages(world: Any, rng: random.Random) -> str:
    return f"messages {_slow(world, rng, world.rays)} times as slow"


def cut_node(world: Any, rng: random.Random) -> str:
    """Let nothing through to and from a node for a while; then all that waited arrives."""
    node, seconds = rng.choice(world.rays.nodes_alive() or world.rays.nodes_all), rng.choice([1.0, 5.0, 20.0])
    node.cut_until = world.kernel.now + seconds
    return f"cut {node.name} off for {seconds} s"


def jump_clock(world: Any, rng: random.Random) -> str:
    node, seconds = rng.choice(world.rays.nodes_all), rng.choice([-3600.0, -5.0, 5.0, 3600.0])
    node.ahead_s += seconds
    return f"the clock of {node.name} jumps by {seconds} s"


def fill_disk(world: Any, rng: random.Random) -> str:
    """Let nothing more be written safely on a node, until there is room again."""
    node, seconds = rng.choice(world.rays.nodes_all), rng.choice([1.0, 5.0, 20.0])
    node.full = True
    world.kernel.after(seconds, lambda: setattr(node, "full", False))
    return f"the disk of {node.name} is full for {seconds} s"


def forget_answers(world: Any, rng: random.Random) -> str | None:
    """Let answers of the disk that all nodes share get lost, so that a node asks again for what has been done."""
    if world.stored:
        return None  # then they share a store
    node, seconds = rng.choice(world.rays.nodes_all), rng.choice([1.0, 5.0, 20.0])
    node.loses_until = world.kernel.now + seconds
    return f"the disk of {node.name} loses answers for {seconds} s"


def refuse_requests(world: Any, rng: random.Random) -> str:
    """Let the store refuse all requests for a while."""
    seconds = rng.choice([1.0, 10.0, 60.0])
    world.bucket.fails_until = world.kernel.now + seconds
    return f"the store refuses all for {seconds} s"


def lose_answers(world: Any, rng: random.Random) -> str:
    """Let answers of the store get lost, which has done what it was asked for."""
    seconds = rng.choice([1.0, 10.0, 60.0])
    world.bucket.loses_until = world.kernel.now + seconds
    return f"answers of the store get lost for {seconds} s"


def slow_store(world: Any, rng: random.Random) -> str:
    return f"the store is {_slow(world, rng, world.bucket)} times as slow"


# --- training code and people ------------------------------------------------------------------------------------


def break_training(world: Any, rng: random.Random) -> str | None:
    """Let one rank raise, run out of memory, or report NaN, at its next step or report."""
    if (process := _pick(world, rng, "worker")) is None:
        return None
    kind, text = rng.choice(["ERROR", "OOM", "DIVERGED"]), f"fault number {rng.randrange(10**6)}"
    process.locals["breaks"] = kind, text
    return f"{kind} at {process}: {text}"


def slow_rank(world: Any, rng: random.Random) -> str | None:
    """Let one rank be slower than the others, for as long as its process lives."""
    if (process := _pick(world, rng, "worker")) is None:
        return None
    times = process.locals["slow"] = rng.choice([3, 20])
    return f"{process} is {times} times as slow"


def command(world: Any, rng: random.Random) -> str | None:
    """Let a person tell the sweep something."""
    said = rng.choice(["stop_trial", "enqueue", "branch", "max_concurrent", "num_samples", "stop_sweep"])
    if not world.rays.nodes_alive():
        return None
    world.person(said, rng)
    return f"command {said}"


FAULTS: dict[str, Fault] = {
    one.__name__: one
    for one in (
        kill_process, crash_process, stop_process, end_driver, second_driver, lose_node, drain_node,
        lose_cluster, add_node, slow_messages, cut_node, jump_clock, fill_disk, forget_answers, refuse_requests,
        lose_answers, slow_store, break_training, slow_rank, command, sleep_process,
    )
}  # fmt: skip
OF_STORES = {refuse_requests.__name__, lose_answers.__name__, slow_store.__name__}
"""Faults of object stores, which other sweeps cannot have."""
