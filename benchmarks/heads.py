"""Run a thousand trials at once, whose heads are stubs: what that costs the driver and Ray's GCS.

The driver is real, with Tune's controller, ASHA, the record and all that it shows; so are the GCS, a reservation for
each trial, and the calls. Only the heads are not: many of them share a process, and train nothing. Each announces its
start as others do, reports every 30 s, and obeys an order to leave. The benchmark measures how long the driver takes
from the first start to the last, the processor time of driver and GCS while all of them run, and how long the driver
takes to end after SIGTERM.

The exit status is 1 where 1,000 starts take more than 60 s, the driver more than half a core or the GCS more than a
quarter, a tenth of the reports is missing, a report takes more than 1.3 times the driver's time that it takes of ten
trials, or the driver ends more than 30 s after SIGTERM.

    python benchmarks/heads.py          # about three minutes on 2 cores
    python benchmarks/heads.py --short  # 20 trials that report every second: does it still run? Judges nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import ray
from figures import headline, table
from jobs import local_ray
from measure import options
from ray.tune.execution import class_cache, tune_controller

import tunelight as tl
from tunelight.compat.ray import announce
from tunelight.gang.orders import Started
from tunelight.record import read_record
from tunelight.schedulers import ASHA

HOSTS = 2
"""Processes that the heads share."""
START_S, DRIVER, GCS, LEAST, LEAVE_S, FLAT = 60.0, 0.5, 0.25, 0.9, 30.0, 1.3
FEW = 10
"""Trials that make as many reports, beside which a report's processor time is put."""
LEFT = 75
"""The exit code of a sweep that SIGTERM has ended."""


class Host:
    """Many heads in one process, each known by a number."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._heads: dict[int, SimpleNamespace] = {}

    async def tell(self, serial: int, stop: Any) -> None:
        """Take what a driver sends to rank 0 of a head's gang."""
        self._heads[serial].told.set()

    async def call(self, serial: int, sweep: str, method: str, args: Any, kwargs: Any) -> Any:
        """Answer a call to one of the heads."""
        if method in ("__init__", "reset"):
            trial = (args[0] if args else kwargs["config"])["__trial_info__"].trial_id
            self._heads[serial] = SimpleNamespace(trial=trial, number=0, told=asyncio.Event())
            here = ray.get_runtime_context()
            nodes = {here.get_node_id(): os.uname().nodename}
            started = Started(trial, 0, nodes, serial, here.current_actor)
            announce(f"{sweep}/head-{serial}/{serial}", ray.cloudpickle.dumps(started))
        return await self._train(serial) if method.startswith("train") else method == "reset"

    async def _train(self, serial: int) -> dict[str, Any]:
        head = self._heads[serial]
        wait_s = self._every_s if head.number else self._every_s * (serial % 97) / 97  # not all at a time
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(head.told.wait(), wait_s)
            raise ray.exceptions.RayActorError(error_msg="the driver ends", preempted=True)
        head.number += 1
        now, seconds, metrics = time.time(), self._every_s * head.number, {"loss": 1 / (serial + head.number)}
        return {
            **metrics, "epoch": head.number - 1, "training_iteration": head.number, "done": False, "pid": os.getpid(),
            "timestamp": int(now), "trial_id": head.trial, "time_total_s": seconds, "time_this_iter_s": self._every_s,
            "hostname": "stub", "node_ip": "127.0.0.1",
            "_tunelight": {"workers": 1, "seconds": seconds, "metrics": metrics},
        }  # fmt: skip


class Head:
    """The handle of a head: its calls go to the process that it is in."""

    def __init__(self, host: Any, serial: int, sweep: str, kwargs: Any) -> None:
        self._call = partial(host.call.remote, serial, sweep)
        self._call("__init__", (), {"config": kwargs["config"]})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__ray_ready__", "__ray_terminate__"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *args, **_: self._call(name, args[:1], {}))


class Heads:
    """What Tune's controller takes for the class of an actor."""

    def __init__(self, trainable: Any, hosts: list[Any], serials: Any) -> None:
        self._trainable, self._hosts, self._serials = trainable, hosts, serials

    def options(self, **_: Any) -> Heads:
        """Take the place in a reservation: the process is elsewhere."""
        return self

    def remote(self, **kwargs: Any) -> Head:
        """Make a head."""
        serial = next(self._serials)
        return Head(self._hosts[serial % len(self._hosts)], serial, self._trainable.spec.name, kwargs)


class StubbedRay:
    """The module ``ray`` as Tune's controller sees it here."""

    def __init__(self, hosts: list[Any]) -> None:
        self._hosts, self._serials = hosts, itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def remote(self, *given: Any, **_: Any) -> Any:
        """Return the class of the heads."""
        if given:
            return given[0] if isinstance(given[0], Heads) else Heads(given[0], self._hosts, self._serials)
        return lambda trainable: Heads(trainable, self._hosts, self._serials)

    def kill(self, actor: Any) -> None:
        """End an actor; a head is no process."""
        if not isinstance(actor, Head):
            ray.kill(actor)


def train(config: dict[str, Any]) -> None:
    """Train nothing: no head calls it."""


class Look(threading.Thread):
    """Looks at the driver and the GCS while all trials run, and then sends SIGTERM."""

    def __init__(self, folder: Path, trials: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.trials, self.seconds = folder, trials, seconds
        self.found: dict[str, float] = {}

    def run(self) -> None:
        """Wait until all run, look for a while, and end the driver."""
        gcs = next(one for one in psutil.process_iter() if "gcs_server" in one.name() and one.ppid() == os.getpid())
        driver = psutil.Process()
        while not (record := self.folder / "record.jsonl").exists() or self._begun(record) < self.trials:
            time.sleep(0.5)
        times = [line for line in record.read_bytes().splitlines() if b'"RUNNING"' in line]
        took = [float(line.partition(b'"time":')[2].partition(b",")[0]) for line in (times[0], times[-1])]
        self.found["start"] = took[1] - took[0]
        time.sleep(self.seconds / 4)  # what was put off meanwhile
        before, began = self._used(driver, gcs, record), time.monotonic()
        time.sleep(self.seconds)
        after, wall = self._used(driver, gcs, record), time.monotonic() - began
        for name, first, last in zip(("driver", "gcs", "reports"), before, after, strict=True):
            self.found[name] = (last - first) / wall
        self.found["signal"] = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)

    def _begun(self, record: Path) -> int:
        return record.read_bytes().count(b'"RUNNING"')

    def _used(self, driver: psutil.Process, gcs: psutil.Process, record: Path) -> tuple[float, float, int]:
        times = [one.cpu_times() for one in (driver, gcs)]
        reports = record.read_bytes().count(b'"kind":"report"')
        return times[0].user + times[0].system, times[1].user + times[1].system, reports


def measured(trials: int, every_s: float, seconds: float, scratch: str) -> tuple[dict[str, float], bool]:
    """Run a sweep; return what was found, and whether it ended as it should."""
    folder, code = Path(scratch, f"heads-{trials}"), 0
    hosts = [ray.remote(Host).options(num_cpus=0, max_concurrency=10_000).remote(every_s) for _ in range(HOSTS)]
    actors = sys.modules[tune_controller.RayActorManager.__module__]  # where it is made
    vars(actors)["ray"] = vars(class_cache)["ray"] = StubbedRay(hosts)
    look = Look(folder, trials, seconds)
    look.start()
    try:
        tl.run(
            {"lr": tl.loguniform(1e-4, 1e-1)}, train, metric="loss", num_samples=trials, workers=1, seed=7,
            scheduler=ASHA(max_t=1000, grace_period=900), storage=scratch, name=folder.name, progress=False,
        )  # fmt: skip
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    left_s = time.monotonic() - look.found["signal"]
    counts = read_record(folder).counts
    print(f"\n{trials:,} trials at once, {60 * trials / every_s:,.0f} reports a minute; exit code {code}\n")
    print(table(["ended as", "trials"], [[state, str(count)] for state, count in counts.items() if count]) + "\n")
    return {**look.found, "left": left_s}, code == LEFT and counts["INTERRUPTED"] == trials


def main() -> int:
    """Run the sweeps, print what they took, and return the exit status."""
    args = options(__doc__, "20 trials that report every second; nothing is judged")
    trials, every_s, seconds = (20, 1.0, 4.0) if args.short else (1000, 30.0, 60.0)
    os.environ["TUNELIGHT_GRACE_S"] = str(LEAVE_S)
    with tempfile.TemporaryDirectory() as scratch, local_ray(4 * trials, include_dashboard=False):
        few, ended = measured(FEW, FEW * every_s / trials, seconds / 2, scratch)
        found, left = measured(trials, every_s, seconds, scratch)
    of, due = f"{trials:,} trials at once", trials / every_s
    of_report = [one["driver"] / one["reports"] for one in (few, found)]
    kept = [
        headline(f"{of}: from the first start to the last", found["start"], "s", most=START_S, digits=1),
        headline(f"{of}: the driver", found["driver"], "cores", most=DRIVER),
        headline(f"{of}: Ray's GCS", found["gcs"], "cores", most=GCS),
        headline(f"{of}: reports that came, of those due", found["reports"] / due, "", least=LEAST),
        headline(f"{of}: processor time of a report / with {FEW}", of_report[1] / of_report[0], most=FLAT),
        headline(f"{of}: from SIGTERM to the driver's end", found["left"], "s", most=LEAVE_S, digits=1),
    ]
    return 0 if ended and left and (args.short or all(kept)) else 1


if __name__ == "__main__":
    sys.exit(main())
