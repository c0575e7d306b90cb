"""The coordinate check: whether what layers give out changes by the same amount at every width."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from tunelight.compat.lightning import Callback, pl
from tunelight.errors import SettingsError
from tunelight.lightning.widths.callback import WiderModel
from tunelight.lightning.widths.rules import Kind, derive

STEPS: Final = 4
FACTORS: Final = (1, 2, 4, 8)
MOST: Final = 0.4
"""By which power of the width a layer's change may grow or shrink: without scales it grows by 0.5 to 1."""


class Layer(NamedTuple):
    """How a layer's outputs depend on the width.

    Attributes:
        name: of the layer.
        power: by which power of the width the change of its outputs grows in the first steps: about 0 where the best
            learning rate is the same at all widths.
        changes: root mean square of that change, by width.
    """

    name: str
    power: float
    changes: dict[int, float]


def measure(
    build: Callable[[int], pl.LightningModule], data: Any, base: int, kind: Kind, *, scaled: bool = True, seeds: int = 2
) -> list[Layer]:
    """Train a few steps on one batch at four widths, and return how far each layer's outputs have moved.

    Args:
        build: makes the module of a width.
        data: a DataLoader or a LightningDataModule; of it one batch is used.
        base: the narrow width; the others are 2, 4 and 8 times that.
        kind: of its optimizer.
        scaled: train wider models with their scales, as ``proxy=`` does.
        seeds: how many times each width is trained.
    """
    changes: dict[str, dict[int, list[float]]] = {}
    for factor in FACTORS:
        width = base * factor
        scales = derive(build, base, width, kind)
        for seed in range(seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                watch = _Watch(seed)
                _fit(build(width), data, [*([WiderModel.of(scales, kind)] if scaled else []), watch])
            for name, moved in watch.moved().items():
                changes.setdefault(name, {}).setdefault(width, []).append(moved)
    found = []
    for name, by_width in changes.items():
        medians = {width: statistics.median(values) for width, values in by_width.items()}
        if len(medians) == len(FACTORS) and min(medians.values()) > 0:
            found.append(Layer(name, _power(medians), medians))
    return found


def refuse(layers: Sequence[Layer]) -> None:
    """Raise SettingsError for a model whose layers change more, or less, the wider it is; the first one is named."""
    wrong = next((layer for layer in layers if not abs(layer.power) <= MOST), None)
    if wrong is None:
        return
    what = "more" if wrong.power > 0 else "less"
    raise SettingsError(
        f"The outputs of the layer {wrong.name!r} change {what} in a training step the wider the model is (by the "
        f"width to the power of {wrong.power:.2f}), though the learning rate is scaled for it: what is found on a "
        "narrow model does not hold for a wide one. Look there for a parameter that is no layer's, for an initial "
        "value or a factor in forward that is fixed or depends on the width, or leave proxy= out."
    )


def _power(changes: dict[int, float]) -> float:
    """Return the slope of the changes over the width, both as logarithms."""
    slope, _ = statistics.linear_regression(
        [math.log(width) for width in changes], [math.log(change) for change in changes.values()]
    )
    return slope


def _fit(module: pl.LightningModule, data: Any, callbacks: list[Callback]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loaders and batches, which are the user's to judge in a sweep
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=STEPS,
            overfit_batches=1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        trainer.fit(module, data)


class _Watch(Callback):
    """Keeps what the layers give out for the first batch, at its first step and at its last."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._outputs: list[dict[str, torch.Tensor]] = []
        self._handles: list[Any] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at each layer that has no further ones inside, and at those that hold parameters of their own."""
        for name, layer in pl_module.named_modules():
            if name and (not list(layer.children()) or list(layer.parameters(recurse=False))):
                self._handles.append(layer.register_forward_hook(self._keeper(name)))

    def _keeper(self, name: str) -> Callable[..., None]:
        def keep(_: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if self._outputs and isinstance(first, torch.Tensor) and first.is_floating_point():
                self._outputs[-1].setdefault(name, first.detach().clone())  # a layer used twice: its first use

        return keep

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Let dropout choose alike in each step."""
        torch.manual_seed(self._seed)
        self._outputs = [*self._outputs[:1], {}]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop looking."""
        for handle in self._handles:
            handle.remove()

    def moved(self) -> dict[str, float]:
        """Return how far each layer's outputs have moved, as a root mean square."""
        first, last = self._outputs
        return {
            name: float((last[name] - value).float().square().mean().sqrt())
            for name, value in first.items()
            if name in last and last[name].shape == value.shape
        }
