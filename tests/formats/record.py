"""Record a sweep with a version of tunelight, for the tests of what later versions read: at each new minor version.

    python tests/formats/record.py 0.3

writes ``tests/formats/0.3``, in place of the version before. ``--from FOLDER`` takes another version, installed there
by ``pip install --no-deps --target FOLDER``. The sweep runs in /tmp/sweep, under the host name localhost where this
process may set one, so that the record names nothing of the machine. Its first trial finishes, the second fails, the
third is stopped by ASHA, and the fourth is cut off with a checkpoint; the fifth never begins.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
THERE = Path("/tmp/sweep")
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh") if os.geteuid() == 0 else ()
KEPT = ("*.yaml", "record*.jsonl", "owners/*", "trial_*/*.json*", "trial_*/log.txt", "*/checkpoints/*")
LIMIT_S = 240


def record() -> None:
    """Run the sweep, and interrupt its fourth trial after a report."""
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(THERE / "lib"),
        "HOME": str(THERE / "home"),
    }
    command = [*NAMED, "python", "-m", "tunelight"]
    words = ["run", "space.yaml", "--name", "recorded", "--storage", "runs", "-q"]
    child = subprocess.Popen([*command, *words], cwd=THERE, env=env)
    try:
        file, end = THERE / "runs" / "recorded" / "record.jsonl", time.monotonic() + LIMIT_S
        while not (file.exists() and '"trial":"00003","training_iteration":1' in file.read_text()):
            assert child.poll() is None, "the sweep ended too early"
            assert time.monotonic() < end, "the fourth trial does not report"
            time.sleep(0.05)
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(60)


def keep(target: Path) -> None:
    """Copy what a later version reads, checkpoints compressed: of the first trial the last, of the fourth all."""
    sweep = THERE / "runs" / "recorded"
    for before in HERE.glob("[0-9]*"):
        shutil.rmtree(before)
    for path in sorted(found for pattern in KEPT for found in sweep.glob(pattern) if found.stat().st_size):
        last = max((sweep / "trial_00000" / "checkpoints").iterdir()).stem
        if path.parent.name == "checkpoints" and path.parts[-3] != "trial_00003" and path.stem != last:
            continue
        copy = target / "sweep" / path.relative_to(sweep)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ckpt":
            copy.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        else:
            shutil.copy(path, copy)
    shutil.copy(THERE / "space.yaml", target)


def main() -> None:
    """Record a sweep, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as in CHANGELOG.md, without the last number: 0.3")
    parser.add_argument("--from", dest="source", type=Path, default=HERE.parents[1])
    told = parser.parse_args()
    shutil.rmtree(THERE, ignore_errors=True)
    (THERE / "home").mkdir(parents=True)
    for found in told.source.glob("tunelight*"):
        shutil.copytree(found, THERE / "lib" / found.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("space.yaml", "recorded_model.py"):
        shutil.copy(HERE / name, THERE)
    record()
    keep(HERE / told.version)


if __name__ == "__main__":
    main()
