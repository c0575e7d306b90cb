"""Compare a sweep at full width with one that searches narrow models and trains its best five wide (``proxy=``).

    python benchmarks/transfer.py                      # four tasks, 200 pairs of sweeps from recorded tables: minutes
    python benchmarks/transfer.py --tasks gru --seeds 50
    python benchmarks/transfer.py --record             # train the tables anew, or what is missing: an hour on one core
    python benchmarks/transfer.py --live 1             # one real pair of sweeps of each task asked for, with Ray
    python benchmarks/transfer.py --short              # one task, five pairs, a few real epochs, for CI

Four tasks (``peers/transfer_tasks.py``) were trained narrow, eight times as wide, and that with tunelight's rescaling:
the same configurations, from two seeds each (``peers/transfer/*.json``). A pair of sweeps draws the same configurations
in the same order. Row A is ASHA with random search at full width, its trials on 2 workers. Row B is ``proxy=``: ASHA
with random search over narrow trials on one worker, then the best five at full width, rescaled, under ASHA on 2
workers. Both run in ``tests.world.simulate`` with the real scheduler and controller, gangs' starts included.

Worker-hours are measured processor's seconds of an epoch, stretched so that the median wide epoch takes a minute on one
worker; two workers take half of that. The coordinate check that ``proxy=`` makes first is a few steps long whatever an
epoch takes; a column has the ratio with that check stretched as well, which is the most that it can cost.

What is judged is the configuration with the best report so far, by its training from the seed that the sweep did not
see. Regret is the distance of that from the best at full width, as a share of the median random configuration's; it is
1 before the first report at full width.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import headline, table
from scipy.stats import spearmanr
from transfer_fits import lightning_fit, plain_fit
from transfer_tables import CONFIGS, SEEDS, VARIANTS, Table, configurations, pack, read, record
from transfer_tasks import EPOCHS, FACTOR, TASKS, Data, Net

import tunelight as tl
from tests.world import Curve, simulate
from tests.world.curves import KEY, deal

CLOSE = 0.02
"""What counts as the same regret."""
TOP = 5
EPOCH_S = 60.0
RESAMPLES = 2000
GRID = 400
ASKED = 0.25


# --- sweeps from tables -----------------------------------------------------------------------------------


class Recorded:
    """One variant's curves for ``tests.world.simulate``, as trained from one seed; ``order``: of configurations."""

    metric = "loss"
    mode: Literal["min", "max"] = "min"
    epochs = EPOCHS

    def __init__(self, held: Table, variant: str, seed: int, stretch: float, order: Sequence[int]) -> None:
        self.size = len(order)
        self._order = order
        self._losses = held.losses[variant][:, seed]
        self._seconds = held.seconds[variant] * stretch

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of a trial, by its place in the table."""
        return {KEY: self._order[number % self.size]}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return its curve."""
        at = config[KEY]
        return Curve({"loss": self._losses[at].tolist()}, float(self._seconds[at]), EPOCHS)


class Played(NamedTuple):
    """What a sweep came to: its choices, each from so many worker-hours on, and all its worker-hours."""

    hours: list[float]
    choices: list[int]
    total: float
    ranked: list[int]


def play(curves: Recorded, workers: int, seed: int) -> Played:
    """Simulate a sweep under ASHA on two slots."""
    sweep = simulate(curves, "asha", num_samples=curves.size, workers=workers, cluster="1x2", seed=seed, events=True)
    configs = {trial.id: int(trial.config[KEY]) for trial in sweep.trials}
    times = np.array([use.time for use in sweep.usage])
    held = np.array([use.held for use in sweep.usage], float)
    spent = np.concatenate(([0.0], np.cumsum(np.diff(times) * held[:-1]))) / 3600
    hours, choices, best = [], [], math.inf
    for event in sweep.events:
        if event.what == "report" and event.detail[1] is not None and event.detail[1] < best:
            best = event.detail[1]
            hours.append(float(np.interp(event.time, times, spent)))
            choices.append(configs[event.trial])
    judged = sorted(
        (trial for trial in sweep.trials if trial.best is not None), key=lambda trial: float(trial.best or 0)
    )
    return Played(hours, choices, sweep.worker_seconds / 3600, [int(trial.config[KEY]) for trial in judged])


class Pair(NamedTuple):
    """Both rows of one seed: hours and regrets of their choices, and all their worker-hours.

    ``first``: worker-hours of B before its second stage. ``plain``: B's last regret if that rescaled nothing.
    """

    hours: tuple[np.ndarray, np.ndarray]
    regrets: tuple[np.ndarray, np.ndarray]
    totals: tuple[float, float]
    first: float
    plain: float


@dataclass(frozen=True)
class Scale:
    """What regrets of a task are measured by: the best loss at full width, and the median random configuration's."""

    best: float
    median: float

    @classmethod
    def of(cls, held: Table) -> Scale:
        """Return a table's."""
        truths = {variant: held.best(variant).mean(1) for variant in ("wide", "rescaled")}
        return cls(float(min(found.min() for found in truths.values())), float(np.median(truths["wide"])))

    def regret(self, losses: np.ndarray) -> np.ndarray:
        """Return regrets of losses; one that is worse than the median configuration's by far counts as twice that."""
        return np.minimum((losses - self.best) / (self.median - self.best), 2.0)


def pair(held: Table, seed: int, trials: int) -> Pair:
    """Play both rows with the same configurations in the same order."""
    size, trained = len(held.configs), seed % SEEDS
    order = [deal(number, size, seed) for number in range(min(trials, size))]
    stretch, scale = EPOCH_S / float(np.median(held.seconds["wide"])), Scale.of(held)
    unseen = {variant: held.best(variant)[:, (trained + 1) % SEEDS] for variant in ("wide", "rescaled")}
    full = play(Recorded(held, "wide", trained, stretch, order), 2, seed)
    narrow = play(Recorded(held, "narrow", trained, stretch, order), 1, seed)
    second, plain = (
        play(Recorded(held, variant, trained, stretch, narrow.ranked[:TOP]), 2, seed)
        for variant in ("rescaled", "wide")
    )
    first = narrow.total
    return Pair(
        (np.array(full.hours), first + np.array(second.hours)),
        (scale.regret(unseen["wide"][full.choices]), scale.regret(unseen["rescaled"][second.choices])),
        (full.total, first + second.total),
        first,
        float(scale.regret(unseen["wide"][plain.choices])[-1]),
    )


# --- what the pairs say -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The comparison of one task.

    Attributes:
        hours, hours_b, first: of A in all, of B in all, and of B before its second stage, on average.
        regrets: of A, of B, and of B without rescaling, at their ends.
        gap_interval: of B's last regret above A's, on average: a 95 % bootstrap interval over pairs.
        needed: worker-hours of B until its mean regret is within CLOSE of A's last one (infinite: it never is).
        own: the same of A itself.
        ratio, interval: needed / hours, with its 95 % bootstrap interval over pairs.
        checked: the ratio with the coordinate check, stretched as epochs are.
        power: the probability of detecting a halving with as many pairs, at 5 %.
    """

    hours: float
    hours_b: float
    first: float
    regrets: tuple[float, float, float]
    gap_interval: tuple[float, float]
    needed: float
    own: float
    ratio: float
    interval: tuple[float, float]
    checked: float
    power: float


def on_grid(pairs: Sequence[Pair], row: int, grid: np.ndarray) -> np.ndarray:
    """Return a row's regrets at worker-hours, [pairs, grid]; 1 before its first report."""
    made = []
    for one in pairs:
        at = np.searchsorted(one.hours[row], grid, side="right") - 1
        made.append(np.where(at < 0, 1.0, one.regrets[row][np.maximum(at, 0)]))
    return np.array(made)


def crossing(curves: np.ndarray, wanted: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the worker-hours at which mean curves [draws, grid] come down to what is wanted of each, or infinity."""
    there = curves <= wanted[:, None] + CLOSE
    return np.where(there.any(1), grid[there.argmax(1)], math.inf)


def compare(pairs: Sequence[Pair], check_h: float) -> Found:
    """Work out the comparison; ``check_h``: worker-hours of the coordinate check."""
    totals = np.array([one.totals for one in pairs])
    grid = np.linspace(0, float(totals.max()), GRID)
    curves = [on_grid(pairs, row, grid) for row in (0, 1)]
    last = np.array([[one.regrets[row][-1] for row in (0, 1)] for one in pairs])
    rng, count = np.random.default_rng(0), len(pairs)
    drawn = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    shares = np.concatenate([np.full((1, count), 1 / count), drawn])  # the first is the estimate itself
    wanted, hours = shares @ last[:, 0], shares @ totals[:, 0]
    needed = crossing(shares @ curves[1], wanted, grid)
    ratios = needed / hours
    gaps = shares @ (last[:, 1] - last[:, 0])
    finite = np.log(ratios[1:][np.isfinite(ratios[1:])])
    power = math.nan
    if len(finite) > 0.95 * RESAMPLES:  # else a row that never comes there has no spread
        spread = max(float(finite.std()), 1e-9)
        power = statistics.NormalDist().cdf(math.log(2) / spread - 1.96)
    return Found(
        float(hours[0]),
        float(totals[:, 1].mean()),
        float(np.mean([one.first for one in pairs])),
        (float(last[:, 0].mean()), float(last[:, 1].mean()), float(np.mean([one.plain for one in pairs]))),
        _interval(gaps[1:]),
        float(needed[0]),
        float(crossing(shares[:1] @ curves[0], wanted[:1], grid)[0]),
        float(ratios[0]),
        _interval(ratios[1:]),
        float(ratios[0]) + check_h / float(hours[0]),
        power,
    )


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975], method="nearest")  # between infinities there is nothing
    return float(low), float(high)


class Ranks(NamedTuple):
    """How well losses of one kind rank those of another: of all configurations, and of the best quarter."""

    every: float
    quarter: float


def ranks(by: np.ndarray, of: np.ndarray) -> Ranks:
    """Return Spearman's correlations; the best quarter is that of ``of``."""
    best = np.argsort(of, kind="stable")[: len(of) // 4]
    return Ranks(float(spearmanr(by, of).statistic), float(spearmanr(by[best], of[best]).statistic))


def best_rate(held: Table, variant: str) -> float:
    """Return the geometric mean of the learning rates of the best eighth of all configurations."""
    best = np.argsort(held.best(variant).mean(1), kind="stable")[: max(1, len(held.configs) // 8)]
    return float(np.exp(np.mean([math.log(held.configs[at]["lr"]) for at in best])))


# --- what is printed --------------------------------------------------------------------------------------


def _moved(held: Table, variant: str) -> str:
    moved = best_rate(held, variant) / best_rate(held, "narrow")
    return f"{max(moved, 1 / moved):.1f} {'up' if moved > 1 else 'down'}"


def _span(low: float, high: float, form: str) -> str:
    return f"[{_number(low, form)}, {_number(high, form)}]"


def _number(value: float, form: str = ".2f") -> str:
    return "never" if math.isinf(value) else "-" if math.isnan(value) else format(value, form)


def hours_line(name: str, found: Found) -> list[str]:
    """Return a task's line of the first table."""
    return [
        *(name, f"{found.hours:.2f}", f"{found.own:.2f}", f"{found.regrets[0]:.3f}"),
        *(f"{found.first:.2f}", f"{found.hours_b:.2f}", f"{found.regrets[1]:.3f}"),
        *(_span(*found.gap_interval, "+.3f"), f"{found.regrets[2]:.3f}"),
        *(_number(found.needed), _number(found.ratio), _span(*found.interval, ".2f")),
        *(_number(found.checked), _number(found.power)),
    ]


def ranks_line(held: Table) -> list[str]:
    """Return a task's line of the second table."""
    means = {variant: held.best(variant).mean(1) for variant in held.losses}
    cells = [
        held.task,
        str(len(held.configs)),
        f"{np.median(held.seconds['narrow']) / np.median(held.seconds['wide']):.3f}",
    ]
    for variant in ("wide", "rescaled"):
        found = ranks(means["narrow"], means[variant])
        cells += [f"{found.every:.2f}", f"{found.quarter:.2f}", _moved(held, variant)]
    seeds = ranks(held.best("wide")[:, 0], held.best("wide")[:, 1])
    best = " / ".join(f"{means[variant].min():.3g}" for variant in VARIANTS)
    return [*cells, f"{seeds.every:.2f}", f"{seeds.quarter:.2f}", best]


HOURS_HEAD = (
    *("task", "A: hours", "A: to its end", "A: regret", "B: narrow", "B: hours", "B: regret", "B - A", "not rescaled"),
    *("B: needs", "ratio", "95 %", "with check", "power"),
)
RANKS_HEAD = (
    *("task", "configs", "narrow epoch", "plain, all", "best quarter", "lr moves", "rescaled, all", "best quarter"),
    *("lr moves", "two seeds, all", "best quarter", "best losses"),
)


def run(names: Sequence[str], seeds: int, trials: int, markdown: bool) -> None:
    """Play all pairs and print both tables."""
    held = {name: read(name) for name in names}
    lines: list[list[str]] = []
    ratios: dict[str, list[tuple[str, float]]] = {"without the check": [], "with it, stretched": []}
    for name, one in held.items():
        began = time.perf_counter()
        check_h = one.check_s * EPOCH_S / float(np.median(one.seconds["wide"])) / 3600
        found = compare([pair(one, seed, trials) for seed in range(seeds)], check_h)
        lines.append(hours_line(name, found))
        ratios["without the check"].append((name, found.ratio))
        ratios["with it, stretched"].append((name, found.checked))
        of = f"n = {seeds}, 95 % {_span(*found.interval, '.2f')}; with the check {_number(found.checked)}"
        what = f"{name}: worker-hours of proxy= until it is as good / all of the wide sweep's"
        headline(what, found.ratio, of=of, most=ASKED)
        sys.stderr.write(f"{name}: {seeds} pairs in {time.perf_counter() - began:.0f} s\n")
    print(f"\n{seeds} pairs of sweeps of {trials} trials; worker-hours, a wide epoch taking a minute on one worker.")
    print("A: ASHA, random search, full width. B: the same at an eighth of the width, then its best five rescaled.\n")
    print(table(HOURS_HEAD, lines, markdown))
    print(f"\nneeds: worker-hours of B until its mean regret is within {CLOSE} of A's last; ratio: that by A's hours.")
    print("not rescaled: B's last regret if the best five were trained wide as they are. with check: the ratio with")
    print("the coordinate check, stretched as epochs are. power: the probability of detecting a halving with as many")
    print("pairs, at 5 %; none where more than one resample in twenty never comes there.\n")
    print(table(RANKS_HEAD, [ranks_line(one) for one in held.values()], markdown))
    print("\nSpearman's correlations of narrow and wide losses, means of two seeds; last, of two seeds at full width.")
    print("narrow epoch: its seconds as a share of a wide one's. lr moves: by how many times, narrow to wide, in the")
    print("best eighth of the configurations. best losses: narrow, wide, rescaled, means of two seeds.\n")
    print(f"At most {ASKED} of A's worker-hours:")
    for how, reached in ratios.items():
        met = [name for name, ratio in reached if ratio <= ASKED]
        print(f"  {how}: {len(met)} of {len(reached)} ({', '.join(met) or 'none'})")


# --- live -------------------------------------------------------------------------------------------------


def live(name: str, seed: int, trials: int, folder: Path) -> Iterator[list[str]]:
    """Run a real sweep at full width and one with ``proxy=``; yield a line of each."""
    task = TASKS[name]
    fixed = {"model.task": name, "model.width": task.wide, "data.task": name}
    space = fixed | {f"model.{key}": domain for key, domain in task.space.items()}
    proxies = {"A: full width": None, "B: proxy": {"model.width": task.narrow, "workers": 1, "top": TOP}}
    for what, proxy in proxies.items():
        results = tl.run(
            space,
            model=Net,
            data=Data,
            metric="val_loss",
            num_samples=trials,
            max_epochs=EPOCHS,
            workers=2,
            cpus_per_worker=1,
            seed=seed,
            storage=folder,
            name=f"{name}-{seed}-{what[0]}",
            progress=False,
            trainer_args={"accelerator": "cpu"},
            proxy=proxy,
        )
        spent = 2 * sum(trial.seconds for trial in results.every_trial)
        first = sum(trial.seconds for trial in results.proxy.every_trial) if results.proxy is not None else 0.0
        yield [
            name,
            str(seed),
            what,
            f"{spent + first:.1f}",
            f"{first:.1f}",
            _number(results.best.value or math.nan, ".4f"),
        ]


def run_live(names: Sequence[str], count: int, trials: int, markdown: bool) -> None:
    """Run real pairs of sweeps, and print what they took and found."""
    head = ("task", "seed", "sweep", "worker-seconds", "of them narrow", "best loss")
    with tempfile.TemporaryDirectory(prefix="transfer-") as folder:
        lines = [line for name in names for seed in range(count) for line in live(name, seed, trials, Path(folder))]
    print(table(head, lines, markdown))
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    better = sum(float(narrow[-1]) < float(wide[-1]) for wide, narrow in pairs)
    of = f"n = {len(pairs)}, {', '.join(dict.fromkeys(names))}"
    headline("real sweeps of 12 trials: proxy= finds the lower loss", better / len(pairs), "", of=of)
    spent = statistics.median(float(narrow[3]) / float(wide[3]) for wide, narrow in pairs)
    headline("real sweeps of 12 trials: worker-seconds of proxy= / of the wide sweep", spent, of=of)


def short() -> int:
    """Try everything but Ray in half a minute; return 1 where a plain loop and Lightning do not train alike."""
    run(["mlp"], 5, 16, markdown=False)
    task, same = TASKS["mlp"], True
    config = configurations(task, 1)[0]
    for width in (task.narrow, FACTOR * task.narrow):
        plain, trained = (fit(task, width, config, 0, rescaled=True, epochs=1) for fit in (plain_fit, lightning_fit))
        same = same and bool(np.allclose(plain.losses, trained.losses, rtol=1e-5))
        print(f"mlp, width {width}: loss {plain.losses[0]:.6f} in a plain loop, {trained.losses[0]:.6f} in Lightning's")
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder, "recorded.jsonl"), ["mlp"], 1, epochs=1)
        pack(Path(folder, "recorded.jsonl"), ["mlp"], Path(folder))
        assert read("mlp", Path(folder)).losses["wide"].shape == (1, SEEDS, 1)
    return 0 if same else 1


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="which (default: all)")
    parser.add_argument("--seeds", type=int, default=200, help="pairs of sweeps (default 200)")
    parser.add_argument("--trials", type=int, default=40, help="of a sweep (default 40; live 12)")
    parser.add_argument("--record", action="store_true", help="train what the tables lack, then write them")
    parser.add_argument("--configs", type=int, default=CONFIGS, help=f"of a table (default {CONFIGS})")
    parser.add_argument("--recorded", type=Path, default=Path("runs", "transfer", "recorded.jsonl"), help="kept there")
    parser.add_argument("--live", type=int, metavar="N", help="run N real pairs of sweeps of each task")
    parser.add_argument("--short", action="store_true", help="one task, five pairs, a few real epochs")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    if asked.short:
        return short()
    if asked.record:
        record(asked.recorded, asked.tasks, asked.configs)
        pack(asked.recorded, asked.tasks)
    elif asked.live:
        run_live(asked.tasks, asked.live, min(asked.trials, 12), asked.markdown)
    else:
        run(asked.tasks, asked.seeds, asked.trials, asked.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
