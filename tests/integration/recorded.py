"""Runs a script under torchrun, and writes the val_loss of each of its validations.

python -m torch.distributed.run --nproc-per-node 2 -m tests.integration.recorded LOSSES SCRIPT [ARGUMENTS]
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch


class Losses(pl.Callback):
    """Keeps the losses of validations."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.found.append(float(trainer.callback_metrics["val_loss"]))


def main(path: str, script: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    losses, make = Losses(), pl.Trainer.__init__

    @functools.wraps(make)  # LightningCLI reads its signature
    def with_losses(self: Any, **given: Any) -> None:
        more = [*(given.pop("callbacks", None) or []), losses]
        make(self, **(given | {"callbacks": more, "logger": False, "enable_checkpointing": False}))

    pl.Trainer.__init__ = with_losses  # type: ignore[method-assign]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    if os.environ["RANK"] == "0" and losses.found:
        Path(path).write_text(json.dumps(losses.found))
    sys.stdout.flush()
    os._exit(0)  # threads of a process group that is left to the interpreter's end abort it now and then


if __name__ == "__main__":
    main(*sys.argv[1:])
