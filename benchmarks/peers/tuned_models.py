"""Models and data for tune_up.py: an MLP, a vision transformer, and images that are slow to read."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tunelight.compat.lightning import pl
from tunelight.extras.digits import DigitsClassifier
from tunelight.extras.zoo import VisionTransformer

SAMPLES = 8192
__all__ = ["DigitsClassifier", "Images", "SlowImages", "VisionTransformer"]


class Drawn(Dataset[Any]):
    """Random images of 8 x 8, each read in ``read_s`` seconds."""

    def __init__(self, samples: int, read_s: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(samples, 1, 8, 8, generator=generator)
        self.labels = torch.randint(10, (samples,), generator=generator)
        self.read_s = read_s

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.read_s:
            time.sleep(self.read_s)
        return self.images[index], self.labels[index]


class Images(pl.LightningDataModule):
    """Serve random images."""

    read_s = 0.0

    def __init__(self, batch_size: int = 128, num_workers: int = 0, samples: int = SAMPLES) -> None:
        super().__init__()
        self.batch_size, self.num_workers, self.samples = batch_size, num_workers, samples

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training images."""
        return self._loader(self.samples)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return an eighth as many images."""
        return self._loader(self.samples // 8)

    def _loader(self, samples: int) -> DataLoader[Any]:
        return DataLoader(
            Drawn(samples, self.read_s),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )


class SlowImages(Images):
    """Serve random images, each of which waits for a disk."""

    read_s = 4e-4
