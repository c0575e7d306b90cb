"""Nothing of a sweep is left: no process, no reservation."""

from __future__ import annotations

from collections.abc import Iterator

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
    rays = ended.world.rays
    for node in rays.nodes_alive():
        for process in node.processes:
            if process.alive and process.locals.get("kind") in ("head", "worker"):
                yield f"{process} is left"
    for group in rays.groups:
        if group.state != "REMOVED":
            yield f"{group._hex} is left ({group.state})"
