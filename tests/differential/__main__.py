"""Draws programs, trains each by Lightning's own DDP and by tunelight, and prints where outcomes differ.

python -m tests.differential --number 20 --seed 1
python -m tests.differential --program DIGEST.json      # one program again
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.differential import compare, grammar, render
from tests.differential.explained import explained

Differences = dict[str, dict[str, list[str]]]
"""A program's digest -> way -> a line for each difference."""
WAYS = ("trial", "driver", "killed")
FINAL = ("weights", "optimizers", "schedules", "callbacks", "progress", "frozen")
"""What must be equal after a disturbance; what is logged before it is another process's."""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--number", type=int, default=20, help="how many programs")
    parser.add_argument("--seed", default="0", help="of the programs that are drawn")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    parser.add_argument("--program", type=Path, nargs="*", help="files of programs, instead of drawing some")
    parser.add_argument("--folder", type=Path, help="where programs and outcomes go")
    parser.add_argument("--lightning", default="pytorch_lightning", help="the package of Lightning")
    parser.add_argument("--shrink", action="store_true", help="reduce each program that differs")
    arguments = parser.parse_args()
    os.environ["TUNELIGHT_LIGHTNING"] = arguments.lightning
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="differential-"))
    if arguments.program:
        programs = [{**grammar.plainest(), **json.loads(path.read_text())} for path in arguments.program]
    else:
        rng = random.Random(arguments.seed)
        programs = [grammar.draw(rng) for _ in range(arguments.number)]
    found = run(programs, arguments.ways.split(","), folder, arguments.lightning)
    left = unexplained(programs, found)
    report(programs, found, left, folder)
    for program in programs if arguments.shrink else ():
        for way in list(left.get(grammar.digest(program), ()))[:1]:
            plain = shrink(program, way, folder / "smaller", arguments.lightning)
            beyond = {name: value for name, value in plain.items() if value != grammar.plainest()[name]}
            print(f"\n{grammar.digest(program)} by {way} shrinks to {json.dumps(beyond)}")
    sys.exit(min(len(left), 100))


def run(programs: Sequence[grammar.Program], ways: Sequence[str], folder: Path, package: str) -> Differences:
    """Train programs in each way; return the differences of each, if any."""
    import ray

    from tests.differential import ways as training

    folders = []
    for program in programs:
        here = folder / grammar.digest(program)
        here.mkdir(parents=True, exist_ok=True)
        (here / "program.json").write_text(json.dumps(program, indent=1))
        (here / f"program_{here.name}.py").write_text(render.render(program, package))
        folders.append(here)
    began = time.monotonic()
    training.by_lightning(folders, package)
    print(f"{len(folders)} programs by Lightning's DDP: {time.monotonic() - began:.0f} s", flush=True)
    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.WARNING)
    for way in ways:
        for here in folders:
            shutil.rmtree(here / way, ignore_errors=True)
        began = time.monotonic()
        if way == "driver":
            training.by_driver(folders)
        else:
            training.by_trials(folders, getattr(training, way), folder / "sweeps")
        print(f"{way}: {time.monotonic() - began:.0f} s", flush=True)
    return {one.name: {way: differing(one, way) for way in ways} for one in folders}


def differing(folder: Path, way: str) -> list[str]:
    """Return where a way's outcome of a program differs from Lightning's."""
    wanted, got = compare.outcome(folder / "wanted"), compare.outcome(folder / way)
    if any(name.startswith("raised-") for name in wanted):
        for name in [name for name in got if "-fit-" in name and name not in wanted]:
            del got[name]  # Lightning calls no teardown after an exception
    for name in [name for name in got if name.startswith("raised-") and name in wanted]:
        if wanted[name]["type"] in got[name]["kinds"] and wanted[name]["text"] in got[name]["text"]:
            del wanted[name], got[name]  # a driver's error names the rank, and is one of the rank's kind
    if way == "driver":
        wanted, got = _of_rank_zero(wanted), _of_rank_zero(got)
    else:
        for seen in (*wanted.values(), *got.values()):
            if isinstance(seen, dict) and "hooks" in seen:
                seen["hooks"].pop("on_save_checkpoint", None)  # its reports have checkpoints
    if way == "killed":
        wanted, got = _final(wanted), _final(got)
    return list(compare.differences(wanted, got))


def _of_rank_zero(outcome: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a program returned or raised on other ranks: a driver has what rank 0 has."""
    return {
        name: value
        for name, value in outcome.items()
        if not name.startswith(("returned-", "raised-")) or name.endswith("-0")
    }


def shrink(program: grammar.Program, way: str, folder: Path, package: str) -> grammar.Program:
    """Return the plainest program that can be reached from ``program`` in single steps and still differs in a way."""
    while candidates := grammar.smaller(program):
        left = unexplained(candidates, run(candidates, [way], folder, package))
        plainer = next((one for one in candidates if grammar.digest(one) in left), None)
        if plainer is None:
            break
        program = plainer
    return program


def _final(outcome: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in outcome.items() if name.startswith(("returned", "raised"))}
    for name, value in outcome.items():
        if "-fit-" in name and isinstance(value, dict):
            number, _, rank, _ = name.split("-")
            kept[f"fit-{number}-{rank}"] = {part: value[part] for part in FINAL}  # the last of several starts
    return kept


def unexplained(programs: Sequence[grammar.Program], found: Differences) -> Differences:
    """Return the differences that are not explained, without the programs and ways that have none left."""
    left = {}
    for program in programs:
        ways = found[grammar.digest(program)]
        lines = {way: [line for line in ways[way] if explained(way, line, program) is None] for way in ways}
        if any(lines.values()):
            left[grammar.digest(program)] = {way: some for way, some in lines.items() if some}
    return left


def report(programs: Sequence[grammar.Program], found: Differences, left: Differences, folder: Path) -> None:
    """Print differences by kind, those that are explained, and how much of the grammar was reached.

    ``left``: the differences in ``found`` that are not explained.
    """
    meant: Counter[str] = Counter()
    for program in programs:
        for way, lines in found[grammar.digest(program)].items():
            known = [explained(way, line, program) for line in lines]
            meant.update({f"docs/{one.page}: {one.reason}" for one in known if one is not None})
    kinds: dict[str, set[str]] = defaultdict(set)
    for digest, ways in left.items():
        print(f"\n{digest}: {(folder / digest / f'program_{digest}.py').read_text().splitlines()[0][3:-3]}")
        for way, lines in ways.items():
            for line in lines:
                kinds[f"{way} {compare.kind(line)}"].add(digest)
            for line in lines[:6]:
                print(f"  {way} {line}")
            if len(lines) > 6:
                print(f"  {way}: {len(lines) - 6} more")
    counted = Counter({kind: len(digests) for kind, digests in kinds.items()})
    print("\nKinds of differences, by programs:")
    for kind, count in counted.most_common(40):
        print(f"  {count:4} {kind}")
    print("\nExplained differences, by programs and ways:")
    for reason, count in meant.most_common():
        print(f"  {count:4} {reason}")
    reached = set().union(*(grammar.reached(program) for program in programs)) if programs else set()
    every = grammar.every_choice()
    print(f"\nChoices of the grammar that were reached: {len(reached & every)} of {len(every)}.")
    print(f"{len(programs)} programs, {len(left)} with differences that are not explained.")
    print(f"Programs and outcomes: {folder}")


if __name__ == "__main__":
    main()
