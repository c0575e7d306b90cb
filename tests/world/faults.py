"""What happens to a sweep: each fault is drawn by the world's seed, at its time, for what is there then."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

from tests.world.kernel import Process

Fault = Callable[[Any, random.Random], str | None]
"""Does it, and returns what it did; None where there is nothing to do it to."""


def _pick(world: Any, rng: random.Random, kind: str) -> Process | None:
    found = [
        process
        for node in world.rays.nodes_alive()
        for process in node.processes
        if process.alive and not process.stopped and process.locals.get("kind") == kind
    ]
    return rng.choice(found) if found else None


def kill_worker(world: Any, rng: random.Random) -> str | None:
    if (process := _pick(world, rng, "worker")) is None:
        return None
    process.kill("SIGKILL")
    return f"kill {process}"


def kill_head(world: Any, rng: random.Random) -> str | None:
    if (process := _pick(world, rng, "head")) is None:
        return None
    process.kill("SIGKILL")
    return f"kill {process}"


def stop_process(world: Any, rng: random.Random) -> str | None:
    kind = rng.choice(["worker", "head", "driver"])
    if (process := _pick(world, rng, kind)) is None:
        return None
    seconds = rng.choice([0.5, 3.0, 20.0, 60.0])
    process.stop()
    world.kernel.after(seconds, process.go_on)
    return f"stop {process} for {seconds} s"


def lose_node(world: Any, rng: random.Random) -> str | None:
    nodes = [node for node in world.rays.nodes_alive() if world.driver not in node.processes]
    if not nodes:
        return None
    node = rng.choice(nodes)
    world.rays.lose(node)
    world.kernel.after(rng.uniform(1, 60), lambda: world.rays.add(node.cpus))
    return f"lose {node.name}"


def slow_messages(world: Any, rng: random.Random) -> str:
    world.rays.slow = rng.choice([10, 100, 1000])
    world.kernel.after(rng.uniform(1, 20), lambda: setattr(world.rays, "slow", 1.0))
    return f"messages {world.rays.slow} times as slow"


def kill_driver(world: Any, rng: random.Random) -> str | None:
    if world.driver is None or not world.driver.alive:
        return None
    world.driver.kill("SIGKILL")
    world.kernel.after(rng.uniform(0.1, 60), world.resume)
    return f"kill {world.driver}"


def end_driver(world: Any, rng: random.Random) -> str | None:
    """Send SIGTERM, as before a preemption; the driver is started again later."""
    if world.driver is None or not world.driver.alive or world.driver.stopped:
        return None
    world.driver.signal(signal.SIGTERM)
    driver = world.driver

    def kill() -> None:
        driver.kill("SIGKILL, 30 s after SIGTERM")

    world.kernel.after(30.0, kill)
    world.kernel.after(rng.uniform(31, 60), world.resume)
    return f"SIGTERM to {driver}"


def command(world: Any, rng: random.Random) -> str | None:
    """Let a person tell the sweep something."""
    said = rng.choice(["stop_trial", "enqueue", "branch", "max_concurrent"])
    world.person(said, rng)
    return f"command {said}"


FAULTS: dict[str, Fault] = {
    one.__name__: one
    for one in (kill_worker, kill_head, stop_process, lose_node, slow_messages, kill_driver, end_driver, command)
}


def disturb(world: Any, rng: random.Random, most: int = 6, within_s: float = 60.0) -> None:
    """Plan some faults."""
    for _ in range(rng.randint(1, most)):
        name = rng.choice(list(FAULTS))

        def happen(name: str = name) -> None:
            said = FAULTS[name](world, rng)
            if said is not None:
                world.faults.append(f"{world.kernel.now:.3f} {said}")
                world.kernel.log("FAULT", said)

        world.kernel.after(rng.uniform(0.0, within_s), happen)
