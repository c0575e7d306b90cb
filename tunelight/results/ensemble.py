"""Ensemble: the mean of several trained models' outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tunelight.errors import TrainFunctionError


class Ensemble(nn.Module):
    """Returns the mean of the outputs of ``models`` for the same arguments, without gradients.

    Outputs may be tensors of floating-point numbers, or tuples, lists and mappings of such; the mean is taken value by
    value, in the outputs' own dtype. The models are put into evaluation mode.
    Raises: TrainFunctionError, in ``forward``, where outputs are whole numbers: a mean of classes makes no sense.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.eval()

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the mean of the models' outputs."""
        return _mean([model(*args, **kwargs) for model in self.models])


def _mean(outputs: Sequence[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, Tensor):
        if not (first.is_floating_point() or first.is_complex()):
            raise TrainFunctionError(
                f"The models of an ensemble return {first.dtype}, and a mean needs floating-point numbers. Have "
                "forward() return logits, not classes."
            )
        return torch.stack(list(outputs)).mean(dim=0)
    if isinstance(first, Mapping):
        return {key: _mean([output[key] for output in outputs]) for key in first}
    if isinstance(first, tuple | list):
        parts = [_mean(part) for part in zip(*outputs, strict=True)]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return tuple(parts) if isinstance(first, tuple) else parts
    raise TrainFunctionError(
        f"The models of an ensemble return {type(first).__name__}, of which there is no mean. Have forward() return "
        "tensors, or tuples, lists or dicts of them."
    )
