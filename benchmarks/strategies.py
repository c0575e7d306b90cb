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

import importlib.util
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figures import NAN, headline, median, show, spread, table
from fits import Fit, Fits
from measure import Peer, Row, failed, options, run_peer, said

RANKS = 2
MODEL_MB = 201.5
"""What the parameters of the model "big" take."""
FILE = "fit_peers.py"
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "4194304"}
PEERS = {
    "a": Peer("RayStrategy", FILE, "tunelight", job={"fits": 8, "short": 2}),
    "b": Peer("torchrun, Lightning DDP", FILE, "torchrun"),
    "c": Peer("HorovodRayStrategy", FILE, "tunelight", job={"strategy": "horovod"}),
    "d": Peer("horovodrun, plain loop", FILE, "horovod"),
    "e": Peer("ddp_spawn", FILE, "spawn"),
    "f": Peer("Ray Train, Lightning DDP", FILE, "ray_train"),
    "g": Peer("RayShardedStrategy", FILE, "tunelight", job={"strategy": "sharded"}),
    "h": Peer("RayShardedStrategy, malloc gives back", FILE, "tunelight", 1, {"strategy": "sharded"}, GIVES_BACK),
}
"""Rows; ``job`` says which of tunelight's strategies, and how many fits of the part ``second`` are in one process."""
PARTS = {"second": "aef", "steps": "abcd", "transfer": "a", "sharded": "agh"}
"""The rows of each part, in the order in which they run."""
MOST = {"second": 1, "steps": 100, "transfer": 3, "sharded": 1}
"""How often the rows of a part run at most."""
STEPS = {
    "mlp": Fit("steps", "", "mlp", steps=120, warmup=20, batch=64, optimizer="adam"),
    "vit": Fit("steps", "", "vit", steps=25, warmup=5, batch=32, optimizer="adam"),
}
SHORT_STEPS = {
    "mlp": replace(STEPS["mlp"], steps=6, warmup=2, batch=16),
    "vit": replace(STEPS["vit"], steps=3, warmup=1, batch=4),
}


@dataclass(frozen=True)
class Process:
    """One process: the fits that it runs, for which rows."""

    peer: Peer
    fits: list[Fit]
    keys: list[tuple[str, str]]


Rows = dict[tuple[str, str], Row]


def main() -> int:
    """Run the parts that were asked for, print the tables, and return the exit status."""
    args = options(__doc__, "one process a peer, few steps, once", rows=tuple(PARTS), repeats=5)
    rows = {(part, key): Row(key, PEERS[key].title) for part in args.only for key in PARTS[part]}
    for (_, key), row in rows.items():
        row.skipped = skipped(key, args.short)
    with tempfile.TemporaryDirectory(prefix="strategies-", ignore_cleanup_errors=True) as parent:
        for number, process in enumerate(processes(rows, args)):
            folder = Path(parent, str(number))
            folder.mkdir()
            limit_s = 60 + (10 if args.short else 60) * len(process.fits)
            job = Fits(folder=str(folder), ranks=RANKS, fits=process.fits)
            with said(f"{process.peer.way}: {', '.join(f'{key} ({part})' for part, key in process.keys)}"):
                run = run_peer(process.peer, job, limit_s)
            for part_and_key in process.keys:
                rows[part_and_key].runs.append(run)
    print_tables(rows, args)
    return failed(rows, theirs=lambda row, _: PEERS[row.key].way != "tunelight")


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


def processes(rows: Rows, args: Namespace) -> Iterator[Process]:
    """Yield the processes to run, one after another: the rows of a part in turns, so that all meet the same noise.

    A short run has one process for each way instead, for most of its time would be starting them.
    """
    wanted = [key for key, row in rows.items() if row.skipped is None]
    if args.short:
        for way in dict.fromkeys(PEERS[key].way for _, key in wanted):
            keys = [(part, key) for part, key in wanted if PEERS[key].way == way]
            keys.sort(key=lambda one: PEERS[one[1]].job.get("strategy", ""))  # a gang of one kind after the other
            yield Process(PEERS[keys[0][1]], [fit for part, key in keys for fit in plan(part, key, True)], keys)
        return
    for part in args.only:
        for _ in range(min(args.repeats, MOST[part])):
            for key in PARTS[part]:
                if (part, key) in wanted:
                    yield Process(PEERS[key], plan(part, key, False), [(part, key)])


def plan(part: str, key: str, short: bool) -> list[Fit]:
    """Return the fits of one row of one part. A fit before those that are watched warms their workers."""
    row = Fit(part, key, "tiny", steps=2 if short else 20, strategy=PEERS[key].job.get("strategy", "ddp"))
    if part == "second":
        job = PEERS[key].job
        return [row] * (job.get("short", 1) if short else job.get("fits", 3))
    if part == "steps":
        fits = SHORT_STEPS if short else STEPS
        return [replace(fit, row=key, strategy=row.strategy) for fit in fits.values()]
    if part == "transfer":
        return [row, *[replace(row, model="big", steps=1, batch=8, watched=True)] * (1 if short else 2)]
    return [row, replace(row, model="big", steps=2 if short else 4, batch=8, optimizer="adam", watched=True)]


# --- what was measured --------------------------------------------------------------------------------------


def fits_of(row: Row, part: str, model: str) -> list[list[dict[str, Any]]]:
    """Return a row's fits of one model in one part: a list for each of its runs, an empty one where that failed."""
    wanted = (part, row.key, model)
    return [[fit for fit in run.trials if (fit["part"], fit["row"], fit["model"]) == wanted] for run in row.runs]


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


def print_tables(rows: Rows, args: Namespace) -> None:
    """Print what was measured, part by part."""
    print(
        f"\nstrategies: {RANKS} ranks of one thread each, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the "
        f"last 15 minutes. Medians of the runs.{' Short: the figures mean little.' if args.short else ''}"
    )
    for part in args.only:
        print(f"\n{part}\n")
        PRINTED[part]({key: row for (of, key), row in rows.items() if of == part})


def print_steps(rows: dict[str, Row]) -> None:
    """Print steps a second, and the ratios of neighbours: each run over the peer's next to it."""
    head = ["", "row", "model", "runs", "batch", "steps", "ms/step", "steps/s", "last loss", "threads"]
    lines = []
    for model, planned in STEPS.items():
        for key, row in rows.items():
            fits = flat(fits_of(row, "steps", model))
            one = fits[0] if fits else vars(planned)
            speed = median(map(rate, fits))
            loss = median(fit["ranks"]["0"]["loss"] for fit in fits)
            threads = "/".join(sorted({str(rank["threads"]) for fit in fits for rank in fit["ranks"].values()})) or "-"
            lines.append([key, row.title, model, str(len(fits)), str(one["batch"]), str(one["steps"] - one["warmup"])])
            lines[-1] += [show(1000 / speed, 1), show(speed), show(loss, 6), threads]
    print(table(head, lines) + "\n")
    for model in STEPS:
        for ours, theirs, least in (("a", "b", 0.98), ("c", "d", 0.95)):
            runs = zip(*(fits_of(rows[key], "steps", model) for key in (ours, theirs)), strict=False)
            pairs = [rate(one[0]) / rate(other[0]) for one, other in runs if one and other]
            what = f"steps a second of the {model}, {PEERS[ours].title} / {PEERS[theirs].title}"
            headline(what, median(pairs), of=spread(pairs), least=least)


def print_second(rows: dict[str, Row]) -> None:
    """Print what fits take beyond training."""
    head = ["", "row", "first fit s", "later fits", "beyond training s", "to the first batch s", "after the last s"]
    lines, later = [], {}
    for key, row in rows.items():
        runs = fits_of(row, "second", "tiny")
        warm = later[key] = flat([fits[1:] for fits in runs])
        first = median(beyond(fits[0]) for fits in runs if fits)
        lines.append([key, row.title, show(first), str(len(warm)), show(median(map(beyond, warm)), 3)])
        lines[-1] += [show(median(map(lead, warm)), 3), show(median(map(tail, warm)), 3)]
    print(table(head, lines) + "\n")
    for key, fits in later.items():
        times, what = [beyond(fit) for fit in fits], f"a second fit, beyond training: {PEERS[key].title}"
        headline(what, median(times), "s", of=spread(times), most=0.3 if key == "a" else NAN)


def print_transfer(rows: dict[str, Row]) -> None:
    """Print a big model's way there and back."""
    fits = flat(fits_of(rows["a"], "transfer", "big"))
    grown = [fit["memory"]["grown"]["driver"] for fit in fits]
    peaks = [max((one[name] / 1e6 for one in grown), default=NAN) for name in ("private", "shared", "both")]
    head = ["", "row", "fits", "to the first batch s", "after the last s"]
    head += ["driver: private MB", "store's MB", "both MB"]
    times = [show(median(map(lead, fits))), show(median(map(tail, fits)))]
    print(table(head, [["a", PEERS["a"].title, str(len(fits)), *times, *(show(peak, 0) for peak in peaks)]]) + "\n")
    what = "peak of the driver's memory above its model, for the model's way there and back / the model"
    headline(what, peaks[-1] / MODEL_MB, of=f"n = {len(fits)}", most=1.2)


def print_sharded(rows: dict[str, Row]) -> None:
    """Print a rank's memory."""
    head = ["", "row", "parameters MB", "gradients MB", "optimizer MB", "held MB", "peak MB"]
    lines, held, peak = [], {}, {}
    for key, row in rows.items():
        fits = flat(fits_of(row, "sharded", "big"))
        held[key], peak[key] = median(map(held_mb, fits)), max(map(peak_mb, fits), default=NAN)
        parts = fits[0]["ranks"]["0"]["held"].values() if fits else [NAN] * 3
        lines.append([key, row.title, *(show(part / 1e6, 0) for part in parts), show(held[key], 0), show(peak[key], 0)])
    print(table(head, lines) + "\n")
    headline("parameters, gradients and optimizer states of a rank, sharded / DDP", held["g"] / held["a"], most=0.55)
    headline("peak memory of a rank, sharded / DDP", peak["g"] / peak["a"], most=0.6)
    what = "peak memory of a rank, sharded with MALLOC_MMAP_THRESHOLD_=4194304 / DDP"
    headline(what, peak["h"] / peak["a"], most=0.6)


PRINTED = {"second": print_second, "steps": print_steps, "transfer": print_transfer, "sharded": print_sharded}


if __name__ == "__main__":
    sys.exit(main())
