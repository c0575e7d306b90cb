"""Fine-tuning: a network that knows five digits learns all ten."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from tunelight.digits import Classifier, DigitsCNN, load_digits
from tunelight.errors import CheckpointError

_KNOWN = 5
_STEPS = 40


class DigitsFineTuner(Classifier):
    """Fine-tune a DigitsCNN on all ten digits: its body goes on at ``lr``, a new last layer learns at ``head_lr``.

    Args:
        lr: of the body.
        head_lr: of the last layer.
        frozen: leave the body as it is; ``lr`` is then without effect.
        channels: of the DigitsCNN.
        checkpoint: a Lightning checkpoint of a DigitsCNN with as many channels; without one, a DigitsCNN learns the
            digits 0 to 4 first, in 40 steps and always the same ones.

    Raises: CheckpointError for one that is not there or does not fit.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        head_lr: float = 1e-2,
        frozen: bool = False,
        channels: int = 16,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        body = DigitsCNN(channels=channels)
        try:
            weights = _learned(channels) if checkpoint is None else _read(checkpoint)
            body.load_state_dict(weights)
        except (OSError, RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"checkpoint={checkpoint!r} gives no DigitsCNN of {channels} channels: {error}. Name a checkpoint of "
                "one."
            ) from error
        self.body = nn.Sequential(*list(body.net.children())[:-1]).requires_grad_(not frozen)
        self.head = nn.Linear(2 * channels * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape [B, 10]."""
        logits: Tensor = self.head(self.body(x))
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a learning rate for body and head each."""
        groups = [{"params": self.head.parameters(), "lr": self.hparams["head_lr"]}]
        if not self.hparams["frozen"]:
            groups.append({"params": self.body.parameters(), "lr": self.hparams["lr"]})
        return torch.optim.Adam(groups)


def _read(checkpoint: str) -> dict[str, Tensor]:
    path = Path(checkpoint).expanduser()
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return weights


@functools.lru_cache(maxsize=4)
def _learned(channels: int) -> dict[str, Tensor]:
    """Return the weights of a DigitsCNN that has learned the digits 0 to 4; the same in every process."""
    images, labels = load_digits()[0].tensors
    known = labels < _KNOWN
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.device("cpu"):
        torch.manual_seed(0)
        model = DigitsCNN(lr=1e-2, channels=channels)
        optimizer = model.configure_optimizers()
        for _ in range(_STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[known]), labels[known]).backward()
            optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
