"""Hold the chance of a better result, as `stop_when` estimates it, against what came; and what the rule would save.

    python benchmarks/stopping.py                     # the design half of the tasks: 5 seeds, about half an hour
    python benchmarks/stopping.py --half final        # the other half, which no choice was made by
    python benchmarks/stopping.py --tasks wine-mlp --seeds 10
    python benchmarks/stopping.py --short             # one task, one seed, few trials: does it all still run?

Sweeps under ASHA, with random search and with searcher="auto", on trainings that are really made, run to their end on
virtual time. Afterwards the rule is asked what it would have said after so many trials, by the reports until then, and
that is compared with what as many further trials found. Margins are shares of the distance from the median trial of a
sweep to its best. The sweeps are kept in a folder, so that a second call only judges.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from curve_tasks import TASKS
from live_curves import EPOCH_S, LiveCurves, space_of

import tunelight as tl
from tunelight.record import FINISHED
from tunelight.searchers import RandomSearcher
from tunelight.searchers.stopping import IMPROBABLE, Stopping, chance

SEARCHERS = ("random", "auto")
ASKED = (20, 28, 40, 57, 80, 113, 160)
"""Trials that have ended when the rule is asked for the chance."""
MARGINS = (0.0, 0.01, 0.03, 0.1, 0.3)
BINS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0)


class Event(NamedTuple):
    """What happened to a trial: it was begun ("add"), reported a loss ("report"), or ended ("complete")."""

    what: str
    trial: str
    loss: float


@dataclass(frozen=True)
class Job:
    """One sweep to play."""

    task: str
    searcher: str
    seed: int
    trials: int
    slots: int
    cache: Path


class Sweep:
    """A sweep that was played to its end."""

    def __init__(self, job: Job, events: Sequence[Event]) -> None:
        self.job, self.events = job, events
        self.order = [event.trial for event in events if event.what == "add"]
        self.best = dict.fromkeys(self.order, math.inf)
        self.epochs = dict.fromkeys(self.order, 0)
        for event in events:
            if event.what == "report":
                self.epochs[event.trial] += 1
                self.best[event.trial] = min(self.best[event.trial], event.loss)
        found = sorted(loss for loss in self.best.values() if math.isfinite(loss))
        self.scale = statistics.median(found) - found[0]

    def hours(self, trials: Sequence[str]) -> float:
        """Return the worker-hours that some trials took."""
        return sum(self.epochs[trial] for trial in trials) * EPOCH_S / 3600

    def found(self, trials: Sequence[str]) -> float:
        """Return the best loss of some trials."""
        return min((self.best[trial] for trial in trials), default=math.inf)


def played(job: Job) -> Sweep:
    """Play a sweep, or read it from the folder of those that were."""
    kept = job.cache / f"{job.task}-{job.searcher}-{job.seed}-{job.trials}-{job.slots}.json"
    if not kept.exists():
        torch.set_num_threads(1)
        space = space_of(job.task)
        searcher: Any = RandomSearcher(space, job.seed, "loss", "min")
        if job.searcher == "auto":
            searcher = tl.AutoSearcher(space=space, metric="loss", mode="min", seed=job.seed)
        curves = LiveCurves(TASKS[job.task], job.seed)
        run = tl.simulate(
            curves,
            "asha",
            searcher=searcher,
            num_samples=job.trials,
            cluster=f"1x{job.slots}",
            seed=job.seed,
            events=True,
        )
        wanted = [event for event in run.events if event.what in ("add", "report", "complete")]
        lines = [(event.what, event.trial, event.detail[1] if event.what == "report" else None) for event in wanted]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(lines))
    found = json.loads(kept.read_text())
    finite = (loss if loss is not None and math.isfinite(loss) else math.inf for _, _, loss in found)
    return Sweep(job, [Event(what, trial, loss) for (what, trial, _), loss in zip(found, finite, strict=True)])


class Guess(NamedTuple):
    """What the rule said of a margin, and what came of it."""

    searcher: str
    margin: float
    chance: float
    better: bool


def guesses(sweep: Sweep) -> Iterator[Guess]:
    """Ask for the chance after so many trials, and look at as many further ones."""
    best: dict[str, float] = {}
    made = ended = 0
    for event in sweep.events:
        if event.what == "add":
            made += 1
        elif event.what == "report":
            best[event.trial] = min(best.get(event.trial, math.inf), event.loss)
        else:
            ended += 1
            further = sweep.order[made : 2 * made]
            if ended in ASKED and len(further) == made:
                for share in MARGINS:
                    margin = share * sweep.scale
                    better = sweep.found(further) < min(best.values()) - margin
                    yield Guess(sweep.job.searcher, share, chance(best.values(), margin, made), better)


class End(NamedTuple):
    """Where the rule would have ended a sweep, and what that would have saved and lost."""

    searcher: str
    margin: float
    made: int
    hours: float
    lost: float


def ended(sweep: Sweep, share: float) -> End:
    """Return where a sweep would have ended; ``lost`` is a share of the distance from its median to its best."""
    stopping = Stopping(share * sweep.scale, "loss", "min")
    made = 0
    for event in sweep.events:
        if event.what == "add":
            stopping.begin(event.trial)
            made += 1
        elif event.what == "report":
            stopping.report(event.trial, {"loss": event.loss})
        else:
            stopping.end(event.trial, FINISHED)
            stopping.consider(set, sweep.job.trials - made)
            if stopping.reason is not None:
                break
    begun = sweep.order[:made]
    lost = (sweep.found(begun) - sweep.found(sweep.order)) / sweep.scale
    return End(sweep.job.searcher, share, made, sweep.hours(begun) / sweep.hours(sweep.order), lost)


def show(sweeps: Sequence[Sweep]) -> None:
    """Print both tables."""
    said = [guess for sweep in sweeps for guess in guesses(sweep)]
    print("\nThe chance that as many further trials find a better value, as estimated and as it came (times asked)")
    print(f"  {'estimated':12}" + "".join(f"{searcher:>24}" for searcher in SEARCHERS))
    for low, high in itertools.pairwise(BINS):
        cells = []
        for searcher in SEARCHERS:
            inside = [one for one in said if one.searcher == searcher and low <= one.chance < high]
            mean = f"{statistics.mean(one.chance for one in inside):.2f}" if inside else "-"
            came = f"{statistics.mean(one.better for one in inside):.2f}" if inside else "-"
            cells.append(f"{f'{mean} / {came} ({len(inside)})':>24}")
        print(f"  {f'{low:.0%} to {high:.0%}':12}" + "".join(cells))
    print(f"\nWhere the rule ends sweeps of {sweeps[0].job.trials} trials (below {IMPROBABLE:.0%}); means over sweeps")
    print("  searcher  margin  ended before the last trial  trials  worker-hours  lost  lost more than the margin")
    for searcher in SEARCHERS:
        for margin in MARGINS:
            ends = [ended(sweep, margin) for sweep in sweeps if sweep.job.searcher == searcher]
            early = statistics.mean(end.made < sweeps[0].job.trials for end in ends)
            trials = statistics.mean(end.made for end in ends)
            hours = statistics.mean(end.hours for end in ends)
            lost = statistics.mean(end.lost for end in ends)
            more = statistics.mean(end.lost > end.margin for end in ends)
            print(f"  {searcher:8}{margin:8.0%}{early:29.2f}{trials:8.0f}{hours:14.2f}{lost:6.3f}{more:27.2f}")


def main() -> int:
    """Run the benchmark; it judges nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["design", "final"], default="design")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="these instead of a half")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=320, help="trials of a sweep")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("runs", "stopping"), help="where sweeps are kept")
    parser.add_argument("--short", action="store_true", help="one task, one seed, few trials; measures nothing")
    args = parser.parse_args()
    tasks = args.tasks or [name for name, task in TASKS.items() if task.half == args.half]
    if args.short:
        tasks, args.seeds, args.trials = ["wine-mlp"], 1, 60
    with tempfile.TemporaryDirectory() as empty:
        cache = Path(empty) if args.short else args.cache
        jobs = [
            Job(task, searcher, seed, args.trials, args.slots, cache)
            for task in tasks
            for seed in range(args.seeds)
            for searcher in SEARCHERS
        ]
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            sweeps = pool.map(played, jobs, chunksize=1)
    print(f"{len(sweeps)} sweeps: {', '.join(tasks)}; ASHA, {args.slots} slots")
    show(sweeps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
