"""Sweeps in object stores (``s3://``, ``gs://``, and others of fsspec): local files, and objects in the store.

A sweep in a store has a working folder on every node, ``.../tunelight-stores/PROTOCOL/BUCKET/...``. A path in it stands
for an object, so that only paths need to be passed on, and code for folders works. Small files that must be the same
for all are read from the store and written to it. A large file is pushed when it is complete, and fetched where it is
opened. For all other paths, these functions work on the file itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunelight.stores.atomic import replacing, write_atomically
from tunelight.stores.moving import (
    PUSH_LIMIT_S,
    alone,
    fetch,
    fetch_longer,
    forget,
    forget_others,
    push,
    push_changed,
)
from tunelight.stores.objects import (
    FOLDER,
    ODD,
    check,
    check_folder,
    claim,
    drop,
    drop_there,
    exists,
    holds_any,
    inside,
    located,
    matching,
    read,
    shown,
    stat,
    texts,
    working,
    write,
)


def for_tune(folder: Path) -> Any:
    """Return Tune's ``storage_filesystem`` for a storage: pyarrow's for a store, else None."""
    if not inside(folder):
        return None
    from tunelight.stores.tune import file_system  # imports pyarrow and fsspec

    return file_system(folder)
