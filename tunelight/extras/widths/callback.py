"""WiderModel: the callback that lets a wide model train with hyperparameters that were found on a narrow one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tunelight.compat.arguments import known_arguments
from tunelight.compat.lightning import Callback, pl
from tunelight.errors import SettingsError, first_of
from tunelight.extras.widths.rules import Kind, Rows, Scale, Scales, kind_of

_DONE = "_tunelight_widened"
"""Set on a module whose initial values are scaled."""


class WiderModel(Callback):
    """Scale a wide model's initial values and learning rates, so that it trains as its narrow one does. Experimental.

    The multipliers are those of the maximal update parametrisation relative to the narrow model, for which all are 1.
    Values are scaled once, where training begins anew, and learning rates in each step: schedulers, loggers and
    checkpoints see the learning rates of the module's own optimizer. Runs on: worker.

    Args:
        parameters: by name, what is multiplied by what: its values by ``initial``, and its learning rate by ``adam`` or
            ``sgd``, after the kind of the optimizer (weight decay is divided by that). ``rows`` are parts of it, each
            ``[dim, begin, end, initial, adam, sgd]``.
        inputs: by a layer's name, what its input is multiplied by: of a layer that shares its weight with an embedding.

    Raises: SettingsError for a module without these parameters, or with an optimizer of neither kind.
    """

    @known_arguments
    def __init__(self, parameters: dict[str, dict[str, Any]], inputs: dict[str, float] | None = None) -> None:
        super().__init__()
        self.scales = Scales(
            {
                name: Scale(**{**given, "rows": tuple(Rows(*row) for row in given.get("rows", ()))})
                for name, given in parameters.items()
            },
            dict(inputs or {}),
        )
        self._by_id: dict[int, Scale] = {}
        self._handles: list[Any] = []
        self._steps: list[_Step] = []

    @classmethod
    def of(cls, scales: Scales) -> WiderModel:
        """Return the callback for what `rules.derive` has found."""
        return cls(**arguments_of(scales))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Multiply the inputs of layers whose weight is an embedding as well, in training and after."""
        self.scale_inputs(pl_module)

    def scale_inputs(self, module: nn.Module) -> None:
        """Multiply the inputs of those layers of a module from now on."""
        layers = dict(module.named_modules())
        for name, factor in self.scales.inputs.items():
            if name in layers and not hasattr(layers[name], _DONE):
                setattr(layers[name], _DONE, True)
                layers[name].register_forward_pre_hook(_Input(factor))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Scale the initial values of a model that does not resume."""
        named = _named(pl_module)
        if unknown := self.scales.parameters.keys() - named.keys():
            raise SettingsError(
                f"The model has no parameters {first_of(sorted(unknown), 3)}, which are to be scaled: these are the "
                "multipliers of another model."
            )
        if trainer.ckpt_path is None and not hasattr(pl_module, _DONE):
            with torch.no_grad():
                for name, scale in self.scales.parameters.items():
                    named[name].mul_(scale.initial)
                    for row in scale.rows:
                        named[name].mul_(_factor(named[name], row, row.initial))
        setattr(pl_module, _DONE, True)
        # Now, for FSDP2 leaves a module with other tensors after a forward pass than its optimizers have.
        self._by_id = {id(named[name]): scale for name, scale in self.scales.parameters.items()}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Scale the learning rates of each step from now on."""
        for optimizer in trainer.optimizers:
            step = _Step(optimizer, self._by_id, kind_of(optimizer))
            self._steps.append(step)
            self._handles += [
                optimizer.register_step_pre_hook(step.before),
                optimizer.register_step_post_hook(step.after),
            ]

    def state_dict(self) -> dict[str, Any]:
        """Return its arguments, so that a checkpoint says how its model was trained."""
        return arguments_of(self.scales)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Put the groups back where a step has failed, for a checkpoint may be written yet."""
        for step in self._steps:
            step.put_back()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leave the optimizers as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._steps.clear()


def arguments_of(scales: Scales) -> dict[str, Any]:
    """Return the callback's arguments as plain data."""
    return {"parameters": plain(scales), **({"inputs": dict(scales.inputs)} if scales.inputs else {})}


def plain(scales: Scales) -> dict[str, dict[str, Any]]:
    """Return multipliers as plain data, as a YAML file holds them; 1 is left out."""
    return {
        name: {
            **{name: factor for name in ("initial", "adam", "sgd") if (factor := getattr(scale, name)) != 1},
            **({"rows": [list(row) for row in scale.rows]} if scale.rows else {}),
        }
        for name, scale in scales.parameters.items()
    }


class _Input:
    """Multiplies a layer's input; it can be pickled."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0] * self._factor, *inputs[1:])


class _Step:
    """Lets an optimizer's step see groups by learning rate, between the end of its closure and its own end."""

    def __init__(self, optimizer: torch.optim.Optimizer, scales: Mapping[int, Scale], kind: Kind) -> None:
        self._optimizer = optimizer
        self._scales = scales
        self._kind = kind
        self._own: list[dict[str, Any]] | None = None
        """The optimizer's groups, while the step sees others."""
        self._parts: list[tuple[int, dict[str, Any]]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]] = []

    def before(self, _: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Split the groups, once the closure has trained on the batch, which may fail and may look at them."""
        if self._own is not None:  # an optimizer around this one has called it
            return None
        closure = args[1] if len(args) > 1 else keywords.get("closure")  # the first is the optimizer
        if closure is None:
            self._split()
            return None

        def closed() -> Any:
            loss = closure()
            self._split()
            return loss

        if len(args) > 1:
            return (args[0], closed, *args[2:]), keywords
        return args, keywords | {"closure": closed}

    def _split(self) -> None:
        if self._own is not None:
            return
        self._own = self._optimizer.param_groups
        self._parts, self._before = [], []
        for number, group in enumerate(self._own):
            by_rate: dict[float, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                scale = self._scales.get(id(parameter), Scale())
                by_rate.setdefault(getattr(scale, self._kind), []).append(parameter)
                if scale.rows and parameter.grad is not None:
                    self._before.append((parameter, parameter.detach().clone(), group))
            for rate, parameters in by_rate.items():
                part = {**group, "params": parameters, "lr": group["lr"] * rate}
                if "weight_decay" in group:
                    part["weight_decay"] = group["weight_decay"] / rate
                self._parts.append((number, part))
        self._optimizer.param_groups = [part for _, part in self._parts]

    def put_back(self) -> None:
        """Give the optimizer its own groups again."""
        if self._own is not None:
            self._optimizer.param_groups, self._own = self._own, None

    def after(self, *_: Any) -> None:
        """Put the groups back, with what the step has written into them, and scale the steps of parts."""
        own = self._own
        if own is None:
            return
        self.put_back()
        for number, part in self._parts:
            own[number].update({key: part[key] for key in part.keys() - {"params", "lr", "weight_decay"}})
        with torch.no_grad():
            for parameter, old, group in self._before:
                decay = group["lr"] * group.get("weight_decay", 0.0) if _decays_apart(self._optimizer) else 0.0
                for row in self._scales[id(parameter)].rows:
                    factor = _factor(parameter, row, getattr(row, self._kind))
                    # Weight decay keeps its size, as for whole parameters.
                    parameter.copy_(old + factor * (parameter - old) - (1 - factor) * decay * old)
        self._before = []


def _decays_apart(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a step shrinks weights by the learning rate times weight decay, apart from what gradients do."""
    name = type(optimizer).__name__.lower()
    return "sgd" in name or "adamw" in name or "lion" in name


def _named(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters by name, as they are called without torch.compile."""
    return {name.replace("_orig_mod.", ""): parameter for name, parameter in module.named_parameters()}


def _factor(parameter: torch.Tensor, row: Rows, factor: float) -> torch.Tensor:
    """Return factors for all of a parameter, 1 outside of some rows; sharded as the parameter is."""
    shape = [1] * parameter.dim()
    shape[row.dim] = parameter.shape[row.dim]
    made = torch.ones(shape, dtype=parameter.dtype, device=parameter.device)
    made.narrow(row.dim, row.begin, row.end - row.begin).fill_(factor)
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return made
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(made.expand(parameter.shape).contiguous(), mesh, parameter.placements)
