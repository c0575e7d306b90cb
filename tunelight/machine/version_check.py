"""Whether processes that are to train together run the same software."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from tunelight.errors import first_of
from tunelight.machine.versions import versions_of

MUST_AGREE: Final = ("python", "torch", "ray", "pytorch-lightning", "tunelight")
"""What differs between processes that train together makes them fail late, or compute other numbers."""


@functools.cache
def installed() -> dict[str, str | None]:
    """Return the versions of ``MUST_AGREE`` in this process (None: not installed); nothing is imported."""
    return versions_of(MUST_AGREE)


def node_name(host: str, node_id: str, address: str) -> str:
    """Return what a message calls a node: its host, the start of Ray's id (a host may have several), its address."""
    return f"{host}#{node_id[:6]} ({address})"


def alike(name: str, version: str | None) -> str:
    """Return what of a version has to be the same: of Python's two numbers, of others all but the build (+cpu)."""
    if version is None:
        return "none"
    return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]


def differences(versions: Mapping[str, Mapping[str, str | None]]) -> list[str]:
    """Return a sentence for each of ``MUST_AGREE`` that is not the same everywhere; ``versions`` by node's name."""
    told = []
    for name in MUST_AGREE:
        held: dict[str, list[str]] = {}
        for node, known in versions.items():
            if name in known:
                held.setdefault(alike(name, known[name]), []).append(node)
        if len(held) > 1:
            listed = "; ".join(f"{version} on {first_of(nodes)}" for version, nodes in held.items())
            told.append(f"{name} is not the same on all nodes: {listed}.")
    return told


ADVICE: Final = "Install the same versions on every node: one image, or one environment on a shared disk."
