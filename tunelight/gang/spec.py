"""What a gang is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunelight.gang.meeting.group import COLLECTIVE_LIMIT_S
from tunelight.gang.placement import Location, is_mig
from tunelight.machine.versions import installed
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation
from tunelight.session.task import Home
from tunelight.settings.backends import BACKENDS

START_LIMIT_S = 600.0
"""How long the workers may take to start and import (a cold network file system is slow)."""
_PASSED_ON = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "HOROVOD_")


def passed_on() -> dict[str, str]:
    """Return the environment variables that workers get from the driver: interfaces, protocols, time limits."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}


@dataclass(frozen=True)
class GangSpec:
    """What a gang is made of.

    Attributes:
        reservation: how many workers, and the resources of each. Workers beyond ``reservation.workers``, up to
            ``reservation.most``, are reserved by the gang itself.
        failures: of the failure policy a gang obeys the two time limits, for a hang and for lost workers.
        backend: ``ddp``, ``sharded`` or ``horovod``.
        first_bundle: the index of worker 0's bundle in the placement group (None: as in ``reservation``).
    """

    reservation: Reservation = field(default_factory=Reservation)
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    runtime_env: dict[str, Any] | None = None
    backend: str = "ddp"
    first_bundle: int | None = None
    workers_per_bundle: int = 1
    actor: type[Any] | None = None
    """Where each trial has new processes: the actor of each worker, replaced after a trial unless it can ``renew``."""
    init_hook: bytes | None = None
    """A pickled function, called without arguments on every worker before the gang first meets."""
    process_group: str | None = None
    """torch's backend (None: NCCL where each worker has a GPU of its own, else gloo; see ``collectives_of``)."""
    timeout_s: float | None = None
    """How long a collective may take (None: 30 minutes, as torch's default, or twice ``hang_timeout_s``)."""
    environ: dict[str, str] = field(default_factory=dict)
    """Environment variables that every worker has before it imports anything."""
    home: Home = field(default_factory=Home)
    versions: Mapping[str, str | None] = field(default_factory=installed)
    """What the driver has installed, which the workers must have too."""

    @property
    def workers(self) -> int:
        """How many workers have a bundle in the gang's placement group."""
        return self.reservation.workers

    @property
    def elastic(self) -> bool:
        """Whether the gang may train with fewer workers while some are lost."""
        return self.reservation.least is not None

    @property
    def collectives(self) -> str:
        """The backend for collectives: its own; or ``nccl`` where each rank has a GPU of its own, else ``gloo``."""
        return self._own_collectives or ("nccl" if self.reservation.gpus_per_worker >= 1 else "gloo")

    def collectives_of(self, ranks: Sequence[Location]) -> str:
        """Return the backend for collectives of these ranks: with ``ddp`` gloo for several on MIG instances of a node.

        NCCL takes two instances of a GPU for the same GPU, which it refuses. FSDP2 cannot train by gloo on GPUs.
        """
        divided = [rank.node_id for rank in ranks if any(map(is_mig, rank.gpus))]
        share = self.backend == "ddp" and len(set(divided)) < len(divided)
        return self._own_collectives or ("gloo" if share else self.collectives)

    @property
    def _own_collectives(self) -> str | None:
        """What the backend, or the user, has chosen."""
        return BACKENDS[self.backend].collectives or self.process_group

    @property
    def collective_limit_s(self) -> float | None:
        """How long a collective may take; None for the backend's own limit, which is longer than a hang may last."""
        hang_s = self.failures.hang_timeout_s or 0.0
        return self.timeout_s or (2 * hang_s if 2 * hang_s > COLLECTIVE_LIMIT_S else None)

    @property
    def roams(self) -> bool:
        """True where ranks on one node may later have to meet others over the network, in the same processes.

        NCCL chooses its interface once per process, so such a gang meets over the network from the start.
        """
        return "nccl" in self.collectives and (self.elastic or self.reservation.wanted > self.workers)
