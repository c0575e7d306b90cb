"""Measure what a larger cluster costs a gang: a start, a report and a decision, on 1 to 8 Ray nodes.

All nodes are raylets of this machine. First the cluster grows and the gang stays at two workers: nothing may become
slower. Then the gang grows on the largest cluster: nothing may grow faster than the gang does. Raylets that idle use
the cores that are measured on, and so do the processes of a large gang; so plain Ray actors that import the same, on
as many bundles, take turns with the gang, and only what grows more than theirs counts.

    python benchmarks/nodes.py              # 1, 2, 4 and 8 nodes; gangs of 1, 2, 4 and 8: about 12 minutes on 2 cores
    python benchmarks/nodes.py --short      # 1 and 2 nodes; gangs of 1 and 2: does it still run? Judges nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import headline, median, table
from measure import environment, options

CPUS = 2
"""Of each node."""
STORE = 80 * 1024**2
"""Bytes of each node's object store, which nothing here fills."""
BLOCK, BLOCKS = 50, 5
"""Reports between two barriers, and such blocks of a trial, beside a first one that warms up."""
ROUNDS = 50
MEETINGS = 5
"""The fastest counts: torch asks the DNS for the name behind each connection, and a question that gets no answer, as
happens when many come at once, costs 5 s that say nothing of the gang."""
SLACK = 1.5
"""How much more something may grow than it is allowed to: medians of a busy machine."""
LIMIT_S = 600.0
"""How long plain actors may take to start, as long as a gang."""

Sizes = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Cost:
    """What is measured, in seconds; ``control`` is what plain actors take for something like it."""

    title: str
    control: str | None = None


COSTS = {
    "start": Cost("gang start", "plain start"),
    "plain start": Cost("  plain actors with its imports"),
    "meet": Cost("gang meets anew", "round"),
    "round": Cost("  a call to all plain actors"),
    "report": Cost("report", "call"),
    "decision": Cost("report and decision, gang and head", "call"),
    "head": Cost("  processor time of the head for it"),
    "tune": Cost("report and decision, through Tune", "call"),
    "driver": Cost("  processor time of the driver for it"),
    "call": Cost("  a call to one plain actor"),
}
JUDGED = ("start", "meet", "report", "decision", "head", "tune", "driver")


def reporting(config: dict[str, Any]) -> None:
    """Report in blocks, as fast as that goes; each report says what one of the block before took. Runs on: worker."""
    import torch.distributed as dist

    import tunelight as tl

    took = 0.0
    for _ in range(config["blocks"] + 1):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(config["block"]):
            tl.report({"took": took})
        dist.barrier()  # the slowest rank counts
        took = (time.perf_counter() - began) / config["block"]
    tl.report({"took": took})


def per_report(took: Sequence[float]) -> float:
    """Return what one report takes, from all that were made: the median of the blocks but the first."""
    return median(took[2 * BLOCK :: BLOCK])


# --- what is measured -------------------------------------------------------------------------------------


class Plain:
    """An actor that imports what a gang's worker does, and answers. Runs on: worker."""

    def __init__(self) -> None:
        from tunelight.gang.worker import warm_imports

        warm_imports()

    def call(self) -> None:
        """Do nothing."""


@contextmanager
def reserved(workers: int) -> Any:
    """Hold a gang's reservation."""
    import ray

    from tunelight.resources import Reservation

    group = ray.util.placement_group(Reservation(workers).bundles, "PACK")
    try:
        ray.get(group.ready(), timeout=60)
        yield group
    finally:
        ray.util.remove_placement_group(group)


def repeated(what: Callable[[], object], times: int) -> list[float]:
    """Return how long it takes each of so many times, in seconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        what()
        took.append(time.perf_counter() - began)
    return took


def plain(workers: int) -> dict[str, float]:
    """Start plain actors, call them, and end them."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    with reserved(workers) as group:
        began = time.perf_counter()
        actors: list[Any] = [
            ray.remote(Plain)
            .options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index))
            .remote()
            for index in range(workers)
        ]
        ray.get([actor.call.remote() for actor in actors], timeout=LIMIT_S)
        told = {"plain start": time.perf_counter() - began}
        rounds = repeated(lambda: ray.get([actor.call.remote() for actor in actors]), ROUNDS)
        calls = repeated(lambda: ray.get(actors[0].call.remote()), ROUNDS)
        told |= {"round": median(rounds), "call": median(calls)}
        for actor in actors:
            ray.kill(actor)
    return told


def ganged(workers: int, folder: Path) -> dict[str, float]:
    """Start a gang, have it meet anew, report, and wait for decisions; end it."""
    from tunelight.gang.gang import Gang
    from tunelight.gang.spec import GangSpec
    from tunelight.resources import Reservation
    from tunelight.session.task import Home

    spec = GangSpec(Reservation(workers), home=Home.here())
    with reserved(workers) as group:
        began = time.perf_counter()
        with Gang.form(spec, group) as gang:
            told = {"start": time.perf_counter() - began}

            def meet() -> None:
                gang.met = False
                gang.heal()

            meetings = repeated(meet, MEETINGS)
            told["meet"] = min(meetings)
            told["report"], _ = trial(gang, folder, asked=False)
            told["decision"], told["head"] = trial(gang, folder, asked=True)
    return told


def trial(gang: Any, folder: Path, *, asked: bool) -> tuple[float, float]:
    """Return the seconds that a report takes the gang, and the processor seconds that it takes this process."""
    import cloudpickle

    from tunelight.messages import Continue, Ended, Report
    from tunelight.session.task import Home, Start, Task

    config = {"block": BLOCK, "blocks": BLOCKS}
    task = Task(cloudpickle.dumps(reporting), Home.here())
    took = []
    began = time.process_time()
    gang.start(task, Start("00000", str(folder), config, seed=1, until=1 if asked else None))
    while gang.running:
        event = gang.next_event(60.0)
        if isinstance(event, Report):
            took.append(event.metrics["took"])
            if asked:
                gang.answer(Continue(event.number + 1))
        elif not isinstance(event, Ended) or event.error is not None:
            raise RuntimeError(f"the gang's trial came to {event}")
    return per_report(took), (time.process_time() - began) / len(took)


def swept(workers: int, folder: Path) -> dict[str, float]:
    """Return what a report takes whose decision is Tune's scheduler's: the whole way, and back."""
    from ray.tune.schedulers import FIFOScheduler

    import tunelight as tl

    marks: list[float] = []

    class Asked(FIFOScheduler):  # FIFO itself has no decision to give, and is never asked
        def on_trial_result(self, *about: Any) -> str:
            marks.append(time.process_time())
            return FIFOScheduler.CONTINUE

    scheduler: Any = Asked

    results = tl.run(
        {"block": BLOCK, "blocks": BLOCKS}, reporting, workers=workers, num_samples=1, scheduler=scheduler(),
        metric="took", storage=folder, name=secrets.token_hex(4), progress=False,
    )  # fmt: skip
    for failed in results.errors:
        raise RuntimeError(f"the sweep's trial failed: {failed.error}")
    used = [after - before for before, after in zip(marks[BLOCK:], marks[BLOCK + 1 :], strict=False)]
    return {
        "tune": per_report([report["took"] for report in results.best.history]),
        "driver": median(used),
    }


def measure(workers: int, repeats: int, folder: Path) -> dict[str, float]:
    """Return what a gang of ``workers`` costs on the cluster as it is; medians, and those of one sweep's reports."""
    seen: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for told in (plain(workers), ganged(workers, folder)):
            for name, value in told.items():
                seen[name].append(value)
    return {name: median(values) for name, values in seen.items()} | swept(workers, folder)


# --- tables -----------------------------------------------------------------------------------------------


def judge(measured: Sizes, what: str, base: int, allowed: Callable[[int], float]) -> list[str]:
    """Print what each thing costs at each size; return which have grown more than is allowed, and than their control.

    Declared is how much more the largest size costs than ``base``.
    """
    sizes = list(measured)
    rows = []
    for name, cost in COSTS.items():
        values = [measured[size][name] for size in sizes]
        rows.append([cost.title, *map(_time, values), f"{values[-1] / measured[base][name]:.2f}"])
    print(table([what, *map(str, sizes), f"{sizes[-1]} / {base}"], rows) + "\n", flush=True)
    found = []
    for size in (size for size in sizes if size > base):
        growth = {name: measured[size][name] / measured[base][name] for name in COSTS}
        for name in JUDGED:
            control = COSTS[name].control
            most = SLACK * max(allowed(size), growth[control] if control else 0.0)
            beside = f"plain actors {growth[control]:.2f}" if control else ""
            if size == sizes[-1] and name in ("start", "report", "decision", "tune"):
                headline(f"{COSTS[name].title}: {size} {what} / {base}", growth[name], of=beside, most=most)
            if growth[name] > most:
                found.append(f"{COSTS[name].title.strip()}: {growth[name]:.2f} times at {size} {what} ({beside})")
    return found


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"


def main() -> int:
    """Print both tables; return 1 where something grows that may not."""
    args = options(__doc__, "1 and 2 nodes, gangs of 1 and 2; judges nothing", repeats=3)
    settings = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    os.environ.clear()
    os.environ.update(settings)
    import ray
    from ray.cluster_utils import Cluster

    sizes = (1, 2) if args.short else (1, 2, 4, 8)
    node: dict[str, Any] = {"num_cpus": CPUS, "object_store_memory": STORE}
    quick = {"prestart_worker_first_driver": False}  # idle task workers would only take processor time
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": quick}
    )
    clusters: Sizes = {}
    gangs: Sizes = {}
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        with tempfile.TemporaryDirectory(prefix="nodes-") as scratch:
            folder = Path(scratch)
            plain(2), ganged(2, folder)  # what is imported is in the page cache from now on
            for nodes in sizes:
                while len(cluster.list_all_nodes()) < nodes:
                    cluster.add_node(**node)
                clusters[nodes] = measure(2, args.repeats, folder)
            print(f"\nA gang of two workers, on clusters of so many nodes; medians of {args.repeats}\n")
            found = judge(clusters, "nodes", 1, lambda _: 1.0)
            for workers in sizes:
                gangs[workers] = clusters[nodes] if workers == 2 else measure(workers, args.repeats, folder)
            print(f"\nGangs of so many workers, on {nodes} nodes; medians of {args.repeats}\n")
            found += judge(gangs, "workers", 2, lambda size: size / 2)  # a rank alone has nobody to tell or to meet
    finally:
        ray.shutdown()
        cluster.shutdown()
    if args.short:
        print("\nnot judged")
        return 0
    print(f"\nNothing grows with the cluster, or faster than the gang, by more than {SLACK:g}: ", end="")
    print("MISSED\n" + "\n".join(found) if found else "met")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
