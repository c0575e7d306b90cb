"""Compare schedulers in the simulator, on learning curves that were recorded from real training.

    python benchmarks/schedulers.py              # 30 seeds, about half an hour on two cores
    python benchmarks/schedulers.py --short      # two seeds of a few rows, for CI

All times are virtual. Epochs keep the recorded proportions between configurations and are stretched so that the
median one takes a minute on one worker; gangs cost to start, pause and grow what ``Costs`` says. Figures are
interquartile means over seeds, with 95 % bootstrap intervals; a seed fixes which configurations come in which order,
the noise of epochs and failures, for every scheduler alike. Syne Tune's rows need it on the path:

    pip install --no-deps --target DIR syne-tune==0.14.2 dill   # and PYTHONPATH=DIR

Two more parts (``--only "8 slots"``, ``--only repeats``) simulate sweeps of 100 trials on 8 slots: ASHA and ElasticASHA
with one worker a trial and epochs of 30 s, and how often the truly best configuration is chosen with ``repeats=``.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import scheduling as peers
from drawing import scatter, slots_over_time
from figures import headline, median, table
from iqm import interval, iqm, shown
from scheduling_targets import judge

from tests.world import Costs, Simulation, simulate
from tests.world.sources import TableCurves, read_table, recorded
from tunelight.schedulers import ASHA, ElasticASHA

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
MAX_T = 81
EPOCH_S = 60.0
PROCESSES = 2
STATIC = (2, 4, 8, 16)


@dataclass(frozen=True)
class Workload:
    """What is searched, and where. ``deadline_s``: the sweep ends there; ``failures``: of a node, an hour."""

    name: str
    task: str
    trials: int = 256
    cluster: str = "8x8"
    efficiency: float = 0.8
    deadline_s: float | None = None
    failures: float = 0.0

    @property
    def slots(self) -> int:
        """All slots of the cluster."""
        return int(np.prod([int(part) for part in self.cluster.split("x")]))


@dataclass(frozen=True)
class Outcome:
    """What one simulation came to. ``named``: regret of the configuration that it names, trained to the end."""

    workload: str
    row: str
    seed: int
    makespan_s: float
    worker_h: float
    regret: float
    named: float
    best: float
    tail_idle: float
    cpu_s: float


Row = tuple[Callable[[Workload], Any], int | tuple[int, int]]


def _elastic(workload: Workload) -> Any:
    return ElasticASHA(reduction_factor=peers.ETA, max_t=MAX_T, deadline_s=workload.deadline_s)


def _asha(_: Workload) -> Any:
    return ASHA(**peers.JUDGED, max_t=MAX_T, reduction_factor=peers.ETA)


def _doubling(_: Workload) -> Any:
    return peers.Doubling(**peers.JUDGED, max_t=MAX_T, reduction_factor=peers.ETA)


ROWS: dict[str, Row] = {
    "ElasticASHA": (_elastic, (1, peers.MOST)),
    "ElasticASHA, no growth": (_elastic, 1),
    "tunelight ASHA": (_asha, 1),
    "Ray ASHA": (lambda _: peers.ray_asha(MAX_T), 1),
    "Ray ASHA + RCS, even": (lambda _: peers.ray_resizing(MAX_T, top=False), 1),
    "Ray ASHA + RCS, top job": (lambda _: peers.ray_resizing(MAX_T, top=True), 1),
    "ASHA doubling (RASDA)": (_doubling, (1, peers.MOST)),
    "Syne Tune ASHA": (lambda workload: peers.SyneTune(MAX_T, workload.slots), 1),
    **{f"static {width}": (_asha, width) for width in STATIC},
}
PAIR = ("ElasticASHA", "Ray ASHA", "ASHA doubling (RASDA)")
ALL = (
    *PAIR, "ElasticASHA, no growth", "tunelight ASHA", "Ray ASHA + RCS, even", "Ray ASHA + RCS, top job",
    "Syne Tune ASHA", *(f"static {width}" for width in STATIC),
)  # fmt: skip
WORKLOADS: list[tuple[Workload, Sequence[str]]] = [
    *[(Workload(f"64 slots, sum, {e:.0%}", "digits-sum", efficiency=e), PAIR) for e in (1.0, 0.7, 0.6, 0.5)],
    *[(Workload(f"64 slots, noisy, {e:.0%}", "digits-noisy", efficiency=e), PAIR) for e in (1.0, 0.5)],
    (Workload("64 slots, sum, 80%", "digits-sum"), (*PAIR, "ElasticASHA, no growth", "tunelight ASHA")),
    (Workload("64 slots, noisy, 80%", "digits-noisy"), ALL),
    *[
        (Workload(f"1024 slots, few, {e:.0%}", "digits-few", 1024, "128x8", efficiency=e), PAIR)
        for e in (1.0, 0.8, 0.5)
    ],
    (Workload("64 slots, noisy, 80%, nodes fail", "digits-noisy", failures=0.5), PAIR),
    (Workload("64 slots, sum, 80%, deadline 45 min", "digits-sum", 2000, deadline_s=45 * 60.0), PAIR),
    (Workload("64 slots, few, 80%, deadline 45 min", "digits-few", 2000, deadline_s=45 * 60.0), PAIR),
]
SHORT: list[tuple[Workload, Sequence[str]]] = [
    (Workload("64 slots, noisy, 80%", "digits-noisy", 64), PAIR),
]

FEW_SLOTS, REPEATS = "8 slots", "repeats"
"""The parts beside the workloads, by what --only names."""
TASKS = ("digits", "digits-few", "digits-noisy", "digits-sum")
REPEATED: dict[str, tuple[str, Any]] = {
    "ASHA, none": ("asha", None),
    "ASHA, 3": ("asha", 3),
    "ASHA, top 10 of 3": ("asha", {"top": 10, "repeats": 3}),
    "FIFO, none": ("fifo", None),
    "FIFO, 3": ("fifo", 3),
}
"""Scheduler and ``repeats`` of each row of the last part."""


@functools.cache
def curves(task: str) -> TableCurves:
    """Return a task's recorded curves, with a median epoch of EPOCH_S on one worker."""
    table = read_table(task)
    seconds = table.seconds.astype(float)
    return TableCurves(
        task,
        {"accuracy": table.metrics["accuracy"]},
        seconds * EPOCH_S / np.median(seconds),
        table.configs,
        **peers.JUDGED,
    )


def run_one(workload: Workload, row: str, seed: int) -> Simulation:
    """Simulate one sweep."""
    make, workers = ROWS[row]
    return simulate(
        curves(workload.task),
        make(workload),
        num_samples=workload.trials,
        workers=workers,
        cluster=workload.cluster,
        seed=seed,
        time_budget=workload.deadline_s,
        costs=Costs(efficiency=workload.efficiency, noise=0.05, checkpoint_mb=100, node_failures=workload.failures),
        **peers.JUDGED,
    )


def outcome(job: tuple[Workload, str, int]) -> Outcome:
    """Simulate one sweep, and keep what is compared."""
    workload, row, seed = job
    os.nice(max(0, 19 - os.nice(0)))
    ran = run_one(workload, row, seed)
    best = max(ran.trials, key=lambda trial: -1.0 if trial.best is None else trial.best)
    whole = np.nanmax(curves(workload.task).curve(best.config).metrics["accuracy"])
    return Outcome(
        workload.name,
        row,
        seed,
        ran.makespan_s,
        ran.worker_seconds / 3600,
        ran.regret(),
        float((ran.oracle or np.nan) - whole),
        ran.best or 0.0,
        ran.tail_idle_share,
        ran.scheduler_cpu_s,
    )


def oracle_s(workload: Workload, seed: int) -> float:
    """Return the makespan of who knows the best configuration, and trains it alone on the largest gang."""
    table, costs = curves(workload.task), Costs(efficiency=workload.efficiency)
    chosen = [table.curve(table.config(number, seed)) for number in range(workload.trials)]
    best = max(chosen, key=lambda curve: np.nan_to_num(curve.metrics["accuracy"]).max())
    return costs.start_cold_s + MAX_T * costs.epoch_s(best.seconds, peers.MOST, peers.MOST, 2, 0.5)


def run_all(plan: Sequence[tuple[Workload, Sequence[str]]], seeds: int) -> list[Outcome]:
    """Simulate everything over processes, and print a table a workload; Syne Tune's rows where it is installed."""
    syne = importlib.util.find_spec("syne_tune") is not None
    if not syne:
        print("Syne Tune is not on the path: its rows are left out.")
    found: list[Outcome] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for workload, rows in plan:
            jobs = [(workload, row, seed) for row in rows for seed in range(seeds) if syne or "Syne" not in row]
            done = list(pool.map(outcome, jobs))
            print_table(workload, rows, done, seeds)
            found += done
    return found


def on_few_slots(task: str, scheduler: str, seed: int) -> tuple[float, float, float]:
    """Simulate a sweep on 8 slots; return its worker-hours, minutes and regret."""
    ran = simulate(recorded(task, epoch_s=30), scheduler, num_samples=100, seed=seed)
    return ran.worker_seconds / 3600, ran.makespan_s / 60, ran.regret()


def few_slots(seeds: int) -> None:
    """Print what ElasticASHA saves where gangs do not grow."""
    rows = ("asha", "elastic_asha")
    jobs = [(task, row, seed) for task in TASKS for row in rows for seed in range(seeds)]
    found = {job: on_few_slots(*job) for job in jobs}
    lines = []
    for task in TASKS:
        medians = [[median(found[task, row, seed][at] for seed in range(seeds)) for at in range(3)] for row in rows]
        lines += [[task, row, *(f"{value:.3g}" for value in values)] for row, values in zip(rows, medians, strict=True)]
    print(f"\n8 slots, one worker a trial: 100 trials of up to {MAX_T} epochs of 30 s; medians of {seeds} seeds\n")
    print(table(["task", "scheduler", "worker-hours", "minutes", "regret (loss)"], lines, markdown=False), flush=True)
    pairs = [(found[task, rows[0], seed], found[task, rows[1], seed]) for task in TASKS for seed in range(seeds)]
    of = f"n = {len(pairs)}"
    for at, what in enumerate(("worker-hours", "minutes")):
        headline(f"8 slots: {what} of ElasticASHA / ASHA", median(one[at] / base[at] for base, one in pairs), of=of)
    good = sum(one[2] <= base[2] for base, one in pairs)
    headline("8 slots: sweeps whose best trial is no worse", good / len(pairs), "", of=f"{good} of {len(pairs)}")


def repeated(row: str, seed: int) -> tuple[int, float]:
    """Simulate a sweep of digits; return the true place of the configuration that it chooses, and its worker-hours."""
    scheduler, repeats = REPEATED[row]
    known = recorded("digits")
    ran = simulate(known, scheduler, num_samples=100, repeats=repeats, seed=seed)
    assert ran.chosen is not None
    mine, tried = known.truth(ran.chosen.config), [known.truth(trial.config) for trial in ran.trials]
    return 1 + sum(truth < mine for truth in tried), ran.worker_seconds / 3600


def repeats(seeds: int) -> None:
    """Print how often the truly best configuration is chosen, with repeats and without."""
    found = {(row, seed): repeated(row, seed) for row in REPEATED for seed in range(seeds)}
    lines = []
    for row in REPEATED:
        places = [found[row, seed][0] for seed in range(seeds)]
        best, three = (sum(place <= most for place in places) / seeds for most in (1, 3))
        hours = sum(found[row, seed][1] for seed in range(seeds)) / seeds
        lines.append([row, f"{best:.2f}", f"{three:.2f}", f"{hours:.3f}"])
        of = f"n = {seeds}; one of the best three {three:.2f}; {hours:.3f} worker-hours"
        headline(f"repeats: how often the best configuration is chosen, {row}", best, "", of=of)
    print(f"\nrepeats, 100 trials of digits on 8 slots, {seeds} seeds: how often the truly best is chosen\n")
    print(table(["scheduler, repeats", "best", "best three", "worker-hours"], lines, markdown=False), flush=True)


def print_table(workload: Workload, rows: Sequence[str], found: Sequence[Outcome], seeds: int) -> None:
    """Print what came of one workload."""
    print(f"\n{workload.name}: {workload.trials} trials of {workload.task}, gangs of 1 to {peers.MOST}")
    print(f"  {'':26}{'makespan [min]':>26}{'worker-hours':>24}{'regret':>26}{'tail idle':>12}")
    for row in rows:
        mine = [one for one in found if one.row == row]
        if mine:
            print(
                f"  {row:26}{shown([one.makespan_s / 60 for one in mine]):>26}"
                f"{shown([one.worker_h for one in mine]):>24}{shown([one.regret for one in mine], 4):>26}"
                f"{iqm([one.tail_idle for one in mine]):>12.0%}"
            )
    oracle = shown([oracle_s(workload, seed) / 60 for seed in range(seeds)])
    print(f"  {'oracle':26}{oracle:>26}", flush=True)


def draw(plan: Sequence[tuple[Workload, Sequence[str]]], found: Sequence[Outcome]) -> None:
    """Write the plots of the workload with most rows."""
    workload, rows = max(plan, key=lambda one: len(one[1]))
    points = {}
    for row in rows:
        mine = [one for one in found if (one.workload, one.row) == (workload.name, row)]
        if mine:
            minutes, regrets = [one.makespan_s / 60 for one in mine], [one.regret for one in mine]
            points[row] = ((iqm(minutes), *interval(minutes)), (iqm(regrets), *interval(regrets)))
    scatter(IMAGES / "schedulers-regret.png", f"Simulated: {workload.name}, {workload.trials} trials", points)
    lines = {}
    for row in PAIR:
        ran = run_one(workload, row, 0)
        lines[row] = [(use.time / 60, float(use.busy)) for use in ran.usage if use.time <= 120 * 60]
    slots_over_time(IMAGES / "schedulers-slots.png", f"Simulated: {workload.name}, one seed", lines, workload.slots)


def main() -> int:
    """Run the benchmark; return 1 if a target that was looked at is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two seeds of a few rows; judges nothing")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--only", default="", help="workloads with this in their name")
    parser.add_argument("--read", type=Path, help="judge what an earlier run wrote with --out, and simulate nothing")
    parser.add_argument("--out", type=Path, help="where to write all outcomes as JSON lines")
    told = parser.parse_args()
    plan, seeds = (SHORT, 2) if told.short else (WORKLOADS, told.seeds)
    plan = [one for one in plan if told.only in one[0].name]
    began = time.perf_counter()
    if told.read:
        found = [Outcome(**json.loads(line)) for line in told.read.read_text(encoding="utf-8").splitlines()]
        for workload, rows in plan:
            print_table(workload, rows, [one for one in found if one.workload == workload.name], seeds)
    else:
        found = run_all(plan, seeds)
    if not told.read:
        for name, part in ((FEW_SLOTS, few_slots), (REPEATS, repeats)):
            if told.only in name:
                part(seeds)
    if told.out:
        told.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in found), encoding="utf-8")
    if told.short or told.only:
        return 0
    draw(plan, found)
    missed = judge(found)
    if not told.read:
        print(f"\n{len(found)} simulations in {(time.perf_counter() - began) / 60:.0f} minutes.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
