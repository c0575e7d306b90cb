"""The coordinate check: whether what layers give out changes by the same amount at every width."""

from __future__ import annotations

import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from tunelight.compat.lightning import Callback, pl
from tunelight.errors import SettingsError
from tunelight.extras.widths.callback import WiderModel
from tunelight.extras.widths.rules import Scales, derive
from tunelight.extras.widths.wider import Wider
from tunelight.space.parts import split_config

if TYPE_CHECKING:
    from tunelight.settings import Settings
    from tunelight.space import SearchSpace

STEPS: Final = 10
FACTORS: Final = (1, 2, 4, 8)
LIMIT_S: Final = 600
"""How long the check of a sweep may take."""
MOST: Final = 0.35
"""By which power of the width a layer's change may grow or shrink: without scales it grows by 0.5 to 1."""
_QUIET: Final = 1 / 64
"""By what initial values of the last layer are multiplied. A model's first outputs, which mean nothing, are larger the
narrower it is. Where learning rates are small, layers would mostly move to undo them: less, the wider they are."""


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
    build: Callable[[int], Any],
    data: Any,
    base: int,
    *,
    scaled: bool = True,
    seeds: Sequence[int] = (0, 1),
    factors: Sequence[int] = FACTORS,
) -> list[Layer]:
    """Train a few steps on one batch at some widths, and return how far each layer's outputs have moved.

    Args:
        build: makes the module of a width.
        data: a DataLoader or a LightningDataModule, of which one batch is used (None: the module has its own).
        base: the narrow width.
        scaled: train wider models with their scales, as ``proxy=`` does.
        seeds: from each of which every width is trained.
        factors: the widths, as multiples of the narrow one.
    """
    changes: dict[str, dict[int, list[float]]] = {}
    derived = {factor: derive(build, base, base * factor) for factor in factors if scaled or factor == max(factors)}
    summing = [name for name, scale in derived[max(factors)].parameters.items() if scale.sgd < 1]
    for factor in factors:
        width = base * factor
        scales = derived[factor] if scaled else Scales()
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                watch = _Watch(seed)
                module = build(width)
                if summing:
                    with torch.no_grad():
                        module.get_parameter(summing[-1]).mul_(_QUIET)
                _fit(module, data, [*([WiderModel.of(scales)] if scaled else []), watch])
            for name, moved in watch.moved().items():
                changes.setdefault(name, {}).setdefault(width, []).append(moved / scales.queries.get(name, 1.0))
    found = []
    for name, by_width in changes.items():
        medians = {width: statistics.median(values) for width, values in by_width.items()}
        if len(medians) == len(factors) and min(medians.values()) != 0:
            power = _power(medians)  # that of a loss says nothing where it is small, for losses come to an end
            found.append(Layer(name, max(0.0, power) if name == type(module).__name__ else power, medians))
    return found


def wrong(layers: Sequence[Layer]) -> Layer | None:
    """Return the first layer that changes more, or less, the wider its model is."""
    return next((layer for layer in layers if not abs(layer.power) <= MOST), None)


def refuse(layers: Sequence[Layer]) -> None:
    """Raise SettingsError for a model whose layers change more, or less, the wider it is; the first one is named."""
    layer = wrong(layers)
    if layer is None:
        return
    if math.isinf(layer.power):
        raise SettingsError(
            f"The outputs of the layer {layer.name!r} diverge in the first {STEPS} training steps at some width, so "
            "that nothing can be said of how they change with it. Search smaller learning rates, or leave proxy= out."
        )
    what = "more" if layer.power > 0 else "less"
    raise SettingsError(
        f"The outputs of the layer {layer.name!r} change {what} in a training step the wider the model is (by the "
        f"width to the power of {layer.power:.2f}), though the learning rate is scaled for it: what is found on a "
        "narrow model does not hold for a wide one. Look there for a parameter that is no layer's, for an initial "
        "value or a factor in forward that is fixed or depends on the width, or leave proxy= out."
    )


@dataclass(frozen=True)
class CoordinateCheck:
    """A train function that reports each layer's power, as ``layer/NAME``. Runs on: worker."""

    model: Callable[..., Any]
    data: Callable[..., Any] | None
    base: Mapping[str, Any]
    others: Sequence[Mapping[str, Any]]
    """Further configurations, for a model that seems wrong with the first."""

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Measure the model of a configuration, if it seems wrong those of others too; report each layer's median."""
        from tunelight.session.session import get_context

        wider, powers = Wider(self.model, self.base), dict[str, list[float]]()
        first, *_ = tried = [split_config(one) for one in (config, *self.others)]
        for parts in tried:
            base, wide = wider.width(parts["model"])
            data = self.data(**parts["data"]) if self.data is not None else None
            factors = [factor for factor in FACTORS if factor <= max(FACTORS[2], wide / base)]
            try:
                layers = measure(wider.builder(parts["model"]), data, base, factors=factors)
            except Exception:  # of a model that this configuration breaks
                if parts is first:
                    raise
                continue
            for layer in layers:
                powers.setdefault(layer.name, []).append(layer.power)
            if parts is first and wrong(layers) is None:
                break
        medians = {name: statistics.median(values) for name, values in powers.items()}
        get_context().report(
            {"largest": max(map(abs, medians.values()), default=0.0)}
            | {f"layer/{name}": power for name, power in medians.items()}
        )


def check_widths(
    space: SearchSpace,
    settings: Settings,
    configs: Sequence[Mapping[str, Any]],
    base: Mapping[str, Any],
    run_one: Callable[..., Any],
) -> list[Layer]:
    """Train a few steps at several widths on one worker of the sweep, and return the layers as measured.

    Args:
        space, settings: the sweep's.
        configs: some of its configurations, in full.
        base: the narrow values of the keys that make its model wider.
        run_one: runs a sweep of one trial.

    Raises: SettingsError for a model whose layers change more, or less, the wider it is, and where this cannot be
    found out. Runs on: driver.
    """
    assert settings.model is not None
    with tempfile.TemporaryDirectory(prefix="tunelight-widths-") as folder:
        only = replace(
            settings,
            train=CoordinateCheck(settings.model, settings.data, base, configs[1:]),
            **dict.fromkeys(_LEFT),  # type: ignore[arg-type]  # None is the default of each
            **_ONCE,
            storage=folder,
            failures=replace(settings.failures, give_up_after=0, max_failures=0),
        )
        found = run_one(space.without_grid().fixed(space.dotted(configs[0])), only)
        trial = found.trials[0]
    if not trial.history:
        why = trial.error or f"it ended as {trial.state} within {LIMIT_S} s"
        raise SettingsError(
            f"Whether proxy= holds for this model was to be found out by {STEPS} steps at a few widths, and that "
            f"failed: {why}"
        )
    layers = [
        Layer(name.removeprefix("layer/"), power, {})
        for name, power in trial.history[0].items()
        if name.startswith("layer/")
    ]
    refuse(layers)
    return layers


_LEFT: Final = (
    "model",
    "data",
    "trainer_args",
    "proxy",
    "repeats",
    "resources_per_trial",
    "max_concurrent",
    "max_workers",
    "max_epochs",
)
_ONCE: Final[Mapping[str, Any]] = {
    "metric": "largest",
    "mode": "min",
    "workers": 1,
    "num_samples": 1,
    "scheduler": "fifo",
    "searcher": "random",
    "checkpoints": None,
    "name": "widths",
    "resume": False,
    "baselines": (),
    "warm_start": (),
    "callbacks": (),
    "progress": False,
    "web": False,
    "time_budget": LIMIT_S,
}


def _power(changes: dict[int, float]) -> float:
    """Return the slope of the changes over the width, both as logarithms; infinity where training diverged."""
    if not all(map(math.isfinite, changes.values())):
        return math.inf
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

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss where the module has parameters of its own: no layer's outputs show what those do."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor) and next(pl_module.parameters(recurse=False), None) is not None:
            self._outputs[-1][type(pl_module).__name__] = loss.detach().clone()

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
