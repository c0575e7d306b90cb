"""A sweep in which somebody branches trials: ``python -m tests.integration.branching STORAGE``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import tunelight as tl
from tests.integration.leaving import Data, Slow, settings

SPACE = {
    "model.lr": tl.loguniform(0.001, 0.1), "model.hidden": tl.choice([8, 16]), "model.drop": tl.uniform(0.0, 0.5),
}  # fmt: skip


class Net(Slow):
    """Says who trains it, and what its optimizer has at its first step; takes its time at the first one if told to."""

    def __init__(self, lr: float = 0.1, hidden: int = 8, drop: float = 0.2) -> None:
        super().__init__(lr)
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Dropout(drop), torch.nn.Linear(hidden, 1))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if not hasattr(self, "_said"):
            self._said = True
            here = Path(tl.get_context().trial_dir)
            told = (
                f"{os.getpid()} {self.global_step} {self.trainer.optimizers[0].param_groups[0]['lr']} {time.time()}\n"
            )
            with (here / f"starts-{self.global_rank}.txt").open("a") as file:
                file.write(told)
            if (here.parent / "holds").exists():
                time.sleep(2.0)
        return super().training_step(batch, number)


class Few(Data):
    """Epochs of less than a second."""

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(2 * 20 * 4, True)


def first_step(trial: Path) -> tuple[int, int, float, float]:
    """Return of a trial's last start: rank 0's process, the step at which it began, its rate, and the time."""
    pid, step, rate, at = (trial / "starts-0.txt").read_text().splitlines()[-1].split()
    return int(pid), int(step), float(rate), float(at)


def of(folder: Path | str, **more: Any) -> dict[str, Any]:
    """Return the settings of the sweep."""
    return settings(folder, "s", **{"model": Net, "data": Few, "max_epochs": 5, "cpus_per_worker": 0.5, **more})


if __name__ == "__main__":
    tl.run(SPACE, **of(sys.argv[1], resume=True))
