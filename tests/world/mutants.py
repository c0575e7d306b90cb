"""Plausible mistakes in tunelight's core: the world has to find them.

    python -m tests.world.mutants --seconds 600 --only the_best_is_the_last   # or all, for so long each at most

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


class Told(NamedTuple):
    """The first sweep of which a check told: its seed, the checks and the first text, and how many sweeps it took."""

    seed: int
    checks: set[str]
    text: str
    sweeps: int


def told(folder: Path, seed: int, *more: str) -> Told | None:
    """Run sweeps with the package and tests of a folder until a check tells of one."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.world", "--seed", str(seed), "--first", *more], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (sweeps,) = re.findall(r"^(\d+) sweeps", ended.stdout, re.MULTILINE) or ["0"]
    if (said := re.findall(r"^    ([a-z_]+): (.*)", ended.stdout, re.MULTILINE)) and sweeps != "0":
        return Told(seed + int(sweeps) - 1, {check for check, _ in said}, said[0][1][:100], int(sweeps))
    if ended.returncode and sweeps == "0":
        raise RuntimeError(ended.stderr[-2000:])
    return Told(seed + int(sweeps) - 1, set(), "", int(sweeps)) if ended.returncode else None


def look(mutant: Mutant, seed: int, seconds: float) -> str:
    """Say how a mutant was found by its own check, in a sweep that holds without it; empty if it was not."""
    began, sweeps, others = time.monotonic(), 0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        mutated(mutant, Path(folder))
        while (left := seconds - (time.monotonic() - began)) > 0:
            found = told(Path(folder), seed, "--seconds", f"{left:.0f}")
            if found is None:
                break
            seed, sweeps = found.seed + 1, sweeps + found.sweeps
            if mutant.check not in found.checks:
                others |= found.checks
            elif told(ROOT, found.seed, "--sweeps", "1") is None:
                first = f", before by {', '.join(sorted(others))}" if others else ""
                return f"after {sweeps} sweeps, {time.monotonic() - began:.0f} s{first}: {found.text}"
    sys.stdout.write(f"after {sweeps} sweeps by {sorted(others)} alone\n")
    return ""


def main() -> int:
    """Print a table of the mutants: by which check each was found, and after how many sweeps and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="how long to look for each")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", nargs="*", default=list(mutants()), help="these mutants")
    args = parser.parse_args()
    known, found = mutants(), {}
    for name in args.only:
        found[name] = look(known[name], args.seed, args.seconds)
        sys.stdout.write(f"{name} ({known[name].check}): {found[name] or 'NOT FOUND'}\n")
        sys.stdout.flush()
    missed = [name for name, words in found.items() if not words]
    sys.stdout.write(f"{len(found) - len(missed)} of {len(found)} were found by their checks; not: {missed}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
