"""The kit of all benchmarks: their command lines, and peers that run and are measured in processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

PEERS = Path(__file__).parent / "peers"
SAMPLE_S = 0.5
"""Seconds between two samples of memory. One costs a few ms for each process, hence no shorter."""


def options(
    doc: str | None, short: str, *, rows: Sequence[str] = (), few: Sequence[str] = (), repeats: int = 0, **more: Any
) -> argparse.Namespace:
    """Return a benchmark's command line.

    Args:
        short: what a short run does, which says that all still runs and measures nothing.
        rows: what ``--only`` takes some of; all by default, and ``few`` (or all) in a short run.
        repeats: how often by default; a short run does all once.
        more: further options with a default and a help text each; one whose default is a tuple takes one of its values.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=short)
    if rows:
        parser.add_argument("--only", help=f"some of {','.join(rows)} (default: all)")
    if repeats:
        parser.add_argument("--repeats", type=int, help=f"how often (default {repeats})")
    for name, (default, text) in more.items():
        several = isinstance(default, tuple)
        kind: dict[str, Any] = {"choices": default} if several else {"type": type(default)}
        first = default[0] if several else default
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=text)
        else:
            parser.add_argument(f"--{name}", **kind, default=first, help=f"{text} (default {first})")
    args = parser.parse_args()
    if rows:
        chosen = args.only.split(",") if args.only else (args.short and few) or rows
        if unknown := set(chosen) - set(rows):
            parser.error(f"--only takes some of {','.join(rows)}, not {','.join(sorted(unknown))}")
        args.only = [row for row in rows if row in chosen]
    if repeats:
        args.repeats = args.repeats or (1 if args.short else repeats)
    return args


# --- peers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """How to run a row: a file in ``peers`` and which of its ways, and how often at most; ``job`` is its own part."""

    title: str
    script: str
    way: str
    most: int = 100
    job: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """One run of a peer: ``begin`` and ``done`` in seconds of the wall clock, ``peak_mb`` in MB (PSS)."""

    begin: float
    called: float | None = None
    """When the peer's imports were done and its job was called (``tunelight.run``, say)."""
    done: float | None = None
    trials: list[dict[str, Any]] = field(default_factory=list)
    peak_mb: float | None = None
    error: str | None = None


class Tree:
    """A process and whatever it started, also what has lost its parent since it was first seen."""

    def __init__(self, pid: int) -> None:
        self.seen: dict[int, psutil.Process] = {pid: psutil.Process(pid)}
        self.peak = 0

    def look(self) -> list[psutil.Process]:
        """Return the processes that are alive, with those started since the last look."""
        for process in list(self.seen.values()):
            try:
                for child in process.children(recursive=True):
                    self.seen.setdefault(child.pid, child)
            except psutil.Error:
                continue
        return [process for process in self.seen.values() if is_alive(process)]

    def sample(self) -> None:
        """Add up the proportional set size (shared pages counted once in all), and keep the peak."""
        total = 0
        for process in self.look():
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        self.peak = max(self.peak, total)

    def end(self) -> None:
        """Kill whatever is still alive."""
        alive = self.look()
        for process in alive:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(alive, timeout=10)


def is_alive(process: psutil.Process) -> bool:
    """Return whether it is the process that it was, and no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def environment(**more: str) -> dict[str, str]:
    """Return the environment that all peers run in: one thread, no GPU, no Ray but their own, and ``more``."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TUNE_", "PL_"))}
    root = Path(__file__).resolve().parent.parent
    path = [str(PEERS.resolve()), str(root), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    own = {"CUDA_VISIBLE_DEVICES": "", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **own, **more}


@dataclass
class Row:
    """All runs of one peer."""

    key: str
    title: str
    runs: list[Run] = field(default_factory=list)
    skipped: str | None = None

    @property
    def good(self) -> list[Run]:
        """The runs that ended as they should."""
        return [run for run in self.runs if run.error is None]


@contextmanager
def said(what: str) -> Iterator[None]:
    """Say what is being measured, and how long it took."""
    print(f"{what} ...", file=sys.stderr, end="", flush=True)
    began = time.monotonic()
    yield
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def run_rows(
    peers: Mapping[str, Peer],
    args: argparse.Namespace,
    play: Callable[[str, int, Path], Run],
    skipped: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Row]:
    """Run the rows that were asked for, in turns, so that all meet the same noise; ``play`` runs one in a folder."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit on all of this leaves no process either
    rows = {key: Row(key, peers[key].title, skipped=skipped.get(key)) for key in args.only}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        for number in range(args.repeats):
            for key, row in rows.items():
                if row.skipped is None and number < peers[key].most:
                    folder = Path(parent, f"{key}{number}")
                    folder.mkdir()
                    with said(f"{key}: {row.title}, run {number + 1}"):
                        row.runs.append(play(key, number, folder))
    return rows


def failed(rows: Mapping[Any, Row], *, theirs: Callable[[Row, str], bool] = lambda *_: False) -> int:
    """Say why rows are missing, and return the exit status: 1 where one failed by more than ``theirs`` fault."""
    status = 0
    for row in rows.values():
        if row.skipped:
            print(f"\n{row.key}: not run: {row.skipped}")
        for error in {run.error for run in row.runs if run.error}:
            print(f"\n{row.key}: failed: {error}")
            status = status if theirs(row, error) else 1
    return status


def run_peer(peer: Peer, job: Any, limit_s: float, *, memory: bool = False) -> Run:
    """Run a peer until it ends or ``limit_s`` seconds have passed; leave no process behind.

    ``job`` is its `Work`, and has a folder; ``memory`` samples that of its process tree.
    """
    folder = Path(job.folder)
    given, out, log = folder / "job.json", folder / "out.json", folder / "log.txt"
    given.write_text(job.text())
    command = [sys.executable, str(PEERS / peer.script), peer.way, str(given), str(out)]
    with log.open("w") as file:
        run = Run(begin=time.time())
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment(**peer.environment), start_new_session=True
        )
        tree = Tree(process.pid)
        try:
            code = _wait(process, tree, limit_s, memory)
        finally:
            tree.end()
    run.peak_mb = tree.peak / 1e6 if memory else None
    if code != 0 or not out.exists():
        tail = "\n    ".join(log.read_text(errors="replace").strip().splitlines()[-12:])
        reason = f"did not end within {limit_s:.0f} s" if code is None else f"exit status {code}"
        run.error = f"{peer.script} {peer.way}: {reason}; the end of its output:\n    {tail}"
        return run
    measured = json.loads(out.read_text())
    run.called, run.done, run.trials = measured["called"], measured["done"], measured["trials"]
    return run


def _wait(process: subprocess.Popen[bytes], tree: Tree, limit_s: float, memory: bool) -> int | None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            return process.wait(timeout=SAMPLE_S)
        except subprocess.TimeoutExpired:
            tree.sample() if memory else tree.look()
    return None
