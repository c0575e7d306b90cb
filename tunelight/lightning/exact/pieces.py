"""Batches cut into pieces, whose gradients add up to those of the whole batch."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import UserDict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

_PLAIN = (str, bytes, int, float, bool, type(None))


class UncutError(TypeError):
    """A batch cannot be cut into pieces."""


def rows_of(batch: Any) -> int:
    """Return a batch's number of samples: the first dimension of all its tensors and arrays. Raises: UncutError."""
    rows = {len(one) for one in _arrays(batch)}
    if len(rows) != 1:
        found = f"first dimensions of {sorted(rows)}" if rows else "no tensors with a first dimension"
        raise UncutError(f"the batch has {found}, so that its samples cannot be told apart")
    return rows.pop()


def can_be_cut(batch: Any, pieces: int = 1, least: int = 1) -> bool:
    """Tell whether a batch can be cut into more than ``pieces``, each of ``least`` samples or more."""
    try:
        rows = rows_of(batch)
        _rows(batch, rows, slice(0, least))
    except Exception:  # noqa: BLE001 - of a class that is like a mapping or a tensor, and has limits of its own
        return False
    return -(-rows // pieces) >= 2 * least


def cut_or_whole(batch: Any, pieces: int, least: int = 1) -> tuple[list[Any], list[float]]:
    """Return what :func:`cut` does; of a batch that cannot be cut the whole as the first piece, with a share of 1."""
    with contextlib.suppress(Exception):  # as above; the fit's first batch could be cut
        if pieces > 1:
            return cut(batch, pieces, least)
    return [batch] * pieces, [1.0] + [0.0] * (pieces - 1)


def cut(batch: Any, pieces: int, least: int = 1) -> tuple[list[Any], list[float]]:
    """Cut a batch into ``pieces`` of about equal size; return them, and the share of the samples in each.

    Where the batch has fewer than ``least`` samples for each, it is cut into fewer pieces; the first one stands in for
    those that are missing, with a share of 0. Raises: UncutError.
    """
    rows = rows_of(batch)
    if rows == 0:
        raise UncutError("the batch has no samples")
    count = max(1, min(pieces, rows // least))
    ends = [-(-rows * number // count) for number in range(count + 1)]
    cuts = [_rows(batch, rows, slice(first, end)) for first, end in pairwise(ends)]
    shares = [(end - first) / rows for first, end in pairwise(ends)]
    missing = pieces - count
    return cuts + cuts[:1] * missing, shares + [0.0] * missing


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of a batch that have a first dimension. Raises: UncutError."""
    if isinstance(value, torch.Tensor) and (value.is_nested or value.layout is not torch.strided):
        raise UncutError("the batch holds a nested or sparse tensor")
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _arrays(item)
    elif isinstance(value, list | tuple) and not isinstance(value, PackedSequence):
        for item in value:
            yield from _arrays(item)
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
    elif not isinstance(value, _PLAIN):
        raise UncutError(
            f"the batch holds a {type(value).__name__}, which is no tensor, mapping, sequence or dataclass"
        )


def _rows(value: Any, rows: int, which: slice) -> Any:
    """Return the rows ``which`` of a batch of ``rows`` rows; what has no rows stays as it is."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[which] if value.ndim else value
    if isinstance(value, Mapping):
        cut_items = {key: _rows(item, rows, which) for key, item in value.items()}
        if isinstance(value, dict | UserDict):
            clone = copy.copy(value)  # a defaultdict, say, is not made from a mapping
            clone.update(cut_items)
            return clone
        return type(value)(cut_items)  # type: ignore[call-arg]  # as a dict's
    if isinstance(value, list | tuple):
        if len(value) == rows and all(isinstance(item, _PLAIN) for item in value):
            return value[which]  # a text for each sample, say
        items = [_rows(item, rows, which) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if _is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: _rows(getattr(value, name), rows, which) for name in names})
    return value


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
