"""A sweep that the newest released version has recorded, by `record.py`, and what it trained."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

FORMATS = Path(__file__).parent
(VERSION,) = (path.name for path in FORMATS.iterdir() if path.name[0].isdigit())


def unpacked(storage: Path) -> Path:
    """Return a copy of the sweep, with its checkpoints as they were."""
    folder = Path(shutil.copytree(FORMATS / VERSION / "sweep", storage / "recorded"))
    for path in folder.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return folder
