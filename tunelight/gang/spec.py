"""What a gang is made of, and how long its parts may take."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from tunelight.messages import OnResize
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation

START_LIMIT_S = 600.0
"""How long the workers' processes and imports may take (a cold network file system is slow)."""


@dataclass(frozen=True)
class GangSpec:
    """What a gang is made of.

    Attributes:
        reservation: how many workers, and the resources of each. Workers beyond ``reservation.workers``, up to
            ``reservation.most``, are reserved by the gang itself.
        failures: of the failure policy a gang obeys the two time limits, for a hang and for lost workers.
        backend: ``ddp``, ``sharded`` or ``horovod``.
        first_bundle: the index of worker 0's bundle in the placement group (1 where the head has a bundle).
    """

    reservation: Reservation = field(default_factory=Reservation)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    runtime_env: dict[str, Any] | None = None
    backend: str = "ddp"
    first_bundle: int = 0
    workers_per_bundle: int = 1
    init_hook: bytes | None = None
    """Pickled; called without arguments on every worker before the gang first meets."""
    process_group: str | None = None
    """torch's backend, where it is not to be chosen by what workers hold."""
    timeout_s: float | None = None
    """How long a collective may take (None: torch's default, 30 minutes)."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that every worker gets before it imports anything."""
    cwd: str = "."
    sys_path: tuple[str, ...] = ()
    on_resize: OnResize = field(default_factory=OnResize)

    @property
    def workers(self) -> int:
        """How many workers have a bundle in the gang's placement group."""
        return self.reservation.workers

    @property
    def wanted(self) -> int:
        """The size that the gang is meant to have."""
        return max(self.workers, self.reservation.most or 0)

    @property
    def collectives(self) -> str:
        """How ranks reach one another: Horovod; or nccl where each rank has a GPU of its own, else gloo."""
        if self.backend == "horovod":
            return "horovod"
        if self.process_group is not None:
            return self.process_group
        return "nccl" if self.reservation.gpus_per_worker >= 1 else "gloo"

    @property
    def roams(self) -> bool:
        """True where ranks that meet on one node may later have to meet others on the network, in the same processes.

        NCCL chooses its network interface once in a process's life: such a gang meets on the network from the start.
        """
        return "nccl" in self.collectives and (self.reservation.least is not None or self.wanted > self.workers)


def driver_paths() -> tuple[str, ...]:
    """Return the folders that this process imports from, absolute, for its workers to import from too."""
    return tuple(dict.fromkeys(os.path.abspath(path or ".") for path in sys.path))  # noqa: PTH100
