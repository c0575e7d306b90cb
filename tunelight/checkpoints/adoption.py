"""What a trial has of another one's training: noted until a checkpoint of its own has that.

A trial takes over another's state through memory (population-based training), or begins with it (a branch).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tunelight.checkpoints.files import ADOPTED, write_json, write_pointer
from tunelight.messages import CheckpointInfo
from tunelight.stores import delete, store_of


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a trial took over from another one through memory, after its report ``number``.

    ``folder``: the name of the other trial's folder, beside this one's. ``parent_number``: the report at which it had
    offered that; None for its newest.
    """

    number: int
    parent: str
    folder: str
    parent_number: int | None
    between: int | None = None
    """Of the other trial's checkpoint with which a branch begins (:attr:`CheckpointInfo.between`); else None."""
    branch: str | None = None
    """The name under which that checkpoint is kept for the branch."""


def note_adoption(adoption: Adoption, trial_dir: str | os.PathLike[str]) -> None:
    """Write down what a trial has taken over, for a restart before its next checkpoint. Raises: OSError."""
    write_json(Path(trial_dir, ADOPTED), asdict(adoption))


def read_adoption(trial_dir: str | os.PathLike[str]) -> Adoption | None:
    """Return what a trial took over last; None if nothing, or if that cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        if store := store_of(trial_dir):
            store.bring(Path(trial_dir), ADOPTED)
        return Adoption(**json.loads(Path(trial_dir, ADOPTED).read_bytes()))
    return None


def forget_adoption(trial_dir: str | os.PathLike[str]) -> None:
    """Delete what :func:`note_adoption` wrote: a checkpoint has it. Raises: OSError."""
    delete(Path(trial_dir, ADOPTED))


def pin(info: CheckpointInfo, trial_dir: str | os.PathLike[str], branch: str) -> None:
    """Keep a checkpoint until the branch of this name has a copy of it. Raises: OSError."""
    write_pointer(_pin(trial_dir, branch), info)


def unpin(trial_dir: str | os.PathLike[str], branch: str) -> None:
    """No longer keep a checkpoint for a branch. Raises: OSError."""
    delete(_pin(trial_dir, branch))


def _pin(trial_dir: str | os.PathLike[str], branch: str) -> Path:
    return Path(trial_dir, f"checkpoint_for_{branch}")
