"""What benchmarks/schedulers.py holds the schedulers to, and the two figures that need no curves."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.iqm import iqm, shown
from tunelight.schedulers import ElasticASHA

EQUAL = 0.01
"""Regrets that differ by less than one point of accuracy count as equal."""
SCALE = """
import resource, time
from benchmarks.schedulers import curves, peers
from tunelight.schedulers import ASHA, ElasticASHA
from tunelight.simulation import simulate
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
    verdicts = [*_ratios(found), *_deadline(found), *_auto(found), *_scale(), _latency()]
    print("\nTargets")
    for text, met in verdicts:
        print(f"  {'MET   ' if met else 'MISSED'} {text}")
    return sum(not met for _, met in verdicts)


def _pairs(
    found: Sequence[Any], workload: str, row: str, other: str, of: Callable[[Any], float]
) -> list[tuple[float, float]]:
    mine = {one.seed: of(one) for one in found if (one.workload, one.row) == (workload, row)}
    theirs = {one.seed: of(one) for one in found if (one.workload, one.row) == (workload, other)}
    return [(mine[seed], theirs[seed]) for seed in sorted(mine) if seed in theirs]


def _names(found: Sequence[Any], *, deadline: bool = False, auto: bool = False) -> list[str]:
    names = dict.fromkeys(one.workload for one in found)
    return [name for name in names if ("deadline" in name) == deadline and ("auto" in name) == auto]


def _ratios(found: Sequence[Any]) -> list[tuple[str, bool]]:
    verdicts = []
    for name in _names(found):
        for other, most in (
            ("Ray ASHA", 1.0 if "50%" in name or "60%" in name else 1 / 1.9),
            ("ASHA doubling (RASDA)", 1.0),
        ):
            both = _pairs(found, name, "ElasticASHA", other, lambda one: one.makespan_s)
            regrets = _pairs(found, name, "ElasticASHA", other, lambda one: one.regret)
            ratios = [mine / theirs for mine, theirs in both]
            worse = iqm([mine - theirs for mine, theirs in regrets])
            met = iqm(ratios) <= most and worse <= EQUAL
            verdicts.append(
                (
                    f"{name}: ElasticASHA's makespan is {shown(ratios, 3)} of that of {other} (at most {most:.3f}), "
                    f"its regret {worse:+.4f} (at most {EQUAL:+.2f})",
                    met,
                )
            )
        idle = _pairs(found, name, "ElasticASHA", "Ray ASHA", lambda one: one.tail_idle)
        mine, theirs = iqm([one for one, _ in idle]), iqm([one for _, one in idle])
        if "50%" not in name:
            verdicts.append(
                (f"{name}: idle at the tail {mine:.0%}, Ray ASHA {theirs:.0%} (at most a quarter)", mine <= theirs / 4)
            )
    return verdicts


def _deadline(found: Sequence[Any]) -> list[tuple[str, bool]]:
    verdicts = []
    for name in _names(found, deadline=True):
        gain = [
            100 * (mine - theirs)
            for mine, theirs in _pairs(found, name, "ElasticASHA", "Ray ASHA", lambda one: one.best)
        ]
        verdicts.append((f"{name}: best accuracy {shown(gain)} points over Ray ASHA's (at least 3)", iqm(gain) >= 3))
    return verdicts


def _auto(found: Sequence[Any]) -> list[tuple[str, bool]]:
    verdicts = []
    for name in _names(found, auto=True):
        for other in ("Ray ASHA", "tunelight ASHA"):
            hours = _pairs(found, name, "ElasticASHA auto", other, lambda one: one.worker_h)
            named = _pairs(found, name, "ElasticASHA auto", other, lambda one: one.named)
            ratios, worse = [mine / theirs for mine, theirs in hours], iqm([mine - theirs for mine, theirs in named])
            verdicts.append(
                (
                    f"{name}: max_t='auto' takes {shown(ratios, 3)} of the worker-hours of {other} (at most 0.333); what "
                    f"it names, trained to the end, has {worse:+.4f} regret (at most {EQUAL:+.2f})",
                    iqm(ratios) <= 1 / 3 and worse <= EQUAL,
                )
            )
    return verdicts


def _scale() -> list[tuple[str, bool]]:
    verdicts = []
    for name in ("ASHA", "ElasticASHA"):
        ran = subprocess.run(
            [sys.executable, "-c", SCALE, name], capture_output=True, text=True, check=False, env={**os.environ}
        )
        if ran.returncode:
            verdicts.append((f"10,000 trials under {name}: {ran.stderr[-200:]}", False))
            continue
        wall, peak, cpu, trials = (float(part) for part in ran.stdout.split()[-4:])
        verdicts.append(
            (
                f"{trials:,.0f} trials on 1,000 nodes x 8 under {name}: {wall:.1f} s (under 60), {peak:.2f} GB (under 2); "
                f"the scheduler took {cpu:.1f} s of it",
                wall < 60 and peak < 2,
            )
        )
    return verdicts


def _latency() -> tuple[str, bool]:
    """Time ElasticASHA's decisions at a rung that holds 100,000 trials."""
    import random
    from types import SimpleNamespace

    elastic, rng, took = ElasticASHA("loss", "min"), random.Random(0), []
    for number in range(101_000):
        trial = SimpleNamespace(trial_id=str(number), status="PENDING", temporary_state=None)
        elastic.on_trial_add(None, trial)  # type: ignore[arg-type]
        result = {"loss": rng.random(), "training_iteration": 1, "time_total_s": 1.0}
        began = time.perf_counter()
        elastic.on_trial_result(None, trial, result)  # type: ignore[arg-type]
        took.append(time.perf_counter() - began)
    middle = 1e6 * statistics.median(took[100_000:])
    slow = 1e6 * statistics.quantiles(took[100_000:], n=100)[98]
    return (
        f"a decision at 100,000 recorded results: median {middle:.0f} us (under 50), 99th percentile {slow:.0f} us",
        middle < 50,
    )
