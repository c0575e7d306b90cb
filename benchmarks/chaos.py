"""Inject one fault into each trial of a sweep, and compare with the same sweep without faults: only times may differ.

Eight kinds of faults (a worker killed by SIGKILL, by a segmentation fault, by abort; stopped; stuck; an exception; its
node lost; the trial's head killed) at seven moments (in setup, in a batch, in a collective, in validation, in a
checkpoint, between trials, while the gang is resized): each pair once, the rest drawn. A fault that hit nothing is
not counted and injected again. The exit status is 1 if a trial did not finish, if its reports differ from those of the
undisturbed trial (bitwise; 1e-5 where the gang was resized, 1e-6 with Horovod), if more than one report was repeated,
or if anything was left behind.

    python benchmarks/chaos.py --faults 100 --seed 1
    python benchmarks/chaos.py --faults 20 --kinds node,head --backend horovod
    python benchmarks/chaos.py --short      # 6 faults: does it still run?

With --cluster each fault kills a whole cluster, its driver and their folders, and a new cluster goes on from an S3
server, or with --folder from a shared folder. The exit status is 1 if a trial was lost, its reports differ from the
undisturbed ones (bitwise), more than one report of a trial was trained again, or training took over 15 s to start.

    python benchmarks/chaos.py --cluster --faults 50
    python benchmarks/chaos.py --cluster --folder --faults 10
    python benchmarks/chaos.py --cluster --short    # one fault, and leases of 4 s: judges no times
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from faults import KINDS, MOMENTS, Events, Fault, Resizer, draw, training
from figures import NAN, headline, median, middle_and_most, spread, table
from leak import alive, left_in_ray, outlived, settle
from measure import options
from ray.tune import Callback

HANG_S = 3.0
ROUNDS = 4
"""How often faults that hit nothing are injected again."""
SHORT = ("sigkill", "exception", "stuck", "head", "exception", "abort")


@dataclass
class Outcome:
    """What became of one trial and its fault; times in seconds from the fault."""

    fault: Fault
    hit: bool = False
    detected_s: float = NAN
    recovered_s: float = NAN
    repeated: int = 0
    state: str = ""
    difference: float = NAN
    error: str = ""

    def broken(self, near: float) -> list[str]:
        """Return which promises were broken."""
        said = []
        if self.state != "FINISHED":
            said.append(f"ended {self.state}: {self.error}")
        elif not self.difference <= near:
            said.append(f"reports differ by {self.difference:g}")
        if self.repeated > 1:
            said.append(f"{self.repeated} reports were repeated")
        return [f"{self.fault}: {what}" for what in said]


def main() -> int:
    """Run the sweeps, print the tables, and return the exit status."""
    args = options(
        __doc__,
        "6 faults that are quick to recover from",
        faults=(100, "faults that hit, in all"),
        seed=(1, "which faults are drawn"),
        backend=(("ddp", "horovod"), "how the ranks meet"),
        kinds=(",".join(KINDS), "only these, comma-separated"),
        moments=(",".join(MOMENTS), "only these, comma-separated"),
        cluster=(False, "kill whole clusters"),
        folder=(False, "with --cluster: the storage is a folder, not S3"),
    )
    faults = whole_clusters(args) if args.cluster else single_faults(args)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "every trial came to its end as if nothing had been")
    return 1 if faults else 0


def single_faults(args: Namespace) -> list[str]:
    """Run trials with a fault each, print the table, and return which promises were broken."""
    kinds, moments = args.kinds.split(","), args.moments.split(",")
    if args.short:
        kinds, moments = [*SHORT], [one for one in moments if one != "resize"]  # a gang grows after its cool-down only
    if wrong := [one for one in kinds if one not in KINDS] + [one for one in moments if one not in MOMENTS]:
        raise SystemExit(f"there is no {', '.join(wrong)}; kinds are {', '.join(KINDS)}, moments {', '.join(MOMENTS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RAY_ADDRESS", None)
    if args.short:
        plan = [draw(1, args.seed + number, [kind], moments)[0] for number, kind in enumerate(kinds)]
    else:
        plan = draw(args.faults, args.seed, kinds, moments)
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        with cluster(nodes="node" in kinds) as nodes:
            bench = Bench(Path(folder), args.backend, args.seed, nodes)
            outcomes = bench.all(plan)
            left = settle(left_in_ray)
        left += outlived([*psutil.Process().children(recursive=True), *alive(bench.pids)])
    print(f"chaos: {len(plan)} faults in {time.time() - began:.0f} s ({args.backend}, seed {args.seed})\n")
    head = ["fault", "injected", "hit", "detected in s", "max", "recovered in s", "max", "repeated", "differ", "failed"]
    print(table(head, [bench.line(name, outcomes) for name in (*KINDS, *MOMENTS, "all")]) + "\n")
    broken = {id(one): one.broken(bench.near(one.fault)) for one in outcomes}
    if (hits := sum(one.hit for one in outcomes)) < len(plan):
        left.append(f"only {hits} of {len(plan)} faults hit anything")
    survived = sum(one.hit and not broken[id(one)] for one in outcomes)
    of, times = f"{survived} of {len(plan)}", [one.recovered_s for one in outcomes]
    headline("faults survived, with the undisturbed metrics", survived / len(plan), "", of=of, least=1)
    headline(f"recovery from a fault, a hang being one after {HANG_S:g} s", median(times), "s", of=spread(times))
    return [said for found in broken.values() for said in found] + left


def whole_clusters(args: Namespace) -> list[str]:
    """Kill whole clusters, print the table, and return which promises were broken."""
    from cluster_faults import REPORTS, TRIALS, Bench, Fault, storage
    from cluster_faults import draw as draw_clusters

    plan = [Fault("upload", 2)] if args.short else draw_clusters(args.faults, args.seed)
    size = (1, 3) if args.short else (TRIALS, REPORTS)
    began = time.time()
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder,
        storage(Path(folder), shared=args.folder) as place,
    ):
        bench = Bench(Path(folder), place, *size, (0.5, 4.0) if args.short else None)
        bench.run(plan)
    hits = sum(world.hit for world in bench.worlds)
    where = "a shared folder" if args.folder else "S3"
    print(
        f"\nchaos: {hits} clusters lost in {time.time() - began:.0f} s, storage on {where}, seed {args.seed}; "
        f"{bench.sweeps} sweeps of {size[0]} trials of 2 workers, {size[1]} reports each\n\n{bench.table()}\n"
    )
    return bench.verdict(where, timed=not args.short)


@contextmanager
def cluster(nodes: bool) -> Iterator[Any]:
    """Start Ray: a local one, or with a node for each rank, so that one can be lost."""
    import ray

    if not nodes:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            yield None
        finally:
            ray.shutdown()
        return
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


class Outside(Callback):  # type: ignore[misc,unused-ignore]
    """Does from the driver what a rank cannot do to itself: takes nodes away, and kills the heads of trials.

    Lost nodes are replaced as soon as Tune comes round.
    """

    def __init__(self, events: Events, nodes: Any) -> None:
        self.errors: list[str] = []
        self._events = events
        self._nodes = nodes
        self._over = threading.Event()
        self._done = self._lost = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Look whether a node is missing."""
        self._refill()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for line in [one for one in self._events.read() if one["what"] == "fault"][self._done :]:
                self._done += 1
                try:
                    if line["kind"] == "node":
                        self._lose(line["node"])
                    elif line["kind"] == "head":
                        os.kill(head_pid(), signal.SIGKILL)
                except Exception as error:  # noqa: BLE001 - it is told at the end
                    self.errors.append(f"{line['kind']} could not be injected: {type(error).__name__}: {error}")

    def _lose(self, node_id: str) -> None:
        (node,) = [one for one in self._nodes.list_all_nodes() if one.node_id == node_id]
        self._nodes.remove_node(node, allow_graceful=False)
        self._lost += 1

    def _refill(self) -> None:
        while self._lost:
            self._lost -= 1
            self._nodes.add_node(wait=False, num_cpus=1)

    def close(self) -> None:
        """Stop, with all nodes there. Runs on: the main thread, for Ray sets signal handlers there."""
        self._over.set()
        self._thread.join()
        self._refill()


def head_pid() -> int:
    """Return the process id of the running trial's head."""
    from tunelight.compat.ray import actors

    (head,) = [one for one in actors().values() if one["State"] == "ALIVE" and one["ActorClassName"] != "GangWorker"]
    return int(head["Pid"])


class Bench:
    """Runs the sweeps, and reads what became of their trials."""

    def __init__(self, folder: Path, backend: Any, seed: int, nodes: Any) -> None:
        self.pids: set[int] = set()
        self.tried: list[Fault] = []
        """Every fault injected, those that hit nothing too."""
        self._folder, self._backend, self._seed, self._nodes = folder, backend, seed, nodes

    def near(self, fault: Fault) -> float:
        """Return how far a trial's reports may lie from those of the undisturbed one."""
        return 1e-5 if fault.elastic else 1e-6 if self._backend == "horovod" else 0.0

    def line(self, name: str, outcomes: Sequence[Outcome]) -> list[str]:
        """Return the line of a table on one kind of fault, one moment, or all."""
        some = [one for one in outcomes if name in (one.fault.kind, one.fault.moment, "all")]
        tried = sum(name in (one.kind, one.moment, "all") for one in self.tried)
        detected, recovered = ([getattr(one, what) for one in some] for what in ("detected_s", "recovered_s"))
        repeated = [one.repeated for one in some]
        differ = sum(not one.difference <= self.near(one.fault) for one in some)
        return [
            *(name, str(tried), str(sum(one.hit for one in some))),
            *(*middle_and_most(detected), *middle_and_most(recovered)),
            f"{sum(repeated)} (at most {max(repeated, default=0)})",
            *(str(differ), str(sum(one.state != "FINISHED" for one in some))),
        ]

    def all(self, plan: Sequence[Fault]) -> list[Outcome]:
        """Return an outcome for each fault of the plan: trials of a fixed size, then elastic ones."""
        outcomes = []
        for elastic in (False, True):
            if part := [fault for fault in plan if fault.elastic == elastic]:
                name = "elastic" if elastic else "fixed"
                wanted = self._sweep(f"{name}-undisturbed", [None] * len(part), elastic)[0].trials
                outcomes += self._until_hit(name, part, wanted, elastic)
        return outcomes

    def _until_hit(self, name: str, part: Sequence[Fault], wanted: Sequence[Any], elastic: bool) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for number in range(ROUNDS):
            missed = [index for index, one in enumerate(outcomes) if not one.hit] if outcomes else range(len(part))
            if not missed:
                break
            faults = [fault if index in missed else None for index, fault in enumerate(part)]
            # A trial's seed follows from its number: those before the last that is needed run again.
            results, events = self._sweep(f"{name}-{number}", faults[: max(missed) + 1], elastic)
            outcomes = outcomes or [Outcome(fault) for fault in part]
            for index in missed:
                outcomes[index] = judge(part[index], results.trials[index], wanted[index], events)
                self.tried.append(part[index])
        return outcomes

    def _sweep(self, name: str, faults: Sequence[Fault | None], elastic: bool) -> tuple[Any, list[dict[str, Any]]]:
        import ray

        import tunelight as tl

        events = Events(self._folder / f"{name}.jsonl")
        outside = Outside(events, self._nodes)
        indices = [index if fault is not None else -1 for index, fault in enumerate(faults)]
        try:
            results = tl.run(
                {"lr": tl.uniform(0, 1), "fault": tl.choice(range(-1, len(faults)))},
                training(list(faults), events, ray.get_runtime_context().get_node_id()),
                metric="loss",
                baselines=[{"lr": 0.05, "fault": index} for index in indices],
                num_samples=len(faults),
                workers=(1, 2) if elastic else 2,
                backend=self._backend,
                max_concurrent=1,
                scheduler=Resizer() if elastic and any(faults) else "fifo",
                checkpoints=tl.Checkpoints(share=1),  # at most one report is lost where each has its checkpoint
                seed=self._seed,
                storage=self._folder,
                name=name,
                progress=False,
                callbacks=[outside],
                failures=tl.FailurePolicy(
                    max_failures=8,
                    retry_exceptions=True,
                    hang_timeout_s=HANG_S,
                    backoff_s=0.1,
                    reschedule_timeout_s=60,
                ),
            )
        finally:
            outside.close()
        if outside.errors:
            raise RuntimeError("; ".join(outside.errors))
        told = events.read()
        self.pids |= {line["pid"] for line in told}
        return results, told


def judge(fault: Fault, trial: Any, wanted: Any, events: Sequence[dict[str, Any]]) -> Outcome:
    """Return what became of a trial, beside the undisturbed one."""
    outcome = Outcome(fault, state=trial.state, error=str(trial.error or "").split("\n")[0])
    mine = [event for event in events if event["trial"] == trial.id]
    hits = [event for event in mine if event["what"] == "fault"]
    epochs = [event["epoch"] for event in mine if event["what"] == "validated"]
    outcome.repeated = len(epochs) - len(set(epochs))
    ours, theirs = ([report["loss"] for report in one.history] for one in (trial, wanted))
    if len(ours) == len(theirs):
        outcome.difference = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    if hits:
        outcome.hit = True
        at = hits[0]["time"]
        after = [event for event in events if event["time"] > at]  # between two trials, the next one may notice
        noticed = [event["time"] - at for event in after if event["what"] in ("noticed", "start")]
        began = at + min(noticed, default=NAN)
        trained = [event["time"] - at for event in after if event["what"] == "batch" and event["time"] > began]
        outcome.detected_s, outcome.recovered_s = min(noticed, default=NAN), min(trained, default=NAN)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
