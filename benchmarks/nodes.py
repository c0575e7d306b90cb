"""Does a larger cluster cost a gang anything? One report, one decision and one gang start, on 1 to 8 Ray nodes.

All nodes are raylets of this machine. First the cluster grows and the gang stays at two workers: nothing may become
dearer. Then the gang grows on the largest cluster: nothing may grow faster than the gang does. Each cluster is measured
by a process of its own, in which the gang is formed once for the imports to lie in the page cache, and then anew.

    python benchmarks/nodes.py              # 1, 2, 4 and 8 nodes; gangs of 1, 2, 4 and 8
    python benchmarks/nodes.py --short      # 1 and 2 nodes; gangs of 1 and 2: does it still run?
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import table
from measure import environment

REPORTS = 300
CPUS = 2
LIMIT_S = 400.0
COSTS = ("start", "report", "decision")
SLACK = 1.5
"""How much dearer something may be before that counts: the machine has few cores, and every raylet uses some."""


def reporting(config: dict[str, Any]) -> None:
    """Report as fast as that goes. Runs on: worker."""
    import tunelight as tl

    for number in range(config["reports"]):
        tl.report({"loss": float(number)})


def measure(nodes: int, workers: int, folder: str) -> dict[str, float]:
    """Start ``nodes`` raylets and return what a gang of ``workers`` costs there, in seconds."""
    import cloudpickle
    import ray
    from ray.cluster_utils import Cluster

    from tunelight.gang.gang import Gang
    from tunelight.gang.spec import GangSpec, driver_paths
    from tunelight.messages import Continue, Report, Task
    from tunelight.resources import Reservation

    quick = {"prestart_worker_first_driver": False}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": CPUS, "include_dashboard": False, "_system_config": quick}
    )
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=CPUS)
    ray.init(address=cluster.address, log_to_driver=False)

    def trial(gang: Gang, asked: bool) -> float:
        task = Task(
            "00000", folder, {"reports": REPORTS}, cloudpickle.dumps(reporting), 1, str(Path.cwd()),
            until=1 if asked else None,
        )  # fmt: skip
        gang.heal()
        gang.start(task)
        first = last = 0.0
        while gang.running:
            event = gang.next_event(60.0)
            if isinstance(event, Report):
                last = time.perf_counter()
                first = first or last
                if asked:
                    gang.answer(Continue(event.number + 1))
        return (last - first) / (REPORTS - 1)

    try:
        spec = GangSpec(workers, cwd=str(Path.cwd()), sys_path=driver_paths())
        starts = []
        for _ in range(3):
            group = ray.util.placement_group(Reservation(workers).bundles, "PACK")
            ray.get(group.ready(), timeout=60)
            began = time.perf_counter()
            with Gang.form(spec, group) as gang:
                starts.append(time.perf_counter() - began)
                told = {"report": trial(gang, asked=False), "decision": trial(gang, asked=True)}
            ray.util.remove_placement_group(group)
        return {"start": statistics.median(starts[1:]), **told}
    finally:
        ray.shutdown()
        cluster.shutdown()


def in_a_process(nodes: int, workers: int) -> dict[str, float]:
    """Measure in a process of its own. Raises: RuntimeError with its output where it fails."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(nodes), str(workers), folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
            env=environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32)),
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{nodes} nodes, {workers} workers: exit status {done.returncode}\n{done.stdout[-3000:]}")
    told: dict[str, float] = json.loads(lines[-1])
    return told


def rows(measured: dict[int, dict[str, float]]) -> list[list[str]]:
    """Return a row for each size: what it costs, and how much more than the first."""
    first = next(iter(measured.values()))
    return [
        [
            str(size), f"{one['start']:.2f} s", f"{one['report'] * 1000:.2f} ms", f"{one['decision'] * 1000:.2f} ms",
            *(f"{one[cost] / first[cost]:.2f}" for cost in COSTS),
        ]
        for size, one in measured.items()
    ]  # fmt: skip


def main() -> int:
    """Print both tables; return 1 where something grows that may not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="1 and 2 nodes, gangs of 1 and 2")
    parser.add_argument("--measure", nargs=3, metavar=("NODES", "WORKERS", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(int(args.measure[0]), int(args.measure[1]), args.measure[2])), flush=True)
        return 0
    os.environ.pop("RAY_ADDRESS", None)
    sizes = (1, 2) if args.short else (1, 2, 4, 8)
    head = ["gang start", "report", "decision", "start x", "report x", "decision x"]

    clusters = {nodes: in_a_process(nodes, 2) for nodes in sizes}
    print("A gang of two workers, on clusters of so many nodes:\n")
    print(table(["nodes", *head], rows(clusters), markdown=False))
    gangs = {workers: clusters[sizes[-1]] if workers == 2 else in_a_process(sizes[-1], workers) for workers in sizes}
    print(f"\nGangs of so many workers, on {sizes[-1]} nodes:\n")
    print(table(["workers", *head], rows(gangs), markdown=False))

    small = clusters[sizes[0]]
    dearer = [
        f"{cost} on {nodes} nodes: {one[cost] / small[cost]:.2f} times that on {sizes[0]}"
        for nodes, one in clusters.items() for cost in COSTS if one[cost] > SLACK * small[cost]
    ]  # fmt: skip
    alone = gangs[sizes[0]]
    dearer += [
        f"{cost} of {workers} workers: {one[cost] / alone[cost]:.2f} times that of one"
        for workers, one in gangs.items() for cost in COSTS if one[cost] > SLACK * workers * alone[cost]
    ]  # fmt: skip
    print(
        "\n" + ("\n".join(dearer) or f"Nothing grows by more than {SLACK:g} with the cluster, or faster than the gang.")
    )
    return 0 if args.short else int(bool(dearer))


if __name__ == "__main__":
    sys.exit(main())
