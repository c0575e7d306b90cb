"""What a trial takes over with another trial's checkpoint: its weights, if they fit, and its callbacks' states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tunelight.compat.lightning import pl
from tunelight.errors import CheckpointError, last_line
from tunelight.lightning.state.adoption import plain_values

KEY = "tunelight"
"""The key of Recovery's part of a Lightning checkpoint."""


@contextlib.contextmanager
def only_fitting_weights(checkpoint: Mapping[str, Any], config: Mapping[str, Any] | None) -> Iterator[None]:
    """Say which values make the model another one, where a checkpoint's weights, of another trial, do not fit it.

    Raises: CheckpointError.
    """
    try:
        yield
    except RuntimeError as error:  # torch's, for sizes and names
        before = (checkpoint.get(KEY) or {}).get("config") or {}
        now = {} if config is None else plain_values(config)
        changed = [
            f"{key}={now[key]!r}, not {before.get(key)!r}," for key in now if now[key] != before.get(key, now[key])
        ]
        if not changed:
            raise
        raise CheckpointError(
            f"{' and '.join(changed)} makes another model, which the weights that it was to begin with do not fit: "
            f"{last_line(error).rstrip('.')}. Change what leaves the weights as they are, or train it from scratch."
        ) from error


def take_over(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Let a fit train on where another trial was ended early: patience, time and best files count from there on.

    Call it on every rank, before callbacks load their states, which it changes. Runs on: worker.
    """
    ended = checkpoint[KEY].get("ends")
    if ended:
        checkpoint[KEY] |= {"ends": False, "ending": None}
    states: dict[str, Any] = checkpoint["callbacks"]
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    for one in callbacks:
        state = states.get(one.state_key)
        if not state:
            continue
        if isinstance(one, pl.callbacks.EarlyStopping):
            state |= {"patience": one.patience, **({"wait_count": 0, "stopped_epoch": 0} if ended else {})}
            state.pop("stopping_reason", None)
        elif isinstance(one, pl.callbacks.ModelCheckpoint) or (isinstance(one, pl.callbacks.Timer) and ended):
            del states[one.state_key]
