"""Accumulated gradients, saved with a checkpoint between two batches of ``accumulate_grad_batches``."""

from __future__ import annotations

from typing import Any

import torch

from tunelight.compat.lightning import pl
from tunelight.compat.torch import DTensor, distribute_tensor

LIMIT = 256 * 2**20
"""Bytes of all ranks' gradients up to which they are saved; ranks differ until gradients are reduced."""

Gradients = dict[str, torch.Tensor]


def pending(trainer: pl.Trainer) -> Gradients | None:
    """Return this rank's gradients between two optimizer steps; None if they are too large. Called on every rank."""
    if not trainer.lightning_module.automatic_optimization or not trainer.fit_loop._should_accumulate():
        return {}
    grads = {name: p.grad for name, p in trainer.lightning_module.named_parameters() if p.grad is not None}
    if sum(grad.numel() * grad.element_size() for grad in grads.values()) * trainer.world_size > LIMIT:
        return None
    return {name: (grad.full_tensor() if isinstance(grad, DTensor) else grad).cpu() for name, grad in grads.items()}


def put(trainer: pl.Trainer, everywhere: list[Gradients]) -> None:
    """Set the gradients that all former ranks had, divided among the present ranks."""
    mine = everywhere[trainer.global_rank :: trainer.world_size]
    for name, parameter in trainer.lightning_module.named_parameters():
        kept = [gradients[name] for gradients in mine if name in gradients]
        if isinstance(parameter, DTensor):  # already reduced, and the same on every rank
            if name in everywhere[0]:
                whole: Any = everywhere[0][name].to(trainer.strategy.root_device)
                parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        elif kept:
            # their mean is taken over the present ranks
            total = kept[0] if len(kept) == 1 else torch.stack(kept).sum(0)
            ratio = trainer.world_size / len(everywhere)
            parameter.grad = (total if ratio == 1 else total * ratio).to(parameter.device)
