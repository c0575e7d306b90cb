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
    """Return a function that restores an object's attributes; new attributes stay.

    An empty list state of a torchmetrics metric that is concatenated over the ranks gets the appended tensors without
    rows, so that it is gathered with the dtype and the dimensions of the other ranks.
    """
    from torchmetrics import Metric  # it comes with Lightning

    attributes = vars(owner)
    held = _HELD_BY_METRICS if isinstance(owner, Metric) else _HELD if isinstance(owner, nn.Module) else ()
    names = [name for name in attributes if name not in held]
    kept = {name: remember(attributes[name]) for name in names}
    reductions = owner._reductions if isinstance(owner, Metric) else {}

    def put_back() -> None:
        rows = {
            name: [row[:0] for row in attributes[name] if isinstance(row, torch.Tensor) and row.ndim]
            for name, reduction in reductions.items()
            if isinstance(attributes.get(name), list) and getattr(reduction, "__name__", "") == "dim_zero_cat"
        }
        attributes.update({name: back() for name, back in kept.items()})
        for name, empty in rows.items():
            if not attributes[name]:
                attributes[name].extend(empty[:1])

    return put_back


def remember_logged(results: Any) -> Callable[[], None]:
    """Return a function that removes later values from a ``_ResultCollection``.

    A key that only the borrowed step has logged stays, without a value: at the end all ranks reduce the same keys. A
    key that is not reduced over the ranks keeps its value: an empty mean would be 0/0.
    """
    if results is None:
        return lambda: None
    logged = {key: vars(metric) for key, metric in results.items() if not metric.has_reset}
    kept = {key: {name: state[name] for name in state if name not in _HELD_BY_METRICS} for key, state in logged.items()}

    def put_back() -> None:
        for key, metric in results.items():
            if key in kept:
                vars(metric).update(kept[key])
            elif metric.is_tensor and metric.meta.sync.should and not metric.has_reset:
                metric.value = torch.full_like(metric.value, metric._defaults["value"].item())
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    return put_back
