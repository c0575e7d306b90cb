"""Sweeps in object stores (``s3://``, ``gs://``, and others of fsspec), and atomic writes.

Every process works on files of its own node. A sweep in a store has a working folder on every node,
``.../tunelight-stores/PROTOCOL/BUCKET/...``, so that only paths need to be passed on. Whoever moves a file asks
:func:`store_of` for its :class:`Store`: the driver uploads the record, workers upload checkpoints and the other files
of trials, and readers download what they are about to read.
"""

from __future__ import annotations

from tunelight.stores.atomic import replacing, sync_file, write_atomically
from tunelight.stores.paths import FOLDER, ODD, check, check_folder, shown, working
from tunelight.stores.store import PUSH_LIMIT_S, Store, alone, delete, delete_local, files_of, store_of
