"""Sweeps in object stores (``s3://``, ``gs://``, whatever fsspec knows): files here, objects there.

A sweep in a store has a working folder on every node, ``.../tunelight-stores/PROTOCOL/BUCKET/...``. A path in it says
by itself which object it stands for, so that nothing but paths is passed on, and code that knows folders goes on to
work. What is small and has to be the same for all is read from the store and written to it; a large file is pushed once
it is finished, and fetched where it is opened. Of any other path, these functions do to the file itself what they say.
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
    """Return what Tune is to use as ``storage_filesystem`` for a storage: of a store, pyarrow's, else None."""
    if not inside(folder):
        return None
    from tunelight.stores.tune import file_system  # imports pyarrow and fsspec

    return file_system(folder)
