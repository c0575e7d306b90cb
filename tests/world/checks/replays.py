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
    for name, value in had.items():
        for key in value if isinstance(value, dict) and isinstance(replayed[name], dict) else ():
            if value[key] != replayed[name].get(key):
                yield f"{name}: {key} was {value[key]}, and the record says {replayed[name].get(key)}"
        if not isinstance(value, dict) and value != replayed[name]:
            yield f"{name} was {value}, and the record says {replayed[name]}"


def _plain(state: Any) -> dict[str, Any]:
    """Return a state as JSON has it, by name and by trial."""
    plain = json.loads(json.dumps(asdict(state), default=str))
    return {**{f"trial {key}": one for key, one in plain.pop("trials").items()}, **plain}
