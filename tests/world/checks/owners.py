"""Each run of a sweep ends once; `World.drive` checks that no driver returns results of a sweep that it has lost."""

from __future__ import annotations

from collections.abc import Iterator

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
    if (runs := sum(line["kind"] == "end" for line in ended.lines)) > len(ended.state.runs):
        yield f"{len(ended.state.runs)} runs have ended {runs} times"
