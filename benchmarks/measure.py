"""Run a peer in a process of its own, and measure its time and the memory of its process tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

PEERS = Path(__file__).parent / "peers"
SAMPLE_S = 0.5
"""Seconds between two samples of memory. One costs a few ms for each process, hence no shorter."""


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
    env.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", RAY_USAGE_STATS_ENABLED="0", **more)
    return env


def run_peer(
    script: str,
    arguments: Sequence[str],
    folder: Path,
    limit_s: float,
    *,
    memory: bool,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Run ``peers/script`` until it ends or ``limit_s`` seconds have passed; leave no process behind.

    ``memory`` samples that of its process tree; ``more`` is added to its environment.
    """
    out, log = folder / "out.json", folder / "log.txt"
    command = [sys.executable, str(PEERS / script), *arguments, "--out", str(out)]
    with log.open("w") as file:
        run = Run(begin=time.time())
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment(**more), start_new_session=True
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
        run.error = f"{script}: {reason}; the end of its output:\n    {tail}"
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


def time_floor(what: str, folder: Path, at_once: int = 1) -> dict[str, float]:
    """Time ``peers/floor.py --what ray|imports``, in as many processes at once.

    ``start`` is the seconds from starting the process to all imports done (interpreter included), the
    longest of those processes.
    """
    begin = time.time()
    outs = [folder / f"{what}-{index}.json" for index in range(at_once)]
    command = [sys.executable, str(PEERS / "floor.py"), "--what", what, "--out"]
    processes = [
        subprocess.Popen([*command, str(out)], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for out in outs
    ]
    codes = [process.wait(timeout=120) for process in processes]
    if any(codes):
        raise RuntimeError(f"peers/floor.py --what {what} ended with {codes}: run it by hand to see why")
    measured: list[dict[str, float]] = [json.loads(out.read_text()) for out in outs]
    slowest = max(measured, key=lambda one: one["ready"])
    return {**slowest, "start": slowest["ready"] - begin}
