"""Sweeps that released versions have recorded, by `record.py`, and what they trained."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

FORMATS = Path(__file__).parent
VERSIONS = sorted(path.name for path in FORMATS.iterdir() if path.name[0].isdigit())


def unpacked(version: str, storage: Path) -> Path:
    """Return a copy of a version's sweep, with its checkpoints as they were."""
    folder = Path(shutil.copytree(FORMATS / version / "sweep", storage / "recorded"))
    for path in folder.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    return folder
