"""A GAN that draws digits, judged by how far what it draws lies from real images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tunelight.compat.lightning import pl
from tunelight.digits import Batch

_PIXELS = 64
_WIDTHS = (1.0, 2.0, 4.0)
"""Of the kernels that distances are judged by; two digits lie about 4 apart."""


class DigitsGAN(pl.LightningModule):
    """Draw digits of 8 x 8 pixels from noise, against a discriminator that learns at the same time.

    Generator and discriminator have a learning rate each, and take their steps together: one loss holds both, in which
    neither sees the other's gradient. So one backward pass gives every parameter its gradient, as DDP wants.
    ``val_loss`` is the squared maximum mean discrepancy between drawn and real images (Gretton et al., "A Kernel
    Two-Sample Test", JMLR 13, 2012): 0 where they cannot be told apart.
    """

    def __init__(
        self, lr: float = 1e-3, discriminator_lr: float = 1e-3, latent: int = 16, hidden: int = 128, beta1: float = 0.5
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.generator = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, _PIXELS), nn.Sigmoid(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(nn.Linear(_PIXELS, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))

    def forward(self, noise: Tensor) -> Tensor:
        """Return the images that noise of shape [B, latent] becomes, shape [B, 64]."""
        images: Tensor = self.generator(noise)
        return images

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return both losses' sum; log ``generator_loss`` and ``discriminator_loss`` once an epoch."""
        real = batch[0].flatten(1)
        drawn = self(torch.randn(len(real), self.hparams["latent"], device=real.device))
        judged = functional_call(
            self.discriminator, {name: part.detach() for name, part in self.discriminator.named_parameters()}, drawn
        )
        generator_loss = _judge(judged, real=True)
        discriminator_loss = (
            _judge(self.discriminator(real), real=True) + _judge(self.discriminator(drawn.detach()), real=False)
        ) / 2
        losses = {"generator_loss": generator_loss, "discriminator_loss": discriminator_loss}
        self.log_dict(losses, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(real))
        return generator_loss + discriminator_loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``val_loss``, averaged over all ranks; the noise depends on the images alone, whoever is dealt them."""
        real = batch[0].flatten(1)
        seeded = torch.Generator().manual_seed(int(real.sum().item()))
        noise = torch.randn(len(real), self.hparams["latent"], generator=seeded).to(real.device)
        self.log("val_loss", discrepancy(self(noise), real), sync_dist=True, batch_size=len(real))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one Adam with a learning rate for each of the two."""
        groups = [
            {"params": self.generator.parameters(), "lr": self.hparams["lr"]},
            {"params": self.discriminator.parameters(), "lr": self.hparams["discriminator_lr"]},
        ]
        return torch.optim.Adam(groups, betas=(self.hparams["beta1"], 0.999))


def _judge(logits: Tensor, real: bool) -> Tensor:
    wanted = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted)


def discrepancy(one: Tensor, other: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two sets of points, [N, D] and [M, D]."""

    def likeness(a: Tensor, b: Tensor) -> Tensor:
        distances = torch.cdist(a, b).square()
        return torch.stack([torch.exp(-distances / (2 * width**2)).mean() for width in _WIDTHS]).mean()

    return likeness(one, one) + likeness(other, other) - 2 * likeness(one, other)
