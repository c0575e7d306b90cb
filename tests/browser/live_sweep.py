"""A sweep for tests that steer one from elsewhere: its trials report every half a second, and print."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import tunelight as tl


def save(number: int, path: str) -> None:
    Path(path).write_text(str(number))


def train(config: dict[str, Any]) -> None:
    path = tl.get_checkpoint_path()
    for number in range(1 if path is None else int(Path(path).read_text()) + 1, 400):
        time.sleep(0.4)
        sys.stdout.write(f"step {number} of lr {config['lr']:.3g}\n")
        tl.report({"loss": config["lr"] + 1 / number, "accuracy": 1 - 1 / number}, partial(save, number))


if __name__ == "__main__":
    storage, *more = sys.argv[1:]
    tl.run(
        {"lr": tl.loguniform(1e-3, 1e-1)},
        train=train,
        metric="loss",
        num_samples=2,
        scheduler="fifo",
        workers=1,
        cpus_per_worker=0.5,
        max_concurrent=2,
        seed=1,
        storage=storage,
        name="live",
        web="--web" in more,
        progress=False,
        resume="--resume" in more,
    )
