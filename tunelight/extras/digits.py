"""Small real training code for the demo, the tests and the benchmarks: scikit-learn's digits.

1,797 grey images of 8 x 8 pixels and ten classes, bundled with scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tunelight.compat.lightning import pl
from tunelight.errors import TunelightError

SIZES = (1077, 360, 360)
"""Images in train, validation and test. 360 divides by most world sizes, so no shard is padded."""

Batch = tuple[Tensor, Tensor]


class DigitsMissingError(TunelightError, ImportError):
    """scikit-learn, which brings the digits, is not installed."""


@functools.lru_cache(maxsize=4)
def load_digits(seed: int = 0) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Return train, validation and test sets, split by ``seed``; kept for later calls in this process.

    Images are float32 of shape [N, 1, 8, 8] in 0..1, labels int64 of shape [N].
    Raises: DigitsMissingError without scikit-learn.
    """
    try:
        from sklearn import datasets  # an extra, needed here only
    except ImportError as error:
        raise DigitsMissingError(
            "The digits data set comes with scikit-learn, which is not installed here. "
            "Install it with: pip install 'tunelight[demo]' (or pip install scikit-learn)"
        ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    y = torch.as_tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    first, second = SIZES[0], SIZES[0] + SIZES[1]
    train, val, test = order[:first], order[first:second], order[second:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[val], y[val]), TensorDataset(x[test], y[test])


class Parts(pl.LightningDataModule):
    """Serve ``train``, ``val`` and ``test``, which ``setup`` sets, in batches of ``batch_size`` a rank."""

    train: TensorDataset
    val: TensorDataset
    test: TensorDataset

    def __init__(self, batch_size: int, num_workers: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training images, shuffled."""
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the validation images."""
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test images."""
        return self._loader(self.test)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test images once more, to predict."""
        return self._loader(self.test)

    def _loader(self, part: TensorDataset, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(
            part,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )


class DigitsData(Parts):
    """Serve scikit-learn's digits, split once by ``seed`` into 1,077 / 360 / 360 images.

    ``batch_size`` counts images a rank; ``num_workers`` is the DataLoader's.
    Raises: DigitsMissingError in ``setup`` without scikit-learn.
    """

    def __init__(self, batch_size: int = 64, seed: int = 0, num_workers: int = 0) -> None:
        super().__init__(batch_size, num_workers)
        self.seed = seed

    def setup(self, stage: str | None = None) -> None:
        """Load the images, or take those that this process has already."""
        self.train, self.val, self.test = load_digits(self.seed)


class Classifier(pl.LightningModule):
    """Cross entropy and Adam around ``self.net``, which maps images [B, C, H, W] to [B, classes]."""

    net: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape [B, classes]."""
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch; log ``train_loss`` once an epoch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``val_loss`` and ``val_acc``, averaged over all ranks."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``test_loss`` and ``test_acc``, averaged over all ranks."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the class that the model sees in each image of a batch, shape [B]."""
        logits: Tensor = self(batch[0])
        return logits.argmax(dim=-1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with the configuration's learning rate."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])

    def _evaluate(self, batch: Batch, stage: str) -> None:
        x, y = batch
        logits = self(x)
        metrics = {
            f"{stage}_loss": nn.functional.cross_entropy(logits, y),
            f"{stage}_acc": (logits.argmax(dim=-1) == y).float().mean(),
        }
        self.log_dict(metrics, sync_dist=True, batch_size=len(y))


class DigitsClassifier(Classifier):
    """Classify the digits with one hidden layer; a learning rate near 1e-2 passes 0.95 in 8 epochs."""

    def __init__(self, lr: float = 1e-3, hidden: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10)
        )


class DigitsCNN(Classifier):
    """Classify the digits with two 3 x 3 convolutions of ``channels`` and twice as many channels."""

    def __init__(self, lr: float = 1e-3, channels: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * channels * 4, 10),
        )  # fmt: skip
