"""Small Transformers of torch's own parts: one that reads its layers' weights, and one that is tied as T5 is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tunelight.compat.lightning import pl

WORDS, WIDTH, LENGTH = 20, 16, 8


def layer(kind: Any = nn.TransformerEncoderLayer, **settings: Any) -> Any:
    return kind(WIDTH, nhead=2, dim_feedforward=32, batch_first=True, **settings)


def texts(size: int = 16, batch_size: int = 4) -> DataLoader[Any]:
    words = torch.arange(size * LENGTH).reshape(size, LENGTH) * 7 % WORDS
    return DataLoader(TensorDataset(words), batch_size=batch_size)


class Transformer(pl.LightningModule):
    """A base class: learns to say a text's words, or its first one, and logs how well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Any:
        raise NotImplementedError

    def loss(self, words: Tensor) -> Tensor:
        said: Tensor = self(words)
        return functional.cross_entropy(said.flatten(0, -2), (words if said.dim() == 3 else words[:, 0]).flatten())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch[0])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch[0]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Encoder(Transformer):
    """torch's encoder, which reads its layers' weights by itself where nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(), 2)

    def forward(self, words: Tensor) -> Any:
        return self.head(self.encoder(self.embed(words)))


class Stack(nn.Module):
    """A half of a translator; it holds the embedding that both halves share."""

    def __init__(self, embed: nn.Embedding, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed, self.layers = embed, nn.ModuleList(layers)

    def forward(self, words: Tensor, *memory: Tensor) -> Tensor:
        x = self.embed(words)
        for one in self.layers:
            x = one(x, *memory)
        return x  # type: ignore[no-any-return]  # torch's modules return anything


class Translator(Transformer):
    """Encoder, decoder and head share one embedding, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight
        decoder = [layer(nn.TransformerDecoderLayer), layer(nn.TransformerDecoderLayer)]
        self.stacks = nn.ModuleDict(
            {"encoder": Stack(self.embed, [layer(), layer()]), "decoder": Stack(self.embed, decoder)}
        )

    def forward(self, words: Tensor) -> Any:
        return self.head(self.stacks["decoder"](words, self.stacks["encoder"](words)))


TRANSFORMERS = (Encoder, Translator)
