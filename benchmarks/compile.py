"""What torch.compile costs a trial: seconds to the end of the first step of a small transformer, on the CPU.

  cold         a new process, with nothing compiled before
  disk cache   a new process that finds what the first has left in inductor's cache on disk
  warm gang    trials of one sweep on a gang of one worker: of a shape that an earlier trial had, and of a new one

Of the sweep's trials ten differ in learning rate and dropout (of two values), and two in width.

    python benchmarks/compile.py            # about 10 minutes on 2 cores
    python benchmarks/compile.py --short    # three trials, once, and no kernels
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import headline, median, show, table

WIDTHS, DROPOUTS, LIMIT_S = (32, 48), (0.1, 0.2), 600
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def configs(*, short: bool) -> list[dict[str, Any]]:
    """Return the sweep's configurations."""
    backend = "aot_eager" if short else "inductor"
    same = [(WIDTHS[0], DROPOUTS[number % 2], 1e-3 * 1.5**number) for number in range(3 if short else 10)]
    other = [] if short else [(WIDTHS[1], DROPOUTS[0], lr) for lr in (1e-3, 1e-2)]
    return [
        {"width": width, "dropout": dropout, "lr": lr, "backend": backend} for width, dropout, lr in (*same, *other)
    ]


def alone(config: dict[str, Any]) -> None:
    """Print how long the first step takes in this process, and since it began."""
    import psutil
    from compiled_model import fit

    first = fit(config, "auto")
    print("FOUND", json.dumps([first, time.time() - psutil.Process().create_time()]), flush=True)


def cold(cache: Path, config: dict[str, Any]) -> tuple[float, float]:
    """Return what `alone` finds in a new process."""
    done = subprocess.run(
        [sys.executable, __file__, "--alone", json.dumps(config)], capture_output=True, text=True, timeout=LIMIT_S,
        check=False, env=os.environ | {CACHE: str(cache)},
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    if not found:
        raise SystemExit(f"{done.stdout[-1000:]}{done.stderr[-3000:]}")
    first, whole = json.loads(found[0][6:])
    return first, whole


def sweep(folder: Path, tried: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float, int]]:
    """Return for each trial, in order: its configuration, the seconds to its first step, and the graphs it made."""
    os.environ[CACHE] = str(folder / "cache")
    import tunelight as tl

    def train(config: dict[str, Any]) -> None:
        from compiled_model import fit

        tl.report({"first": fit(tried[config["number"]], tl.RayStrategy())})

    results = tl.run(
        {"number": tl.grid_search(list(range(len(tried))))}, train, metric="first", mode="min", searcher="grid",
        scheduler="fifo", workers=1, max_concurrent=1, storage=folder / "runs", name="compiled", progress=False,
    )  # fmt: skip
    return [(tried[trial.config["number"]], trial.history[0]["first"], trial.compiled) for trial in results.trials]


def main() -> int:
    """Measure, and print a table of medians with ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="three trials, once, and no kernels")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind, and sweeps (default 3)")
    parser.add_argument("--alone", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone is not None:
        alone(args.alone)
        return 0
    tried = configs(short=args.short)
    found: dict[str, list[tuple[float, float]]] = {"cold": [], "disk cache": []}
    known: list[float] = []
    new: list[float] = []
    graphs: list[int] = []
    with tempfile.TemporaryDirectory(prefix="compile-") as parent:
        for number in range(1 if args.short else args.repeats):
            folder = Path(parent, str(number))
            for kind, times in found.items():
                print(f"{kind}, process {number + 1} ...", file=sys.stderr, flush=True)
                times.append(cold(folder / "alone", tried[0]))
            print(f"sweep {number + 1} ...", file=sys.stderr, flush=True)
            seen: set[tuple[Any, ...]] = set()
            for config, first, made in sweep(folder, tried):
                shape = config["width"], config["dropout"]
                (known if shape in seen else new).append(first)
                if shape in seen:
                    graphs.append(made)
                seen.add(shape)
    base = median(first for first, _ in found["cold"])
    lines = [
        [kind, show(median(first for first, _ in times)), show(base / median(first for first, _ in times)),
         show(median(whole for _, whole in times))]
        for kind, times in found.items()
    ]  # fmt: skip
    lines += [
        [f"warm gang, {what}", show(median(times)), show(base / median(times)), "-"]
        for what, times in (("new shape or dropout", new), ("known", known))
    ]
    disk = median(first for first, _ in found["disk cache"])
    for what, seconds in (
        ("a new process, inductor's cache on disk", disk),
        ("a trial of a known shape", median(known)),
    ):
        headline(f"first step of a compiled model: cold / {what}", base / seconds, of=f"cold {base:.1f} s")
    headline("graphs made by trials of a known shape", sum(graphs), "", of=f"n = {len(graphs)}", most=0, digits=0)
    print(f"\ncompile: seconds to the end of the first step, {os.cpu_count()} cores; medians.\n")
    print(table(["", "first step s", "times faster", "from the process's start s"], lines, markdown=False))
    print(f"\nGraphs made by trials of a known shape: {sum(graphs)}, in {len(graphs)} trials.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
