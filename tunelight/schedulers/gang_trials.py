"""Whether a trial is a gang, and where its checkpoints are."""

from __future__ import annotations

from typing import Any

from ray.actor import ActorHandle

from tunelight.compat.ray import trial_actor
from tunelight.errors import SettingsError


def check_is_gang(trial: Any) -> None:
    """Raise SettingsError for a trial that runs without a gang, which could not carry out a decision."""
    actor = trial_actor(trial)
    if isinstance(actor, ActorHandle) and not hasattr(actor, "decide"):
        raise SettingsError(
            f"GangPBT hands weights from gang to gang, and trial {trial.trial_id} is no gang. Wrap the train function: "
            "Tuner(tunelight.gang_trainable(train, ...)), or use Ray's PopulationBasedTraining."
        )


def folder_of(trial: Any) -> str | None:
    """Return the folder of a trial's checkpoints, if there is one."""
    try:
        path = trial.path
    except Exception:  # noqa: BLE001 - a trial without storage has none
        return None
    return None if path is None else str(path)
