"""A small network on generated data, which the scripts beside it train."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


def points(count: int, seed: int) -> TensorDataset:
    """Return points in 8 dimensions and what is to be learnt of them."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sin().sum(1, keepdim=True) + x[:, :1] * x[:, 1:2]))


def network(hidden: int, dropout: float) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(hidden, 1)
    )


class Model(pl.LightningModule):
    def __init__(self, lr: float = 0.05, hidden: int = 32, dropout: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = network(hidden, dropout)

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Data(pl.LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(points(512, seed=0), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(points(128, seed=1), self.batch_size)
