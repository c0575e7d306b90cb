"""Copies a checkpoint to main memory, to write it while training continues."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tunelight.compat.lightning import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO


def write_later(checkpoint: dict[str, Any], path: str, writer: CheckpointIO) -> Callable[[], None]:
    """Copy ``checkpoint``; return a function that writes the copy. Runs on: worker, rank 0."""
    while isinstance(writer, AsyncCheckpointIO) and writer.checkpoint_io is not None:
        writer = writer.checkpoint_io  # its thread would write after the function has returned
    plain = type(writer) is TorchCheckpointIO  # which keeps the file's bytes in memory as well, twice
    try:
        snapshot = frozen(checkpoint)
    except Exception:  # for example, a user's object that can be pickled but not copied
        if not plain:
            raise
        return _bytes_later(checkpoint, path)

    def write() -> None:
        if plain:
            torch.save(snapshot, path)
        else:
            writer.save_checkpoint(snapshot, path)

    return write


def _bytes_later(checkpoint: dict[str, Any], path: str) -> Callable[[], None]:
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)

    def write() -> None:
        with Path(path).open("wb") as stream:
            stream.write(buffer.getbuffer())

    return write


def frozen(value: Any) -> Any:
    """Return a deep copy with its tensors in main memory; storages that tensors share are copied once."""
    copies: dict[int, Any] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Mapping):
            for item in part.values():
                visit(item)
        elif isinstance(part, list | tuple):
            for item in part:
                visit(item)
        elif isinstance(part, torch.Tensor) and id(part) not in copies:
            copies[id(part)] = _in_main_memory(part, storages)

    visit(value)
    return copy.deepcopy(value, copies)


def _in_main_memory(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().to("cpu", copy=True)
    source = tensor.untyped_storage()
    key = source._cdata
    if key not in storages:
        storages[key] = source.clone() if source.device.type == "cpu" else source.cpu()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())
