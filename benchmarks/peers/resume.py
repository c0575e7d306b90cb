"""Go on with a recorded sweep (see ../scale.py) for one trial more, and print how long that took to begin, in seconds.

python resume.py FOLDER TRIALS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from jobs import local_ray

import tunelight as tl
from tunelight.schedulers import ASHA

SPACE = {
    "lr": tl.loguniform(1e-4, 1e-1),
    "drop": tl.uniform(0, 1),
    "hidden": tl.choice([32, 64, 128]),
    **{f"key{index}": tl.uniform(0, 1) for index in range(5)},
    "momentum": {"uniform": [0, 1], "when": {"hidden": 64}},
}


def train(config: dict[str, Any]) -> None:
    """Report when it began."""
    tl.report({"loss": config["lr"], "at": time.time()})


def main() -> None:
    """Resume, with a Ray that is up."""
    folder, trials = Path(sys.argv[1]), int(sys.argv[2])
    with local_ray(1, include_dashboard=False):
        began = time.time()
        results = tl.run(
            SPACE, train, metric="loss", num_samples=trials + 1, scheduler=ASHA(max_t=31), storage=str(folder.parent),
            name=folder.name, seed=7, progress=False, resume=True,
        )  # fmt: skip
    print(results.trials[-1].history[0]["at"] - began)


if __name__ == "__main__":
    main()
