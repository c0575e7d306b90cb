"""How long it takes a member of a population to train on with another's weights, against Ray's own PBT.

Two members train at once on gangs of 2 ranks, and the second learns from the first at every second report. Timed is
from the scheduler's decision to the member's next training batch:

  a  GangPBT: weights and optimizer states go from gang to gang through Ray's object store
  b  Ray's PopulationBasedTraining over the same gangs, in plain Ray Tune, as it comes
  c  the same with reuse_actors=True, so that gangs stay warm

    python benchmarks/pbt.py                     # everything, 3 times: about 6 minutes on 2 cores
    python benchmarks/pbt.py --only a,c --repeats 1
    python benchmarks/pbt.py --short             # a and c, once, few reports: does it still run?
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import NAN, Row, headline, median, show, spread, table, verdict
from measure import run_peer
from pbt_data import Population

MEGABYTES = 20.0
"""Weights of a member; Adam's state is twice that, and comes along."""
REPORTS, SHORT_REPORTS = 16, 8
LIMIT_S = 300.0
BEYOND_S = 0.1
TIMES = 30.0

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Peer:
    """How to run a row: its script with its arguments."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()


PEERS = {
    "a": Peer("GangPBT", "tunelight_pbt.py"),
    "b": Peer("Ray's PBT", "ray_pbt.py", ("--way", "cold")),
    "c": Peer("Ray's PBT, warm gangs", "ray_pbt.py", ("--way", "warm")),
}
SHORT = "ac"


@dataclass(frozen=True)
class Exploit:
    """One member that learned from another: seconds from the decision to its next batch, and in the copy alone."""

    seconds: float
    copy: float
    pid: bool
    """Whether it trains on in the process in which it trained before."""


def main() -> int:
    """Run the rows that were asked for, print the table, and return the exit status."""
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit on all of this leaves no process either
    rows = {key: Row(key, PEERS[key].title) for key in args.only}
    folder = Path(tempfile.mkdtemp(prefix="pbt-"))
    try:
        for number in range(args.repeats):
            for key, row in rows.items():
                run_row(row, folder / f"{key}{number}", args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(rows, args)
    failed = [(row, run.error) for row in rows.values() for run in row.runs if run.error]
    print("".join(f"\n{row.key}: failed: {error}\n" for row, error in failed), end="")
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with ``only`` as a list of known rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"the rows {','.join(SHORT)}, once")
    parser.add_argument("--only", help=f"rows to run, such as a,b (default {','.join(PEERS)})")
    parser.add_argument("--repeats", type=int, help="runs of each row (default 3)")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help=f"weights of a member ({MEGABYTES:g})")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    args = parser.parse_args()
    asked = {key.strip() for key in (args.only or ",".join(SHORT if args.short else PEERS)).split(",")}
    if asked - PEERS.keys():
        parser.error(f"--only takes rows from {','.join(PEERS)}, not {','.join(sorted(asked - PEERS.keys()))}")
    args.only = sorted(asked)
    args.repeats = args.repeats or (1 if args.short else 3)
    return args


def run_row(row: Row, folder: Path, args: argparse.Namespace) -> None:
    """Run one peer once."""
    peer = PEERS[row.key]
    folder.mkdir()
    reports = SHORT_REPORTS if args.short else REPORTS
    Population(str(folder), args.megabytes, reports).save(folder / "job.json")
    print(f"{row.key}: {peer.title} ...", file=sys.stderr, end="", flush=True)
    began = time.monotonic()
    arguments = ["--config-file", str(folder / "job.json"), *peer.arguments]
    run = run_peer(peer.script, arguments, folder, LIMIT_S, memory=False)
    if run.error is None and not exploits(run.trials):
        run.error = f"{peer.script}: no member learned from another"
    row.runs.append(run)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def exploits(events: Events) -> list[Exploit]:
    """Return what each decision of a run led to; one that no batch followed led to nothing."""
    found = []
    decisions = [event for event in events if event["event"] == "decision"]
    for number, decision in enumerate(decisions):
        end = decisions[number + 1]["time"] if number + 1 < len(decisions) else math.inf
        after = [event for event in events if decision["time"] < event["time"] < end and event["trial"] == 1]
        batch = next((event for event in after if event["event"] == "batch" and event["rank"] == 0), None)
        if batch is None:
            continue
        before = [
            event["pid"]
            for event in events
            if event["event"] == "batch" and event["trial"] == 1 and event["rank"] == 0
            if event["time"] < decision["time"]
        ]
        copies = [event["seconds"] for event in after if event["event"] == "adopted"]
        found.append(Exploit(batch["time"] - decision["time"], max(copies, default=NAN), before[-1:] == [batch["pid"]]))
    return found


def print_table(rows: dict[str, Row], args: argparse.Namespace) -> None:
    """Print what was measured, and the ratios with their targets."""
    print(
        f"\npbt: 2 members of {args.megabytes:g} MB of weights and Adam's state, each on 2 ranks of one thread, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the last 15 minutes. Medians of all "
        f"exploits.{' Short: they mean little.' if args.short else ''}\n"
    )
    head = ["", "row", "exploits", "decision to next batch, s", "in the copy, s", "beyond it, s", "same process"]
    lines, medians, beyond = [], {}, NAN
    for key, row in rows.items():
        found = [one for run in row.good for one in exploits(run.trials)]
        medians[key] = median(one.seconds for one in found)
        more = median(one.seconds - one.copy for one in found)
        beyond = more if key == "a" else beyond
        same = f"{sum(one.pid for one in found)} of {len(found)}"
        of = spread([one.seconds for one in found])
        headline(f"decision to the next batch: {row.title}", medians[key], "s", of=of)
        lines.append(
            [key, row.title, str(len(found)), show(medians[key], 3), show(median(one.copy for one in found), 3)]
        )
        lines[-1] += [show(more, 3), same]
    print(table(head, lines, args.markdown) + "\n")
    if "a" in rows:
        print(verdict("a, seconds beyond the copy", beyond, most=BEYOND_S, digits=3))
    for key in ("b", "c"):
        if key in rows and "a" in rows:
            ratio = medians[key] / medians["a"]
            print(verdict(f"{key} / a, decision to next batch", ratio, least=TIMES, digits=1))
            headline(f"decision to the next batch, {rows[key].title} / GangPBT", ratio, least=TIMES, digits=0)


if __name__ == "__main__":
    sys.exit(main())
