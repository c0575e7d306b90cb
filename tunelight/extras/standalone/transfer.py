"""Brings returned weights into a model."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from tunelight import stores
from tunelight.errors import CheckpointError, first_of

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Values that can always be pickled."""


# --- weights into a model ---------------------------------------------------------------------------------


def copy_into(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Copy returned weights into the model's own parameters and buffers, which stay the same objects.

    Tensors take the shape and dtype of what came (Lightning converts a model to ``precision="64-true"``, for example);
    those that are lazy, on the meta device or None are made. The rest is done by ``load_state_dict``: hooks, extra
    state, modules that override it. No memory of ``state`` is kept, so it may be a view (`unpack_view`). Keys that the
    model lacks, and parameters without a key, are named in a warning.

    Raises: errors of the model's hooks. Runs on: driver.
    """
    weights: OrderedDict[str, Any] = OrderedDict(state)
    if (versions := getattr(state, "_metadata", None)) is not None:
        vars(weights)["_metadata"] = versions  # modules load states of older versions by it
    unmade = {name for name, value in weights.items() if isinstance(value, torch.Tensor) and is_lazy(value)}
    for name in unmade:
        del weights[name]
    for name in weights.keys() - _make_room(model, weights):
        weights[name] = copy.deepcopy(weights[name])  # a metric's state, for example: the module may keep it
    # a model with a load_state_dict of its own may return nothing
    missing, unexpected = model.load_state_dict(weights, strict=False) or ((), ())
    problems = [f"the model here has no place for {first_of(unexpected)}"] if unexpected else []
    if without := [name for name in missing if name not in unmade]:
        problems.append(f"nothing came for {first_of(without)}")
    if problems:
        warnings.warn(
            f"Not all trained weights came back into the model: {', and '.join(problems)}. All others did. Make every "
            "layer in the model's __init__, so that driver and workers have the same.",
            stacklevel=2,
        )


def _make_room(model: torch.nn.Module, weights: Mapping[str, Any]) -> set[str]:
    """Give every parameter and buffer the shape and dtype of its new value; return the keys of these."""
    places: set[str] = set()
    made: dict[torch.Tensor, torch.Tensor] = {}  # tied parameters stay tied; tensors are hashed by identity
    for path, module in model.named_modules(remove_duplicate=False):
        for slots in (module._parameters, module._buffers):
            for name, tensor in list(slots.items()):
                key = f"{path}.{name}" if path else name
                came = weights.get(key)
                if not isinstance(came, torch.Tensor) or name in module._non_persistent_buffers_set:
                    continue
                places.add(key)
                if tensor is not None and is_lazy(tensor):
                    tensor.materialize(came.shape)
                if tensor is not None and not tensor.is_meta:
                    _reallocate(tensor, came)
                    continue
                new = made.get(tensor) if tensor is not None else None
                if new is None:
                    new = _made_for(tensor, came, parameter=slots is module._parameters)
                if tensor is not None:
                    made[tensor] = new
                setattr(module, name, new)
    return places


def copy_tensor(tensor: torch.Tensor, came: torch.Tensor) -> None:
    """Copy a returned tensor into one of the driver's, which gets its shape and dtype."""
    with torch.no_grad():
        if is_lazy(tensor):
            tensor.materialize(came.shape)
        _reallocate(tensor, came)
        tensor.copy_(came)


def _reallocate(tensor: torch.Tensor, came: torch.Tensor) -> None:
    """Give a tensor other memory where its shape or dtype is another."""
    if tensor.shape != came.shape or tensor.dtype != came.dtype:
        tensor.data, tensor.grad = torch.empty(came.shape, dtype=came.dtype, device=tensor.device), None


def _made_for(tensor: torch.Tensor | None, came: torch.Tensor, *, parameter: bool) -> torch.Tensor:
    """Return memory for a parameter or buffer without memory."""
    new = torch.empty(came.shape, dtype=came.dtype, device=came.device)
    if not parameter:
        return new
    return torch.nn.Parameter(new, requires_grad=new.is_floating_point() if tensor is None else tensor.requires_grad)


# --- Copies checkpoints to the same path on the disks of other nodes, through Ray's object store ----------

Files = dict[str, npt.NDArray[np.uint8]]
"""Contents by absolute path."""


def read(paths: Iterable[str]) -> Files:
    """Return the contents of files, and of all files in folders; a sharded checkpoint is a folder."""
    contents: Files = {}
    for path in map(Path, paths):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                contents[str(file.absolute())] = np.fromfile(file, np.uint8)
    return contents


def write(files: Mapping[str, npt.NDArray[np.uint8]]) -> None:
    """Write the files that do not exist yet, each atomically. Raises: CheckpointError."""
    for path, content in files.items():
        target = Path(path)
        if target.exists():
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stores.write_atomically(target, content.data)
        except OSError as error:
            raise CheckpointError(f"Could not bring checkpoint {path} to this node: {error}.") from error


def missing(paths: Iterable[str]) -> list[str]:
    """Return the paths that do not exist on this node."""
    return [path for path in paths if not Path(path).exists()]
