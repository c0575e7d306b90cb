"""Look for leaks: in the workers of a long sweep, in the driver of one, and in a process that runs one after another.

workers: 200 trials under ASHA, which stops most of them after one epoch. At the start of every trial each rank notes
its process's memory, threads and file descriptors. The curves are printed, and how much each grew from trial 20
to the end; afterwards whatever the sweep left: actors, placement groups, child processes. A fault is growth of more
than 5 %, and whatever was left (with fewer than 40 trials growth is printed but not judged: a worker still warms up).

driver: trials that report three times each and train nothing. A driver has to remember every trial until its sweep
ends; the curve of its memory is printed, and how much each trial added. A fault is more than 10 KB a trial, and a
thread or a file descriptor for each (judged from 1,000 trials on).

runs: sweeps of two trials on two workers, one after another in a process, on the Ray that stays. After each: the
process's memory, threads and file descriptors, and what is left in Ray and of its processes. A fault is growth of
memory of more than 2 % from the fifth run on (judged from 10 runs on), or anything that is left over.

The exit status is 1 if there is a fault.

    python benchmarks/leak.py                              # 200 trials, 2,000, and 30 runs
    python benchmarks/leak.py --only driver --trials 10000
    python benchmarks/leak.py --only runs --runs 100
    python benchmarks/leak.py --short                      # 4 trials, 24, and 2 runs: does it still run?
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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
from figures import headline, table
from measure import is_alive

EPOCHS, RANKS = 8, 2
LIMIT = 0.05
"""Growth of a worker that is still no leak."""
MARK = "TUNELIGHT_BENCHMARK_LEAK"
"""A variable of the processes that runs start."""
RUNS_LIMIT = 0.02
"""Growth of a process from its fifth run on that is still no leak."""
DRIVER_LIMIT = 10_000
"""Bytes of the driver's memory that a trial may take until the sweep ends."""
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


@dataclass(frozen=True)
class DriverSample:
    """The driver after so many trials; ``rss`` in bytes."""

    trials: int
    seconds: float
    rss: int
    threads: int
    fds: int


def main() -> int:
    """Run the sweeps, print the curves, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("workers", "driver", "runs"), help="one of the three (default: all)")
    parser.add_argument("--trials", type=int, default=2000, help="trials of the driver's sweep (default 2000)")
    parser.add_argument("--runs", type=int, default=30, help="sweeps of one process (default 30)")
    parser.add_argument("--short", action="store_true", help="4 trials, 24, and 2 runs")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RAY_ADDRESS", None)
    faults: list[str] = []
    if args.only in (None, "workers"):
        faults += look_at_workers(4 if args.short else 200)
    if args.only in (None, "driver"):
        faults += look_at_driver(24 if args.short else args.trials)
    if args.only in (None, "runs"):
        faults += look_at_runs(2 if args.short else args.runs)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault was found")
    return 1 if faults else 0


def look_at_workers(trials: int) -> list[str]:
    """Run the sweep that trains, print the workers' curves, and return what is wrong."""
    import ray

    judged = trials >= 40
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
        f"workers: {len(results)} trials of {RANKS} workers in {seconds:.0f} s; ASHA stopped "
        f"{results.num_stopped} of them, {results.num_errors} failed.\n"
    )
    print_curves(samples, 20 if judged else 1)
    growth = find_growth(samples, 20 if judged else max(1, trials // 4))
    headline(f"actors, placement groups and processes left by {trials} trials", len(left), "", most=0, digits=0)
    return (growth if judged else []) + left + failures(results)


def look_at_runs(count: int) -> list[str]:
    """Run sweeps one after another, print how this process and its Ray fare, and return what is wrong."""
    import tunelight as tl
    from tunelight.digits import DigitsClassifier, DigitsData

    process, rows, faults = psutil.Process(), [], []
    states: list[tuple[int, int, int, int]] = []
    os.environ[MARK] = str(os.getpid())  # by which its servers are known, which are no children of this process
    with tempfile.TemporaryDirectory(prefix="leak-") as folder:
        for number in range(count):
            began = time.monotonic()
            results = tl.run(
                {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=DigitsClassifier, data=DigitsData, metric="val_loss",
                max_epochs=1, num_samples=2, workers=RANKS, max_concurrent=1, scheduler="fifo", seed=number,
                storage=folder, name=f"run-{number}", progress=False, trainer_args={"accelerator": "cpu"},
            )  # fmt: skip
            seconds = time.monotonic() - began
            faults += failures(results)
            faults += [f"after run {number}: {one}" for one in settle_in_ray()]
            del results
            gc.collect()
            ours = sum(is_alive(child) for child in process.children(recursive=True))
            states.append((process.memory_info().rss, process.num_threads(), process.num_fds(), ours))
            rss, *others = states[-1]
            rows.append([str(number + 1), f"{seconds:.1f}", f"{rss / 1e6:.1f}", *map(str, others)])
        servers = forkservers()
        started = [child for child in [*process.children(recursive=True), *servers] if is_alive(child)]
        folders = {Path(server.cmdline()[2]) for server in servers}
        tl.shutdown()
        faults += outlived(started, [])
    faults += [] if servers else ["no server forks the workers"]
    faults += [f"{one} was left over" for one in sorted(folders) if one.exists()]
    print(f"runs: {count} sweeps of one process, two trials of {RANKS} workers each.\n")
    shown = rows if count <= 10 else [rows[0], *rows[4 :: max(1, count // 10)], rows[-1]]
    print(table(["run", "s", "MB", "threads", "fds", "processes"], shown, markdown=False) + "\n")
    if count < 10:
        return faults
    first, last = states[4], states[-1]
    growth = last[0] / first[0] - 1
    print(f"from run 5 to {count}: {100 * growth:+.1f} % of memory (at most {100 * RUNS_LIMIT:.0f} %)\n")
    headline(f"memory of a process, run {count} / run 5", 1 + growth, most=1 + RUNS_LIMIT, digits=3)
    more = max(now - before for before, now in zip(first[1:3], last[1:3], strict=True))
    headline(f"threads or file descriptors more, run 5 to {count}", more, "", most=0, digits=0)
    faults += [f"the process grew by {100 * growth:.1f} %"] if growth > RUNS_LIMIT else []
    names = ("threads", "file descriptors", "processes")
    return faults + [
        f"{now - before} {name} more"
        for name, before, now in zip(names, first[1:], last[1:], strict=True)
        if now > before
    ]


def forkservers() -> list[psutil.Process]:
    """Return the servers that fork the workers of this process's runs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            command = process.info["cmdline"] or []
            if any(part.endswith("forkserver/server.py") for part in command[1:2]):
                found += [process] if process.environ().get(MARK) == os.environ[MARK] else []
    return found


def settle_in_ray() -> list[str]:
    """Wait until actors and placement groups are gone; return what is not."""
    deadline = time.monotonic() + SETTLE_S
    while (left := left_in_ray()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def failures(results: Any) -> list[str]:
    """Return how many trials failed, and why the first did; nothing where none did."""
    return [f"{results.num_errors} trials failed: {results.errors[0].error}"] if results.num_errors else []


def look_at_driver(trials: int) -> list[str]:
    """Run the sweep that only reports, print the driver's curve, and return what is wrong."""
    import ray

    import tunelight as tl

    def train(config: dict[str, Any]) -> None:
        for number in range(3):
            tl.report({"loss": config["lr"] / (number + 1)})

    curve = driver_curve(max(1, trials // 20))
    with tempfile.TemporaryDirectory(prefix="leak-") as folder:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            results = tl.run(
                {"lr": tl.loguniform(1e-4, 1e-1)},
                train,
                metric="loss",
                num_samples=trials,
                scheduler="fifo",
                storage=folder,
                name="driver",
                seed=7,
                progress=False,
                callbacks=[curve],
            )
        finally:
            ray.shutdown()
        done, failed = len(results), failures(results)
    samples: list[DriverSample] = curve.samples
    print(f"driver: {done} trials of three reports in {samples[-1].seconds:.0f} s.\n")
    rows = [[f"{one.trials}", f"{one.rss / 1e6:.1f}", str(one.threads), str(one.fds)] for one in samples]
    print(table(["trials", "MB", "threads", "fds"], rows, markdown=False) + "\n")
    first, last = samples[min(1, len(samples) - 1)], samples[-1]
    count = max(1, last.trials - first.trials)
    each = (last.rss - first.rss) / count
    print(
        f"from trial {first.trials} to {last.trials}: {each / 1e3:.1f} KB a trial (at most {DRIVER_LIMIT / 1e3:.0f})\n"
    )
    if trials < 1000:
        return failed
    of = f"{first.trials} to {last.trials} trials"
    headline("what a trial adds to the driver's memory", each / 1e3, "KB", of=of, most=DRIVER_LIMIT / 1e3, digits=1)
    gained = max(last.threads - first.threads, last.fds - first.fds)
    headline("threads or file descriptors that the driver gains", gained, "", of=of, digits=0)
    faults = [f"the driver grew by {each / 1e3:.1f} KB a trial"] if each > DRIVER_LIMIT else []
    more = {name: getattr(last, name) - getattr(first, name) for name in ("threads", "fds")}
    faults += [f"the driver has {added} {name} more" for name, added in more.items() if added > count / 100]
    return faults + failed


def driver_curve(every: int) -> Any:
    """Return a callback of Tune's that looks at this process after every ``every`` trials."""
    from ray.tune import Callback

    class Curve(Callback):
        """Keeps ``samples``."""

        def __init__(self) -> None:
            self.samples: list[DriverSample] = []
            self._over, self._begin = 0, time.time()

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            """Look, if it is time."""
            self._over += 1
            if self._over % every:
                return
            gc.collect()
            process = psutil.Process()
            with process.oneshot():
                rss, threads, fds = process.memory_info().rss, process.num_threads(), process.num_fds()
            self.samples.append(DriverSample(self._over, time.time() - self._begin, rss, threads, fds))

    return Curve()


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
    grown: dict[str, list[float]] = {name: [] for name in FIELDS}
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
            grown[name].append(growth if name == "rss" else last - first)
            print(f"rank {rank} {name}: {first:.1f} at trial {start}, {last:.1f} at the end: {growth:+.1%}")
            if growth > LIMIT:
                faults.append(f"rank {rank}: {name} grew by {growth:.1%} (at most {LIMIT:.0%})")
    if grown["fds"]:
        span, more = f"from trial {start} to {len(samples[0])}", max(grown["threads"] + grown["fds"])
        headline(f"memory of a worker, growth {span}", 1 + max(grown["rss"]), of="of 2", most=1 + LIMIT, digits=3)
        headline(f"threads or file descriptors that a worker gains {span}", more, "", digits=0)
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
    from ray.util import placement_group_table

    from tunelight.compat.ray import actors

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
