"""Gradients of a step that is not over: a report between two batches of ``accumulate_grad_batches`` keeps them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from tunelight.compat.lightning import pl

LIMIT = 256 * 2**20
"""Bytes, over all ranks, up to which they are kept: each rank has gradients of its own until they are reduced."""

Gradients = dict[str, torch.Tensor]


def pending(trainer: pl.Trainer) -> Gradients | None:
    """Return this rank's gradients if more are to be added before the next optimizer step; None if they are too big.

    Called on every rank.
    """
    if not trainer.lightning_module.automatic_optimization or not trainer.fit_loop._should_accumulate():
        return {}
    held = {name: one.grad for name, one in trainer.lightning_module.named_parameters() if one.grad is not None}
    if sum(one.numel() * one.element_size() for one in held.values()) * trainer.world_size > LIMIT:
        return None
    return {name: (one.full_tensor() if isinstance(one, DTensor) else one).cpu() for name, one in held.items()}


def put(trainer: pl.Trainer, everywhere: list[Gradients]) -> None:
    """Give the parameters the gradients that the ranks had, shared out to the ranks there are now."""
    mine = everywhere[trainer.global_rank :: trainer.world_size]
    for name, parameter in trainer.lightning_module.named_parameters():
        kept = [gradients[name] for gradients in mine if name in gradients]
        if isinstance(parameter, DTensor):  # reduced already, and the same on every rank
            if name in everywhere[0]:
                whole: Any = everywhere[0][name].to(trainer.strategy.root_device)
                parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        elif kept:
            # the ranks' mean is taken over those there are now
            total = kept[0] if len(kept) == 1 else torch.stack(kept).sum(0)
            ratio = trainer.world_size / len(everywhere)
            parameter.grad = (total if ratio == 1 else total * ratio).to(parameter.device)
