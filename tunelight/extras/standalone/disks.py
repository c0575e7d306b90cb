"""Copies checkpoints to the same path on the disks of other nodes, through Ray's object store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tunelight import stores
from tunelight.errors import CheckpointError

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
