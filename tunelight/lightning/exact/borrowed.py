"""Steps on borrowed batches: undoes them, and keeps values of theirs for the hooks at the end."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunelight.compat.lightning import pl

_HOLDERS = (dict, list, deque, set)


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

    elif isinstance(value, list | deque):
        items = list(value)
        inner = [remember(item, copy_tensors=False) for item in items if isinstance(item, _HOLDERS)]

        def put_back() -> Any:
            for back in inner:
                back()
            value.clear()
            value.extend(items)
            return value

    elif isinstance(value, set):
        members = set(value)

        def put_back() -> Any:
            value.clear()
            value.update(members)
            return value

    else:

        def put_back() -> Any:
            return value

    return put_back


_NOT_PUT_BACK = {
    "_parameters",  # FSDP swaps them during a forward, as it does hooks
    "_modules",
    "_computed",  # all ranks must compute, and gather, a metric at the same time
}


LIGHTNINGS_OWN = frozenset(vars(pl.LightningModule()))
"""Attributes of every module, by torch and Lightning."""


def remember_attributes(owner: Any) -> Callable[[], None]:
    """Return a function that restores an object's attributes; new attributes stay.

    An empty list state of a torchmetrics metric that is concatenated over the ranks gets the appended tensors without
    rows, so that it is gathered with the dtype and the dimensions of the other ranks.
    """
    attributes = vars(owner)
    names = [name for name in attributes if name not in _NOT_PUT_BACK and not name.endswith("_hooks")]
    kept = {name: remember(attributes[name]) for name in names}
    reductions = getattr(owner, "_reductions", {}) if hasattr(owner, "_defaults") else {}

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
    kept = {key: {name: state[name] for name in state if name not in _NOT_PUT_BACK} for key, state in logged.items()}

    def put_back() -> None:
        for key, metric in results.items():
            if key in kept:
                vars(metric).update(kept[key])
            elif metric.is_tensor and metric.meta.sync.should and not metric.has_reset:
                metric.value = torch.full_like(metric.value, metric._defaults["value"].item())
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    return put_back


# --- values for empty attributes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """A borrowed step's value for an empty attribute."""

    value: Any


def copied(value: Any) -> Any:
    """Return a copy of a dict, list, deque or set, and of those in it; other values are not copied."""
    made: Any
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: copied(item) for key, item in value.items()})
        return made
    if isinstance(value, list | deque):
        made = copy.copy(value)
        made.clear()
        made.extend(copied(item) for item in value)
        return made
    return set(value) if isinstance(value, set) else value


def gaps(now: Any, borrowed: Any) -> Any:
    """Return where ``now``, after the step is undone, is empty and ``borrowed``, a copy from before, is not.

    Returns: a `Gap`, a dict of gaps by key or index, or None.
    """
    if _is_nothing(now):
        return None if _is_nothing(borrowed) else Gap(borrowed)
    inner: dict[Any, Any] = {}
    if isinstance(now, dict) and isinstance(borrowed, dict):
        known = {key: item for key, item in borrowed.items() if key in now or isinstance(item, _HOLDERS)}
        inner = {key: gaps(now.get(key), item) for key, item in known.items()}
    elif isinstance(now, list | deque) and isinstance(borrowed, list | deque):
        pairs = enumerate(zip(now, borrowed, strict=False))
        inner = {index: gaps(one, other) for index, (one, other) in pairs if isinstance(one, _HOLDERS)}
    return {key: gap for key, gap in inner.items() if gap is not None} or None


def fill(now: Any, gap: Any) -> Any:
    """Return ``now`` with what is still empty filled in; containers are changed in place."""
    if isinstance(gap, Gap) and isinstance(now, dict) and now:
        gap = gaps(now, gap.value) or {}  # it has results of another loader since
    if isinstance(gap, Gap):
        if not _is_nothing(now):
            return now
        if isinstance(now, dict | set) and isinstance(gap.value, type(now)):
            now.update(gap.value)
        elif isinstance(now, list | deque) and isinstance(gap.value, type(now)):
            now.extend(gap.value)
        else:
            return gap.value
        return now
    for key, inner in gap.items():
        if isinstance(now, dict):
            now[key] = fill(now.get(key), inner)
        elif isinstance(now, list | deque) and key < len(now):
            now[key] = fill(now[key], inner)
    return now


def _is_nothing(value: Any) -> bool:
    """Return whether a value is empty: None, zero, or a container without items."""
    return value is None or (isinstance(value, int | float | complex | dict | list | deque | set) and not value)
