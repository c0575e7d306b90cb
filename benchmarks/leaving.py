"""Ask for workers back, and end drivers by SIGTERM: how fast trials leave, and what they train again.

    python benchmarks/leaving.py                    # 20 commands, 10 signals: about five minutes
    python benchmarks/leaving.py --yields 4 --signals 0
    python benchmarks/leaving.py --short            # for CI

Yield: of a sweep of two trials with two workers each, `max_workers` is set to 2, 4, 0 and 4 again and again; measured
is the time from the command to the free CPUs in Ray, and from the command to the first step of who comes back.
SIGTERM: a driver gets it at a random moment, and SIGKILL to its whole process group ten seconds later; then the same
command goes on. ``trained again``: the steps that were trained before and after. The exit status is 1 if a driver did
not exit with 75, a step was trained again, a report is lost, or metrics are not those of the sweep that nothing ended.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import ray
from figures import headline, median, spread, table
from leaving_sweep import EPOCHS, WAIT_S, beside, run, steps, until

import tunelight as tl
from tunelight.record import read_lines

GRACE_S = 10.0


def training(folder: Path) -> int:
    """Return how often trials have begun to train."""
    return sum(line["kind"] == "training" for line in read_lines(folder)) if (folder / "record.jsonl").exists() else 0


def begun(driver: subprocess.Popen[bytes], folder: Path, before: int) -> bool:
    """Tell whether a trial has begun to train since then, or the driver has ended."""
    return training(folder) > before or driver.poll() is not None


def others_train(log: Path, since: float, trained: set[str]) -> bool:
    """Tell whether another trial than these has trained a step since then."""
    return any(when > since and name not in trained for name, _, when in steps(log))


def told(results: tl.SweepResults) -> list[Any]:
    """Return the reports of all trials."""
    return [[(one["training_iteration"], one["val_loss"]) for one in trial.history] for trial in results.trials]


def yields(count: int, folder: Path, wanted: list[Any]) -> tuple[list[list[str]], list[str]]:
    """Give workers back and take them, ``count`` times in all; return rows of a table, and what is wrong."""
    freed, back = dict[int, list[float]](), list[float]()
    log, trials = folder / "steps", 2 + count // 6

    def frees(cpus: float) -> bool:
        return bool(ray.available_resources().get("CPU", 0.0) == cpus)

    def person() -> None:
        until(lambda: training(folder / "yields") >= 2, "two trials that train")
        sweep = tl.attach("yields", folder)
        for number in range(count):
            most, left = ((2, 2.0), (4, 0.0), (0, 4.0), (4, 0.0))[number % 4]
            asked = time.time()
            sweep.set(max_workers=most)
            until(partial(frees, left), f"{left:g} free CPUs")
            at = time.time()
            if left:
                freed.setdefault(most, []).append(at - asked)
                time.sleep(0.5)
            else:
                trained = {name for name, _, when in steps(log) if asked - 0.5 < when < asked}
                until(partial(others_train, log, asked, trained), "one that comes back")
                back.append(time.time() - asked)
        sweep.set(max_workers=None)

    results = beside(person, str(folder), "yields", trials, log=str(log))
    again = sum(times - 1 for times in Counter((trial, step) for trial, step, _ in steps(log)).values())
    rows = [
        [f"max_workers {most}: free CPUs", str(len(times)), f"{median(times):.2f}", f"{max(times):.2f}"]
        for most, times in sorted(freed.items())
    ]
    for most, times in sorted(freed.items()):
        headline(f"max_workers set to {most}: free CPUs after", median(times), "s", of=spread(times))
    headline("workers taken again: first step after", median(back), "s", of=spread(back))
    headline("steps trained again after max_workers", again, "", of=f"{count} commands", most=0, digits=0)
    if back:
        rows.append(["taken again: first step", str(len(back)), f"{median(back):.2f}", f"{max(back):.2f}"])
    wrong = [] if told(results)[:2] == wanted[:2] else ["yields: other metrics"]
    return rows, wrong + ([f"yields: {again} steps were trained again"] if again else [])


def signals(count: int, folder: Path, wanted: list[Any], rng: random.Random) -> tuple[list[list[str]], list[str]]:
    """End drivers by SIGTERM at random moments, ``count`` times in all; return rows of a table, and what is wrong."""
    taken, codes, wrong, again, sweeps = list[float](), list[int](), list[str](), 0, 0
    while len(taken) < count:
        name, log = f"signals-{sweeps}", folder / f"signals-{sweeps}.txt"
        sweeps += 1
        ended = False
        while not ended:
            environment = {**os.environ, "TUNELIGHT_GRACE_S": str(GRACE_S - 1)}
            script = Path(__file__).parent / "peers" / "leaving_sweep.py"
            command = [sys.executable, str(script), str(folder), name, "2", str(log)]
            with (folder / f"{name}.log").open("ab") as output:
                driver = subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                )
            if len(taken) < count:
                until(partial(begun, driver, folder / name, training(folder / name)), "training")
                time.sleep(rng.uniform(0.0, 6.0))
                if driver.poll() is None:
                    at = time.time()
                    driver.send_signal(signal.SIGTERM)
                    try:
                        driver.wait(GRACE_S)
                    except subprocess.TimeoutExpired:
                        os.killpg(driver.pid, signal.SIGKILL)
                    codes.append(driver.wait())
                    taken.append(time.time() - at)
            ended = driver.wait(WAIT_S) == 0
            if driver.returncode not in (0, 75):
                wrong.append(f"{name}: exit code {driver.returncode}")
                if len(wrong) > 3:
                    return [], wrong
        again += sum(times - 1 for times in Counter((trial, step) for trial, step, _ in steps(log)).values())
        if told(tl.SweepResults.load(folder / name)) != wanted[:2]:
            wrong.append(f"{name}: other metrics")
    wrong += [f"SIGTERM: {again} steps were trained again"] if again else []
    ways = ", ".join(f"{code} ({times} times)" for code, times in Counter(codes).items())
    headline("SIGTERM: the driver has ended after", median(taken), "s", of=spread(taken))
    headline("steps trained again after SIGTERM", again, "", of=f"{len(taken)} signals", most=0, digits=0)
    rows = [["SIGTERM: the driver has ended", str(len(taken)), f"{median(taken):.2f}", f"{max(taken):.2f}"]]
    print(f"Exit codes: {ways}. Steps trained again: {again}. Sweeps: {sweeps}.")
    return rows, wrong


def main() -> int:
    """Run both parts, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yields", type=int, default=20, help="commands (default 20)")
    parser.add_argument("--signals", type=int, default=10, help="signals (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default 1)")
    parser.add_argument("--short", action="store_true", help="two commands and one signal")
    args = parser.parse_args()
    count, ends = (2, 1) if args.short else (args.yields, args.signals)
    with tempfile.TemporaryDirectory(prefix="leaving-") as place:
        folder = Path(place)
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        wanted = told(run(str(folder), "whole", 2))
        rows, wrong = list[list[str]](), list[str]()
        if [len(trial) for trial in wanted] != [EPOCHS, EPOCHS]:
            wrong.append("the sweep that nothing ends has not come to its end")
        if count:
            more, bad = yields(count, folder, wanted)
            rows, wrong = rows + more, wrong + bad
        ray.shutdown()
        if ends:
            more, bad = signals(ends, folder, wanted, random.Random(args.seed))
            rows, wrong = rows + more, wrong + bad
        print(table(["", "times", "median s", "most s"], rows, False))
    for what in wrong:
        print(what)
    print("All promises were kept." if not wrong else f"{len(wrong)} promises were broken.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
