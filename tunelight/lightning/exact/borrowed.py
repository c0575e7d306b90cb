"""Steps on borrowed batches, undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, deque, set)


def remember(value: Any, copy_tensors: bool = True) -> Callable[[], Any]:
    """Return a function that restores the present content of ``value``, and returns ``value``.

    It looks into dicts, lists, deques and sets, and copies tensors (except in lists, where code appends tensors and
    does not change them). Parameters and objects of other classes are not copied.
    """
    if type(value) is torch.Tensor and copy_tensors and not value.is_meta and value.layout is torch.strided:
        copied = value.detach().clone()

        def put_back() -> Any:
            if not torch.equal(value, copied):
                value.detach().copy_(copied)
            return value

    elif isinstance(value, dict):
        entries = {key: remember(item, copy_tensors) for key, item in value.items()}

        def put_back() -> Any:
            value.clear()
            value.update({key: back() for key, back in entries.items()})
            return value

    elif isinstance(value, list | deque | set):
        items = list(value)
        inner = [remember(item, copy_tensors=False) for item in items if isinstance(item, _CONTAINERS)]

        def put_back() -> Any:
            for back in inner:
                back()
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(items)
            return value

    else:
        return lambda: value
    return put_back


_HELD = {name for name in vars(nn.Module()) if name.endswith("_hooks")} | {"_parameters", "_modules"}
"""Attributes of modules that stay as they are: FSDP swaps them during a forward."""
_HELD_BY_METRICS = {*_HELD, "_computed"}
"""The same of metrics, which all ranks must compute, and gather, at the same time."""


def remember_attributes(owner: Any) -> Callable[[], None]:
    """Return a function that restores an object's attributes; new attributes stay."""
    from torchmetrics import Metric  # it comes with Lightning

    attributes = vars(owner)
    held = _HELD_BY_METRICS if isinstance(owner, Metric) else _HELD if isinstance(owner, nn.Module) else ()
    names = [name for name in attributes if name not in held]
    kept = {name: remember(attributes[name]) for name in names}

    def put_back() -> None:
        attributes.update({name: back() for name, back in kept.items()})

    return put_back


def remember_logged(results: Any) -> Callable[[], None]:
    """Return a function that removes later values from a ``_ResultCollection``."""
    if results is None:
        return lambda: None
    logged = {key: vars(metric) for key, metric in results.items() if not metric.has_reset}
    kept = {key: {name: state[name] for name in state if name not in _HELD_BY_METRICS} for key, state in logged.items()}

    def put_back() -> None:
        for key in list(results):
            if key in kept:
                vars(results[key]).update(kept[key])
            else:
                del results[key]

    return put_back
