"""One trial, or one job, as every rank of a gang gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunelight.checkpoints.policy import Checkpoints
from tunelight.messages import CheckpointInfo, DatasetHandle, OnResize, Terminal


@dataclass(frozen=True, slots=True)
class Task:
    """One trial, as it is handed to every rank of a gang.

    ``train`` is the cloudpickled train function, or a reference to those bytes in Ray's object store;
    the head passes it on unopened. ``number`` is the last report before this start (0: a new trial).
    """

    trial_id: str
    trial_dir: str
    config: dict[str, Any]
    train: Any
    seed: int | None
    """Set on every rank before the train function starts (None: it sets its own)."""
    cwd: str
    serial: int = 0
    """Counts what this gang has started, so that no word of one trial is heard in another."""
    sys_path: tuple[str, ...] = ()
    metric: str | None = None
    number: int = 0
    until: int | None = 1
    resume: CheckpointInfo | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    verbose: int = 0
    terminal: Terminal | None = None
    """Where the ranks' output goes as it happens; None sends it to the trial's log."""
    job: bool = False
    """True for a job that stands alone: it hands in a result of its own and need not report."""
    heard: bool = True
    """False where nobody wants the reports of a job."""
    backend: str = "ddp"
    """How the gang meets: ``ddp``, ``sharded`` or ``horovod``."""
    wanted: int | None = None
    """The size that the gang is meant to have; None: the size that it has."""
    on_resize: OnResize = field(default_factory=OnResize)
    datasets: DatasetHandle | None = None
    """The sweep's datasets."""
    lead: Any = None
    """Rank 0's worker, for the others to fetch from what it made for all."""
