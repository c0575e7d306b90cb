"""`tunelight doctor --cluster` on a cluster: ``python -m tests.cluster.doctor ADDRESS OPTION...``."""

from __future__ import annotations

import os
import sys

import ray

from tests.cluster.scenes import wait_for_nodes
from tunelight.cli import app


def main(address: str, *options: str) -> None:
    """Look at the cluster; end as the command does."""
    ray.init(address=address, log_to_driver=False)
    wait_for_nodes(int(os.environ.get("NODES", "3")))
    ray.shutdown()
    app(["doctor", "--cluster", "--address", address, *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
