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

import math
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from figures import NAN, headline, median, show, spread, table
from kills import Fault
from measure import Peer, Row, Run, failed, options, run_peer, run_rows

SAFE_S = 7.0
"""When a driver's fit is killed: by then it has written its own checkpoint, which it first does after 5 s."""
LIMIT_S = 120.0

Events = list[dict[str, Any]]


FILE = "fault_peers.py"
PEERS = {
    "a": Peer("tunelight, fixed size", FILE, "fixed"),
    "b": Peer("tunelight, elastic", FILE, "elastic"),
    "c": Peer("RayStrategy on a driver", FILE, "driver", job={"after_s": SAFE_S}),
    "d": Peer("Ray Train", FILE, "ray_train"),
    "e": Peer("torchrun, c10d", FILE, "torchrun"),
    "f": Peer("tunelight, resized", FILE, "resize", job={"kill": False}),
}
SHORT = "be"


def main() -> int:
    """Run the rows that were asked for, print the tables, and return the exit status."""
    args = options(__doc__, f"the rows {','.join(SHORT)}, once", rows=tuple(PEERS), few=SHORT, repeats=3)

    def play(key: str, _: int, folder: Path) -> Run:
        # A short run of an elastic trial does not wait for the worker that comes back.
        brief = {"size": 1, "repeats": 8} if args.short and key == "b" else {}
        run = run_peer(PEERS[key], Fault(folder=str(folder), **{**PEERS[key].job, **brief}), LIMIT_S)
        if run.error is None and math.isnan(stage(run.trials, "batch")):
            run.error = f"{PEERS[key].title}: it ended without training on"
        return run

    rows = run_rows(PEERS, args, play)
    print(
        f"\nrecovery: 2 ranks of one thread each, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the last 15 "
        f"minutes. Seconds from the kill, medians of the runs.{' Short: they mean little.' if args.short else ''}\n"
    )
    print_table(rows)
    declare(rows)
    return failed(rows, theirs=lambda row, _: row.key in "de")


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


def print_table(rows: dict[str, Row]) -> None:
    """Print what the rows came to in which something is killed."""
    head = ["", "row", "runs", "next batch", "from", "interrupted epoch done", "all ranks again"]
    head += ["train code called", "model built", "first batch"]
    lines = []
    for key, row in rows.items():
        if key == "f":
            continue
        began, built, batch = (over_runs(row, partial(stage, kind=kind)) for kind in ("began", "built", "batch"))
        origin = "/".join(sorted({went_on_from(run.trials) for run in row.good})) or "-"
        lines.append([key, row.title, str(len(row.good)), show(batch), origin, show(over_runs(row, caught_up))])
        lines[-1] += [show(over_runs(row, whole_again)), show(began), f"+ {show(built - began)}"]
        lines[-1] += [f"+ {show(batch - built)}"]
    if lines:
        print(table(head, lines) + "\n")


def declare(rows: dict[str, Row]) -> None:
    """Declare the figures by which this benchmark is known, for the rows that were run."""
    a, d, e = (over_runs(rows.get(key), partial(stage, kind="batch")) for key in "ade")
    kill = "SIGKILL of a rank to"
    for key, most in (("b", 1.0), ("a", NAN), ("c", NAN)):
        times = [stage(run.trials, "batch") for run in rows[key].good] if key in rows else []
        headline(f"{kill} the next batch: {PEERS[key].title}", median(times), "s", of=spread(times), most=most)
    headline(f"{kill} the next batch, tunelight, fixed size / Ray Train with FailureConfig", a / d, most=0.5)
    headline(f"{kill} the next batch, torchrun with c10d / tunelight, fixed size", e / a, digits=1)
    both = over_runs(rows.get("b"), whole_again)
    headline(f"{kill} a batch on both ranks again: tunelight, elastic", both, "s", digits=1)
    for before, then in ((2, 1), (1, 2)):
        pause = over_runs(rows.get("f"), partial(still, before=before, then=then))
        headline(f"a resize of warm workers, {before} to {then}", pause, "s", most=0.5)
    if "f" in rows:
        print(
            f"  {show(over_runs(rows['f'], boundary), 3)} s where an epoch ends, with its checkpoint, and nothing else"
        )


if __name__ == "__main__":
    sys.exit(main())
