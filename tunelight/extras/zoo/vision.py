"""Classifiers of images of any size: a plain network and a vision transformer."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tunelight.digits import Classifier


class ImageMLP(Classifier):
    """Classify images of ``channels`` x ``size`` x ``size`` with ``layers`` hidden layers of ``hidden`` units each."""

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        size: int = 28,
        channels: int = 1,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [channels * size * size, *[hidden] * layers]
        parts: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            parts += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.net = nn.Sequential(*parts, nn.Linear(widths[-1], classes))


class _Patches(nn.Module):
    """Cut images into patches, and give each an embedding with its place: [B, C, S, S] to [B, patches, hidden]."""

    def __init__(self, size: int, channels: int, patch: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, hidden, patch, stride=patch)
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2, hidden) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return tokens


class _Mean(nn.Module):
    """Average over the patches: [B, patches, hidden] to [B, hidden]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class VisionTransformer(Classifier):
    """Classify square images by attention between their patches; the embeddings' mean is classified.

    After Dosovitskiy et al., "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929). The defaults are for
    CIFAR-10. Raises: ValueError unless ``patch`` divides ``size``, and ``heads`` divides ``hidden``.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.05,
        size: int = 32,
        channels: int = 3,
        patch: int = 4,
        hidden: int = 384,
        layers: int = 12,
        heads: int = 8,
        mlp: int = 768,
        dropout: float = 0.0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"patch={patch} must divide size={size}: images are cut into whole patches.")
        if hidden % heads:
            raise ValueError(f"heads={heads} must divide hidden={hidden}: each head gets the same share of it.")
        self.save_hyperparameters()
        layer = nn.TransformerEncoderLayer(
            hidden, heads, mlp, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.net = nn.Sequential(
            _Patches(size, channels, patch, hidden),
            nn.TransformerEncoder(layer, layers, nn.LayerNorm(hidden), enable_nested_tensor=False),
            _Mean(),
            nn.Linear(hidden, classes),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW with the configuration's learning rate and weight decay."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"])
