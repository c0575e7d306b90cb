"""A step on a borrowed batch: how what it does is undone, and what of it is kept for the hooks at the end."""

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
    """Return a function that puts back what ``value`` holds now, and returns ``value``.

    Looks into dicts, lists, deques and sets, and copies tensors (those in lists apart: they are appended, not
    added to). Parameters and objects of other classes are taken as they are.
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
    "_computed",  # whether a metric is to be computed, and gathered, is the same on all ranks
}


LIGHTNINGS_OWN = frozenset(vars(pl.LightningModule()))
"""Attributes that every module has, of torch's and Lightning's."""


def remember_attributes(owner: Any) -> Callable[[], None]:
    """Return a function that puts an object's attributes back; those that are new by then stay.

    An empty list state of a torchmetrics metric that is concatenated over the ranks gets the appended tensors
    with no rows, so that it is gathered with the dtype and the dimensions that the other ranks have.
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
    """Return a function that takes back what was logged into a ``_ResultCollection`` since.

    A key that only the borrowed step has logged stays, with nothing in it: at the end all ranks reduce the same
    keys. One that is not reduced over the ranks stays as it is: "nothing" would be 0/0.
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


# --- what would be empty without them ---------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """What a borrowed step put where there was nothing."""

    value: Any


def copied(value: Any) -> Any:
    """Return a copy of a dict, list, deque or set and of those in it; anything else as it is."""
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
    """Return where ``now``, once the step is undone, has nothing and ``borrowed``, a copy from before, has something.

    Returns: a `Gap`, a dict of them by key or index, or None.
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
    """Return ``now`` with what is still nothing filled in, in place where it is a container."""
    if isinstance(gap, Gap) and isinstance(now, dict) and now:
        gap = gaps(now, gap.value) or {}  # results of another loader have come since
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
    """Tell whether a value is what collecting, counting or adding begins with."""
    return value is None or (isinstance(value, int | float | complex | dict | list | deque | set) and not value)
