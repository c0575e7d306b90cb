"""Compare searching through tunelight with Optuna alone, on learning curves that were recorded from real training.

    python benchmarks/suggestions.py              # 30 seeds, about ten minutes on one core
    python benchmarks/suggestions.py --short      # 3 seeds of few trials, for CI

Regret: how far the best accuracy that was found is from the best that there is, over seeds: interquartile means with
95 % bootstrap intervals. Through tunelight, a sweep runs on virtual time with its real searcher, search and controller;
Optuna alone asks, looks the configuration up and tells. Every configuration is trained to its end, one after another.

Time: of the suggestion that follows 1,000 finished trials, with three of them running, from the call of the searcher to
the configuration that Tune gets; beside it, the same study asked by Optuna alone.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import optuna
from figures import headline
from iqm import interval, iqm, shown
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import tunelight as tl
from tests.world import simulate
from tests.world.curves import KEY
from tests.world.sources import TableCurves, recorded
from tunelight.searchers import OptunaSearcher

TASKS = ("digits", "digits-noisy", "digits-few")
SPACE: dict[str, Any] = {
    "lr": tl.loguniform(3e-5, 3.2),
    "hidden": tl.lograndint(4, 250),
    "layers": tl.randint(1, 5),
    "dropout": tl.uniform(0, 0.7),
    "batch_size": tl.choice([32, 64, 128, 256]),
    "weight_decay": tl.loguniform(1e-6, 1e-1),
    "optimizer": tl.choice(["adam", "sgd"]),
}
SAME = {
    "lr": FloatDistribution(3e-5, 3.2, log=True),
    "hidden": IntDistribution(4, 249, log=True),
    "layers": IntDistribution(1, 4),
    "dropout": FloatDistribution(0, 0.7),
    "batch_size": CategoricalDistribution([32, 64, 128, 256]),
    "weight_decay": FloatDistribution(1e-6, 1e-1, log=True),
    "optimizer": CategoricalDistribution(["adam", "sgd"]),
}
"""The space in Optuna's own words."""
MOST = 1.2
"""How many times as long as Optuna's a suggestion may take."""
LIVE = 3


def accuracy(table: TableCurves, config: Mapping[str, Any]) -> float:
    """Return the best accuracy of the curve that is nearest to a configuration; 0 where training diverged at once."""
    curve = table.curve({key: value for key, value in config.items() if key != KEY}).metrics["accuracy"]
    return float(np.nanmax([0.0, *curve]))


def alone(table: TableCurves, trials: int, seed: int, sampler: str) -> list[float]:
    """Return what Optuna alone finds, trial by trial."""
    made = optuna.samplers.TPESampler(seed=seed) if sampler == "tpe" else optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=made, direction="maximize")
    found = []
    for _ in range(trials):
        trial = study.ask(SAME)
        found.append(accuracy(table, trial.params))
        study.tell(trial, found[-1])
    return found


def through(table: TableCurves, trials: int, seed: int, at_once: int) -> list[float]:
    """Return what a simulated sweep finds, trial by trial."""
    searcher = OptunaSearcher("tpe", space=SPACE, metric="accuracy", mode="max", seed=seed)
    ran = simulate(
        table,
        "fifo",
        searcher=searcher,
        num_samples=trials,
        cluster=f"1x{at_once}",
        metric="accuracy",
        mode="max",
        seed=seed,
    )
    return [trial.best or 0.0 for trial in ran.trials]


ROWS: dict[str, Callable[[TableCurves, int, int], list[float]]] = {
    "Optuna alone, TPE": lambda table, trials, seed: alone(table, trials, seed, "tpe"),
    "tunelight, TPE": lambda table, trials, seed: through(table, trials, seed, 1),
    "tunelight, TPE, 8 at once": lambda table, trials, seed: through(table, trials, seed, 8),
    "Optuna alone, random": lambda table, trials, seed: alone(table, trials, seed, "random"),
}


def regrets(tasks: Sequence[str], trials: int, seeds: int) -> bool:
    """Print what each row finds; return whether tunelight's interval and Optuna's meet everywhere."""
    meet = True
    for task in tasks:
        table = recorded(task, metric="accuracy")
        oracle = max(accuracy(table, table.config(number, 0)) for number in range(table.size))
        print(f"\n{task}: accuracy missed after {trials} trials (and after {trials // 4}), {seeds} seeds")
        spans, means = [], []
        for name, run in ROWS.items():
            found = [run(table, trials, seed) for seed in range(seeds)]
            missed = [[oracle - max(one[:count]) for one in found] for count in (trials, trials // 4)]
            spans.append(interval(missed[0]))
            means.append(iqm(missed[0]))
            print(f"  {name:28}{shown(missed[0], 4):>28}{shown(missed[1], 4):>28}", flush=True)
        of = f"n = {seeds}; {means[1]:.4f} and {means[0]:.4f}"
        what = f"{task}: accuracy that TPE misses after {trials} trials, tunelight / Optuna alone"
        headline(what, means[1] / means[0] if means[0] else math.nan, of=of)
        meet &= spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]
    return meet


def filled(study: optuna.Study, trials: int) -> None:
    """Give a study so many finished trials of random search."""
    draw = optuna.samplers.RandomSampler(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(trials):
        params = {key: draw.sample_independent(study, None, key, one) for key, one in SAME.items()}  # type: ignore[arg-type]
        value = -((np.log10(params["lr"]) + 2) ** 2) - params["dropout"] + rng.normal(0, 0.1)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=dict(SAME), value=float(value)))


def suggestion_times(trials: int, repeats: int) -> bool:
    """Print how long a suggestion takes; return whether tunelight's is within MOST times Optuna's."""
    own = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1), direction="maximize")
    searcher = OptunaSearcher("tpe", space=SPACE, metric="accuracy", mode="max", seed=1)
    filled(own, trials)
    filled(searcher.study, trials)
    for _ in range(LIVE):
        own.ask(SAME)
    for number in range(LIVE):
        searcher.suggest(f"{number:05d}")
    times: dict[str, list[float]] = {"Optuna alone": [], "tunelight": []}
    for number in range(LIVE, LIVE + repeats):
        began = time.perf_counter()
        trial = own.ask(SAME)
        times["Optuna alone"].append(time.perf_counter() - began)
        own.tell(trial, -1.0)
        began = time.perf_counter()
        searcher.suggest(f"{number:05d}")
        times["tunelight"].append(time.perf_counter() - began)
        searcher.on_trial_result(f"{number:05d}", {"accuracy": -1.0, "training_iteration": 1})
        searcher.end(f"{number:05d}", "FINISHED")
    print(f"\nA suggestion of TPE after {trials} trials [ms], {repeats} of each, in turn")
    for name, taken in times.items():
        print(f"  {name:28}{shown([1e3 * one for one in taken], 2):>28}")
    ratio = iqm(times["tunelight"]) / iqm(times["Optuna alone"])
    headline(f"a suggestion of TPE's after {trials} trials, tunelight / Optuna", ratio, of=f"n = {repeats}", most=MOST)
    print(f"  tunelight takes {ratio:.2f} times as long as Optuna alone (at most {MOST} is wanted).")
    return ratio <= MOST


def main() -> int:
    """Run the benchmark; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few seeds, trials and repeats; judges nothing")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--trials", type=int, default=100)
    told = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if told.short:
        regrets(TASKS[:1], 24, 3)
        suggestion_times(300, 10)
        return 0
    good = [regrets(TASKS, told.trials, told.seeds), suggestion_times(1000, 100)]
    print(
        "\nRegret as Optuna's: "
        + ("yes" if good[0] else "NO")
        + "; time of a suggestion: "
        + ("yes" if good[1] else "NO")
    )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
