"""What every rank of a gang gets to train: a trial or a job."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from tunelight.checkpoints.policy import Checkpoints
from tunelight.messages import CheckpointInfo, DatasetHandle, Evaluation, Terminal


@dataclass(frozen=True, slots=True)
class Task:
    """One start of a trial or a job.

    ``train`` is the packed train function, or a reference to it in Ray's object store. ``number`` is the last
    report before this start (0: a new trial), ``until`` the first one that waits for an answer (None: none).
    """

    trial_id: str
    trial_dir: str
    config: dict[str, Any]
    train: Any
    seed: int | None
    """Set on every rank before the train function starts (None: not set)."""
    cwd: str
    serial: int = 0
    """The number of this start on its gang, which keeps messages of different starts apart."""
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    """Keeps files of this run's starts apart from those of other runs of the trial, which count from 0, too."""
    sys_path: tuple[str, ...] = ()
    metric: str | None = None
    number: int = 0
    until: int | None = 1
    resume: CheckpointInfo | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    verbose: int = 0
    terminal: Terminal | None = None
    """The driver's terminal, to which the ranks' output is sent (None: it goes to the trial's log)."""
    job: bool = False
    """True for a driver's job, which returns a result and need not report."""
    heard: bool = True
    """False where the reports of a job are not used."""
    passed_on: bool = False
    """True where reports are passed on to a Tuner of the user's, each with its checkpoint."""
    backend: str = "ddp"
    """``ddp``, ``sharded`` or ``horovod``."""
    wanted: int | None = None
    """The gang's target size (None: its size now)."""
    elastic: bool = False
    """Whether the gang's size may change, which must not change the result."""
    evaluation: Evaluation = "ddp"
    """How Lightning's evaluation is divided, unless the strategy says it."""
    datasets: DatasetHandle | None = None
    """The sweep's datasets."""
    repetition: int = 0
    """Which training of its configuration it is, from 0: above 0, another trial's configuration is repeated."""
    pieces: int = 1
    """How many pieces each training batch is cut into, after the trial has run out of memory."""
    folds: int | None = None
    """How many folds there are, where each training of a configuration has its own."""
    lead: Any = None
    """Rank 0's worker, from which others fetch what it has made for all."""
