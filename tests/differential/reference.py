"""Trains programs by Lightning's own DDP.

`python -m torch.distributed.run --nproc-per-node 2 -m tests.differential.reference wanted FOLDER...`: each folder holds
a program; its outcome goes to `wanted` in it. With one process they are trained by DDP, too: it shuffles where a plain
process does not.
"""

from __future__ import annotations

import importlib
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.differential.observe import maker, observed
from tunelight.compat.lightning import DDPStrategy


def load(folder: Path) -> ModuleType:
    """Import a folder's program, as the module beside a script that it is."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(f"program_{folder.name}")


def main(reference: str, folders: list[str]) -> None:
    """Train the programs one after another, up to the first that fails on a rank: its ranks may disagree then."""
    torch.set_num_threads(1)

    rank = int(os.environ["RANK"])

    def strategy(unused: bool) -> dict[str, Any]:
        ddp = DDPStrategy(find_unused_parameters=unused, timeout=timedelta(seconds=20))
        return {"strategy": ddp, "devices": int(os.environ["WORLD_SIZE"])}

    for name in folders:
        folder = Path(name)
        wanted = folder / reference
        wanted.mkdir(exist_ok=True)
        raised = observed(load(folder).main, maker(wanted, strategy), wanted, lambda: rank)
        Path(wanted, f"done-{rank}").touch()
        if raised is not None:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
