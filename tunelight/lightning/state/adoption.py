"""Adoption: replaces a running training's weights, optimizer states and configuration by another's, in place.

Exchanged are weights, buffers, optimizer states, and what the module's ``on_save_checkpoint`` adds. Epochs, steps,
loaders, loggers and the position in learning-rate schedules stay as they are. This is the exploit step of Jaderberg
et al., "Population Based Training of Neural Networks" (https://arxiv.org/abs/1711.09846).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR

from tunelight.compat.lightning import ModelParallelStrategy, pl
from tunelight.gang.parcel import Packed, pack_state, unpack_view
from tunelight.settings.checks import flatten

OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr", "eta_min")
"""Where optimizers and schedulers keep learning rates."""
_PROPORTIONAL = ("lr", "weight_decay")
"""Options scaled with the configuration's value: a layer may have a tenth of the rate, or no decay."""
_OF_BUILDERS = ("data", "trainer")
"""Parts of a configuration whose objects a running Trainer cannot replace."""
_NOTHING = object()


class TrainerExchange:
    """Reads and replaces the state of a Trainer's fit. Runs on: worker, every rank at the same report."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer

    def give(self) -> Packed:
        """Return the full state, gathered on rank 0 if it is sharded; it shares training's memory until it is sent."""
        trainer = self._trainer
        state: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": _weights(trainer),
            "optimizer_states": _optimizers(trainer),
            "trainable": trainable(trainer.lightning_module),
        }
        trainer.lightning_module.on_save_checkpoint(state)
        return pack_state(state)

    def agree(self, yes: bool) -> bool:
        """Return whether ``yes`` is True on all ranks."""
        return bool(self._trainer.strategy.reduce_boolean_decision(yes, all=True))

    def take(self, state: Packed, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Load ``state``; return why nothing was changed, if it does not fit."""
        trainer, module = self._trainer, self._trainer.lightning_module
        came: dict[str, Any] = unpack_view(state)
        refused = _misfit(trainer, came) or _untaken(trainer, before, config)
        if refused is not None:
            return refused
        module.on_load_checkpoint(came)
        groups = [[dict(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
        _load(trainer, came)
        for optimizer, before_it in zip(trainer.optimizers, groups, strict=True):
            optimizer.zero_grad()  # accumulated gradients belong to the replaced weights
            for group, options in zip(optimizer.param_groups, before_it, strict=True):
                group.update({name: value for name, value in options.items() if name != "params"})
        put_values(trainer, before, config)
        if callable(hook := getattr(module, "on_adopt", None)):
            hook(dict(config))
        return None


def put_values(trainer: pl.Trainer, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Change optimizers, learning-rate schedules, hparams and attributes of the same name to another configuration.

    A value belongs to the option, hparam or attribute that its key ends with (``model.lr``: ``lr``). Where several keys
    end so (``gen.lr``, ``disc.lr``), each has the parameter groups and schedules with its own value.

    Returns: which keys leave open what they mean, so that they were not put into optimizers; None if none does.
    """
    unclear = None
    module: Any = trainer.lightning_module
    owners = {name: _owners(trainer, name, keys) for name, keys in _by_name(before).items()}
    attributes = dict(vars(module))
    for key, old, new in _changed(before, config):
        name = key.rpartition(".")[2]
        unclear = unclear or _unclear(trainer, name, before)
        alone = len(_by_name(before).get(name, {})) < 2
        for optimizer, followed in zip(trainer.optimizers, owners.get(name, ()), strict=False):
            for group, owner in zip(optimizer.param_groups, followed, strict=True):
                for option in OF_GROUPS if name == "lr" else (name,):
                    if option in group and owner == key:
                        group[option] = _moved(group[option], name, old, new)
            if name == "lr":
                _move_schedules(trainer, optimizer, [owner == key for owner in followed], old, new)
        if key in module.hparams:
            module.hparams[key] = new
        if alone and name in module.hparams:
            module.hparams[name] = new
        if alone and name in attributes and _same(attributes[name], old):
            setattr(module, name, new)
    return unclear


def _unclear(trainer: pl.Trainer, name: str, before: Mapping[str, Any]) -> str | None:
    """Return in words that several keys end in ``name`` and parameter groups do not show which they follow, or None."""
    keys = _by_name(before).get(name, {})
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    owners = [owner for followed in _owners(trainer, name, keys) for owner in followed]
    if len(keys) < 2 or not any(owner is None and name in group for owner, group in zip(owners, groups, strict=True)):
        return None
    return (
        f"{' and '.join(keys)} end in one word, and the value of a parameter group does not show which of them it "
        "follows"
    )


def _by_name(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the keys of a configuration with their values by the word that they end with."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in flatten(config).items():
        found.setdefault(key.rpartition(".")[2], {})[key] = value
    return found


def _owners(trainer: pl.Trainer, name: str, keys: Mapping[str, Any]) -> list[list[str | None]]:
    """Return for each group of each optimizer which of ``keys`` its option ``name`` follows; None if that is unclear.

    Of several keys it is the only one with the option's value (before a schedule changed it), else the only one of the
    optimizer's other groups.
    """
    found = []
    for optimizer in trainer.optimizers:
        followed = [_owner(group, name, keys) for group in optimizer.param_groups]
        known = {key for key in followed if key is not None}
        found.append([next(iter(known)) if key is None and len(known) == 1 else key for key in followed])
    return found


def _owner(group: Mapping[str, Any], name: str, keys: Mapping[str, Any]) -> str | None:
    value = group.get(f"initial_{name}", group.get(name))
    fits = list(keys) if len(keys) == 1 else [key for key, old in keys.items() if _near(value, old)]
    return fits[0] if len(fits) == 1 else None


def _near(value: Any, old: Any) -> bool:
    """Tell whether an option has a key's value; an optimizer may hold it as a float32 tensor."""
    value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    if isinstance(value, float) and isinstance(old, int | float):
        return math.isclose(value, old, rel_tol=1e-6)
    return _same(value, old)


def trainable(module: torch.nn.Module) -> dict[str, bool]:
    """Return which parameters are trained (``requires_grad``), by name; no checkpoint of Lightning's says so."""
    return {name: parameter.requires_grad for name, parameter in module.named_parameters()}


def set_trainable(module: torch.nn.Module, flags: Mapping[str, bool]) -> None:
    """Set which parameters are trained."""
    for name, parameter in module.named_parameters():
        if name in flags:
            parameter.requires_grad_(flags[name])


def plain_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a configuration by dotted key, as a checkpoint may hold them."""
    found = {}
    for key, value in flatten(config).items():
        single = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
        if single is None or type(single) in (bool, int, float, str):
            found[key] = single
    return found


# --- read and load -----------------------------------------------------------------------------------------


def _gathered() -> tuple[Any, Any]:
    """Return torch's module for the states of sharded models, and its options for full states in main memory."""
    from torch.distributed.checkpoint import state_dict  # a second of imports

    return state_dict, state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)


def _weights(trainer: pl.Trainer) -> Mapping[str, Any]:
    module = trainer.lightning_module
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        return module.state_dict()
    states, options = _gathered()
    return dict(states.get_model_state_dict(module, options=options))


def _optimizers(trainer: pl.Trainer) -> list[dict[str, Any]]:
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        return [optimizer.state_dict() for optimizer in trainer.optimizers]
    states, options = _gathered()
    get, module = states.get_optimizer_state_dict, trainer.lightning_module
    return [dict(get(module, optimizer, options=options)) for optimizer in trainer.optimizers]


def _load(trainer: pl.Trainer, came: Mapping[str, Any]) -> None:
    module, pairs = trainer.lightning_module, zip(trainer.optimizers, came["optimizer_states"], strict=True)
    # Copied, for an optimizer keeps the tensors that it loads.
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        module.load_state_dict(came["state_dict"], strict=module.strict_loading)
        for optimizer, state in pairs:
            optimizer.load_state_dict(copy.deepcopy(state))
        return
    states, options = _gathered()
    states.set_model_state_dict(module, copy.deepcopy(dict(came["state_dict"])), options=options)
    for optimizer, state in pairs:
        if state.get("state"):  # torch raises for an optimizer without state (SGD without momentum)
            states.set_optimizer_state_dict(module, optimizer, copy.deepcopy(state), options=options)


# --- what fits ----------------------------------------------------------------------------------------------


def _misfit(trainer: pl.Trainer, came: Mapping[str, Any]) -> str | None:
    """Return why a state does not fit this model and these optimizers; None if it does."""
    ours, theirs = trainer.lightning_module.state_dict(), came["state_dict"]
    if odd := sorted(ours.keys() ^ theirs.keys()):
        return f"the models differ: {odd[0]} is in one of them only"
    for name, tensor in ours.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != theirs[name].shape:
            return f"the models differ: {name} is {tuple(tensor.shape)} here and {tuple(theirs[name].shape)} there"
    if trainable(trainer.lightning_module) != came["trainable"]:
        return "the models differ in what is frozen"  # a restart sets that before the strategy wraps the model
    mine = [[len(group["params"]) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
    other = [[len(group["params"]) for group in state["param_groups"]] for state in came["optimizer_states"]]
    return None if mine == other else "the optimizers differ"


def _untaken(trainer: pl.Trainer, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Return which value cannot be changed: a model reads its arguments only when it is made."""
    if callable(getattr(trainer.lightning_module, "on_adopt", None)):
        fixed = [key for key, _, _ in _changed(before, config) if key.partition(".")[0] in _OF_BUILDERS]
        return f"{fixed[0]} is an argument of an object that is made only once" if fixed else None
    named = _by_name(before)
    for key, old, _ in _changed(before, config):
        name = key.rpartition(".")[2]
        if (unclear := _unclear(trainer, name, before)) is not None:
            return f"{unclear}; the module has no on_adopt(config)"
        owners = [owner for followed in _owners(trainer, name, named.get(name, {})) for owner in followed]
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        groups = [group for group, owner in zip(groups, owners, strict=True) if owner == key and name in group]
        fits = any(name in _PROPORTIONAL or _same(group[name], old) for group in groups)
        if key.partition(".")[0] in _OF_BUILDERS or old is _NOTHING or not fits:
            return f"{key} is no option of an optimizer, and the module has no on_adopt(config)"
    return None


def _changed(before: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    old = flatten(before)
    for key, value in flatten(config).items():
        if not _same(old.get(key, _NOTHING), value):
            yield key, old.get(key, _NOTHING), value


def _move_schedules(trainer: pl.Trainer, optimizer: Any, moves: list[bool], old: Any, new: Any) -> None:
    """Change the schedules of an optimizer; ``moves`` says of each of its groups whether its rate changes."""
    for config in trainer.lr_scheduler_configs:
        for scheduler in each(config.scheduler):
            if getattr(scheduler, "optimizer", trainer.optimizers[0]) is not optimizer:
                continue
            for name in OF_SCHEDULERS:
                value = getattr(scheduler, name, None)
                if isinstance(value, list) and len(value) == len(moves):
                    moved = [
                        _moved(rate, "lr", old, new) if mine else rate for rate, mine in zip(value, moves, strict=True)
                    ]
                    setattr(scheduler, name, moved)
                elif isinstance(value, int | float) and all(moves):
                    setattr(scheduler, name, _moved(value, "lr", old, new))


def each(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those that it consists of."""
    yield scheduler
    for part in scheduler._schedulers if isinstance(scheduler, ChainedScheduler | SequentialLR) else ():
        yield from each(part)


def _moved(value: Any, name: str, old: Any, new: Any) -> Any:
    """Return the new value of an option that is ``value`` under ``old``."""
    if isinstance(value, torch.Tensor):
        return value.fill_(_moved(value.item(), name, old, new)) if value.numel() == 1 else value
    if _same(value, old):
        return new
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in (value, old, new))
    return value * (new / old) if name in _PROPORTIONAL and numbers and old else value


def _same(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:  # noqa: BLE001 - arrays, for example, compare elementwise
        return value is other
