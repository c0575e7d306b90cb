"""How long a trial takes, against what others need for the same work on the same machine.

The same 20 configurations, 8 epochs and 2 ranks are run by

  a  one torchrun pair that loops over them (plain Lightning DDP, no Tune): the floor
  b  tunelight with FIFO
  c  tunelight with ASHA
  d  Optuna with Lightning's ddp_spawn
  e  Ray Train inside Ray Tune, under Ray's ASHA (needs ray[default]; 4 trials)
  f  tunelight with FIFO, of a script as it is
  g  a new torchrun of that script for each trial (4 trials)

    python benchmarks/turnaround.py                     # everything: about 10 minutes on 2 cores
    python benchmarks/turnaround.py --only a,b --setting large
    python benchmarks/turnaround.py --short             # one trial a peer but e: does it all still run?
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import Row, difference, headline, median, show, table, verdict
from measure import run_peer, time_floor
from workload import Job, make_configs

EPOCHS, RANKS, SEED = 8, 2, 7
GRACE_PERIOD, REDUCTION_FACTOR = 1, 4
SETTINGS = {"small": (1, (32, 64, 128)), "large": (10, (128, 256, 512))}
"""Repeats of the training images, and sizes of the hidden layer: trials of about 0.5 s and 4 s in row a."""


@dataclass(frozen=True)
class Peer:
    """How to run a row: its script, how often, with how many trials and how long a trial may take."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()
    repeats: int = 3
    trials: int = 20
    limit_s: float = 30.0


PEERS = {
    "a": Peer("torchrun pair, no Tune", "torchrun_loop.py"),
    "b": Peer("tunelight, FIFO", "tunelight_sweep.py", ("--scheduler", "fifo")),
    "c": Peer("tunelight, ASHA", "tunelight_sweep.py", ("--scheduler", "asha")),
    "d": Peer("Optuna, ddp_spawn", "optuna_spawn.py"),
    "e": Peer("Ray Train in Tune, ASHA", "ray_train_in_tune.py", repeats=1, trials=4, limit_s=60.0),
    "f": Peer("tunelight, a script", "tunelight_sweep.py", ("--scheduler", "fifo", "--script")),
    "g": Peer("a torchrun a trial", "torchrun_script.py", trials=4),
}


def main() -> int:
    """Run the rows that were asked for, print the tables, and return the exit status."""
    args = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="turnaround-"))
    try:
        floors = measure_floors(folder, 1 if args.short else 3) if "b" in args.only else {}
        rows = {key: Row(key, PEERS[key].title) for key in args.only}
        if "e" in rows and args.short:
            rows["e"].skipped = "one more start of Ray takes too long for --short"
        elif "e" in rows and importlib.util.find_spec("opencensus") is None:
            rows["e"].skipped = "needs ray[default] (pip install 'ray[default]'); without it, it hangs"
        for number in range(1 if args.short else args.repeats):
            for key, row in rows.items():
                if number < PEERS[key].repeats and row.skipped is None:
                    run_row(row, number, args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_tables(rows, floors, args)
    return 1 if any(is_ours(row.key, run.error) for row in rows.values() for run in row.runs if run.error) else 0


def is_ours(key: str, error: str) -> bool:
    """Tell whether a failed row is this benchmark's fault: all are, but Ray Train's hang after a trial."""
    return not (key == "e" and "did not end within" in error)


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with ``only`` as a list of known rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one trial a peer but e, once")
    parser.add_argument("--only", default="a,b,c,d,e,f,g", help="rows to run, such as a,b")
    parser.add_argument("--setting", choices=SETTINGS, default="small", help="trials of about 0.5 s or 4 s")
    parser.add_argument("--repeats", type=int, default=3, help="runs of a to d (default 3)")
    parser.add_argument("--trials", type=int, help="trials of each row (default 20, and 4 for e)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    args = parser.parse_args()
    args.only = sorted({key.strip() for key in args.only.split(",")})
    unknown = [key for key in args.only if key not in PEERS]
    if unknown:
        parser.error(f"--only takes rows from {','.join(PEERS)}, not {','.join(unknown)}")
    return args


def measure_floors(folder: Path, repeats: int) -> dict[str, float]:
    """Return medians of the seconds that no cold start avoids, once the files are in the page cache."""
    time_floor("imports", folder)
    ray = [time_floor("ray", folder) for _ in range(repeats)]
    alone = [time_floor("imports", folder) for _ in range(repeats)]
    together = [time_floor("imports", folder, at_once=RANKS) for _ in range(repeats)]
    return {
        "ray.init": median(one["init"] for one in ray),
        "ray": median(one["start"] for one in ray),
        "imports": median(one["start"] for one in alone),
        "imports together": median(one["start"] for one in together),
    }


def run_row(row: Row, number: int, args: argparse.Namespace, parent: Path) -> None:
    """Run one peer once. Memory is sampled in its first run only, so that the others are undisturbed."""
    peer = PEERS[row.key]
    trials = 1 if args.short else args.trials or peer.trials
    repeats, hidden = SETTINGS[args.setting]
    folder = parent / f"{row.key}{number}"
    folder.mkdir()
    job = Job(
        make_configs(trials, SEED, hidden),
        EPOCHS,
        RANKS,
        repeats,
        GRACE_PERIOD,
        REDUCTION_FACTOR,
        str(folder),
    )
    job.save(folder / "job.json")
    print(f"{row.key}: {row.title}, run {number + 1}, {trials} trials ...", file=sys.stderr, flush=True)
    arguments = ["--config-file", str(folder / "job.json"), *peer.arguments]
    limit_s = 120 + peer.limit_s * trials
    row.runs.append(run_peer(peer.script, arguments, folder, limit_s, memory=number == 0))


def print_tables(rows: dict[str, Row], floors: dict[str, float], args: argparse.Namespace) -> None:
    """Print what was measured, the ratios with their targets, and why a row is missing."""
    print(
        f"\nturnaround, {args.setting} setting: {EPOCHS} epochs, {RANKS} ranks, {os.cpu_count()} cores. "
        "Seconds a trial: warm trials (all but the first).\nPeak memory: PSS summed over the peer's process "
        "tree, in its first run. Medians of the runs.\n"
    )
    floor = rows.get("a", Row("a", ""))
    head = ["", "row", "runs", "trials", "epochs", "s/trial", "first report s", "trials/min", "peak MB"]
    head += ["threads/worker", "best acc", "loss vs a"]
    lines = [
        [
            *(row.key, row.title, str(len(row.good)), str(row.trials), str(row.epochs), show(row.warm_s)),
            *(show(row.first_report_s), show(row.trials_a_minute, 1), show(row.peak_mb, 0), row.threads),
            *(show(row.accuracy, 3), show(difference(row, floor), 6)),
        ]
        for row in rows.values()
    ]
    print(table(head, lines, args.markdown))
    head = ["", "last report -> next train()", "last report -> next first batch", "a report"]
    lines = [
        [
            row.key,
            f"{show(row.switch_ms('enter'), 0)} ms",
            f"{show(row.switch_ms('first_batch'), 0)} ms",
            f"{show(row.report_ms)} ms",
        ]
        for row in rows.values()
    ]
    print("\n" + table(head, lines, args.markdown) + "\n")
    print("\n".join(ratios(rows, floors, args.setting)))
    if args.setting == "small":
        declare(rows, floors)
    for row in rows.values():
        if row.skipped:
            print(f"\n{row.key}: not run: {row.skipped}")
        for run in row.runs:
            if run.error:
                print(f"\n{row.key}: failed: {run.error}")


def ratios(rows: dict[str, Row], floors: dict[str, float], setting: str) -> list[str]:
    """Return the lines that compare rows, each with what is asked of it."""
    empty = Row("", "")
    a, b, c, d, e, f, g = (rows.get(key, empty) for key in "abcdefg")
    most = 1.15 if setting == "small" else 1.10
    lines = [
        verdict("b / a, warm trials", b.warm_s / a.warm_s, most=most),
        verdict("d / b, warm trials", d.warm_s / b.warm_s, least=8),
        verdict("c / e, trials a minute from a cold start", c.trials_a_minute / e.trials_a_minute, least=30),
        verdict("f - b, seconds more of a warm trial of a script", f.warm_s - b.warm_s, most=0.35),
        verdict("f / g, trials a minute from a cold start", f.trials_a_minute / g.trials_a_minute, least=5),
    ]
    if not floors:
        return lines
    cold = floors["ray.init"] + floors["imports"]
    paired = floors["ray.init"] + floors["imports together"]
    lines.append(verdict("b, first report from the call / (ray.init + imports)", b.cold_start_s / cold, most=1.3))
    lines.append(
        f"  tunelight.run to its first report {show(b.cold_start_s)} s; "
        f"ray.init {show(floors['ray.init'])} s; a worker's start and imports {show(floors['imports'])} s "
        f"alone, {show(floors['imports together'])} s with {RANKS} at once (then the ratio is "
        f"{show(b.cold_start_s / paired)}); a driver's start, imports and ray.init {show(floors['ray'])} s"
    )
    return lines


def declare(rows: dict[str, Row], floors: dict[str, float]) -> None:
    """Declare the figures by which this benchmark is known."""
    empty = Row("", "")
    a, b, c, d, e, f, g = (rows.get(key, empty) for key in "abcdefg")
    n = f"n = {len(b.good)}"
    headline("a warm trial under FIFO / one torchrun pair, no Tune", b.warm_s / a.warm_s, of=n, most=1.15)
    headline("a warm trial of a script, more than one of a train function", f.warm_s - b.warm_s, "s", of=n, most=0.35)
    headline("a warm trial of Optuna with ddp_spawn / tunelight's", d.warm_s / b.warm_s, of=n, least=8)
    minute = "trials a minute, cold start included:"
    trains = c.trials_a_minute / e.trials_a_minute
    headline(f"{minute} ASHA / Ray Train in Tune, Ray's ASHA", trains, least=30, digits=1)
    headline(f"{minute} a script on a gang / a torchrun a trial", f.trials_a_minute / g.trials_a_minute, least=5)
    headline(f"{minute} FIFO / one torchrun pair", b.trials_a_minute / a.trials_a_minute, of=n)
    headline("first report, tunelight / one torchrun pair", b.first_report_s / a.first_report_s, of=n)
    if floors:
        cold = floors["ray.init"] + floors["imports"]
        headline("tunelight.run to its first report / ray.init and imports", b.cold_start_s / cold, of=n, most=1.3)
    headline("peak memory, tunelight / one torchrun pair", b.peak_mb / a.peak_mb)
    headline("a trial's last report to the next train function", b.switch_ms("enter") / 1000, "s", of=n, digits=3)
    headline("a report", b.report_ms / 1000, "s", of=n, digits=4)


if __name__ == "__main__":
    sys.exit(main())
