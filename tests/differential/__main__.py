"""Draws programs, trains each by Lightning's own DDP and by tunelight, and prints where outcomes differ.

python -m tests.differential --number 20 --seed 1 --each 3   # each program in three of the ways
python -m tests.differential --program tests/differential/found/weighted_sampler.json   # one program again
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
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tests.differential import compare, grammar, render
from tests.differential.explained import explained
from tests.differential.reference import SIZES
from tests.differential.ways import WAYS, by_lightning

Plan = dict[str, list[grammar.Program]]
"""Way -> the programs to train in it."""
Differences = dict[str, dict[str, list[str]]]
"""A program's digest -> way -> a line for each difference."""
FINAL = ("weights", "optimizers", "schedules", "callbacks", "progress", "frozen", "metrics")
"""What must be equal after a disturbance; what is logged before it is another process's."""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--number", type=int, default=20, help="how many programs")
    parser.add_argument("--seed", default="0", help="of the programs that are drawn")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    parser.add_argument("--each", type=int, help="in how many of the ways a program is trained, drawn for it (all)")
    parser.add_argument("--program", type=Path, nargs="*", help="files of programs, instead of drawing some")
    parser.add_argument("--folder", type=Path, help="where programs and outcomes go")
    parser.add_argument("--lightning", default="pytorch_lightning", help="the package of Lightning")
    parser.add_argument("--shrink", action="store_true", help="reduce each program that differs")
    arguments = parser.parse_args()
    os.environ["TUNELIGHT_LIGHTNING"] = arguments.lightning
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="differential-"))
    if arguments.program:
        programs = [grammar.read(path)[0] for path in arguments.program]
    else:
        rng = random.Random(arguments.seed)
        programs = [grammar.draw(rng) for _ in range(arguments.number)]
    plan = {way: list(programs) for way in arguments.ways.split(",")}
    if arguments.each:
        plan = drawn(programs, list(plan), arguments.each)
    found = run(plan, folder, arguments.lightning)
    left = unexplained(programs, found)
    report(programs, found, left, folder)
    for program in programs if arguments.shrink else ():
        for way in list(left.get(grammar.digest(program), ()))[:1]:
            plain = shrink(program, way, folder / "smaller", arguments.lightning)
            beyond = {name: value for name, value in plain.items() if value != grammar.plainest()[name]}
            print(f"\n{grammar.digest(program)} by {way} shrinks to {json.dumps({'ways': [way], 'program': beyond})}")
    sys.exit(min(len(left), 100))


def drawn(programs: Sequence[grammar.Program], ways: Sequence[str], each: int) -> Plan:
    """Return which programs are trained in which way: each in the first, and in some that are drawn for it."""
    plan: Plan = {way: [] for way in ways}
    for program in programs:
        rng = random.Random(grammar.digest(program))
        allowed = [way for way in ways[1:] if WAYS[way].allows(program)]
        for way in (ways[0], *rng.sample(allowed, min(each - 1, len(allowed)))):
            plan[way].append(program)
    return plan


def prepare(plan: Plan, folder: Path, package: str) -> dict[str, list[Path]]:
    """Write programs, and train by Lightning those that are not yet; return the folders of each way's programs."""
    folders: dict[str, Path] = {}
    for program in [program for programs in plan.values() for program in programs]:
        digest = grammar.digest(program)
        here = folders[digest] = folder / digest
        here.mkdir(parents=True, exist_ok=True)
        (here / "program.json").write_text(json.dumps(program, indent=1))
        (here / f"program_{digest}.py").write_text(render.render(program, package))
    of = {
        way: [folders[grammar.digest(one)] for one in programs if WAYS[way].allows(one)]
        for way, programs in plan.items()
    }
    needed: dict[str, list[Path]] = {}
    for reference in SIZES:
        some = {one: None for way in of if WAYS[way].reference == reference for one in of[way]}
        if left := [one for one in some if not (one / reference / "done-0").exists()]:
            needed[reference] = left
    _timed(f"{sum(map(len, needed.values()))} programs by Lightning", by_lightning, needed, package)
    return of


def run(plan: Plan, folder: Path, package: str) -> Differences:
    """Train programs by Lightning and in their ways; return the differences of each, if any."""
    import ray

    of = prepare(plan, folder, package)
    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.WARNING)
    for way, some in of.items():
        undisturbed = WAYS[way].reference
        if undisturbed in WAYS:
            _train(undisturbed, [one for one in some if not (one / undisturbed).exists()], folder)
        if undisturbed != way:
            _train(way, some, folder)
    found: Differences = {}
    for way, programs in plan.items():
        for program in programs:
            here = folder / grammar.digest(program)
            ways = found.setdefault(here.name, {})
            if (here / way).exists():
                ways[way] = differing(here, way)
    return found


def _train(way: str, folders: Sequence[Path], storage: Path) -> None:
    for here in folders:
        for name in (way, "killed-at", "leaves-at", "cut"):
            path = here / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    _timed(f"{len(folders)} programs by {way}", WAYS[way].train, folders, Path(tempfile.mkdtemp(dir=storage)))


def _timed(what: str, do: Callable[..., object], folders: Collection[Any], *rest: Any) -> None:
    if folders:
        began = time.monotonic()
        do(folders, *rest)
        print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def differing(folder: Path, name: str) -> list[str]:
    """Return where a way's outcome of a program differs from its reference."""
    way = WAYS[name]
    wanted, got = compare.outcome(folder / way.reference), compare.outcome(folder / name)
    raises = any(key.startswith("raised-") for key in wanted)
    if name == "parts":  # whose code returns nothing
        wanted = {key: value for key, value in wanted.items() if not key.startswith(("returned-", "raised-"))}
    if raises:
        for key in [key for key in got if key[0].isdigit() and key not in wanted]:
            del got[key]  # Lightning calls no teardown after an exception
        got["files"] = [one for one in got["files"] if not one.startswith(".tunelight/")]  # to go on from
        got["checkpoints"] = {one: kept for one, kept in got["checkpoints"].items() if one in got["files"]}
    for key in [key for key in got if key.startswith("raised-") and key in wanted]:
        if wanted[key]["type"] in got[key]["kinds"] and wanted[key]["text"] in got[key]["text"]:
            del wanted[key], got[key]  # a driver's error names the rank, and is one of the rank's kind
    wanted, got = (_compared(of, name, with_fits=not raises) for of in (wanted, got))
    trial = folder / "trial" / "reports.json"
    if trial.exists() and (folder / name / "reports.json").exists() and way.reference == "wanted":
        wanted["reports"] = json.loads(trial.read_text())
        got["reports"] = json.loads((folder / name / "reports.json").read_text())
    return list(compare.differences(wanted, got, way.tolerance))


def _compared(outcome: dict[str, Any], name: str, *, with_fits: bool) -> dict[str, Any]:
    """Return what is compared of an outcome in a way. ``with_fits``: False where a fit raised."""
    way = WAYS[name]
    if way.on == "driver":
        outcome = {  # what a program returned or raised on rank 0
            name: value
            for name, value in outcome.items()
            if not name.startswith(("returned-", "raised-")) or name.endswith("-0")
        }
    else:
        for seen in outcome.values():
            if isinstance(seen, dict) and "hooks" in seen:
                seen["hooks"].pop("on_save_checkpoint", None)  # its reports have checkpoints
    if way.on == "end":
        outcome = _final(outcome, with_fits=with_fits)
    if name == "resized":  # it may end with one worker, whose metrics are those of all samples
        outcome = {key: value for key, value in outcome.items() if not key.endswith("-1")}
        for fit in outcome.values():
            if isinstance(fit, dict):
                fit.pop("metrics", None)
    return outcome


def shrink(program: grammar.Program, way: str, folder: Path, package: str) -> grammar.Program:
    """Return the plainest program that can be reached from ``program`` in single steps and still differs in a way."""
    while candidates := grammar.smaller(program):
        left = unexplained(candidates, run({way: candidates}, folder, package))
        plainer = next((one for one in candidates if grammar.digest(one) in left), None)
        if plainer is None:
            break
        program = plainer
    return program


def _final(outcome: dict[str, Any], *, with_fits: bool) -> dict[str, Any]:
    """Return what is left in the end. ``with_fits``: False where a fit raised, of which start is not known."""
    kept = {name: value for name, value in outcome.items() if name.startswith(("returned", "raised"))}
    for name, value in outcome.items():
        if with_fits and "-fit-" in name and isinstance(value, dict):
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
    """Print the differences that are ``left`` of those found, which are explained, and how often each way was taken."""
    meant: Counter[str] = Counter()
    for program in programs:
        for way, lines in found[grammar.digest(program)].items():
            known = [explained(way, line, program) for line in lines]
            meant.update({f"docs/{one.page}: {one.reason}" for one in known if one is not None})
    for digest, ways in left.items():
        print(f"\n{digest}: {(folder / digest / f'program_{digest}.py').read_text().splitlines()[0][3:-3]}")
        for way, lines in ways.items():
            for line in lines[:6]:
                print(f"  {way} {line}")
            if len(lines) > 6:
                print(f"  {way}: {len(lines) - 6} more")
    print("\nExplained differences, by programs and ways:")
    for reason, count in meant.most_common():
        print(f"  {count:4} {reason}")
    trained = Counter(way for ways in found.values() for way in ways)
    print("\nPrograms by way: " + ", ".join(f"{way} {count}" for way, count in trained.most_common()))
    print(f"{len(programs)} programs, {len(left)} with differences that are not explained.")
    print(f"Programs and outcomes: {folder}")


if __name__ == "__main__":
    main()
