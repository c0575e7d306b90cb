"""The floor of a cold start: ``ray.init`` and a worker's imports, each timed in a process of its own."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


def time_ray() -> dict[str, float]:
    """Return the seconds of ``ray.init`` for a local Ray, and of the import before it."""
    begin = time.time()
    import ray

    imported = time.time()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)  # as tunelight starts it
    ready = time.time()
    ray.shutdown()
    return {"import": imported - begin, "init": ready - imported, "ready": ready}


def time_imports() -> dict[str, float]:
    """Return the seconds that a worker's imports take: Ray, torch, Lightning, the model and its data."""
    begin = time.time()
    import lightning_parts  # noqa: F401 - imported to be timed
    import ray  # noqa: F401 - imported to be timed
    import sklearn.datasets  # noqa: F401 - imported to be timed

    ready = time.time()
    return {"import": ready - begin, "ready": ready}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["ray", "imports"], required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    Path(args.out).write_text(json.dumps(time_ray() if args.what == "ray" else time_imports()))
