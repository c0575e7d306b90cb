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

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import NAN, headline, median, show, spread, table
from measure import Peer, Row, Run, failed, options, run_peer, run_rows
from population import Population

MEGABYTES = 20.0
"""Weights of a member; Adam's state is twice that, and comes along."""
REPORTS, SHORT_REPORTS = 16, 8
LIMIT_S = 300.0
TIMES = 30.0

Events = list[dict[str, Any]]
PEERS = {
    "a": Peer("GangPBT", "pbt_peers.py", "gang"),
    "b": Peer("Ray's PBT", "pbt_peers.py", "cold"),
    "c": Peer("Ray's PBT, warm gangs", "pbt_peers.py", "warm"),
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
    size = MEGABYTES, "weights of a member"
    args = options(
        __doc__, f"the rows {','.join(SHORT)}, once", rows=tuple(PEERS), few=SHORT, repeats=3, megabytes=size
    )

    def play(key: str, _: int, folder: Path) -> Run:
        reports = SHORT_REPORTS if args.short else REPORTS
        run = run_peer(PEERS[key], Population(folder=str(folder), megabytes=args.megabytes, reports=reports), LIMIT_S)
        if run.error is None and not exploits(run.trials):
            run.error = f"{PEERS[key].title}: no member learned from another"
        return run

    rows = run_rows(PEERS, args, play)
    print(
        f"\npbt: 2 members of {args.megabytes:g} MB of weights and Adam's state, each on 2 ranks of one thread, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} in the last 15 minutes. Medians of all "
        f"exploits.{' Short: they mean little.' if args.short else ''}\n"
    )
    print_table(rows)
    return failed(rows)


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


def print_table(rows: dict[str, Row]) -> None:
    """Print what was measured, and the ratios with their targets."""
    head = ["", "row", "exploits", "decision to next batch, s", "in the copy, s", "beyond it, s", "same process"]
    found = {key: [one for run in row.good for one in exploits(run.trials)] for key, row in rows.items()}
    medians = {key: median(one.seconds for one in some) for key, some in found.items()}
    lines = []
    for key, some in found.items():
        copies, beyond = (one.copy for one in some), (one.seconds - one.copy for one in some)
        times = [show(medians[key], 3), show(median(copies), 3), show(median(beyond), 3)]
        lines.append([key, rows[key].title, str(len(some)), *times, f"{sum(one.pid for one in some)} of {len(some)}"])
    print(table(head, lines) + "\n")
    for key, some in found.items():
        of = spread([one.seconds for one in some])
        headline(f"decision to the next batch: {rows[key].title}", medians[key], "s", of=of)
    for key in ("b", "c"):
        ratio = medians.get(key, NAN) / medians.get("a", NAN)
        headline(f"decision to the next batch, {PEERS[key].title} / GangPBT", ratio, least=TIMES, digits=0)


if __name__ == "__main__":
    sys.exit(main())
