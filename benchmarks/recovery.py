"""How long a training stands still when one of its 2 ranks is killed, against others on the same machine.

Every row trains the digits on 2 ranks, and rank 1 is killed (SIGKILL) in the middle of an epoch:

  a  tunelight, a sweep's trial of a fixed size    d  Ray Train's TorchTrainer, FailureConfig(max_failures=1)
  b  the same, elastic: workers=(1, 2)             e  torchrun --max-restarts with a c10d rendezvous
  c  RayStrategy on a driver                       f  no kill: a trial resized to 1 worker and back to 2

    python benchmarks/recovery.py                     # everything, 3 times: about 7 minutes on 2 cores
    python benchmarks/recovery.py --only a,b --repeats 1
    python benchmarks/recovery.py --short             # b and e, once: does it still run?
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import NAN, Row, headline, median, show, spread, table, verdict
from kills import Fault
from measure import run_peer

OURS = "tunelight_faults.py"
SAFE_S = 7.0
"""When a driver's fit is killed: by then it has written its own checkpoint, which it first does after 5 s."""
LIMIT_S = 120.0

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Peer:
    """How to run a row: its script with its arguments, and what its job has of its own."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)


PEERS = {
    "a": Peer("tunelight, fixed size", OURS, ("--way", "fixed")),
    "b": Peer("tunelight, elastic", OURS, ("--way", "elastic")),
    "c": Peer("RayStrategy on a driver", OURS, ("--way", "driver"), {"after_s": SAFE_S}),
    "d": Peer("Ray Train", "ray_train_faults.py"),
    "e": Peer("torchrun, c10d", "torchrun_faults.py"),
    "f": Peer("tunelight, resized", OURS, ("--way", "resize"), {"kill": False}),
}
SHORT = "be"


def main() -> int:
    """Run the rows that were asked for, print the tables, and return the exit status."""
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit on all of this leaves no process either
    rows = {key: Row(key, PEERS[key].title) for key in args.only}
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    try:
        for number in range(args.repeats):
            for key, row in rows.items():
                run_row(row, folder / f"{key}{number}", args.short)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_tables(rows, args)
    failed = [(row, run.error) for row in rows.values() for run in row.runs if run.error]
    print("".join(f"\n{row.key}: failed: {error}\n" for row, error in failed), end="")
    return 1 if any(PEERS[row.key].script == OURS for row, _ in failed) else 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with ``only`` as a list of known rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"the rows {','.join(SHORT)}, once")
    parser.add_argument("--only", help=f"rows to run, such as a,b (default {','.join(PEERS)})")
    parser.add_argument("--repeats", type=int, help="runs of each row (default 3)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    args = parser.parse_args()
    asked = {key.strip() for key in (args.only or ",".join(SHORT if args.short else PEERS)).split(",")}
    if asked - PEERS.keys():
        parser.error(f"--only takes rows from {','.join(PEERS)}, not {','.join(sorted(asked - PEERS.keys()))}")
    args.only = sorted(asked)
    args.repeats = args.repeats or (1 if args.short else 3)
    return args


def run_row(row: Row, folder: Path, short: bool) -> None:
    """Run one peer once. A short run of an elastic trial does not wait for the worker that comes back."""
    peer = PEERS[row.key]
    folder.mkdir()
    mine = {**peer.job, **({"size": 1, "repeats": 8} if short and row.key == "b" else {})}
    Fault(str(folder), **mine).save(folder / "job.json")
    print(f"{row.key}: {peer.title} ...", file=sys.stderr, end="", flush=True)
    began = time.monotonic()
    arguments = ["--config-file", str(folder / "job.json"), *peer.arguments]
    run = run_peer(peer.script, arguments, folder, LIMIT_S, memory=False)
    if run.error is None and math.isnan(stage(run.trials, "batch")):
        run.error = f"{peer.script}: it ended without training on"
    row.runs.append(run)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


# --- what was measured ----------------------------------------------------------------------------------------


def fault_of(events: Events) -> float:
    """Return when the fault was; NaN without one."""
    return next((float(event["time"]) for event in events if event["event"] == "fault"), NAN)


def after(events: Events, kind: str, size: int | None = None) -> dict[str, Any] | None:
    """Return the first event of a kind, on any rank, that a training has seen which began after the fault."""
    fault = fault_of(events)
    return next(
        (
            event
            for event in events
            if event["event"] == kind and event["began"] > fault and size in (None, event["size"])
        ),
        None,
    )


def stage(events: Events, kind: str) -> float:
    """Return the seconds from the fault to the first event of a kind."""
    event = after(events, kind)
    return NAN if event is None else float(event["time"]) - fault_of(events)


def whole_again(events: Events, ranks: int = 2) -> float:
    """Return the seconds from the fault to the first batch on all ranks."""
    event = after(events, "batch", ranks)
    return NAN if event is None else float(event["time"]) - fault_of(events)


def caught_up(events: Events) -> float:
    """Return the seconds from the fault to the end of the epoch that it interrupted."""
    interrupted = next(event["epoch"] for event in events if event["event"] == "fault")
    fault = fault_of(events)
    ends = (
        float(event["time"]) - fault
        for event in events
        if event["event"] == "epoch" and event["began"] > fault and event["epoch"] >= interrupted
    )
    return next(ends, NAN)


def went_on_from(events: Events) -> str:
    """Return which epoch the first batch after the fault was of, counted from 1."""
    event = after(events, "batch")
    return "-" if event is None else "scratch" if event["epoch"] == 0 else f"epoch {event['epoch'] + 1}"


def still(events: Events, before: int, then: int) -> float:
    """Return the seconds between the last batch on ``before`` ranks and the first on ``then`` after it."""
    batches = [event for event in events if event["event"] == "batch"]
    for last, first in pairwise(batches):
        if (last["size"], first["size"]) == (before, then):
            return float(first["time"] - last["time"])
    return NAN


def boundary(events: Events) -> float:
    """Return the seconds between two epochs' batches on rank 0 with a report and a checkpoint between; median."""
    batches = [event for event in events if event["event"] == "batch" and event["rank"] == 0]
    return median(
        first["time"] - last["time"]
        for last, first in pairwise(batches)
        if last["began"] == first["began"] and last["epoch"] != first["epoch"]
    )


def over_runs(row: Row | None, figure: Callable[[Events], float]) -> float:
    """Return the median of a figure over a row's runs."""
    return median(figure(run.trials) for run in row.good) if row else NAN


# --- what is printed ------------------------------------------------------------------------------------------


def print_tables(rows: dict[str, Row], args: argparse.Namespace) -> None:
    """Print what was measured, and the ratios with their targets."""
    print(
        f"\nrecovery: 2 ranks of one thread each, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the last 15 "
        f"minutes. Seconds from the kill, medians of the runs.{' Short: they mean little.' if args.short else ''}\n"
    )
    killed = {key: row for key, row in rows.items() if key != "f"}
    head = ["", "row", "runs", "next batch", "from", "interrupted epoch done", "all ranks again"]
    head += ["train code called", "model built", "first batch"]
    lines = []
    for key, row in killed.items():
        began, built, batch = (over_runs(row, partial(stage, kind=kind)) for kind in STAGES)
        origin = "/".join(sorted({went_on_from(run.trials) for run in row.good})) or "-"
        lines.append([key, row.title, str(len(row.good)), show(batch), origin, show(over_runs(row, caught_up))])
        lines[-1] += [show(over_runs(row, whole_again)), show(began), f"+ {show(built - began)}"]
        lines[-1] += [f"+ {show(batch - built)}"]
    if lines:
        print(table(head, lines, args.markdown) + "\n")
    if f := rows.get("f"):
        shrink, grow = (
            over_runs(f, lambda events: still(events, 2, 1)),
            over_runs(f, lambda events: still(events, 1, 2)),
        )
        plain = over_runs(f, boundary)
        print(
            f"f, {f.title}: {show(shrink, 3)} s from the last batch on 2 workers to the first on 1, {show(grow, 3)} s "
            f"back; {show(plain, 3)} s where an epoch ends, with its checkpoint, and nothing else\n"
        )
    print("\n".join(ratios(rows)))


STAGES = ("began", "built", "batch")


def ratios(rows: dict[str, Row]) -> list[str]:
    """Return the lines that say what is met, for the rows that were run."""
    a, b, c, d, e = (over_runs(rows.get(key), partial(stage, kind="batch")) for key in "abcde")
    lines = []
    kill = "SIGKILL of a rank to"
    for key, most in (("b", 1.0), ("a", NAN), ("c", NAN)):
        times = [stage(run.trials, "batch") for run in rows[key].good] if key in rows else []
        headline(f"{kill} the next batch: {PEERS[key].title}", median(times), "s", of=spread(times), most=most)
    headline(f"{kill} the next batch, tunelight, fixed size / Ray Train with FailureConfig", a / d, most=0.5)
    headline(f"{kill} the next batch, torchrun with c10d / tunelight, fixed size", e / a, digits=1)
    both = over_runs(rows.get("b"), whole_again)
    headline(f"{kill} a batch on both ranks again: tunelight, elastic", both, "s", digits=1)
    if "b" in rows:
        lines.append(verdict("b, seconds to the next batch", b, most=1.0))
    if "a" in rows and "d" in rows:
        lines.append(verdict("a / d, seconds to the next batch", a / d, most=0.5))
    lines += [
        f"{name}, the same: {show(ratio)}"
        for name, ratio in (("c / d", c / d), ("a / e", a / e), ("b / d", b / d), ("b / e", b / e))
        if not math.isnan(ratio)
    ]
    if "f" in rows:
        for before, then in ((2, 1), (1, 2)):
            pause = over_runs(rows["f"], partial(still, before=before, then=then))
            lines.append(verdict(f"f, seconds between batches, {before} to {then} workers", pause, most=0.5, digits=3))
            headline(f"a resize of warm workers, {before} to {then}", pause, "s", most=0.5)
    return lines


if __name__ == "__main__":
    sys.exit(main())
