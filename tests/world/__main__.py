"""Sweeps to which everything happens, on virtual time:

    python -m tests.world --seconds 60 --seed 1     # so long, from this seed on
    python -m tests.world --sweeps 20 --seed 1      # so many
    python -m tests.world --replay 17               # one, with its log of events
    python -m tests.world --shrink 17               # leave out what it does not need to go wrong, and keep the rest
    python -m tests.world --found                   # all that once went wrong: tests/world/found

A seed draws the kind of sweep, what happens to it and the order of everything. It prints what does not hold, and
returns 1 where anything does not.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import itertools
import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_TOGETHER = 16
"""How many sweeps run in one process, one after another: a fork's first takes a third longer than the others."""
HANGS_S = 60.0
"""How long a sweep may take here; more is no matter of virtual time."""
MEMORY = "/dev/shm"
"""Where sweeps write their many small files, if it is there."""
FOUND = Path(__file__).parent / "found"


class Sweep(NamedTuple):
    """One to run: with its kind and what is to happen; from its seed alone, where those are None."""

    seed: int
    kind: str | None = None
    planned: Any = None
    name: str = ""


class Outcome(NamedTuple):
    """What came of it: the text of what is wrong, the number of faults, and virtual hours."""

    wrong: str
    faults: int
    hours: float


def main() -> int:
    """Run sweeps, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help="how long to go on")
    parser.add_argument("--sweeps", type=int, help="how many sweeps to run")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one, and print its events")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find what of its faults is needed, and keep it")
    parser.add_argument("--found", nargs="*", metavar="NAME", help="run those of tests/world/found, or some of them")
    parser.add_argument("--first", action="store_true", help="end with the first that is wrong")
    parser.add_argument("--kind", help="the kind of all sweeps (else the seed draws it)")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what happens
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    _ready()
    if args.shrink is not None:
        return _shrink(args.shrink, args.kind)
    sweeps: Iterable[Sweep] = (Sweep(seed, args.kind) for seed in itertools.count(args.seed))
    if args.replay is not None:
        sweeps = [Sweep(args.replay, args.kind)]
    elif args.found is not None:
        sweeps = [sweep for sweep in _found() if sweep.name in args.found or not args.found]
    outcomes: list[Outcome] = []
    began = time.monotonic()
    sweeps = itertools.islice(sweeps, args.sweeps)
    if args.seconds is not None:
        sweeps = itertools.takewhile(lambda _: time.monotonic() - began < args.seconds, sweeps)
    for outcome in apart(sweeps, replay=args.replay is not None):
        outcomes.append(outcome)
        sys.stdout.write(outcome.wrong)
        if args.first and outcome.wrong:
            break
    minutes = (time.monotonic() - began) / 60
    wrong, faults = sum(bool(one.wrong) for one in outcomes), sum(one.faults for one in outcomes)
    hours = sum(one.hours for one in outcomes)
    sys.stdout.write(
        f"{len(outcomes)} sweeps, {faults} faults, {hours:.1f} virtual hours, {wrong} with something that does not "
        f"hold; {len(outcomes) / minutes:.0f} sweeps and {faults / minutes:.0f} faults a minute.\n"
    )
    return 1 if wrong else 0


def _ready() -> None:
    """Import what sweeps need, before any is forked."""
    from tests.world import checks
    from tests.world.sweeps import KINDS, load, run

    logging.disable(logging.CRITICAL)
    load()
    for kind in KINDS:  # once, for what is imported and cached on the way
        with tempfile.TemporaryDirectory() as folder:
            run(0, kind, Path(folder), judge=checks.wrong, look=checks.now)
    gc.collect()
    gc.freeze()
    gc.disable()  # a fork ends before its garbage matters


def _found() -> Iterator[Sweep]:
    """Yield what once went wrong."""
    from tests.world.faults import Planned

    for path in sorted(FOUND.glob("*.json")):
        kept = json.loads(path.read_text())
        yield Sweep(kept["seed"], kept["kind"], [Planned(*one) for one in kept["faults"]], path.stem)


def _shrink(seed: int, kind: str | None) -> int:
    """Leave out fault after fault, as long as the same check tells of it; write the rest into ``found``."""
    from tests.world import faults

    kind = kind or _kind(seed)
    planned = faults.plan(seed, kind)
    first = _forked([Sweep(seed, kind, planned)], replay=False)[0].wrong
    if not first:
        sys.stdout.write(f"nothing is wrong with seed {seed} ({kind})\n")
        return 1
    for one in list(planned):
        less = [other for other in planned if other is not one]
        if _check(wrong := _forked([Sweep(seed, kind, less)], replay=False)[0].wrong) == _check(first):
            planned, first = less, wrong
    kept = {"was": "", "seed": seed, "kind": kind, "faults": planned}
    path = FOUND / f"seed_{seed}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n")
    sys.stdout.write(f"{first}Wrote {path}: give it a name, and its sentence.\n")
    return 0


def _check(wrong: str) -> str:
    """Return the name of the check that tells."""
    told = re.search(r"^    (\w+): ", wrong, re.MULTILINE)
    return told[1] if told else ""


def _kind(seed: int) -> str:
    from tests.world.sweeps import KINDS

    return random.Random(seed).choice(list(KINDS))


def apart(sweeps: Iterable[Sweep], *, replay: bool = False) -> Iterator[Outcome]:
    """Run sweeps in forks of this process, some in each; what is wrong with one, it must be wrong with alone."""
    sweeps = iter(sweeps)
    while batch := list(itertools.islice(sweeps, _TOGETHER)):
        outcomes = _forked(batch, replay=replay)
        if len(outcomes) > 1 and outcomes[-1].wrong:
            alone = _forked([batch[len(outcomes) - 1]], replay=replay)[0]
            before = f"(only in one process with those from seed {batch[0].seed} on)\n" + outcomes[-1].wrong
            outcomes[-1] = alone if alone.wrong else alone._replace(wrong=before)
        yield from outcomes
        sweeps = itertools.chain(batch[len(outcomes) :], sweeps)


def _forked(batch: list[Sweep], *, replay: bool) -> list[Outcome]:
    """Run sweeps in a fork, one after another, up to the first with which something is wrong."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(write, "w", buffering=1) as answer:
            for sweep in batch:
                faulthandler.dump_traceback_later(HANGS_S, exit=True)
                try:
                    outcome = _run(sweep, replay=replay)
                    sys.stdout.flush()
                except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
                    outcome = Outcome(f"seed {sweep.seed}: {traceback.format_exc()}", 0, 0.0)
                answer.write(json.dumps(outcome) + "\n")
                if outcome.wrong:
                    break
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        outcomes = [Outcome(*json.loads(line)) for line in answer]
    os.waitpid(child, 0)
    if len(outcomes) < len(batch) and not (outcomes and outcomes[-1].wrong):
        ended = f"seed {batch[len(outcomes)].seed}: its process has ended, or waits for something of this machine\n"
        outcomes.append(Outcome(ended, 0, 0.0))
    return outcomes


def _run(sweep: Sweep, *, replay: bool) -> Outcome:
    """Run a sweep here."""
    from tests.world import checks, faults
    from tests.world.sweeps import run

    kind = sweep.kind or _kind(sweep.seed)
    planned = faults.plan(sweep.seed, kind) if sweep.planned is None else sweep.planned
    folder = Path(MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir(), "tunelight-world")
    folder /= f"{os.getppid()}-{sweep.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    disturb = functools.partial(faults.disturb, planned=planned)
    world = run(sweep.seed, kind, folder, disturb=disturb, judge=checks.wrong, look=checks.now)
    if replay:
        sys.stdout.writelines(f"{at:10.3f} {text}\n" for at, text in world.kernel.logged)
    wrong = ""
    if world.wrong:
        lines = (*world.faults, *world.wrong, *([world.where] if replay else ()))
        wrong = f"{sweep.name or f'seed {sweep.seed}'} ({kind}):\n" + "".join(f"    {text}\n" for text in lines)
    if not world.wrong or not replay:
        shutil.rmtree(folder)
    return Outcome(wrong, len(world.faults), world.kernel.now / 3600)


if __name__ == "__main__":
    sys.exit(main())
