"""The package's metadata, for a tunelight on the import path that is not installed, as by ``py_modules``.

Lightning finds tunelight's callbacks by the entry points of installed packages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tempfile
from pathlib import Path
from typing import Final

ENTRY_POINTS: Final = {
    "pytorch_lightning.callbacks_factory": "tunelight.lightning.guard:guard_callbacks",
    "lightning.pytorch.callbacks_factory": "tunelight.lightning.guard:guard_other_callbacks",
}
"""By group, as in pyproject.toml; each is called "tunelight"."""


def is_installed() -> bool:
    """Tell whether this process finds tunelight's metadata."""
    try:
        importlib.metadata.distribution("tunelight")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def ensure_entry_points(folder: Path) -> None:
    """Make tunelight's entry points known to this process, where it is not installed; files come below ``folder``."""
    if is_installed():
        return
    version = sys.modules["tunelight"].__version__  # the front door, which no room imports
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="metadata-", dir=folder))  # other processes may be reading theirs
    info = place / f"tunelight-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tunelight\nVersion: {version}\n")
    lines = [f"[{group}]\ntunelight = {value}\n" for group, value in ENTRY_POINTS.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(place))
    importlib.invalidate_caches()
