"""Sweeps to which everything happens, on virtual time:

    python -m tests.world --seconds 60 --seed 1     # so long, from this seed on
    python -m tests.world --sweeps 20 --seed 1      # so many
    python -m tests.world --replay 17               # one, with its log of events

A seed draws the kind of sweep, what happens to it and the order of everything. It prints what does not hold, and
returns 1 where anything does not.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Run sweeps, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help="how long to go on, in seconds of processor time")
    parser.add_argument("--sweeps", type=int, help="how many sweeps to run")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one, and print its events")
    parser.add_argument("--kind", help="the kind of all sweeps (else the seed draws it)")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what happens
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    from tests.world import checks, faults
    from tests.world.sweeps import KINDS, load, run

    logging.disable(logging.CRITICAL)
    load()
    seeds = [args.replay] if args.replay is not None else itertools.count(args.seed)
    began, sweeps, bad, happened, hours = time.process_time(), 0, 0, 0, 0.0
    for seed in seeds:
        if args.sweeps is not None and sweeps >= args.sweeps:
            break
        if args.seconds is not None and time.process_time() - began >= args.seconds:
            break
        kind = args.kind or random.Random(seed).choice(list(KINDS))
        folder = Path(tempfile.gettempdir(), "tunelight-world", str(seed))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        world = run(seed, kind, folder, faults.disturb, checks.wrong)
        sweeps, happened, hours = sweeps + 1, happened + len(world.faults), hours + world.kernel.now / 3600
        bad += bool(world.wrong)
        if args.replay is not None:
            sys.stdout.writelines(f"{at:10.3f} {text}\n" for at, text in world.kernel.logged)
        if world.wrong:
            sys.stdout.write(
                f"seed {seed} ({kind}):\n"
                + "".join(f"    {text}\n" for text in (*world.faults, *world.wrong, world.where))
            )
        else:
            shutil.rmtree(folder)
        sys.stdout.flush()
    seconds = time.process_time() - began
    sys.stdout.write(
        f"{sweeps} sweeps, {happened} faults, {hours:.1f} virtual hours, {bad} with something that does not hold; "
        f"{60 * sweeps / seconds:.0f} sweeps and {60 * happened / seconds:.0f} faults a minute.\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
