"""CIFAR-10's images as Parquet: read as others publish them, and written."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images of shape [N, C, H, W], and their labels of shape [N]."""

SHAPE = (3, 32, 32)
_IMAGE, _LABEL = ("image", "img"), ("label", "labels")
_ROW_GROUP = 2048
"""Images in a row group: what a reader takes in one piece, 6 MB."""


def find_parquet(root: Path, part: str) -> list[Path]:
    """Return the Parquet files of ``part``, "train" or "test": train*.parquet, or all in a folder of that name."""
    root = root.parent if root.is_file() else root
    for folder in (root, root / "plain_text", root / "data"):
        if files := sorted(folder.glob(f"{part}*.parquet")) or sorted((folder / part).glob("*.parquet")):
            return files
    return []


def read_parquet(files: Sequence[Path]) -> Images:
    """Return the images, shape [N, 3, 32, 32], and labels, shape [N], of Parquet files.

    A column ``image`` (or ``img``) holds them as tensors (Arrow's or Ray Data's) or lists of [32, 32, 3] or
    [3, 32, 32], as flat lists in CIFAR-10's own order, or as picture files (PNG); a column ``label`` their classes.
    Raises: ValueError for other contents.
    """
    from pyarrow import parquet  # a third of a second, for those whose images are Parquet

    images, labels = [], []
    for path in files:
        table = parquet.read_table(path)
        name = _column(table, _IMAGE, path)
        images.append(_images(table[name].combine_chunks(), _shape(table.schema.field(name)), path))
        labels.append(table[_column(table, _LABEL, path)].to_numpy().astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def _column(table: Any, names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise ValueError(f"{path.name} has no column {' or '.join(names)}, but {', '.join(table.column_names) or 'none'}")


def _shape(field: Any) -> tuple[int, ...]:
    """Return the shape of a column's tensors; () for other columns, whose lists say it."""
    if hasattr(field.type, "shape"):
        return tuple(field.type.shape)
    # Ray Data's tensors, in a process that has not imported Ray Data.
    told = json.loads((field.metadata or {}).get(b"ARROW:extension:metadata", b"[]"))
    return tuple(told) if isinstance(told, list) else ()


def _images(column: Any, shape: tuple[int, ...], path: Path) -> NDArray[np.uint8]:
    """Return a column's images, shape [N, 3, 32, 32]."""
    import pyarrow as pa

    values = getattr(column, "storage", column)  # of a tensor type, which Arrow or Ray Data has declared
    if pa.types.is_struct(values.type) and values.type.get_field_index("bytes") >= 0:
        values = values.field("bytes")
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return np.stack([_decoded(one) for one in values.to_pylist()])
    shape = shape or np.shape(values[0].as_py())
    while hasattr(values, "flatten") and not pa.types.is_primitive(values.type):
        values = values.flatten()
    pixels = values.to_numpy(zero_copy_only=False)
    if pixels.size != len(column) * np.prod(SHAPE) or pixels.dtype.kind not in "iu" or pixels.max() > 255:
        raise ValueError(f"{path.name} holds {column.type}, and no images of 32 x 32 pixels in bytes of three colours")
    whole = pixels.astype(np.uint8).reshape(-1, *(SHAPE if len(shape) == 1 else shape))
    images: NDArray[np.uint8] = whole if whole.shape[1:] == SHAPE else whole.transpose(0, 3, 1, 2)
    return images


def _decoded(picture: bytes) -> NDArray[np.uint8]:
    """Return the pixels of a picture file, shape [3, 32, 32]."""
    from PIL import Image  # for those whose images are pictures

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).transpose(2, 0, 1)


def write_parquet(path: str | os.PathLike[str], images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Write images of shape [N, 3, 32, 32] as tensors [32, 32, 3], as picture files have them, with their labels."""
    import pyarrow as pa
    from pyarrow import parquet

    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))
    parquet.write_table(pa.table({"image": tensors, "label": labels}), path, row_group_size=_ROW_GROUP)
