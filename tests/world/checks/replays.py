"""The record replays to the state that the driver had at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
    if ended.world.recorded is None:
        return
    had, replayed = _plain(ended.world.recorded), _plain(ended.state)
    for name in had:
        if had[name] != replayed[name]:
            yield f"the driver had {name}={had[name]}, and the record says {replayed[name]}"


def _plain(state: Any) -> dict[str, Any]:
    """Return a state as JSON has it, by name and by trial."""
    plain = json.loads(json.dumps(asdict(state), default=str))
    return {**{f"trial {key}": one for key, one in plain.pop("trials").items()}, **plain}
