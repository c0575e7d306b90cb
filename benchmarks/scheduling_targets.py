"""The targets of benchmarks/schedulers.py, and the two figures that need no curves."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from figures import headline
from iqm import iqm, shown

from tunelight.schedulers import ElasticASHA

Verdict = tuple[str, bool]
HEADLINES = ("64 slots, noisy, 80%", "1024 slots, few, 80%")
"""The workloads whose makespans go into the table of all figures."""
EQUAL = 0.01
"""Regrets that differ by less than one point of accuracy count as equal."""
SCALE = """
import resource, time
from schedulers import curves, peers
from tunelight.schedulers import ASHA, ElasticASHA
from tests.world import simulate
import sys
name = sys.argv[1]
made = {"ASHA": lambda: ASHA(**peers.JUDGED, max_t=81, reduction_factor=3), "ElasticASHA": ElasticASHA}[name]()
began = time.perf_counter()
ran = simulate(curves("digits-noisy"), made, num_samples=10_000, workers=(1, 16) if name == "ElasticASHA" else 1,
               cluster="1000x8", **peers.JUDGED)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(time.perf_counter() - began, peak, ran.scheduler_cpu_s, len(ran.trials))
"""


def judge(found: Sequence[Any]) -> int:
    """Print each target with what came, MET or MISSED; return how many were missed."""
    _break_even(found)
    verdicts = [*_ratios(found), *_deadline(found), *_scale(), _latency()]
    print("\nTargets")
    for text, met in verdicts:
        print(f"  {'MET   ' if met else 'MISSED'} {text}")
    return sum(not met for _, met in verdicts)


def _break_even(found: Sequence[Any]) -> None:
    """Print what growing gains by efficiency, on the workload that has a row without it."""
    flat = [one.makespan_s for one in found if one.row == "ElasticASHA, no growth"]
    print(
        "\nMakespan of ElasticASHA in that of ElasticASHA without growth (64 slots, sum), by efficiency of a doubling"
    )
    for percent in (50, 60, 70, 80, 100):
        name = f"64 slots, sum, {percent}%"
        grown = [one.makespan_s for one in found if (one.workload, one.row) == (name, "ElasticASHA")]
        if flat and grown:
            print(f"  {percent} %: {iqm(grown) / iqm(flat):.2f}")
            what = f"64 slots: makespan with growth / without, two workers {percent / 50:g} times as fast as one"
            headline(what, iqm(grown) / iqm(flat), of=f"n = {len(grown)}")


def _pairs(
    found: Sequence[Any], workload: str, rows: tuple[str, str], of: Callable[[Any], float]
) -> list[tuple[float, float]]:
    """Return a figure of two rows, seed by seed."""
    first, second = ({one.seed: of(one) for one in found if (one.workload, one.row) == (workload, row)} for row in rows)
    return [(first[seed], second[seed]) for seed in sorted(first) if seed in second]


def _names(found: Sequence[Any], *, deadline: bool = False) -> list[str]:
    names = dict.fromkeys(one.workload for one in found)
    return [name for name in names if ("deadline" in name) == deadline]


def _ratios(found: Sequence[Any]) -> list[Verdict]:
    verdicts = []
    for name in _names(found):
        slow = any(efficiency in name for efficiency in ("50%", "60%"))
        for other, most in (("Ray ASHA", 1.0 if slow else 1 / 1.9), ("ASHA doubling (RASDA)", 1.0)):
            rows = ("ElasticASHA", other)
            ratios = [mine / theirs for mine, theirs in _pairs(found, name, rows, lambda one: one.makespan_s)]
            worse = iqm([mine - theirs for mine, theirs in _pairs(found, name, rows, lambda one: one.regret)])
            text = (
                f"{name}: ElasticASHA's makespan is {shown(ratios, 3)} of that of {other} (at most {most:.3f}), "
                f"its regret {worse:+.4f} (at most {EQUAL:+.2f})"
            )
            verdicts.append((text, iqm(ratios) <= most and worse <= EQUAL))
            if name in HEADLINES:
                of = f"{shown(ratios)}, regret {worse:+.3f}"
                headline(f"{name}: makespan of ElasticASHA / {other}", iqm(ratios), of=of, most=most)
        idle = _pairs(found, name, ("ElasticASHA", "Ray ASHA"), lambda one: one.tail_idle)
        mine, theirs = (iqm(column) for column in zip(*idle, strict=True))
        if not slow:
            text = f"{name}: idle at the tail {mine:.0%}, Ray ASHA {theirs:.0%} (at most a quarter)"
            verdicts.append((text, mine <= theirs / 4))
    return verdicts


def _deadline(found: Sequence[Any]) -> list[Verdict]:
    verdicts = []
    for name in _names(found, deadline=True):
        both = _pairs(found, name, ("ElasticASHA", "Ray ASHA"), lambda one: one.best)
        gain = [100 * (mine - theirs) for mine, theirs in both]
        text = f"{name}: best accuracy {shown(gain)} points over Ray ASHA's (at least 3)"
        verdicts.append((text, iqm(gain) >= 3))
    return verdicts


def _scale() -> list[Verdict]:
    verdicts = []
    for name in ("ASHA", "ElasticASHA"):
        command = [sys.executable, "-c", SCALE, name]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
        if ran.returncode:
            verdicts.append((f"10,000 trials under {name}: {ran.stderr[-200:]}", False))
            continue
        wall, peak, cpu, trials = (float(part) for part in ran.stdout.split()[-4:])
        text = (
            f"{trials:,.0f} trials on 1,000 nodes x 8 under {name}: {wall:.1f} s (under 60), {peak:.2f} GB (under 2); "
            f"the scheduler took {cpu:.1f} s of it"
        )
        verdicts.append((text, wall < 60 and peak < 2))
        headline(f"{trials:,.0f} trials on 8,000 slots under {name}, simulated", wall, "s", most=60, digits=1)
    return verdicts


def _latency() -> Verdict:
    """Time ElasticASHA's decisions at a rung that holds 100,000 trials."""
    elastic, rng, took = ElasticASHA("loss", "min"), random.Random(0), []
    for number in range(101_000):
        trial = SimpleNamespace(trial_id=str(number), status="PENDING", temporary_state=None)
        elastic.on_trial_add(None, trial)  # type: ignore[arg-type]
        trial.status = "RUNNING"
        elastic.choose_trial_to_run(None)  # type: ignore[arg-type]  # as in each of Tune's steps: it sees who has started
        result = {"loss": rng.random(), "training_iteration": 1, "time_total_s": 1.0}
        began = time.perf_counter()
        elastic.on_trial_result(None, trial, result)  # type: ignore[arg-type]
        took.append(time.perf_counter() - began)
    middle = 1e6 * statistics.median(took[100_000:])
    slow = 1e6 * statistics.quantiles(took[100_000:], n=100)[98]
    headline("a decision of ElasticASHA's at 100,000 recorded results", middle, "us", of="n = 1000", most=50, digits=0)
    text = f"a decision at 100,000 recorded results: median {middle:.0f} us (under 50), 99th percentile {slow:.0f} us"
    return text, middle < 50
