"""What all trials of a sweep have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunelight.checkpoints.policy import Checkpoints
from tunelight.gang.spec import driver_paths
from tunelight.machine.versions import installed
from tunelight.messages import Continue, DatasetHandle, Evaluation
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a sweep have in common.

    Attributes:
        train: the train function as :class:`tunelight.gang.parcel.Code` sends it; the head does not unpickle it.
        soft_errors: a failed trial ends with a result that holds its error, so that Tune keeps the head and its gang.
            Otherwise ``step`` raises, as plain Tune expects.
        real_checkpoints: ``save_checkpoint`` gives Tune the checkpoint itself, beside the pointer to it.
        first: how far a trial may train before its first answer.
    """

    train: Any
    reservation: Reservation
    backend: str = "ddp"
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    seed: int = 0
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    first: Continue = field(default_factory=lambda: Continue(until=1))
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    evaluation: Evaluation = "ddp"
    runtime_env: dict[str, Any] | None = None
    soft_errors: bool = False
    real_checkpoints: bool = True
    verbose: int = 0
    start: int | None = None
    """How many workers a trial has until a ``Resize`` (None: all that it can get, as they arrive)."""
    folds: int | None = None
    """How many folds there are, where each training of a configuration has its own."""
    datasets: DatasetHandle | None = None
    """The sweep's datasets."""
    lightning: str = "pytorch_lightning"
    """The package of Lightning that the training code is written with."""
    versions: Mapping[str, str | None] = field(default_factory=installed)
    """What the driver has installed, which the workers must have too."""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=driver_paths)

    @property
    def passes_on(self) -> bool:
        """Whether Tune gets each report's checkpoint; with ``start`` it does not, since saving ends the trial's run."""
        return self.real_checkpoints and self.start is None
