"""What the strategies cost a driver, against what others need for the same training on the same machine.

Every row trains the same model on the same batches with 2 ranks, each on one torch thread:

  a  RayStrategy                       e  Lightning's ddp_spawn
  b  torchrun with Lightning's DDP     f  Ray Train's TorchTrainer with Lightning's DDP
  c  HorovodRayStrategy                g  RayShardedStrategy
  d  horovodrun with a plain loop      h  the same, with an allocator that gives memory back at once

in four parts:

  second    what a later fit takes beyond training, on workers that are warm where they can be: a, e, f
  steps     steps a second of an MLP and a ViT, of about 5 million parameters each: a, b, c, d
  transfer  a model of 200 MB to the workers and back: time and the driver's memory: a
  sharded   memory of a rank that trains a model of 200 MB with Adam: a, g, h

    python benchmarks/strategies.py                     # everything: about 15 minutes on 2 cores
    python benchmarks/strategies.py --only steps --repeats 3
    python benchmarks/strategies.py --short             # one process a peer, few steps: does it all still run?
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import NAN, Row, headline, median, show, spread, table, verdict
from fits import Fit, Fits
from measure import Run, run_peer

RANKS = 2
MODEL_MB = 201.5
"""What the parameters of the model "big" take."""
OURS = "tunelight_fits.py"


@dataclass(frozen=True)
class Peer:
    """A row: the script that runs it, with which strategy if it is tunelight's, and what its environment adds."""

    title: str
    script: str
    strategy: str = "ddp"
    environment: Mapping[str, str] = field(default_factory=dict)
    fits: int = 3
    """Fits of the part ``second`` in one process."""
    short_fits: int = 1


PEERS = {
    "a": Peer("RayStrategy", OURS, fits=8, short_fits=2),
    "b": Peer("torchrun, Lightning DDP", "torchrun_fits.py"),
    "c": Peer("HorovodRayStrategy", OURS, "horovod"),
    "d": Peer("horovodrun, plain loop", "horovodrun_fits.py"),
    "e": Peer("ddp_spawn", "spawn_fits.py"),
    "f": Peer("Ray Train, Lightning DDP", "ray_train_fits.py"),
    "g": Peer("RayShardedStrategy", OURS, "sharded"),
    "h": Peer("RayShardedStrategy, malloc gives back", OURS, "sharded", {"MALLOC_MMAP_THRESHOLD_": "4194304"}),
}
PARTS = {"second": "aef", "steps": "abcd", "transfer": "a", "sharded": "agh"}
"""The rows of each part, in the order in which they run."""
REPEATS = {"second": 1, "steps": 5, "transfer": 3, "sharded": 1}
STEPS = {
    "mlp": Fit("steps", "", "mlp", steps=120, warmup=20, batch=64, optimizer="adam"),
    "vit": Fit("steps", "", "vit", steps=25, warmup=5, batch=32, optimizer="adam"),
}
SHORT_STEPS = {
    "mlp": replace(STEPS["mlp"], steps=6, warmup=2, batch=16),
    "vit": replace(STEPS["vit"], steps=3, warmup=1, batch=4),
}


@dataclass(frozen=True)
class Work:
    """One process: the fits that it runs, for which rows."""

    script: str
    fits: list[Fit]
    keys: list[tuple[str, str]]
    environment: Mapping[str, str]


Rows = dict[tuple[str, str], Row]


def main() -> int:
    """Run the parts that were asked for, print the tables, and return the exit status."""
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit on all of this leaves no process either
    rows = {(part, key): Row(key, PEERS[key].title) for part in args.only for key in PARTS[part]}
    for (_, key), row in rows.items():
        row.skipped = skipped(key, args.short)
    folder = Path(tempfile.mkdtemp(prefix="strategies-"))
    try:
        for number, work in enumerate(all_work(rows, args)):
            run = run_work(work, folder / str(number), args.short)
            for part_and_key in work.keys:
                rows[part_and_key].runs.append(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_tables(rows, args)
    failed = {(PEERS[key].script, run.error) for (_, key), row in rows.items() for run in row.runs if run.error}
    print("".join(f"\n{script} failed: {error}\n" for script, error in sorted(failed)), end="")
    return 1 if any(script == OURS for script, _ in failed) else 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with ``only`` as a list of known parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one process a peer, few steps, once")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, such as steps,second")
    parser.add_argument("--repeats", type=int, help="runs of each row (default 5 of steps, 3 of transfer, else 1)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    args = parser.parse_args()
    asked = {part.strip() for part in args.only.split(",")}
    if asked - PARTS.keys():
        parser.error(f"--only takes parts from {','.join(PARTS)}, not {','.join(sorted(asked - PARTS.keys()))}")
    args.only = [part for part in PARTS if part in asked]
    return args


def skipped(key: str, short: bool) -> str | None:
    """Return why a row is not run, if so."""
    if key in "cd" and importlib.util.find_spec("horovod") is None:
        return "needs Horovod (make horovod)"
    if short and key == "f":
        return "one more start of Ray takes too long for --short"
    if short and PEERS[key].environment:
        return "needs a process of its own, which --short does not start"
    return None


# --- what runs ----------------------------------------------------------------------------------------------


def all_work(rows: Rows, args: argparse.Namespace) -> Iterator[Work]:
    """Yield the processes to run, one after another: the rows of a part in turns, so that all meet the same noise.

    A short run has one process for each script instead, for most of its time would be starting them.
    """
    wanted = [key for key, row in rows.items() if row.skipped is None]
    if args.short:
        for script in dict.fromkeys(PEERS[key].script for _, key in wanted):
            keys = [(part, key) for part, key in wanted if PEERS[key].script == script]
            keys.sort(key=lambda one: PEERS[one[1]].strategy)  # a gang of one kind after the other
            yield Work(script, [fit for part, key in keys for fit in plan(part, key, True)], keys, {})
        return
    for part in args.only:
        for _ in range(args.repeats or REPEATS[part]):
            for key in PARTS[part]:
                if (part, key) in wanted:
                    yield Work(PEERS[key].script, plan(part, key, False), [(part, key)], PEERS[key].environment)


def plan(part: str, key: str, short: bool) -> list[Fit]:
    """Return the fits of one row of one part. A fit before those that are watched warms their workers."""
    row = Fit(part, key, "tiny", steps=2 if short else 20, strategy=PEERS[key].strategy)
    if part == "second":
        return [row] * (PEERS[key].short_fits if short else PEERS[key].fits)
    if part == "steps":
        fits = SHORT_STEPS if short else STEPS
        return [replace(fit, row=key, strategy=row.strategy) for fit in fits.values()]
    if part == "transfer":
        return [row, *[replace(row, model="big", steps=1, batch=8, watched=True)] * (1 if short else 2)]
    return [row, replace(row, model="big", steps=2 if short else 4, batch=8, optimizer="adam", watched=True)]


def run_work(work: Work, folder: Path, short: bool) -> Run:
    """Run one process; one that does not end has its fits' time limits, and is killed."""
    folder.mkdir()
    job = Fits(work.fits, RANKS, str(folder))
    job.save(folder / "job.json")
    parts = ", ".join(f"{key} ({part})" for part, key in work.keys)
    print(f"{work.script}: {parts} ...", file=sys.stderr, end="", flush=True)
    limit_s = 60 + (10 if short else 60) * len(work.fits)
    began = time.monotonic()
    arguments = ["--config-file", str(folder / "job.json")]
    run = run_peer(work.script, arguments, folder, limit_s, memory=False, more=work.environment)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return run


# --- what was measured --------------------------------------------------------------------------------------


def fits_of(row: Row | None, part: str, model: str) -> list[list[dict[str, Any]]]:
    """Return a row's fits of one model in one part: a list for each of its runs, an empty one where that failed."""
    if row is None:
        return []
    return [
        [fit for fit in run.trials if (fit["part"], fit["row"], fit["model"]) == (part, row.key, model)]
        for run in row.runs
    ]


def flat(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the fits of all runs in one list."""
    return [fit for fits in runs for fit in fits]


def rate(fit: dict[str, Any]) -> float:
    """Return steps a second on rank 0, from the end of the last step of the warm-up to the end of the last one."""
    ends = fit["ranks"]["0"]["ends"]
    return float((len(ends) - fit["warmup"]) / (ends[-1] - ends[fit["warmup"] - 1]))


def lead(fit: dict[str, Any]) -> float:
    """Return the seconds from calling ``fit`` to the first batch."""
    return float(fit["ranks"]["0"]["first"] - fit["driver"]["begin"])


def tail(fit: dict[str, Any]) -> float:
    """Return the seconds from the end of the last batch to the return of ``fit``."""
    return float(fit["driver"]["end"] - fit["ranks"]["0"]["ends"][-1])


def beyond(fit: dict[str, Any]) -> float:
    """Return the seconds of ``fit`` that are no training."""
    return lead(fit) + tail(fit)


def held_mb(fit: dict[str, Any]) -> float:
    """Return the MB of parameters, gradients and optimizer states on the rank that holds most."""
    return float(max(sum(rank["held"].values()) for rank in fit["ranks"].values())) / 1e6


def peak_mb(fit: dict[str, Any]) -> float:
    """Return by how many MB private memory rose on the rank where it rose most."""
    most = max(grown["private"] for name, grown in fit["memory"]["grown"].items() if name != "driver")
    return float(most) / 1e6


# --- what is printed ----------------------------------------------------------------------------------------


def print_tables(rows: Rows, args: argparse.Namespace) -> None:
    """Print what was measured, the ratios with their targets, and why a row is missing."""
    print(
        f"\nstrategies: {RANKS} ranks of one thread each, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the "
        f"last 15 minutes. Medians of the runs.{' Short: the figures mean little.' if args.short else ''}"
    )
    for part in args.only:
        head, lines, ratios = PRINTED[part]({key: row for (of, key), row in rows.items() if of == part})
        print(f"\n{part}\n\n{table(head, lines, args.markdown)}\n")
        print("\n".join(ratios))
    reasons = {row.key: f"{row.key}: not run: {row.skipped}" for row in rows.values() if row.skipped}
    print("".join(f"\n{reason}\n" for reason in reasons.values()), end="")


Printed = tuple[list[str], list[list[str]], list[str]]


def print_steps(rows: dict[str, Row]) -> Printed:
    """Return the table of steps a second, and the ratios of neighbours: each run over the peer's next to it."""
    head = ["", "row", "model", "runs", "batch", "steps", "ms/step", "steps/s", "last loss", "threads"]
    lines, ratios = [], []
    for model, planned in STEPS.items():
        for key, row in rows.items():
            fits = flat(fits_of(row, "steps", model))
            ranks = [rank for fit in fits for rank in fit["ranks"].values()]
            speed = median(map(rate, fits))
            loss = median(fit["ranks"]["0"]["loss"] for fit in fits)
            lines.append([key, row.title, model, str(len(fits)), *_sizes(fits, planned)])
            lines[-1] += [show(1000 / speed, 1), show(speed), show(loss, 6)]
            lines[-1] += ["/".join(sorted({str(rank["threads"]) for rank in ranks})) or "-"]
        for ours, theirs, least in (("a", "b", 0.98), ("c", "d", 0.95)):
            runs = zip(*(fits_of(rows.get(key), "steps", model) for key in (ours, theirs)), strict=False)
            pairs = sorted(rate(one[0]) / rate(other[0]) for one, other in runs if one and other)
            line = verdict(f"{ours} / {theirs}, steps a second, {model}", median(pairs), least=least, digits=3)
            what = f"steps a second of the {model}, {PEERS[ours].title} / {PEERS[theirs].title}"
            headline(what, median(pairs), of=spread(pairs), least=least)
            ratios.append(line + (f"; runs from {pairs[0]:.3f} to {pairs[-1]:.3f}" if len(pairs) > 1 else ""))
    return head, lines, ratios


def _sizes(fits: list[dict[str, Any]], planned: Fit) -> list[str]:
    one = fits[0] if fits else vars(planned)
    return [str(one["batch"]), f"{one['steps'] - one['warmup']}"]


def print_second(rows: dict[str, Row]) -> Printed:
    """Return the table of what fits take beyond training."""
    head = ["", "row", "first fit s", "later fits", "beyond training s", "to the first batch s", "after the last s"]
    lines, later = [], {}
    for key, row in rows.items():
        runs = fits_of(row, "second", "tiny")
        warm = later[key] = flat([fits[1:] for fits in runs])
        first = median(beyond(fits[0]) for fits in runs if fits)
        lines.append([key, row.title, show(first), str(len(warm)), show(median(map(beyond, warm)), 3)])
        lines[-1] += [show(median(map(lead, warm)), 3), show(median(map(tail, warm)), 3)]
    ours = median(map(beyond, later["a"]))
    ratios = [verdict("a, seconds of a later fit beyond training", ours, most=0.3, digits=3)]
    for key, most in (("a", 0.3), ("e", NAN), ("f", NAN)):
        times, what = [beyond(fit) for fit in later.get(key, [])], f"a second fit, beyond training: {PEERS[key].title}"
        headline(what, median(times), "s", of=spread(times), most=most)
    return (
        head,
        lines,
        ratios + [f"{key} / a: {show(median(map(beyond, later[key])) / ours, 0)}" for key in ("e", "f") if later[key]],
    )


def print_transfer(rows: dict[str, Row]) -> Printed:
    """Return the table of a big model's way there and back."""
    head = [
        "",
        "row",
        "fits",
        "to the first batch s",
        "after the last s",
        "driver: private MB",
        "store's MB",
        "both MB",
    ]
    lines, most = [], NAN
    for key, row in rows.items():
        fits = flat(fits_of(row, "transfer", "big"))
        grown = [fit["memory"]["grown"]["driver"] for fit in fits]
        peaks = {name: max((one[name] / 1e6 for one in grown), default=NAN) for name in ("private", "shared", "both")}
        most = peaks["both"]
        what = "peak of the driver's memory above its model, for the model's way there and back / the model"
        headline(what, most / MODEL_MB, of=f"n = {len(fits)}", most=1.2)
        lines.append([key, row.title, str(len(fits)), show(median(map(lead, fits))), show(median(map(tail, fits)))])
        lines[-1] += [show(peak, 0) for peak in peaks.values()]
    return (
        head,
        lines,
        [
            verdict(
                "a, peak of the driver above its model, in models (private memory and pages of Ray's store)",
                most / MODEL_MB,
                most=1.2,
            ),
        ],
    )


def print_sharded(rows: dict[str, Row]) -> Printed:
    """Return the table of a rank's memory."""
    head = ["", "row", "parameters MB", "gradients MB", "optimizer MB", "held MB", "peak MB"]
    lines, held, peak = [], {}, {}
    for key, row in rows.items():
        fits = flat(fits_of(row, "sharded", "big"))
        held[key], peak[key] = median(map(held_mb, fits)), max(map(peak_mb, fits), default=NAN)
        parts = fits[0]["ranks"]["0"]["held"].values() if fits else [NAN] * 3
        lines.append([key, row.title, *(show(part / 1e6, 0) for part in parts), show(held[key], 0), show(peak[key], 0)])
    headline("parameters, gradients and optimizer states of a rank, sharded / DDP", held["g"] / held["a"], most=0.55)
    headline("peak memory of a rank, sharded / DDP", peak["g"] / peak["a"], most=0.6)
    what = "peak memory of a rank, sharded with MALLOC_MMAP_THRESHOLD_=4194304 / DDP"
    headline(what, peak["h"] / peak["a"], most=0.6)
    return (
        head,
        lines,
        [
            verdict("g / a, MB held by a rank", held["g"] / held["a"], most=0.55),
            verdict("g / a, peak MB of a rank above its idle worker (private)", peak["g"] / peak["a"], most=0.6),
            verdict("h / a, the same", peak["h"] / peak["a"], most=0.6),
        ],
    )


PRINTED = {"second": print_second, "steps": print_steps, "transfer": print_transfer, "sharded": print_sharded}


if __name__ == "__main__":
    sys.exit(main())
