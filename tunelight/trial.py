"""What all trials of a sweep have in common, and what makes each of them repeatable."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from tunelight.gang.spec import driver_paths
from tunelight.messages import Continue, Lent, OnResize
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a sweep have in common, as their heads know it.

    ``train`` is the cloudpickled train function or a reference to it: the head never opens it.
    ``soft_errors``: a failed trial ends with a result that holds its error, so that Tune keeps the head
    and its gang; without it ``step`` raises, which is what plain Tune expects.
    """

    train: Any
    reservation: Reservation
    backend: str = "ddp"
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    seed: int = 0
    keep: int = 1
    every: int = 1
    every_s: float = 0.0
    share: float = 0.05
    first: Continue = field(default_factory=lambda: Continue(until=1))
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    on_resize: OnResize = field(default_factory=OnResize)
    runtime_env: dict[str, Any] | None = None
    soft_errors: bool = False
    real_checkpoints: bool = True
    verbose: int = 0
    start: int | None = None
    """How many workers a trial has until ``Resize`` says otherwise (None: all that it can get, as they come)."""
    lent: Lent | None = None
    """The sweep's datasets."""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=driver_paths)


def trial_seed(sweep_seed: int, trial_id: str) -> int:
    """Return a trial's seed (32 bits): a function of the sweep's seed and the trial's index.

    The index is the number that a trial id ends with, as tunelight's and Tune's own do; else the whole id.
    """
    tail = trial_id.rsplit("_", 1)[-1]
    key = str(int(tail)) if tail.isdecimal() else trial_id
    digest = hashlib.sha256(f"{sweep_seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
