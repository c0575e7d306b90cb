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

import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from figures import headline, median, table
from measure import is_alive, options

EPOCHS, RANKS = 8, 2
LIMIT = 0.05
"""Growth of a worker that is still no leak."""
MARK = "TUNELIGHT_BENCHMARK_LEAK"
"""A variable of the processes that runs start."""
RUNS_LIMIT = 0.02
"""Growth of a process from its fifth run on that is still no leak."""
DRIVER_LIMIT = 10_000
"""Bytes of the driver's memory that a trial may take until the sweep ends."""
RATE = 2500.0
"""How many trials a minute there should be on two cores, one after another."""
SETTLE_S = 10.0
"""Seconds in which what the sweep held has to be gone."""
NAMES = {"rss": "MB", "threads": "threads", "fds": "fds"}


@dataclass(frozen=True)
class Sample:
    """A process after so many trials or runs; ``rss`` in MB."""

    at: int
    pid: int
    time: float
    rss: float
    threads: int
    fds: int

    @classmethod
    def take(cls, at: int) -> Sample:
        """Look at this process."""
        process = psutil.Process()
        with process.oneshot():
            rss, threads, fds = process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()
        return cls(at, process.pid, time.time(), rss, threads, fds)

    def cells(self) -> list[str]:
        """Return what a table shows of it."""
        return [f"{self.rss:.1f}", str(self.threads), str(self.fds)]


def main() -> int:
    """Run the sweeps, print the curves, and return the exit status."""
    parts = ("workers", "driver", "runs")
    trials, runs = (2000, "trials of the driver's sweep"), (30, "sweeps of one process")
    args = options(__doc__, "4 trials, 24, and 2 runs", rows=parts, trials=trials, runs=runs)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RAY_ADDRESS", None)
    faults: list[str] = []
    if "workers" in args.only:
        faults += look_at_workers(4 if args.short else 200)
    if "driver" in args.only:
        faults += look_at_driver(24 if args.short else args.trials)
    if "runs" in args.only:
        faults += look_at_runs(2 if args.short else args.runs)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault was found")
    return 1 if faults else 0


# --- the workers of a long sweep --------------------------------------------------------------------------


def look_at_workers(trials: int) -> list[str]:
    """Run the sweep that trains, print the workers' curves, and return what is wrong."""
    import ray

    judged = trials >= 40
    with tempfile.TemporaryDirectory(prefix="leak-") as place:
        folder = Path(place)
        ray.init(address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
        try:
            before = {process.pid for process in psutil.Process().children(recursive=True)}
            begin = time.time()
            results = run_sweep(trials, folder)
            seconds = time.time() - begin
            files = sorted(folder.glob("rank-*.jsonl"))
            ranks = [[Sample(**json.loads(line)) for line in file.read_text().splitlines()] for file in files]
            left = settle(lambda: left_in_ray() + left_at_work(before))
            children = psutil.Process().children(recursive=True)
        finally:
            ray.shutdown()
        left += outlived([*children, *alive({sample.pid for curve in ranks for sample in curve})])
    print(
        f"workers: {len(results)} trials of {RANKS} workers in {seconds:.0f} s; ASHA stopped "
        f"{results.counts['STOPPED']} of them, {results.counts['ERROR']} failed.\n"
    )
    every, count = 20 if judged else 1, min((len(curve) for curve in ranks), default=0)
    shown = sorted({0, *range(every - 1, count, every), count - 1}) if count else []
    head = ["trial", *(f"rank {rank} {name}" for rank in range(len(ranks)) for name in NAMES.values())]
    print(table(head, [[str(at + 1), *(text for one in ranks for text in one[at].cells())] for at in shown]) + "\n")
    growth = find_growth(ranks, 20 if judged else max(1, trials // 4))
    headline(f"actors, placement groups and processes left by {trials} trials", len(left), "", most=0, digits=0)
    return (growth if judged else []) + left + failures(results)


def run_sweep(trials: int, folder: Path) -> Any:
    """Run ``trials`` trials under ASHA with a rung after every epoch's doubling, one gang at a time."""
    import tunelight as tl
    from tunelight.schedulers import ASHA

    def train(config: dict[str, Any]) -> None:
        with (folder / f"rank-{tl.get_context().rank}.jsonl").open("a") as file:
            file.write(json.dumps(asdict(Sample.take(0))) + "\n")
        import pytorch_lightning as pl

        from tunelight.extras.digits import DigitsClassifier, DigitsData

        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            strategy=tl.RayStrategy(),
            enable_progress_bar=False,
            callbacks=[tl.TuneReportCallback({"loss": "val_loss"}, on="validation_end")],
            enable_model_summary=False,
        )
        trainer.fit(DigitsClassifier(lr=config["lr"]), datamodule=DigitsData())

    return tl.run(
        {"lr": tl.loguniform(1e-4, 1e-1)},
        train,
        metric="loss",
        mode="min",
        num_samples=trials,
        workers=RANKS,
        scheduler=ASHA(max_t=EPOCHS, grace_period=1, reduction_factor=4),
        storage=str(folder / "storage"),
        name="leak",
        seed=7,
        progress=False,
    )


def find_growth(ranks: Sequence[Sequence[Sample]], start: int) -> list[str]:
    """Print how much each curve grew from trial ``start`` to its end, and return what grew too much.

    Both ends are medians of five trials (of fewer in a short sweep), so that one odd sample decides nothing.
    """
    faults = [] if len(ranks) == RANKS else [f"samples of {len(ranks)} ranks instead of {RANKS}"]
    grown: dict[str, list[float]] = {name: [] for name in NAMES}
    for rank, curve in enumerate(ranks):
        if len(curve) < start + 2:
            faults.append(f"rank {rank}: {len(curve)} samples are too few")
            continue
        pids = {sample.pid for sample in curve}
        if len(pids) > 1:
            faults.append(f"rank {rank}: {len(pids)} processes instead of one warm worker: growth is hidden")
        window = min(5, (len(curve) - start + 1) // 2)
        for name in NAMES:
            first = median(getattr(one, name) for one in curve[start - 1 : start - 1 + window])
            last = median(getattr(one, name) for one in curve[-window:])
            growth = last / first - 1
            grown[name].append(growth if name == "rss" else last - first)
            print(f"rank {rank} {name}: {first:.1f} at trial {start}, {last:.1f} at the end: {growth:+.1%}")
            if growth > LIMIT:
                faults.append(f"rank {rank}: {name} grew by {growth:.1%} (at most {LIMIT:.0%})")
    if grown["fds"]:
        span, more = f"from trial {start} to {len(ranks[0])}", max(grown["threads"] + grown["fds"])
        headline(f"memory of a worker, growth {span}", 1 + max(grown["rss"]), of="of 2", most=1 + LIMIT, digits=3)
        headline(f"threads or file descriptors that a worker gains {span}", more, "", digits=0)
    return faults


# --- the driver of a long sweep ---------------------------------------------------------------------------


def look_at_driver(trials: int) -> list[str]:
    """Run the sweep that only reports, print the driver's curve, and return what is wrong."""
    import ray
    from ray.tune import Callback

    import tunelight as tl

    every, samples = max(1, trials // 20), [Sample.take(0)]

    class Curve(Callback):
        """Looks at this process after some trials each."""

        over = 0

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.over += 1
            if self.over % every == 0:
                gc.collect()
                samples.append(Sample.take(self.over))

    def train(config: dict[str, Any]) -> None:
        for number in range(3):
            tl.report({"loss": config["lr"] / (number + 1)})

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
                callbacks=[Curve()],
            )
        finally:
            ray.shutdown()
        done, failed = len(results), failures(results)
    began, *samples = samples
    print(f"driver: {done} trials of three reports in {samples[-1].time - began.time:.0f} s.\n")
    print(table(["trials", *NAMES.values()], [[str(one.at), *one.cells()] for one in samples]) + "\n")
    if trials < 1000:
        return failed
    first, last = samples[1], samples[-1]
    each, of = 1e6 * (last.rss - first.rss) / (last.at - first.at), f"{first.at} to {last.at} trials"
    headline("what a trial adds to the driver's memory", each / 1e3, "KB", of=of, most=DRIVER_LIMIT / 1e3, digits=1)
    rates = [60 * (b.at - a.at) / (b.time - a.time) for a, b in ((first, last), samples[1:3], samples[-2:])]
    headline("trials a minute that report three times and train nothing", rates[0], "", of=of, least=RATE, digits=0)
    headline(f"the same at the end of {last.at:,} / at the beginning", rates[2] / rates[1], least=1 / 1.3)
    more = {name: getattr(last, name) - getattr(first, name) for name in ("threads", "fds")}
    headline("threads or file descriptors that the driver gains", max(more.values()), "", of=of, digits=0)
    faults = [f"the driver grew by {each / 1e3:.1f} KB a trial"] if each > DRIVER_LIMIT else []
    allowed = (last.at - first.at) / 100
    return faults + [f"the driver has {added} {name} more" for name, added in more.items() if added > allowed] + failed


# --- a process that runs one sweep after another ----------------------------------------------------------


def look_at_runs(count: int) -> list[str]:
    """Run sweeps one after another, print how this process and its Ray fare, and return what is wrong."""
    import tunelight as tl
    from tunelight.extras.digits import DigitsClassifier, DigitsData

    process, faults = psutil.Process(), list[str]()
    samples, children = [Sample.take(0)], list[int]()
    os.environ[MARK] = str(os.getpid())  # by which its servers are known, which are no children of this process
    with tempfile.TemporaryDirectory(prefix="leak-") as folder:
        for number in range(count):
            results = tl.run(
                {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=DigitsClassifier, data=DigitsData, metric="val_loss",
                max_epochs=1, num_samples=2, workers=RANKS, max_concurrent=1, scheduler="fifo", seed=number,
                storage=folder, name=f"run-{number}", progress=False, trainer_args={"accelerator": "cpu"},
            )  # fmt: skip
            faults += failures(results)
            faults += [f"after run {number}: {one}" for one in settle(left_in_ray)]
            del results
            gc.collect()
            children.append(sum(is_alive(child) for child in process.children(recursive=True)))
            samples.append(Sample.take(number + 1))
        servers = forkservers()
        started = [child for child in [*process.children(recursive=True), *servers] if is_alive(child)]
        folders = {Path(server.cmdline()[2]) for server in servers}
        tl.shutdown()
        faults += outlived(started)
    faults += [] if servers else ["no server forks the workers"]
    faults += [f"{one} was left over" for one in sorted(folders) if one.exists()]
    print(f"runs: {count} sweeps of one process, two trials of {RANKS} workers each.\n")
    rows = [
        [str(one.at), f"{one.time - before.time:.1f}", *one.cells(), str(number)]
        for before, one, number in zip(samples, samples[1:], children, strict=False)
    ]
    shown = rows if count <= 10 else [rows[0], *rows[4 :: max(1, count // 10)], rows[-1]]
    print(table(["run", "s", *NAMES.values(), "processes"], shown) + "\n")
    if count < 10:
        return faults
    first, last = samples[5], samples[-1]
    growth = last.rss / first.rss - 1
    headline(f"memory of a process, run {count} / run 5", 1 + growth, most=1 + RUNS_LIMIT, digits=3)
    more = {"threads": last.threads - first.threads, "file descriptors": last.fds - first.fds}
    headline(f"threads or file descriptors more, run 5 to {count}", max(more.values()), "", most=0, digits=0)
    faults += [f"the process grew by {100 * growth:.1f} %"] if growth > RUNS_LIMIT else []
    more["processes"] = children[-1] - children[4]
    return faults + [f"{added} {name} more" for name, added in more.items() if added > 0]


def forkservers() -> list[psutil.Process]:
    """Return the servers that fork the workers of this process's runs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            command = process.info["cmdline"] or []
            if any(part.endswith("forks/server.py") for part in command[1:2]):
                found += [process] if process.environ().get(MARK) == os.environ[MARK] else []
    return found


# --- what is left -----------------------------------------------------------------------------------------


def failures(results: Any) -> list[str]:
    """Return how many trials failed, and why the first did; nothing where none did."""
    return [f"{results.counts['ERROR']} trials failed: {results.errors[0].error}"] if results.counts["ERROR"] else []


def settle(look: Callable[[], list[str]]) -> list[str]:
    """Wait until nothing is left; return what is."""
    deadline = time.monotonic() + SETTLE_S
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def left_in_ray() -> list[str]:
    """Return actors and placement groups that are still there."""
    from ray.util import placement_group_table

    from tunelight.compat.ray import actors

    there = [actor for actor in actors().values() if actor["State"] != "DEAD"]
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return [f"actor {one['ActorClassName']} is {one['State']}" for one in there] + [
        f"placement group {one['placement_group_id']} is {one['state']}" for one in groups
    ]


def left_at_work(before: set[int]) -> list[str]:
    """Return new processes below Ray, but for workers that idle in its pool."""
    left = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline()) or process.name()
            if process.pid not in before and is_alive(process) and not title.startswith("ray::IDLE"):
                left.append(f"process {process.pid}: {title[:100]}")
    return left


def alive(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the gangs' workers of these processes that there are."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [process] if "GangWorker" in " ".join(process.cmdline()) else []
    return found


def outlived(processes: Sequence[psutil.Process]) -> list[str]:
    """Return what is still alive some seconds after Ray was shut down."""
    psutil.wait_procs(list(processes), timeout=SETTLE_S)
    return [f"process {one.pid} ({one.name()}) outlived Ray" for one in set(processes) if is_alive(one)]


if __name__ == "__main__":
    sys.exit(main())
