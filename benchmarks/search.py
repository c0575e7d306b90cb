"""Compare searchers and schedulers by what they find for the same worker-hours, on trainings that are really made.

    python benchmarks/search.py                       # the design half of the tasks: 10 seeds, about an hour
    python benchmarks/search.py --half final          # the other half, which no choice was made by
    python benchmarks/search.py --rows "ASHA, tpe" --tasks wine-mlp --seeds 30 --slots 64
    python benchmarks/search.py --rows "tpe, same task" "tpe, misleading"     # with earlier sweeps
    python benchmarks/search.py --surrogate --hours 1.5 --rows "tpe, same task"   # predicted trainings
    python benchmarks/search.py --short               # one task, one seed, few epochs: does it all still run?

Each row plays a task for so many worker-hours of virtual time, an epoch taking a minute on one worker; tunelight's rows
run in ``simulate`` with the real schedulers, searchers and controller, starts and idle gangs included, peers in
their own code without either. What is judged is the *true* loss of the configuration that would be chosen so far (by
the best report): the mean over three trainings by seeds that no sweep has seen. Regret is its distance from the best
truth that any row found for the task, as a share of the median random configuration's.

The task's training is cheap (half a second for one configuration). ``--surrogate`` predicts it, for hundreds of seeds:
``python benchmarks/peers/surrogate_tasks.py`` says how well.

Answers are kept in ``--answers`` and not computed again: rows and seeds can be added, and the benchmark can be stopped.
Remove the file when a searcher or a scheduler has changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from curve_tasks import TASKS
from figures import headline
from live_curves import space_of, truth
from search_rows import BASE, OURS, PEERS, Played, Row
from warm_rows import WARM

from tunelight.extras.earlier import Earlier
from tunelight.extras.optuna import OptunaSearcher

SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Of the worker-hours, where the choice is judged."""
COMPARED = [SHARES.index(share) for share in (0.1, 0.3, 1.0)]
END = -1
RESAMPLES = 2000
MOST = 1.2
"""How many times as long as Optuna's a suggestion may take."""
CLOSE = 0.02
"""What counts as the same regret."""
HEADLINES = ("ASHA, tpe", "Optuna TPE, its ASHA", "Optuna TPE, its Hyperband", "Syne Tune BOHB", "DEHB")
"""The rows whose regret goes into the table of all figures."""
ALL: dict[str, Row] = {**OURS, **{name: row for name, (_, row) in PEERS.items()}, **WARM}


def tasks_of(surrogate: bool) -> Mapping[str, Any]:
    """Return the tasks by name."""
    if not surrogate:
        return TASKS
    from surrogate_tasks import SURROGATES  # needs scikit-learn

    return SURROGATES


def rows_there() -> dict[str, Row]:
    """Return the rows whose packages are installed."""
    found = dict(OURS)
    for name, (package, row) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            sys.stdout.write(f"{name}: left out, for {package} is not installed.\n")
        else:
            found[name] = row
    return found


class Answer(NamedTuple):
    """What a row came to with one seed: the truth of its choice at each share of the worker-hours."""

    row: str
    task: str
    seed: int
    slots: int
    hours: float
    truths: list[float]
    spent: float
    """Worker-hours in fact."""
    wall: float
    """Hours from the start to the end, on virtual time."""
    took_s: float


Job = tuple[str, str, int, int, float]
"""Row, task, seed, slots, worker-hours."""


def one(given: tuple[Job, Path, bool]) -> Answer:
    """Play a row once, and train what it chose by other seeds."""
    (name, task_name, seed, slots, hours), cache, surrogate = given
    torch.set_num_threads(1)
    began = time.process_time()
    task: Any = tasks_of(surrogate)[task_name]
    try:
        played: Played = ALL[name](task, seed, slots, hours)
    except Exception as error:
        if name not in PEERS:
            raise
        print(f"  {name} failed on {task_name} with seed {seed}: {type(error).__name__}: {error}", flush=True)
        played = Played([], float("nan"), float("nan"), 0)
    truths = []
    for share in SHARES:
        before = [choice for choice in played.choices if choice.hours <= share * hours]
        truths.append(truth(task, before[-1].config, cache) if before else float("nan"))
    took = time.process_time() - began
    return Answer(name, task_name, seed, slots, hours, truths, played.hours, played.wall_hours, took)


def median_random(task: Any, cache: Path, count: int) -> float:
    """Return the median truth of so many random configurations."""
    space, rng = space_of(task), np.random.RandomState(12345)
    return float(np.median([truth(task, space.sample(rng), cache) for _ in range(count)]))


def gap(found: np.ndarray, base: np.ndarray) -> str:
    """Return the mean difference from the base, by seed, with its 95 % bootstrap interval."""
    gaps = (found - base)[~np.isnan(found - base)]
    if not len(gaps):
        return "-"
    drawn = np.random.default_rng(0).integers(0, len(gaps), (RESAMPLES, len(gaps)))
    low, high = np.percentile(gaps[drawn].mean(1), [2.5, 97.5])
    return f"{gaps.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


Regrets = Mapping[str, np.ndarray]
"""Row -> regrets, [seeds, shares]."""


def show(regrets: Regrets, answers: Mapping[str, Sequence[Answer]], base: str) -> None:
    """Print a task's table."""
    print(f"  {'mean regret at':22}" + "".join(f"{share:>7g}" for share in SHARES), end="")
    print(
        "".join(f"{f'  less that of {base!r} at {SHARES[at]:g}':43}" for at in COMPARED) + "   hours   wall  seconds",
        end="",
    )
    print(f"  at which share the last regret of {base!r} is reached, to within {CLOSE:g}")
    for name, found in regrets.items():
        spent, wall, took = (
            float(np.mean([getattr(answer, what) for answer in answers[name]])) for what in ("spent", "wall", "took_s")
        )
        print(
            f"  {name:22}"
            + "".join(f"{value:7.3f}" for value in np.nanmean(found, 0))
            + "".join(f"  {gap(found[:, at], regrets[base][:, at]):41}" for at in COMPARED)
            + f"{spent:8.1f}{wall:7.2f}{took:9.1f}  {reached(found - CLOSE, regrets[base])}",
            flush=True,
        )


def reached(found: np.ndarray, base: np.ndarray) -> str:
    """Return the share of the worker-hours at which the mean regret is the base's last one, with its 95 % interval."""

    def share(seeds: np.ndarray) -> float:
        means = np.nan_to_num(np.nanmean(found[seeds], 0), nan=math.inf)
        there = np.flatnonzero(means <= np.nanmean(base[seeds, END]))
        return SHARES[there[0]] if len(there) else math.inf

    count = len(found)
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    low, high = np.quantile([share(seeds) for seeds in drawn], [0.025, 0.975], method="nearest")
    words = ["never" if math.isinf(one) else f"{one:g}" for one in (share(np.arange(count)), low, high)]
    return f"{words[0]} [{words[1]}, {words[2]}]"


def kept(path: Path) -> dict[Job, Answer]:
    """Return the answers of earlier runs."""
    if not path.exists():
        return {}
    answers = [Answer(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {answer[:5]: answer for answer in answers}


def answered(jobs: Sequence[Job], args: Any) -> dict[Job, Answer]:
    """Return the answers to all jobs, those that are not there yet computed and added to the file."""
    found = kept(args.answers)
    args.answers.parent.mkdir(parents=True, exist_ok=True)
    missing = [(job, args.cache, args.surrogate) for job in jobs if job not in found]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for answer in pool.imap_unordered(one, missing):
            with args.answers.open("a", encoding="utf-8") as file:
                file.write(json.dumps(answer._asdict()) + "\n")
            found[answer[:5]] = answer
    return found


def play(tasks: Sequence[str], rows: Sequence[str], args: Any) -> None:
    """Play all rows on all tasks, and print each task's table when it is done."""
    found: dict[str, Regrets] = {}
    for task in tasks:
        jobs = [(row, task, seed, args.slots, args.hours) for seed in range(args.seeds) for row in rows]
        every = answered(jobs, args)
        answers = {row: [every[job] for job in jobs if job[0] == row] for row in rows}
        truths = {row: np.array([answer.truths for answer in given]) for row, given in answers.items()}
        best = min(np.nanmin(answer.truths) for job, answer in every.items() if job[1] == task)
        known = tasks_of(args.surrogate)[task]
        median = median_random(known, args.cache, args.random)
        found[task] = {row: (values - best) / (median - best) for row, values in truths.items()}
        print(f"\n{task} ({known.half}): {known.about}")
        print(f"  {args.seeds} seeds, {args.slots} slots; best truth {best:.4g}, median random {median:.4g}")
        show(found[task], answers, args.base)
    for row in (row for row in HEADLINES if row in rows):
        ratios = [float(np.nanmean(one[row][:, END]) / np.nanmean(one[args.base][:, END])) for one in found.values()]
        of = f"{len(found)} tasks, {min(ratios):.2f} to {max(ratios):.2f}; {args.seeds} seeds"
        headline(f"mean regret after {args.hours:g} worker-hours, {row} / {args.base}", float(np.mean(ratios)), of=of)


def suggestion_times(trials: int, repeats: int) -> None:
    """Print how long TPE takes for a suggestion after so many trials, through tunelight and by Optuna alone."""
    space, rng = space_of(TASKS["wine-mlp"]), np.random.RandomState(0)
    searcher = OptunaSearcher("tpe", space=space, metric="loss", mode="min", seed=1)
    searcher.learn([Earlier("", str(n), "FINISHED", space.sample(rng), [rng.random_sample()]) for n in range(trials)])
    alone = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))
    alone.add_trials(searcher.study.trials)
    distributions = dict(searcher.study.trials[0].distributions)
    times: dict[str, list[float]] = {"tunelight": [], "Optuna alone": []}
    for number in range(repeats):
        began = time.perf_counter()
        trial = alone.ask(distributions)
        times["Optuna alone"].append(time.perf_counter() - began)
        alone.tell(trial, 1.0)
        began = time.perf_counter()
        searcher.suggest(f"{number:05d}")
        times["tunelight"].append(time.perf_counter() - began)
        searcher.end(f"{number:05d}", "FINISHED", {"loss": 1.0, "training_iteration": 1})
    tunelight, optunas = (float(np.median(each)) for each in times.values())
    what = f"a suggestion of TPE's after {trials} trials, tunelight / Optuna"
    headline(what, tunelight / optunas, of=f"n = {repeats}, medians; {1e3 * optunas:.1f} ms", most=MOST)


def main() -> int:
    """Run the benchmark; it judges nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["design", "final", "both"], default="design")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="these instead of a half")
    parser.add_argument("--rows", nargs="+", choices=list(ALL), help=f"these, and {BASE!r}")
    parser.add_argument("--base", default=BASE, help="the row that the others are compared to, seed by seed")
    parser.add_argument("--surrogate", action="store_true", help="predict trainings by recorded ones")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--hours", type=float, default=16.0, help="worker-hours of a sweep; an epoch takes a minute")
    parser.add_argument("--random", type=int, default=40, help="random configurations that the median is of")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--answers", type=Path, help="kept there (runs/search/answers.jsonl)")
    parser.add_argument("--cache", type=Path, default=Path("runs", "search"), help="where truths are kept")
    parser.add_argument("--short", action="store_true", help="one task, two seeds, few epochs; measures nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.surrogate:
        args.cache /= "surrogate"
    args.answers = args.answers or args.cache / "answers.jsonl"
    tasks = args.tasks or [name for name, task in TASKS.items() if args.half in (task.half, "both")]
    there = rows_there()
    rows = [BASE, *(row for row in args.rows or there if (row in there or row not in PEERS) and row != BASE)]
    if args.short:
        args.seeds, args.hours, args.random, args.slots = 1, 2.0, 2, 4
        short = {False: [BASE, "ASHA, tpe", "Optuna TPE, its ASHA"], True: [BASE, "gp, same task", "tpe, same task"]}
        for args.surrogate, rows in short.items():
            with tempfile.TemporaryDirectory() as folder:
                args.answers, args.cache = Path(folder, "answers.jsonl"), Path(folder)
                play(["wine-mlp"], rows, args)
        suggestion_times(100, 5)
        return 0
    play(tasks, rows, args)
    suggestion_times(1000, 100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
