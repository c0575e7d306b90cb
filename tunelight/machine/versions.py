"""Installed versions, whether processes that train together have the same, and tunelight's own metadata."""

from __future__ import annotations

import contextlib
import functools
import importlib
import platform
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tunelight.errors import first_of

LIGHTNING: Final = ("pytorch-lightning", "lightning")
"""The packages that Lightning is published as; a gang trains with one of them."""
MUST_AGREE: Final = ("python", "torch", "ray", *LIGHTNING, "tunelight")
"""Packages that must have the same version in all processes of a gang, which else fail late or differ in results."""


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of packages, and of "python" (None: not installed); none of them is imported."""
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in names:
        versions[name] = None
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = platform.python_version() if name == "python" else metadata.version(name)
    return versions


@functools.cache
def installed() -> dict[str, str | None]:
    """Return the versions of ``MUST_AGREE`` in this process (None: not installed); nothing is imported."""
    return versions_of(MUST_AGREE)


def node_name(host: str, node_id: str, address: str) -> str:
    """Return a node's name in messages: its host, the start of Ray's id (a host may have several) and its address."""
    return f"{host}#{node_id[:6]} ({address})"


def alike(name: str, version: str | None) -> str:
    """Return the part of a version that must agree: two numbers of Python's, all but the build (+cpu) of others."""
    if version is None:
        return "none"
    return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]


def differences(versions: Mapping[str, Mapping[str, str | None]], lightning: str) -> list[str]:
    """Return a sentence for each of ``MUST_AGREE`` that differs between nodes.

    ``versions`` is by node name; ``lightning`` is the module of Lightning in use, ``lightning.pytorch`` or
    ``pytorch_lightning``: the other package may differ, or be missing.
    """
    used = lightning.partition(".")[0].replace("_", "-")
    conflicts = []
    for name in MUST_AGREE:
        if name in LIGHTNING and name != used:
            continue
        nodes_by_version: dict[str, list[str]] = {}
        for node, known in versions.items():
            if name in known:
                nodes_by_version.setdefault(alike(name, known[name]), []).append(node)
        if len(nodes_by_version) > 1:
            listed = "; ".join(f"{version} on {first_of(nodes)}" for version, nodes in nodes_by_version.items())
            conflicts.append(f"{name} is not the same on all nodes: {listed}.")
    return conflicts


ADVICE: Final = "Install the same versions on every node: one image, or one environment on a shared disk."


ENTRY_POINTS: Final = {
    "pytorch_lightning.callbacks_factory": "tunelight.lightning.guard:guard_callbacks",
    "lightning.pytorch.callbacks_factory": "tunelight.lightning.guard:guard_other_callbacks",
}
"""Where Lightning finds tunelight's callbacks, by group, as in pyproject.toml; each is called "tunelight"."""


def is_installed() -> bool:
    """Tell whether this process finds tunelight's metadata."""
    from importlib import metadata

    try:
        metadata.distribution("tunelight")
    except metadata.PackageNotFoundError:
        return False
    return True


def ensure_entry_points(folder: Path) -> None:
    """Make tunelight's entry points known to this process; files come below ``folder``.

    A tunelight on the import path, as by ``py_modules``, may not be installed.
    """
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
