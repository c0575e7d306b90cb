"""Plausible mistakes in tunelight's core: the world has to find them.

    python -m tests.world.mutants --seconds 600           # each, for so long at most
    python -m tests.world.mutants --only double_reports   # one

Each is made in a copy of the package. A mutant is found where a check tells of a sweep that holds without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A mistake: in a file of the package, a text in place of another. ``check``: which check is meant for it."""

    path: str
    old: str
    new: str
    check: str


def mutants() -> dict[str, Mutant]:
    """Return the mutants of mutants.toml, by name."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {name: Mutant(**fields) for name, fields in found.items()}


def mutated(mutant: Mutant, folder: Path) -> None:
    """Copy package and tests into a folder, with the mistake. Raises: ValueError where its place is not there once."""
    for name in ("tunelight", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "tunelight" / mutant.path
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.path} has {text.count(mutant.old)} times: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new))


def main() -> int:
    """Print a table of the mutants: by which check each was found, and after how many sweeps and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="how long to look for each")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", nargs="*", default=list(mutants()), help="these mutants")
    args = parser.parse_args()
    missed = 0
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            mutated(mutants()[name], Path(folder))
            began = time.monotonic()
            command = [
                sys.executable,
                "-m",
                "tests.world",
                "--seed",
                str(args.seed),
                "--seconds",
                str(args.seconds),
                "--first",
            ]
            ended = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            told = re.findall(r"^    (\w+): (.*)", ended.stdout, re.MULTILINE)
            sweeps = re.findall(r"^(\d+) sweeps", ended.stdout, re.MULTILINE)
            found = f"{', '.join(sorted({check for check, _ in told}))}" if told else "NOT FOUND"
            missed += not told
            first = told[0][1][:100] if told else ended.stdout[-200:] + ended.stderr[-300:]
            sys.stdout.write(
                f"{name}: {found} (meant: {mutants()[name].check}), {sweeps[0] if sweeps else '?'} sweeps, "
                f"{time.monotonic() - began:.0f} s: {first}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{len(args.only) - missed} of {len(args.only)} mutants were found.\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
