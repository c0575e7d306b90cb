"""Row g: a new torchrun for each trial, as an agent starts a sweep's program."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from workload import Job, run_peer


def start_each(job: Job, args: argparse.Namespace) -> None:
    """Run the script for every configuration, one after another."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    script = str(Path(__file__).with_name("script_fit.py"))
    for config in job.configs:
        given = [f"--{name}={value}" for name, value in config.items()]
        subprocess.run([*torchrun, script, "--job", args.config_file, *given], check=True)


if __name__ == "__main__":
    run_peer(start_each)
