"""Does anything grow or stay behind? A long sweep in which ASHA stops most trials after one epoch.

At the start of every trial each rank writes down its process's memory, threads and file descriptors. The
curves are printed, and how much each grew from trial 20 to the end; afterwards whatever the sweep left:
actors, placement groups, child processes. The exit status is 1 if anything grew by more than 5 % or was left
(with fewer than 40 trials growth is printed but not judged: a worker still warms up then).

    python benchmarks/leak.py               # 200 trials
    python benchmarks/leak.py --short       # 8 trials: does it still run?
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from figures import table
from measure import is_alive

EPOCHS, RANKS = 8, 2
LIMIT = 0.05
"""Growth that is still no leak."""
FIELDS = ("rss", "threads", "fds")
SETTLE_S = 10.0
"""Seconds in which what the sweep held has to be gone."""


@dataclass(frozen=True)
class Sample:
    """One rank at the start of one trial; ``rss`` in MB."""

    rank: int
    pid: int
    time: float
    rss: float
    threads: int
    fds: int


def main() -> int:
    """Run the sweep, print the curves, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="trials in all (default 200)")
    parser.add_argument("--short", action="store_true", help="8 trials")
    args = parser.parse_args()
    trials = 8 if args.short else args.trials
    judged = trials >= 40
    start = 20 if judged else max(1, trials // 4)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RAY_ADDRESS", None)

    import ray

    with tempfile.TemporaryDirectory(prefix="leak-") as folder:
        ray.init(address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
        try:
            before = {process.pid for process in psutil.Process().children(recursive=True)}
            begin = time.time()
            results = run_sweep(trials, Path(folder))
            seconds = time.time() - begin
            samples = read_samples(Path(folder))
            left = settle(before)
            children = psutil.Process().children(recursive=True)
        finally:
            ray.shutdown()
        left += outlived(children, samples)
    print(
        f"leak: {len(results)} trials of {RANKS} workers in {seconds:.0f} s; ASHA stopped "
        f"{results.num_stopped} of them, {results.num_errors} failed.\n"
    )
    print_curves(samples, 20 if judged else 1)
    growth = find_growth(samples, start)
    faults = (growth if judged else []) + left
    if results.num_errors:
        faults.append(f"{results.num_errors} trials failed: {results.errors[0].error}")
    print(
        "\n".join(f"FAULT: {fault}" for fault in faults) or f"{'nothing grew, and ' if judged else ''}nothing is left"
    )
    return 1 if faults else 0


def run_sweep(trials: int, folder: Path) -> Any:
    """Run ``trials`` trials under ASHA with a rung after every epoch's doubling, one gang at a time."""
    import tunelight as tl
    from tunelight.schedulers import ASHA

    def train(config: dict[str, Any]) -> None:
        write_sample(tl.get_context().rank, folder)
        import pytorch_lightning as pl

        from tunelight.digits import DigitsClassifier, DigitsData

        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            strategy=tl.RayStrategy(),
            callbacks=[tl.TuneReportCallback({"loss": "val_loss"}, on="validation_end")],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(DigitsClassifier(lr=config["lr"]), datamodule=DigitsData())

    return tl.run(
        {"lr": tl.loguniform(1e-4, 1e-1)},
        train,
        metric="loss",
        mode="min",
        num_samples=trials,
        scheduler=ASHA(max_t=EPOCHS, grace_period=1, reduction_factor=4),
        workers=RANKS,
        storage=str(folder / "storage"),
        name="leak",
        seed=7,
        progress=False,
    )


def write_sample(rank: int, folder: Path) -> None:
    """Append what this process holds to its rank's file. Runs on: worker."""
    process = psutil.Process()
    with process.oneshot():
        sample = {
            "rank": rank,
            "pid": process.pid,
            "time": time.time(),
            "rss": process.memory_info().rss / 1e6,
            "threads": process.num_threads(),
            "fds": process.num_fds(),
        }
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(sample) + "\n")


def read_samples(folder: Path) -> list[list[Sample]]:
    """Return the samples of each rank, in the order of the trials."""
    files = sorted(folder.glob("rank-*.jsonl"))
    return [[Sample(**json.loads(line)) for line in file.read_text().splitlines()] for file in files]


def print_curves(samples: Sequence[Sequence[Sample]], every: int) -> None:
    """Print every rank's curves, one line for every ``every`` trials."""
    head = ["trial", *(f"rank {rank} {name}" for rank in range(len(samples)) for name in ("MB", *FIELDS[1:]))]
    count = min((len(curve) for curve in samples), default=0)
    shown = sorted({0, *range(every - 1, count, every), count - 1}) if count else []
    lines = [[str(index + 1)] + [text for curve in samples for text in _cells(curve[index])] for index in shown]
    print(table(head, lines, markdown=False) + "\n")


def _cells(sample: Sample) -> list[str]:
    return [f"{sample.rss:.1f}", str(sample.threads), str(sample.fds)]


def find_growth(samples: Sequence[Sequence[Sample]], start: int) -> list[str]:
    """Print how much each curve grew from trial ``start`` to its end, and return what grew too much.

    Both ends are medians of five trials (of fewer in a short sweep), so that one odd sample decides nothing.
    """
    faults = [] if len(samples) == RANKS else [f"samples of {len(samples)} ranks instead of {RANKS}"]
    for rank, curve in enumerate(samples):
        if len(curve) < start + 2:
            faults.append(f"rank {rank}: {len(curve)} samples are too few")
            continue
        pids = {sample.pid for sample in curve}
        if len(pids) > 1:
            faults.append(f"rank {rank}: {len(pids)} processes instead of one warm worker: growth is hidden")
        window = min(5, (len(curve) - start + 1) // 2)
        for name in FIELDS:
            first = statistics.median(getattr(one, name) for one in curve[start - 1 : start - 1 + window])
            last = statistics.median(getattr(one, name) for one in curve[-window:])
            growth = last / first - 1
            print(f"rank {rank} {name}: {first:.1f} at trial {start}, {last:.1f} at the end: {growth:+.1%}")
            if growth > LIMIT:
                faults.append(f"rank {rank}: {name} grew by {growth:.1%} (at most {LIMIT:.0%})")
    print()
    return faults


def settle(before: set[int]) -> list[str]:
    """Wait until actors, placement groups and workers are gone; return what is not, before Ray ends."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = left_in_ray() + _left_at_work(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def left_in_ray() -> list[str]:
    """Return actors and placement groups that are still there."""
    from ray._private.state import actors  # the state API would need Ray's dashboard
    from ray.util import placement_group_table

    alive = [actor for actor in actors().values() if actor["State"] != "DEAD"]
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return [f"actor {one['ActorClassName']} is {one['State']}" for one in alive] + [
        f"placement group {one['placement_group_id']} is {one['state']}" for one in groups
    ]


def _left_at_work(before: set[int]) -> list[str]:
    """Return new processes below Ray, but for workers that idle in its pool."""
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline()) or process.name()
        except psutil.Error:
            continue
        if process.pid not in before and is_alive(process) and not title.startswith("ray::IDLE"):
            left.append(f"process {process.pid}: {title[:100]}")
    return left


def outlived(children: Sequence[psutil.Process], samples: Sequence[Sequence[Sample]]) -> list[str]:
    """Return what is still alive some seconds after Ray was shut down."""
    processes = {process.pid: process for process in children}
    for pid in {sample.pid for curve in samples for sample in curve} - processes.keys():
        if psutil.pid_exists(pid):
            processes[pid] = psutil.Process(pid)
    psutil.wait_procs(list(processes.values()), timeout=SETTLE_S)
    alive = [process for process in processes.values() if is_alive(process)]
    return [f"process {process.pid} ({process.name()}) outlived Ray" for process in alive]


if __name__ == "__main__":
    sys.exit(main())
