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

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from faults import KINDS, MOMENTS, Events, Fault, Resizer, draw, training
from figures import NAN, headline, median, show, spread, table
from measure import is_alive
from ray.tune import Callback

HANG_S = 3.0
ROUNDS = 4
"""How often faults that hit nothing are injected again."""
SETTLE_S = 15.0
"""Seconds in which what the sweeps held has to be gone."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="faults that hit, in all (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="which faults are drawn (default 1)")
    parser.add_argument("--backend", choices=("ddp", "horovod"), default="ddp", help="how the ranks meet")
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, comma-separated")
    parser.add_argument("--moments", default=",".join(MOMENTS), help="only these, comma-separated")
    parser.add_argument("--short", action="store_true", help="6 faults that are quick to recover from")
    parser.add_argument("--cluster", action="store_true", help="kill whole clusters")
    parser.add_argument("--folder", action="store_true", help="with --cluster: the storage is a folder, not S3")
    args = parser.parse_args()
    if args.cluster:
        return whole_clusters(args)
    kinds, moments = args.kinds.split(","), args.moments.split(",")
    if args.short:
        kinds, moments = [*SHORT], [one for one in moments if one != "resize"]  # a gang grows after its cool-down only
    if wrong := [one for one in kinds if one not in KINDS] + [one for one in moments if one not in MOMENTS]:
        parser.error(f"there is no {', '.join(wrong)}; kinds are {', '.join(KINDS)}, moments {', '.join(MOMENTS)}")
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
            left = settle()
        left += outlived(bench.pids)
    print(f"chaos: {len(plan)} faults in {time.time() - began:.0f} s ({args.backend}, seed {args.seed})\n")
    print(by_kind(outcomes, bench) + "\n\n" + by_moment(outcomes) + "\n")
    faults = [said for one in outcomes for said in one.broken(bench.near(one.fault))] + left
    if (hits := sum(one.hit for one in outcomes)) < len(plan):
        faults.append(f"only {hits} of {len(plan)} faults hit anything")
    survived = sum(one.hit and not one.broken(bench.near(one.fault)) for one in outcomes)
    of, times = f"{survived} of {len(plan)}", [one.recovered_s for one in outcomes]
    headline("faults survived, with the undisturbed metrics", survived / len(plan), "", of=of, least=1)
    headline(f"recovery from a fault, a hang being one after {HANG_S:g} s", median(times), "s", of=spread(times))
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "every trial came to its end, and nothing is left")
    return 1 if faults else 0


def whole_clusters(args: argparse.Namespace) -> int:
    """Kill whole clusters, print the table, and return the exit status."""
    from cluster_faults import REPORTS, TRIALS, Bench, Fault, storage
    from cluster_faults import draw as draw_clusters

    plan = [Fault("upload", 2)] if args.short else draw_clusters(args.faults, args.seed)
    size = (1, 3) if args.short else (TRIALS, REPORTS)
    lease = (0.5, 4.0) if args.short else None
    began = time.time()
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder,
        storage(Path(folder), shared=args.folder) as place,
    ):
        bench = Bench(Path(folder), place, *size, lease)
        bench.run(plan)
    hits = sum(world.hit for world in bench.worlds)
    where = "a shared folder" if args.folder else "S3"
    print(
        f"\nchaos: {hits} clusters lost in {time.time() - began:.0f} s, storage on {where}, seed {args.seed}; ", end=""
    )
    print(f"{bench.sweeps} sweeps of {size[0]} trials of 2 workers, {size[1]} reports each\n")
    print(bench.table() + "\n")
    broken = bench.verdict(timed=not args.short)
    bench.declare(where)
    print(
        "\n".join(f"FAULT: {said}" for said in broken) or "no trial was lost, and every metric is the undisturbed one"
    )
    return 1 if broken else 0


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


class Outside(threading.Thread):
    """Does from the driver what a rank cannot do to itself: takes nodes away, and kills the heads of trials."""

    def __init__(self, events: Events, nodes: Any) -> None:
        super().__init__(name="outside", daemon=True)
        self.errors: list[str] = []
        self._events = events
        self._nodes = nodes
        self._over = threading.Event()
        self._done = self._lost = 0

    def run(self) -> None:
        """Look for faults that are to come from outside."""
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

    def refill(self) -> None:
        """Start a fresh node for each lost one. Runs on: the main thread, for Ray sets signal handlers there."""
        while self._lost:
            self._lost -= 1
            self._nodes.add_node(wait=False, num_cpus=1)

    def close(self) -> None:
        """Stop."""
        self._over.set()
        self.join()


class Refill(Callback):  # type: ignore[misc,unused-ignore]
    """Has lost nodes replaced as soon as Tune comes round."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Look whether one is missing."""
        self._outside.refill()


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

    def all(self, plan: Sequence[Fault]) -> list[Outcome]:
        """Return an outcome for each fault of the plan: trials of a fixed size, then elastic ones."""
        outcomes = []
        for elastic in (False, True):
            if part := [fault for fault in plan if fault.elastic == elastic]:
                name = "elastic" if elastic else "fixed"
                wanted = self._sweep(f"{name}-undisturbed", [None] * len(part), elastic=False)[0].trials
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
        outside.start()
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
                scheduler=Resizer() if elastic else "fifo",
                checkpoints=tl.Checkpoints(share=1),  # at most one report is lost where each has its checkpoint
                seed=self._seed,
                storage=self._folder,
                name=name,
                progress=False,
                callbacks=[Refill(outside)],
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
            outside.refill()
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


def by_kind(outcomes: Sequence[Outcome], bench: Bench) -> str:
    """Return the table of kinds of faults."""
    head = ["fault", "injected", "hit", "detected in s", "max", "recovered in s", "max", "repeated", "differ", "failed"]
    lines = []
    for kind in [one for one in KINDS if any(outcome.fault.kind == one for outcome in outcomes)] + ["all"]:
        some = [one for one in outcomes if kind in (one.fault.kind, "all")]
        tried = [one for one in bench.tried if kind in (one.kind, "all")]
        differ = sum(not one.difference <= bench.near(one.fault) for one in some)
        failed = sum(one.state != "FINISHED" for one in some)
        repeated = f"{sum(one.repeated for one in some)} (at most {max(one.repeated for one in some)})"
        lines.append([kind, str(len(tried)), str(sum(one.hit for one in some)), *_times(some), repeated])
        lines[-1] += [str(differ), str(failed)]
    return table(head, lines, markdown=False)


def by_moment(outcomes: Sequence[Outcome]) -> str:
    """Return the table of moments."""
    head = ["moment", "hit", "detected in s", "max", "recovered in s", "max"]
    lines = []
    for moment in [one for one in MOMENTS if any(outcome.fault.moment == one for outcome in outcomes)]:
        some = [one for one in outcomes if one.fault.moment == moment]
        lines.append([moment, str(sum(one.hit for one in some)), *_times(some)])
    return table(head, lines, markdown=False)


def _times(outcomes: Sequence[Outcome]) -> list[str]:
    cells = []
    for name in ("detected_s", "recovered_s"):
        values = [value for one in outcomes if (value := getattr(one, name)) == value]
        cells += [show(median(values)), show(max(values, default=NAN))]
    return cells


def settle() -> list[str]:
    """Wait until actors and placement groups are gone; return what is not, before Ray ends."""
    from leak import left_in_ray

    deadline = time.monotonic() + SETTLE_S
    while (left := left_in_ray()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def outlived(pids: set[int]) -> list[str]:
    """Return workers, and this process's children, that are alive some seconds after Ray was shut down."""
    found = psutil.Process().children(recursive=True)
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if "GangWorker" in " ".join(process.cmdline()):
                found.append(process)
    psutil.wait_procs(found, timeout=SETTLE_S)
    return [f"process {one.pid} is left: {' '.join(one.cmdline())[:80]}" for one in set(found) if is_alive(one)]


if __name__ == "__main__":
    sys.exit(main())
