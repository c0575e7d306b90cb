"""The faults of ``chaos.py --cluster``: all of a cluster is killed, and another one goes on from the storage alone.

Each cluster is a head without CPUs, two nodes of one CPU each and a driver. All are processes of this machine that are
killed together by SIGKILL, and work in a folder that is deleted with them. The storage is an S3 server in the
benchmark's process, or a folder. What was trained is written to files beside it, which no fault reaches.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from figures import NAN, headline, median, middle_and_most, show, spread, table
from measure import PEERS, environment, is_alive

TRIALS, REPORTS = 4, 8
RANDOM_S = 10.0
"""The latest random moment, in seconds from the first batch on a cluster."""
READY_S = 15.0
"""How long after Ray is up training may take to start, apart from waiting for the lost driver's lease."""
LIMIT_S = 180.0
"""How long a cluster may take to start, or a sweep to do anything."""
STEPS = ("imported", "leased", "start", "batch")
"""Events that are printed of each cluster."""
MARK = "TUNELIGHT_BENCHMARK_CLUSTER"
"""The environment variable that all processes of a cluster have."""


@dataclass(frozen=True)
class Moment:
    """When everything is killed: at most ``latest_s`` after one of the events, counted or the first of a cluster.

    ``first``: on the first cluster of a sweep only, or never on that; None for any. At the event "now" a process stands
    still until it is killed.
    """

    title: str
    events: tuple[str, ...]
    latest_s: float = 0.0
    counted: bool = False
    first: bool | None = None


MOMENTS = {
    "random": Moment("at any moment of training", ("batch",), RANDOM_S),
    "write": Moment("a checkpoint is written, and not committed", ("now",)),
    "upload": Moment("a checkpoint is in the storage, and not named there", ("now",)),
    "checkpoint": Moment("within 50 ms of a checkpoint's begin", ("checkpoint",), 0.05, counted=True),
    "report": Moment("within a second of a report", ("validated",), 1.0, counted=True),
    "begin": Moment("right after the start of the sweep", ("imported", "leased"), 3.0, first=True),
    "claim": Moment("the sweep's next owner is entered, its record not copied", ("now",), first=False),
    "resume": Moment("the sweep is being resumed", ("leased", "leased", "start", "batch"), 1.0, first=False),
}


@dataclass(frozen=True)
class Fault:
    """One fault: ``after`` is the report on this cluster that it waits for, ``delay_s`` from the event it waits for."""

    moment: str
    after: int = 1
    delay_s: float = 0.0
    event: str = "now"

    def due(self, lines: Sequence[dict[str, Any]]) -> bool:
        """Return whether the event has come, after which ``delay_s`` are to pass."""
        told = [line for line in lines if line["what"] == self.event]
        return len(told) >= (self.after if MOMENTS[self.moment].counted else 1)


def draw(count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults: of ten each special moment once, and others random. A sweep has one begin, for 20."""
    draws = random.Random(seed)
    moments = list[str]()
    while len(moments) < count:
        ten = [one for one in MOMENTS if one != "begin"]
        ten += ["random", "random", "random" if len(moments) % 20 else "begin"]
        draws.shuffle(ten)
        moments += ten
    return [
        Fault(name, draws.randint(1, 4), draws.uniform(0, MOMENTS[name].latest_s), draws.choice(MOMENTS[name].events))
        for name in moments[:count]
    ]


@dataclass
class World:
    """A cluster with its driver, and what was seen of them; times in seconds."""

    number: int
    sweep: str
    fault: Fault | None = None
    hit: bool = False
    ready_s: float = NAN
    """From the start of the driver, Ray being up, to the first batch, without ``waited_s``."""
    waited_s: float = NAN
    """How long the lost driver's lease was waited for."""
    steps: dict[str, float] = field(default_factory=dict)
    """When each event was told first, from the start of the driver."""
    repeated: dict[str, int] = field(default_factory=dict)
    """How many reports of a trial were trained here that had been trained before."""
    error: str = ""


class Bench:
    """Runs sweeps whose clusters are lost, and counts what that costs."""

    def __init__(
        self, folder: Path, storage: str, trials: int, reports: int, lease: tuple[float, float] | None
    ) -> None:
        self.worlds: list[World] = []
        self.broken: list[str] = []
        self.sweeps = 0
        self._folder, self._storage, self._trials, self._reports, self._lease = folder, storage, trials, reports, lease
        self._wanted: list[Any] = []

    def run(self, plan: Sequence[Fault]) -> None:
        """Run the sweep undisturbed, and then sweeps with faults until all of the plan have hit."""
        undisturbed = self._world("undisturbed", None)
        if undisturbed.error:
            raise RuntimeError(undisturbed.error)
        self.worlds.clear()
        self._wanted = self._read("undisturbed")
        if self.broken:
            raise RuntimeError("; ".join(self.broken))
        left = list(plan)
        while left:
            self._sweep(f"sweep-{self.sweeps}", left)
            self.sweeps += 1

    def _sweep(self, name: str, left: list[Fault]) -> None:
        """Run one sweep to its end, with the next faults of the plan that suit."""
        trained = set[tuple[str, int]]()
        first = True
        while True:
            fault = _next(left, first)
            world = self._world(name, fault)
            lines = _events(self._events(world))
            for line in lines:
                if line["what"] == "validated":
                    report = line["trial"], line["epoch"] + 1
                    if report in trained:
                        world.repeated[report[0]] = world.repeated.get(report[0], 0) + 1
                    trained.add(report)
            if fault is not None and not world.hit:
                left.insert(0, fault)
            first = False
            self._say(world)
            if world.error:
                self.broken.append(f"{name}, cluster {world.number}: {world.error}")
                return
            if not world.hit:
                break
        self._judge(name, trained)

    def _world(self, name: str, fault: Fault | None) -> World:
        """Start a cluster and a driver, wait for the fault or the end, and kill everything."""
        world = World(len(self.worlds), name, fault)
        self.worlds.append(world)
        place = self._folder / f"{name}-{world.number}"
        (place / "work").mkdir(parents=True)
        (place / "tmp").mkdir()
        mark = f"{os.getpid()}-{place}"
        paths = {"XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place / "tmp"), "RAY_TMPDIR": str(place)}
        env = environment(**paths, **{MARK: mark})
        env["PYTHONPATH"] = os.pathsep.join((str(PEERS.parent.resolve()), env["PYTHONPATH"]))
        out = self._events(world).with_suffix(".txt")
        try:
            with out.open("w") as output:
                self._play(world, place / "work", env, output)
        finally:
            kill(mark)
            shutil.rmtree(place, ignore_errors=True)
        if world.error:
            world.error += "; the end of its output:\n    " + "\n    ".join(out.read_text().splitlines()[-12:])
        return world

    def _play(self, world: World, work: Path, env: dict[str, str], output: Any) -> None:
        def start(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, str((PEERS / "lost_cluster.py").resolve()), *words]
            return subprocess.Popen(
                command, cwd=work, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

        path, ready = self._events(world), work.parent / "ready"
        cluster = start("cluster", str(ready))
        until(lambda: ready.exists() or cluster.poll() is not None)
        if not ready.exists():
            world.error = f"Ray was not up after {LIMIT_S:.0f} s"
            return
        beat, stale = self._lease or (None, None)
        told: dict[str, Any] = {
            "address": ready.read_text(), "storage": self._storage, "name": world.sweep, "events": str(path),
            "machine": f"machine {world.number} of {world.sweep}", "trials": self._trials, "reports": self._reports,
            "beat_s": beat, "stale_s": stale,
        }  # fmt: skip
        fault = world.fault
        if fault is not None and fault.event == "now":
            told |= {"moment": fault.moment, "after": fault.after}
        began = time.time()
        driver = start("drive", json.dumps(told))
        if fault is None:
            until(lambda: driver.poll() is not None, self._trials * LIMIT_S)
        else:
            until(lambda: driver.poll() is not None or fault.due(_events(path)))
            world.hit = driver.poll() is None and fault.due(_events(path))
            if world.hit:
                time.sleep(fault.delay_s)
                world.hit = driver.poll() is None
            else:  # it is not to come any more
                until(lambda: driver.poll() is not None)
        lines = _events(path)
        for line in lines:
            world.steps.setdefault(line["what"], line["time"] - began)
        world.waited_s = next((line["waited"] for line in lines if line["what"] == "leased"), NAN)
        world.ready_s = world.steps.get("batch", NAN) - world.waited_s
        if not world.hit and (code := driver.poll()) != 0:
            world.error = f"the driver hangs after {LIMIT_S:.0f} s" if code is None else f"exit status {code}"

    def _events(self, world: World) -> Path:
        return self._folder / f"{world.sweep}-{world.number}.jsonl"

    def _say(self, world: World) -> None:
        at = "to its end" if not world.hit or world.fault is None else f"lost: {world.fault.moment}"
        again = ", ".join(f"{number} of {trial}" for trial, number in world.repeated.items()) or "none"
        steps = ", ".join(f"{what} {second:.1f}" for what, second in world.steps.items() if what in STEPS)
        print(
            f"{world.sweep}, cluster {world.number}, {at}; ready in {show(world.ready_s, 1)} s, the lease in "
            f"{show(world.waited_s, 1)} s ({steps}); reports trained again: {again}",
            flush=True,
        )

    def _read(self, name: str) -> list[Any]:
        """Return what the record says of each trial: configuration, state, reports' numbers and losses."""
        import tunelight as tl
        from tunelight import stores
        from tunelight.record.record import replayed

        trials = tl.SweepResults.load(f"{self._storage}/{name}").trials
        numbers: dict[str, list[int]] = {trial.id: [] for trial in trials}
        for line, _ in replayed(stores.working(self._storage) / name):
            if line["kind"] == "report":
                numbers[line["trial"]].append(line["training_iteration"])
        wanted = list(range(1, self._reports + 1))
        for trial in trials:
            if trial.state != "FINISHED":
                self.broken.append(f"{name}: trial {trial.id} ended {trial.state}: {str(trial.error).splitlines()[0]}")
            if numbers[trial.id] != wanted:
                self.broken.append(f"{name}: the record has reports {numbers[trial.id]} of trial {trial.id}")
        if len(trials) != self._trials:
            self.broken.append(f"{name}: it has {len(trials)} trials, not {self._trials}")
        return [(trial.id, trial.config, [report["loss"] for report in trial.history]) for trial in trials]

    def _judge(self, name: str, trained: set[tuple[str, int]]) -> None:
        """Compare a sweep with the undisturbed one."""
        found = self._read(name)
        for ours, theirs in zip(found, self._wanted, strict=False):
            if ours != theirs:
                self.broken.append(f"{name}: trial {ours[0]} differs: {ours[1:]}, undisturbed {theirs[1:]}")
        untrained = {(trial, number) for trial, _, losses in found for number in range(1, len(losses) + 1)} - trained
        if untrained:
            self.broken.append(f"{name}: reports were recorded that nobody trained: {sorted(untrained)}")

    def verdict(self, where: str, *, timed: bool) -> list[str]:
        """Declare the figures by which this benchmark is known, and return which promises were broken.

        ``timed``: also those about time.
        """
        after = [world for _, world in self._pairs()]
        ready, again = [world.ready_s for world in after], [max((0, *world.repeated.values())) for world in after]
        what, of = f"a whole cluster lost, the storage on {where}:", f"n = {len(after)}"
        headline(f"{what} broken promises", len(self.broken), "", of=of, most=0, digits=0)
        headline(f"{what} most reports of a trial trained again", max(again, default=NAN), "", of=of, most=1, digits=0)
        headline(f"{what} start of the driver to the first batch", median(ready), "s", of=spread(ready, 1), digits=1)
        found = self.broken + [
            f"{world.sweep}, cluster {world.number}: {number} reports of trial {trial} were trained again"
            for world in self.worlds
            for trial, number in world.repeated.items()
            if number > 1
        ]
        late = [world.ready_s for world in self.worlds if world.ready_s > READY_S]
        if timed and late:
            found.append(
                f"training took over {READY_S:.0f} s to start on {len(late)} clusters, {max(late):.1f} s at most"
            )
        return found

    def _pairs(self) -> list[tuple[str, World]]:
        """Return the moment of each fault, and the cluster after it, on which is seen what it costs."""
        return [
            (world.fault.moment, after)
            for world, after in zip(self.worlds, self.worlds[1:], strict=False)
            if world.hit and world.fault is not None and after.sweep == world.sweep
        ]

    def table(self) -> str:
        """Return the table of moments."""
        head = [
            "killed",
            "faults",
            "trained again, most",
            "in all",
            "ready in s",
            "max",
            "lease waited for in s",
            "max",
        ]
        lines = []
        for moment in [*MOMENTS, "all"]:
            some = [after for known, after in self._pairs() if moment in (known, "all")]
            if some:
                again = [number for world in some for number in (*world.repeated.values(), 0)]
                times = [middle_and_most([getattr(one, name) for one in some], 1) for name in ("ready_s", "waited_s")]
                what = MOMENTS[moment].title if moment in MOMENTS else "all"
                lines.append([what, str(len(some)), str(max(again)), str(sum(again)), *times[0], *times[1]])
        return table(head, lines)


def _next(left: list[Fault], first: bool) -> Fault | None:
    """Take the next fault that suits the first cluster of a sweep, or another one."""
    suited = [fault for fault in left if MOMENTS[fault.moment].first in (None, first)]
    if suited:
        fault = max(suited, key=lambda one: MOMENTS[one.moment].first is True)  # of equals the first
        left.remove(fault)
        return fault
    return Fault("random", delay_s=1.0, event="batch") if first and left else None  # those left need one cut off


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the events so far; a line that was being written when its process was killed is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def until(done: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait until something is so; return whether it is in time."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kill(mark: str) -> None:
    """Kill all processes of a cluster at once, by what their environment says; wait until they are gone."""
    end = time.monotonic() + 20
    while found := [process for process in psutil.process_iter() if _is_marked(process, mark)]:
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        if time.monotonic() > end:
            raise RuntimeError(f"processes {[process.pid for process in found]} do not die")


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        return process.pid != os.getpid() and is_alive(process) and process.environ().get(MARK) == mark
    return False


@contextmanager
def storage(folder: Path, *, shared: bool) -> Iterator[str]:
    """Yield a storage that no fault reaches: a shared folder, or a bucket of an S3 server in this process.

    Variables of this process's environment, which its clusters inherit, say where it is.
    """
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    if shared:
        yield str(folder / "shared")
        return
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of each request
    try:
        host, port = server.get_host_and_port()
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "x",
        }
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket/sweeps"
    finally:
        server.stop()
