"""How far the simulator is from live sweeps on this machine.

The costs of a simulation are measured on probes: a sweep under FIFO with 2 ranks, one whose every report waits for
an answer, and one of a few trials with 1 rank. Then other sweeps are run live, under other schedulers, with other
seeds and configurations and with 1 rank or 2, and simulated with those costs. Of a judged sweep the simulation knows
what its trials reported, and nothing of when. Asked are

  decisions  told the reports again in the live order, the scheduler decides as it did
  makespan   from the first trial's birth to the last one's end, within 10 %

All of it is done several times, probes and judged sweeps in turn, for the machine's own speed drifts; medians count.

    python benchmarks/fidelity.py              # everything, 3 times: about 18 minutes on 2 cores
    python benchmarks/fidelity.py --short      # one probe and one judged sweep: does it all still run?
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from fidelity_sweep import Live
from figures import headline, show, table
from measure import Peer, run_peer
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tests.world import Costs, Curve, Simulation, simulate
from tunelight.record import PAUSED, RUNNING, TERMINAL, SweepState, TrialState, apply, read_record
from tunelight.record.record import replayed

LIMIT = 0.10
SLOTS = 2
PROBES = (("fifo", 2, 1.0), ("asking", 2, 1.0), ("fifo", 1, 0.5))
JUDGED = (
    ("fifo", 2),
    ("asha", 2),
    ("asha, later rungs", 2),
    ("Ray's ASHA", 2),
    ("median stopping", 2),
    ("fifo", 1),
    ("asha", 1),
)


@dataclass(frozen=True)
class Measured:
    """What the probes say: costs, and seconds an epoch on one worker for each width of the model."""

    costs: Costs
    alone_s: Mapping[int, float]


class Reported:
    """The curves of a live sweep: its metrics, with the probes' times."""

    metric = "loss"
    mode: Literal["min", "max"] = "min"

    def __init__(self, state: SweepState, measured: Measured) -> None:
        self.trials = sorted(state.trials.values(), key=lambda trial: trial.index)
        self.epochs = max(len(trial.history) for trial in self.trials)
        self._measured = measured

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the live sweep's own."""
        return {**self.trials[number].config, "number": number}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return what that trial reported."""
        history = self.trials[config["number"]].history
        metrics = {name: [report[name] for report in history] for name in ("loss", "acc")}
        return Curve(metrics, self._measured.alone_s[config["hidden"]])


def main() -> int:
    """Run probes and judged sweeps, print the table, and return the exit status."""
    args = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
    try:
        rounds = [run_round(folder / str(number), args) for number in range(args.rounds)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows, measured = together([rows for rows, _ in rounds]), rounds[-1][1]
    report(rows, measured, args)
    if args.short:
        return 0 if all(row["same"] == row["reports"] for row in rows) else 1
    return 0 if all(row["same"] == row["reports"] and abs(row["error"]) <= LIMIT for row in rows) else 1


def run_round(folder: Path, args: argparse.Namespace) -> tuple[list[dict[str, Any]], Measured]:
    """Run the probes, then the judged sweeps; return what the comparison says of each, and what was measured."""
    folder.mkdir()
    measured = calibrate([run_live(folder, args, *probe[:2], share=probe[2], seed=11) for probe in args.probes])
    rows = [judge(run_live(folder, args, *one, seed=29 + i), measured) for i, one in enumerate(args.judged)]
    return rows, measured


def together(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return one row for each judged sweep: sums of counts, medians of seconds and errors."""
    rows = []
    for found in zip(*rounds, strict=True):
        medians = {key: median(row[key] for row in found) for key in ("live_s", "simulated_s", "error")}
        sums = {key: sum(row[key] for row in found) for key in ("reports", "same", "whole", "simulated_whole")}
        rows.append({**found[0], **sums, **medians, "errors": [row["error"] for row in found]})
    return rows


def parse_arguments() -> argparse.Namespace:
    """Return the command line, with what is to be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one probe and one judged sweep, both small")
    parser.add_argument("--trials", type=int, default=16, help="trials of each sweep (default 16)")
    parser.add_argument("--epochs", type=int, default=9, help="epochs of a whole trial (default 9)")
    parser.add_argument("--repeats", type=int, default=4, help="repeats of the training images (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of it is done (default 3)")
    args = parser.parse_args()
    args.probes, args.judged = PROBES, JUDGED
    if args.short:
        args.trials, args.epochs, args.repeats, args.rounds = 4, 3, 1, 1
        args.probes, args.judged = PROBES[:1], JUDGED[1:2]
    return args


def run_live(
    parent: Path, args: argparse.Namespace, scheduler: str, workers: int, *, seed: int, share: float = 1.0
) -> Live:
    """Run one sweep live, in a process of its own; raise RuntimeError where it fails."""
    folder = parent / f"{seed}-{workers}-{scheduler}"
    folder.mkdir()
    trials = max(3, round(args.trials * share))
    live = Live(
        folder=str(folder), ranks=workers, scheduler=scheduler, trials=trials, epochs=args.epochs, seed=seed,
        repeats=args.repeats,
    )  # fmt: skip
    print(f"live: {scheduler}, {workers} workers, {trials} trials ...", file=sys.stderr, flush=True)
    run = run_peer(Peer(scheduler, "fidelity_sweep.py", "sweep"), live, 600.0)
    if run.error:
        raise RuntimeError(run.error)
    return live


# --- what the probes say ----------------------------------------------------------------------------------


def calibrate(probes: Sequence[Live]) -> Measured:
    """Work out what things cost from the probes' records."""
    first, *others = probes
    state, ends = read_record(first.sweep_folder), states(first, TERMINAL)
    trials = sorted(state.trials.values(), key=lambda trial: trial.index)
    epoch_s = epochs_by_width(trials)
    starts, born = states(first, (RUNNING,)), births(first)
    lead = {trial.id: trial.history[0]["timestamp"] - epoch_s[trial.config["hidden"]] for trial in trials}
    warm = [lead[later.id] - ends[earlier.id] for earlier, later in pairwise(trials)]
    costs = Costs(
        reserve_s=max(0.0, starts[trials[0].id] - born[trials[0].id]),
        start_cold_s=max(0.0, lead[trials[0].id] - starts[trials[0].id]),
        start_warm_s=max(0.0, median(warm)),
        end_s=max(0.0, median(ends[trial.id] - trial.history[-1]["timestamp"] for trial in trials)),
    )
    for probe in others:
        found = epochs_by_width(list(read_record(probe.sweep_folder).trials.values()))
        both = [width for width in found if width in epoch_s]
        if probe.ranks == first.ranks:
            costs = replace(costs, report_s=max(0.0, mean(found[width] - epoch_s[width] for width in both)))
        else:
            times_faster = mean(found[width] / epoch_s[width] for width in both)
            costs = replace(costs, efficiency=min(1.0, times_faster / first.ranks))
    return Measured(costs, {width: s * costs.speedup(first.ranks) for width, s in epoch_s.items()})


def epochs_by_width(trials: Sequence[TrialState]) -> dict[int, float]:
    """Return the mean seconds between two reports for each width; the mean of all where a width has none."""
    gaps: dict[int, list[float]] = {}
    for trial in trials:
        times = [report["timestamp"] for report in trial.history]
        gaps.setdefault(trial.config["hidden"], []).extend(later - earlier for earlier, later in pairwise(times))
    every = mean(gap for own in gaps.values() for gap in own)
    known = {width: mean(own) for width, own in gaps.items() if own}
    return {width: known.get(width, every) for width in (64, 128, 256)}


def lines_of(live: Live, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the record's lines of one kind."""
    return (line for line, _ in replayed(live.sweep_folder) if line["kind"] == kind)


def states(live: Live, wanted: Any) -> dict[str, float]:
    """Return when each trial came into one of the states (the last time)."""
    return {line["trial"]: line["time"] for line in lines_of(live, "state") if line["state"] in wanted}


def births(live: Live) -> dict[str, float]:
    """Return when each trial was created."""
    return {line["trial"]: line["time"] for line in lines_of(live, "trial")}


# --- judging ----------------------------------------------------------------------------------------------


def judge(live: Live, measured: Measured) -> dict[str, Any]:
    """Compare a live sweep with its simulation."""
    state = read_record(live.sweep_folder)
    same, reports = same_decisions(live)
    simulated = simulation_of(live, state, measured)
    took = max(states(live, TERMINAL).values()) - min(births(live).values())
    row = {
        "sweep": live.scheduler,
        "workers": live.ranks,
        "trials": live.trials,
        "whole": sum(len(trial.history) == live.epochs for trial in state.trials.values()),
        "simulated_whole": sum(trial.reports == live.epochs for trial in simulated.trials),
        "reports": reports,
        "same": same,
        "live_s": took,
        "simulated_s": simulated.makespan_s,
        "error": simulated.makespan_s / took - 1,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def simulation_of(live: Live, state: SweepState, measured: Measured) -> Simulation:
    """Simulate a live sweep with the costs that were measured elsewhere."""
    return simulate(
        Reported(state, measured),
        scheduler=live.make_scheduler(),
        num_samples=live.trials,
        workers=live.ranks,
        slots=SLOTS,
        max_concurrent=SLOTS // live.ranks,
        max_epochs=live.epochs,
        costs=measured.costs,
    )


def same_decisions(live: Live) -> tuple[int, int]:
    """Tell a new scheduler the reports in their live order; return how often it decides alike, and of how many."""
    scheduler = live.make_scheduler()
    lines = [line for line, _ in replayed(live.sweep_folder)]
    decisions = decided(lines)
    if isinstance(scheduler, str):
        return sum(one == TrialScheduler.CONTINUE for one in decisions), len(decisions)
    scheduler.set_search_properties(None if getattr(scheduler, "_metric", None) else "loss",
                                    None if getattr(scheduler, "_mode", None) else "min")  # fmt: skip
    trials: dict[str, Trial] = {}
    others = _Others(trials)
    state, same, answers = SweepState(), 0, iter(decisions)
    for line in lines:
        apply(state, line)
        trial = trials.get(line.get("trial", ""))
        if line["kind"] == "trial":
            trial = Trial("live", stub=True, trial_id=line["trial"], config=dict(line["config"]))
            trials[line["trial"]] = trial
            scheduler.on_trial_add(others, trial)
        elif line["kind"] == "report" and trial is not None:
            result = {
                **line["metrics"],
                "training_iteration": line["training_iteration"],
                "time_total_s": state.trials[line["trial"]].trained,
            }
            trial.run_metadata.last_result = result
            same += scheduler.on_trial_result(others, trial, result) == next(answers)
        elif line["kind"] == "state" and trial is not None:
            trial.set_status(Trial.TERMINATED if line["state"] in TERMINAL else line["state"])
            if line["state"] in TERMINAL:
                scheduler.on_trial_complete(others, trial, trial.last_result)
    return same, len(decisions)


def decided(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the scheduler said to each report: a pause is recorded as the trial's next state."""
    found: list[str] = []
    last: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "report":
            last[line["trial"]] = len(found)
            found.append(line["decision"])
        elif line["kind"] == "state" and line["state"] == PAUSED:
            found[last[line["trial"]]] = TrialScheduler.PAUSE
    return found


class _Others:
    """Stands for the controller, of whom these schedulers ask which trials live."""

    def __init__(self, trials: Mapping[str, Trial]) -> None:
        self._trials = trials

    def get_live_trials(self) -> list[Trial]:
        """Return those that have not ended."""
        return [trial for trial in self._trials.values() if not trial.is_finished()]


# --- what is printed and left -----------------------------------------------------------------------------


def report(rows: Sequence[Mapping[str, Any]], measured: Measured, args: argparse.Namespace) -> None:
    """Print costs and the table."""
    costs = ", ".join(f"{name} {value:.3g}" for name, value in asdict(measured.costs).items()
                      if value != getattr(Costs(), name))  # fmt: skip
    widths = ", ".join(f"{seconds:.3f} s ({width} wide)" for width, seconds in measured.alone_s.items())
    print(f"\nfidelity on {os.cpu_count()} cores. Measured on {len(args.probes)} probes: {costs}; an epoch on one")
    print(f"worker {widths}.\n")
    head = [
        "judged sweep",
        "workers",
        "trials",
        "whole (simulated)",
        "decisions alike",
        "live s",
        "simulated s",
        "error",
    ]
    lines = [
        [
            *(row["sweep"], str(row["workers"]), str(row["trials"]), f"{row['whole']} ({row['simulated_whole']})"),
            *(f"{row['same']} of {row['reports']}", show(row["live_s"]), show(row["simulated_s"])),
            f"{100 * row['error']:+.1f} %",
        ]
        for row in rows
    ]
    print(table(head, lines))
    errors = [abs(row["error"]) for row in rows]
    same, reports = (sum(row[key] for row in rows) for key in ("same", "reports"))
    headline("decisions of a live sweep that the simulator makes alike", same / reports, "", of=f"{same} of {reports}")
    what, of = "makespan of a simulated sweep, error at most", f"n = {len(rows)} sweeps, median {median(errors):.3f}"
    headline(what, max(errors), "", of=of, most=LIMIT, digits=3)
    print(f"\nmakespan: {100 * median(errors):.1f} % in the median, {100 * max(errors):.1f} % at most (asked: 10 %)")


if __name__ == "__main__":
    sys.exit(main())
