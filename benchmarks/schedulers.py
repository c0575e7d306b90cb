"""Compare schedulers in the simulator, on learning curves that were recorded from real training.

    python benchmarks/schedulers.py              # 30 seeds, about half an hour on two cores
    python benchmarks/schedulers.py --short      # two seeds of a few rows, for CI

All times are virtual. Epochs keep the recorded proportions between configurations and are stretched so that the
median one takes a minute on one worker; gangs cost to start, pause and grow what ``Costs`` says. Figures are
interquartile means over seeds, with 95 % bootstrap intervals; a seed fixes which configurations come in which order,
the noise of epochs and failures, for every scheduler alike.

Two more parts (``--only "8 slots"``, ``--only repeats``) simulate sweeps of 100 trials on 8 slots: ASHA and ElasticASHA
with one worker a trial and epochs of 30 s, and how often the truly best configuration is chosen with ``repeats=``.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import headline, median, table
from iqm import iqm, shown
from measure import options
from scheduling import ETA, JUDGED, MOST, Doubling, ray_asha, ray_resizing

from tests.world import Costs, simulate
from tests.world.curves import TableCurves, read_table, recorded
from tunelight.schedulers import ASHA, ElasticASHA

MAX_T = 81
EPOCH_S = 60.0
PROCESSES = 2
STATIC = (2, 4, 8, 16)
HEADLINES = ("64 slots, noisy, 80%", "1024 slots, few, 80%")
"""The workloads whose makespans go into the table of all figures."""
EQUAL = 0.01
"""Regrets that differ by less than one point of accuracy count as equal."""


@dataclass(frozen=True)
class Workload:
    """What is searched, and where. ``deadline_s``: the sweep ends there; ``failures``: of a node, an hour."""

    name: str
    task: str
    trials: int = 256
    slots: int = 64
    efficiency: float = 0.8
    deadline_s: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What one simulation came to."""

    workload: str
    row: str
    seed: int
    makespan_s: float
    worker_h: float
    regret: float
    best: float
    tail_idle: float


Row = tuple[Callable[[Workload], Any], int | tuple[int, int]]


def _elastic(workload: Workload) -> Any:
    return ElasticASHA(reduction_factor=ETA, max_t=MAX_T, deadline_s=workload.deadline_s)


def _asha(_: Workload) -> Any:
    return ASHA(**JUDGED, max_t=MAX_T, reduction_factor=ETA)


def _doubling(_: Workload) -> Any:
    return Doubling(**JUDGED, max_t=MAX_T, reduction_factor=ETA)


ROWS: dict[str, Row] = {
    "ElasticASHA": (_elastic, (1, MOST)),
    "ElasticASHA, no growth": (_elastic, 1),
    "tunelight ASHA": (_asha, 1),
    "Ray ASHA": (lambda _: ray_asha(MAX_T), 1),
    "Ray ASHA + RCS, even": (lambda _: ray_resizing(MAX_T, top=False), 1),
    "Ray ASHA + RCS, top job": (lambda _: ray_resizing(MAX_T, top=True), 1),
    "ASHA doubling (RASDA)": (_doubling, (1, MOST)),
    **{f"static {width}": (_asha, width) for width in STATIC},
}
PAIR = ("ElasticASHA", "Ray ASHA", "ASHA doubling (RASDA)")
ALL = (
    *PAIR, "ElasticASHA, no growth", "tunelight ASHA", "Ray ASHA + RCS, even", "Ray ASHA + RCS, top job",
    *(f"static {width}" for width in STATIC),
)  # fmt: skip
WORKLOADS: list[tuple[Workload, Sequence[str]]] = [
    *[(Workload(f"64 slots, sum, {e:.0%}", "digits-sum", efficiency=e), PAIR) for e in (1.0, 0.7, 0.6, 0.5)],
    *[(Workload(f"64 slots, noisy, {e:.0%}", "digits-noisy", efficiency=e), PAIR) for e in (1.0, 0.5)],
    (Workload("64 slots, sum, 80%", "digits-sum"), (*PAIR, "ElasticASHA, no growth", "tunelight ASHA")),
    (Workload("64 slots, noisy, 80%", "digits-noisy"), ALL),
    *[(Workload(f"1024 slots, few, {e:.0%}", "digits-few", 1024, 1024, efficiency=e), PAIR) for e in (1.0, 0.8, 0.5)],
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
    return TableCurves(table, JUDGED["metric"], seconds * EPOCH_S / np.median(seconds))


def outcome(job: tuple[Workload, str, int]) -> Outcome:
    """Simulate one sweep, and keep what is compared."""
    workload, row, seed = job
    os.nice(max(0, 19 - os.nice(0)))
    make, workers = ROWS[row]
    ran = simulate(
        curves(workload.task),
        make(workload),
        num_samples=workload.trials,
        workers=workers,
        slots=workload.slots,
        seed=seed,
        time_budget=workload.deadline_s,
        costs=Costs(efficiency=workload.efficiency, noise=0.05, checkpoint_s=1),
    )
    return Outcome(
        workload.name,
        row,
        seed,
        ran.makespan_s,
        ran.worker_seconds / 3600,
        ran.regret(),
        ran.best or 0.0,
        ran.tail_idle_share,
    )


def oracle_s(workload: Workload, seed: int) -> float:
    """Return the makespan of who knows the best configuration, and trains it alone on the largest gang."""
    table, costs = curves(workload.task), Costs(efficiency=workload.efficiency)
    chosen = [table.curve(table.config(number, seed)) for number in range(workload.trials)]
    best = max(chosen, key=lambda curve: np.nan_to_num(curve.metrics["accuracy"]).max())
    return costs.start_cold_s + MAX_T * costs.epoch_s(best.seconds, MOST, MOST, 0.5)


def run_all(plan: Sequence[tuple[Workload, Sequence[str]]], seeds: int) -> list[Outcome]:
    """Simulate everything over processes, and print a table a workload."""
    found: list[Outcome] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for workload, rows in plan:
            done = list(pool.map(outcome, [(workload, row, seed) for row in rows for seed in range(seeds)]))
            print_table(workload, rows, done, seeds)
            found += done
    return found


def on_few_slots(task: str, scheduler: str, seed: int) -> tuple[float, float, float]:
    """Simulate a sweep on 8 slots; return its worker-hours, minutes and regret."""
    ran = simulate(recorded(task, 30), scheduler, num_samples=100, seed=seed)
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
    print(table(["task", "scheduler", "worker-hours", "minutes", "regret (loss)"], lines), flush=True)
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
    print(table(["scheduler, repeats", "best", "best three", "worker-hours"], lines), flush=True)


def print_table(workload: Workload, rows: Sequence[str], found: Sequence[Outcome], seeds: int) -> None:
    """Print what came of one workload."""
    lines = []
    for row in rows:
        mine = [one for one in found if one.row == row]
        minutes, hours = shown([one.makespan_s / 60 for one in mine]), shown([one.worker_h for one in mine])
        regret, idle = shown([one.regret for one in mine], 4), f"{iqm([one.tail_idle for one in mine]):.0%}"
        lines.append([row, minutes, hours, regret, idle])
    lines.append(["oracle", shown([oracle_s(workload, seed) / 60 for seed in range(seeds)]), "", "", ""])
    print(f"\n{workload.name}: {workload.trials} trials of {workload.task}, gangs of 1 to {MOST}\n")
    print(table(["", "makespan [min]", "worker-hours", "regret", "tail idle"], lines), flush=True)


# --- targets ----------------------------------------------------------------------------------------------


def judge(found: Sequence[Outcome]) -> int:
    """Print each target with what came, MET or MISSED; return how many were missed."""
    flat = [one.makespan_s for one in found if one.row == "ElasticASHA, no growth" and "sum" in one.workload]
    for percent in (50, 60, 70, 80, 100):
        name = f"64 slots, sum, {percent}%"
        grown = [one.makespan_s for one in found if (one.workload, one.row) == (name, "ElasticASHA")]
        if flat and grown:
            what = f"64 slots: makespan with growth / without, two workers {percent / 50:g} times as fast as one"
            headline(what, iqm(grown) / iqm(flat), of=f"n = {len(grown)}")
    verdicts = [
        verdict
        for name in dict.fromkeys(one.workload for one in found)
        for verdict in (with_deadline(found, name) if "deadline" in name else against_others(found, name))
    ]
    print("\nTargets")
    for text, met in verdicts:
        print(f"  {'MET   ' if met else 'MISSED'} {text}")
    return sum(not met for _, met in verdicts) + (not latency())


def pairs(found: Sequence[Outcome], workload: str, other: str, figure: str) -> list[tuple[float, float]]:
    """Return a figure of ElasticASHA and of another row, seed by seed."""
    first, second = (
        {one.seed: getattr(one, figure) for one in found if (one.workload, one.row) == (workload, row)}
        for row in ("ElasticASHA", other)
    )
    return [(first[seed], second[seed]) for seed in sorted(first) if seed in second]


def against_others(found: Sequence[Outcome], name: str) -> list[tuple[str, bool]]:
    """Judge makespan, regret and idle slots of ElasticASHA on a workload."""
    verdicts = []
    slow = any(efficiency in name for efficiency in ("50%", "60%"))
    for other, most in (("Ray ASHA", 1.0 if slow else 1 / 1.9), ("ASHA doubling (RASDA)", 1.0)):
        ratios = [mine / theirs for mine, theirs in pairs(found, name, other, "makespan_s")]
        worse = iqm([mine - theirs for mine, theirs in pairs(found, name, other, "regret")])
        text = (
            f"{name}: ElasticASHA's makespan is {shown(ratios, 3)} of that of {other} (at most {most:.3f}), "
            f"its regret {worse:+.4f} (at most {EQUAL:+.2f})"
        )
        verdicts.append((text, iqm(ratios) <= most and worse <= EQUAL))
        if name in HEADLINES:
            of = f"{shown(ratios)}, regret {worse:+.3f}"
            headline(f"{name}: makespan of ElasticASHA / {other}", iqm(ratios), of=of, most=most)
    mine, theirs = (iqm(column) for column in zip(*pairs(found, name, "Ray ASHA", "tail_idle"), strict=True))
    if not slow:
        text = f"{name}: idle at the tail {mine:.0%}, Ray ASHA {theirs:.0%} (at most a quarter)"
        verdicts.append((text, mine <= theirs / 4))
    return verdicts


def with_deadline(found: Sequence[Outcome], name: str) -> list[tuple[str, bool]]:
    """Judge what ElasticASHA finds until a deadline."""
    gain = [100 * (mine - theirs) for mine, theirs in pairs(found, name, "Ray ASHA", "best")]
    return [(f"{name}: best accuracy {shown(gain)} points over Ray ASHA's (at least 3)", iqm(gain) >= 3)]


def latency() -> bool:
    """Time ElasticASHA's decisions at a rung that holds 100,000 trials; return whether they are fast enough."""
    elastic, rng, took = ElasticASHA("loss", "min"), random.Random(0), []
    for number in range(101_000):
        trial = SimpleNamespace(trial_id=str(number), status="PENDING", temporary_state=None)
        elastic.on_trial_add(None, trial)  # type: ignore[arg-type]
        trial.status = "RUNNING"
        elastic.choose_trial_to_run(None)  # type: ignore[arg-type]  # as in each of Tune's steps: it sees who has started
        result = {"loss": rng.random(), "training_iteration": 1, "time_total_s": 1.0}
        began = time.perf_counter()
        elastic.on_trial_result(None, trial, result)  # type: ignore[arg-type]
        took.append(1e6 * (time.perf_counter() - began))
    what, middle = "a decision of ElasticASHA's at 100,000 recorded results", median(took[100_000:])
    return headline(what, middle, "us", of="n = 1000", most=50, digits=0)


def main() -> int:
    """Run the benchmark; return 1 if a target that was looked at is missed."""
    only = "", "workloads with this in their name"
    args = options(__doc__, "two seeds of a few rows; judges nothing", only=only, seeds=(30, "of each row"))
    plan, seeds = (SHORT, 2) if args.short else (WORKLOADS, args.seeds)
    began = time.perf_counter()
    found = run_all([one for one in plan if args.only in one[0].name], seeds)
    for name, part in ((FEW_SLOTS, few_slots), (REPEATS, repeats)):
        if args.only in name:
            part(seeds)
    if args.short or args.only:
        return 0
    print(f"\n{len(found)} simulations in {(time.perf_counter() - began) / 60:.0f} minutes.")
    return 1 if judge(found) else 0


if __name__ == "__main__":
    sys.exit(main())
