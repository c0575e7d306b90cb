"""What a population asks of a trial: whether it is a gang, what it offers, where its checkpoints are."""

from __future__ import annotations

import logging
from typing import Any

from ray.actor import ActorHandle

from tunelight.errors import SettingsError

logger = logging.getLogger(__name__)


def check_door(trial: Any) -> None:
    """Raise SettingsError for a trial that runs without a gang: nothing there would carry a decision out."""
    actor = getattr(trial.temporary_state, "ray_actor", None)
    if isinstance(actor, ActorHandle) and not hasattr(actor, "decide"):
        raise SettingsError(
            f"GangPBT hands weights from gang to gang, and trial {trial.trial_id} is no gang. Wrap the train function: "
            "Tuner(tunelight.gang_trainable(train, ...)), or use Ray's PopulationBasedTraining."
        )


def ask_offer(trial: Any) -> Any:
    """Ask a trial's actor for a reference to its state; None where it has no door for that."""
    try:
        method = getattr(trial.temporary_state.ray_actor, "offer", None)
        return None if method is None else method.remote()
    except Exception as error:  # noqa: BLE001 - whatever a dead actor raises would end the sweep
        logger.debug("no offer asked of trial %s: %s", trial.trial_id, error)
        return None


def folder_of(trial: Any) -> str | None:
    """Return where a trial's checkpoints are, if it has a folder."""
    try:
        path = trial.path
    except Exception:  # noqa: BLE001 - a trial without storage has none
        return None
    return None if path is None else str(path)
