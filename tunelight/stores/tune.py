"""The file system through which Ray Tune writes its own files to a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from tunelight.stores.store import store_of


class WorkingFileSystem(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store whose objects are named by their paths in the working folder, as Tune knows them."""

    cachable = False

    def __init__(self, folder: str, **options: Any) -> None:
        store = store_of(folder)
        assert store is not None  # only made for folders in stores
        with store.at(Path(folder)) as (system, root):
            super().__init__(path=root, fs=system, **options)
        self.folder = folder

    def _join(self, path: Any) -> Any:
        if isinstance(path, str):
            return super()._join(os.path.relpath(path, self.folder) if os.path.isabs(path) else path)  # noqa: PTH117
        return super()._join(path)

    def _relpath(self, path: Any) -> Any:
        if isinstance(path, str):
            return str(Path(self.folder, super()._relpath(path)))
        return super()._relpath(path)


def for_tune(folder: Path) -> Any:
    """Return Tune's ``storage_filesystem`` for a storage: pyarrow's for a store, else None."""
    return None if store_of(folder) is None else PyFileSystem(FSSpecHandler(WorkingFileSystem(str(folder))))
