"""What a trial has taken over from another one through memory: noted until a checkpoint of its own has that."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tunelight.checkpoints.files import ADOPTED, write_json
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
