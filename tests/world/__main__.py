"""Sweeps to which everything happens, on virtual time:

    python -m tests.world --seconds 60 --seed 1     # so long, from this seed on
    python -m tests.world --sweeps 20 --seed 1      # so many
    python -m tests.world --replay 17               # one, with its log of events

A seed draws the kind of sweep, what happens to it and the order of everything. It prints what does not hold, and
returns 1 where anything does not.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

HANGS_S = 60.0
"""How long a sweep may take here; more is no matter of virtual time."""


def main() -> int:
    """Run sweeps, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help="how long to go on")
    parser.add_argument("--sweeps", type=int, help="how many sweeps to run")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one, and print its events")
    parser.add_argument("--kind", help="the kind of all sweeps (else the seed draws it)")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what happens
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    from tests.world.sweeps import KINDS, load, run

    logging.disable(logging.CRITICAL)
    load()
    for kind in KINDS:  # once, for what is imported and cached on the way
        with tempfile.TemporaryDirectory() as folder:
            run(0, kind, Path(folder), lambda *_: None, lambda _: ())
    gc.collect()
    gc.freeze()
    seeds = [args.replay] if args.replay is not None else itertools.count(args.seed)
    all_of_them: list[tuple[float, float, float]] = []
    began = time.monotonic()
    for seed in seeds:
        if args.sweeps is not None and len(all_of_them) >= args.sweeps:
            break
        if args.seconds is not None and time.monotonic() - began >= args.seconds:
            break
        all_of_them.append(apart(seed, args.kind or random.Random(seed).choice(list(KINDS)), args.replay is not None))
    minutes = (time.monotonic() - began) / 60
    wrong, faults, hours = (sum(numbers) for numbers in zip(*all_of_them, strict=True))
    sys.stdout.write(
        f"{len(all_of_them)} sweeps, {faults:.0f} faults, {hours:.1f} virtual hours, {wrong:.0f} with something that "
        f"does not hold; {len(all_of_them) / minutes:.0f} sweeps and {faults / minutes:.0f} faults a minute.\n"
    )
    return 1 if wrong else 0


def apart(seed: int, kind: str, replay: bool) -> tuple[float, float, float]:
    """Run a sweep in a fork of this process, which no earlier one has touched; print what is wrong.

    Return whether anything is, the number of faults, and the virtual hours.
    """
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        try:
            told = one(seed, kind, replay=replay)
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
            traceback.print_exc()
            told = (1.0, 0.0, 0.0)
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        sys.stdout.write(f"seed {seed} ({kind}): its process has ended, or waits for something of this machine\n")
        return 1.0, 0.0, 0.0
    wrong, faults, hours = json.loads(said)
    return wrong, faults, hours


def one(seed: int, kind: str, *, replay: bool) -> tuple[float, float, float]:
    """Run a sweep; see :func:`apart`."""
    from tests.world import checks, faults
    from tests.world.sweeps import run

    folder = Path(tempfile.gettempdir(), "tunelight-world", str(seed))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    world = run(seed, kind, folder, faults.disturb, checks.wrong)
    if replay:
        sys.stdout.writelines(f"{at:10.3f} {text}\n" for at, text in world.kernel.logged)
    if world.wrong:
        sys.stdout.write(f"seed {seed} ({kind}):\n")
        sys.stdout.writelines(f"    {text}\n" for text in (*world.faults, *world.wrong, world.where))
    else:
        shutil.rmtree(folder)
    return float(bool(world.wrong)), float(len(world.faults)), world.kernel.now / 3600


if __name__ == "__main__":
    sys.exit(main())
