"""Copies a checkpoint to main memory, to write it while training continues."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tunelight.compat.lightning import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO


def write_later(
    checkpoint: dict[str, Any], path: str, writer: CheckpointIO, own: Iterable[torch.Tensor] = ()
) -> Callable[[], None]:
    """Copy ``checkpoint``, except for tensors of its own; return a function that writes it. Runs on: worker, rank 0."""
    while isinstance(writer, AsyncCheckpointIO) and writer.checkpoint_io is not None:
        writer = writer.checkpoint_io  # its thread would write after the function has returned
    plain = type(writer) is TorchCheckpointIO  # which keeps the file's bytes in memory as well, twice
    try:
        snapshot = frozen(checkpoint, own)
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


def frozen(value: Any, own: Iterable[torch.Tensor] = ()) -> Any:
    """Return a deep copy with its tensors in main memory; storages that tensors share are copied once.

    ``own``: tensors that nothing else holds, which are not copied.
    """
    copies: dict[int, Any] = {id(one): one for one in own}
    storages: dict[int, torch.UntypedStorage] = {}
    for part in tensors_of(value):
        if id(part) not in copies:
            copies[id(part)] = _in_main_memory(part, storages)
    return copy.deepcopy(value, copies)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(item)


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
