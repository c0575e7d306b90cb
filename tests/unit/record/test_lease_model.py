"""The lease held against every order of events: drivers that sleep between any two requests, are cut off, or begin.

Drivers are threads that run the lease's own code. Each of their requests to the storage waits until the schedule lets
it through, so a driver may sleep before any of them, also between its look for a successor and the write that follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tunelight.errors import StorageError
from tunelight.record import lease
from tunelight.record.lease import STALE_S, Owner, Owners, claim

DRIVERS = 3
STEPS = st.integers(1, 20)
SCHEDULES = st.one_of(
    st.tuples(STEPS, STEPS, STEPS).map(  # one driver sleeps somewhere, and wakes up beside another
        lambda steps: [("step", 0, steps[0]), ("pass", STALE_S + 1), ("step", 1, steps[1]), ("step", 0, steps[2])]
    ),
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(0, DRIVERS - 1), STEPS),
            st.tuples(st.just("pass"), st.sampled_from([STALE_S + 1, 1.0, STALE_S / 2])),
            st.tuples(st.just("cut"), st.integers(0, DRIVERS - 1)),
        ),
        min_size=4,
        max_size=16,
    ),
)
"""Requests of a driver that are let through; seconds that pass; a driver that is cut off, or no more."""


class Ended(BaseException):
    """The schedule is over."""


class World:
    """A storage, a clock, and what was reported to whom."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"record.jsonl": b""}
        self.times: dict[str, float] = {}
        self.now = 1000.0
        self.claimed: list[int] = []
        self.told: list[str] = []
        """Lines whose write was answered while nobody else had claimed the sweep: they must never be lost."""
        self.late: list[str] = []
        """Lines written after another driver had read the record: they must never be seen."""
        self.read_by = 0
        """The last generation whose driver has read the record."""

    def write(self, name: str, data: bytes) -> None:
        self.files[name], self.times[name] = data, self.now

    def report(self, line: str, generation: int, newest: int) -> None:
        """Note what was written by a driver, and who owns the sweep."""
        if generation == newest:
            self.told.append(line)
        elif generation < self.read_by:
            self.late.append(line)

    def newest(self) -> int:
        return max((int(Path(name).stem) for name in self.files if name.startswith("owners/")), default=0)


class Machine:
    """One driver's: lets its requests through one at a time, and answers none while it is cut off."""

    def __init__(self, world: World, name: str, drive: Callable[[Machine], None]) -> None:
        self.world, self.name, self.is_cut, self.over = world, name, False, False
        self._go, self._here = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(drive,), daemon=True)
        self._thread.start()
        assert self._here.acquire(timeout=10)

    def _run(self, drive: Callable[[Machine], None]) -> None:
        try:
            self.request()
            drive(self)
        except (Ended, StorageError, OSError):
            pass
        finally:
            self.over = True
            self._here.release()

    def request(self) -> None:
        if self.over:
            raise Ended
        self._here.release()
        self._go.acquire()
        if self.over:
            raise Ended
        if self.is_cut:
            raise OSError(110, "timed out")

    def step(self) -> None:
        if not self.over:
            self._go.release()
            assert self._here.acquire(timeout=10)

    def end(self) -> None:
        if not self.over:
            self.over = True
            self._go.release()
        self._thread.join(10)
        assert not self._thread.is_alive()


class Reached(Owners):
    """The owners in a world's storage, as one machine reaches them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(Path("/sweep"))
        self.machine, self.world = machine, machine.world

    def newest(self) -> int:
        self.machine.request()
        return self.world.newest()

    def read(self, generation: int) -> Owner:
        self.machine.request()
        return Owner.parsed(generation, self.world.files[f"owners/{generation}.json"])

    def has(self, name: str) -> bool:
        self.machine.request()
        return name in self.world.files

    def create(self, owner: Owner) -> bool:
        self.machine.request()
        name = f"owners/{owner.generation}.json"
        if name in self.world.files:
            return False
        self.world.write(name, replace(owner, table=self.machine.name).text)
        self.world.claimed.append(owner.generation)
        return True

    def touch(self, owner: Owner) -> None:
        self.machine.request()
        self.world.write(f"owners/{owner.generation}.json", replace(owner, table=self.machine.name).text)

    def touched(self, generation: int) -> float:
        self.machine.request()
        return self.world.times[f"owners/{generation}.json"]

    def place(self) -> str:
        return ""

    def now(self) -> float:
        return self.world.now

    def copy_record(self, name: str, to: str) -> None:
        self.machine.request()
        data = self.world.files[name]
        self.machine.request()
        self.world.write(to, data)


def drive(machine: Machine) -> None:
    """Own the sweep, report to its record as a driver's uploads do, and give it up."""
    world, owners = machine.world, Reached(machine)
    held = claim(owners)
    machine.request()
    name = owners.record()
    lines = world.files[name]
    world.read_by = max(world.read_by, held.generation)
    for number in range(4):
        if not held.beat() or not held.held():
            return
        line = f"{held.generation}:{number}"
        lines += line.encode() + b"\n"
        machine.request()
        world.write(held.owner.record, lines)
        world.report(line, held.generation, world.newest())
    held.release()


def play(schedule: Sequence[Sequence[Any]]) -> list[str]:
    """Play a schedule; return what went wrong."""
    world = World()
    machines = [Machine(world, f"m{number}", drive) for number in range(DRIVERS)]
    try:
        for what, which, *count in schedule:
            if what == "pass":
                world.now += which
            elif what == "cut":
                machines[which].is_cut = not machines[which].is_cut
            else:
                for _ in range(*count):
                    machines[which].step()
    finally:
        for machine in machines:
            machine.end()
    reader = Machine(world, "reader", lambda machine: seen.append(Reached(machine).record()))
    seen: list[str] = []
    while not reader.over:
        reader.step()
    shown = world.files[seen[0]].decode().split()
    twice = [f"two owners of generation {one}" for one in set(world.claimed) if world.claimed.count(one) > 1]
    lost = [f"{line} is lost" for line in world.told if line not in shown]
    late = [f"{line} was written too late, and is seen" for line in world.late if line in shown]
    return [*twice, *lost, *late]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a driver that waits for another look again at once: the schedule says when time passes."""
    monkeypatch.setattr(lease, "_POLL_S", 0.0)
    monkeypatch.setattr(lease, "process_table", lambda: "nowhere")


CHECKED = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@given(SCHEDULES)
@CHECKED
def test_no_report_is_lost_and_none_comes_too_late_in_any_order_of_events(schedule):
    assert play(schedule) == []
