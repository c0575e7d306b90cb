"""What a gang is made of, and how long its parts may take."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from tunelight.messages import OnResize
from tunelight.settings.backends import BACKENDS

START_LIMIT_S = 600.0
"""How long the workers' processes and imports may take (a cold network file system is slow)."""
HANG_TIMEOUT_S = 600.0
"""How long a gang may go without finishing a batch, unless it is told otherwise."""


@dataclass(frozen=True)
class GangSpec:
    """What a gang is made of: its workers and what each holds.

    ``first_bundle`` is the index of worker 0's bundle (1 where the head has one of its own);
    ``backend`` is ``ddp``, ``sharded`` or ``horovod``.
    """

    workers: int
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    resources_per_worker: dict[str, float] = field(default_factory=dict)
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
    least: int | None = None
    """The size that the gang can do with (None: its workers, all of them)."""
    most: int | None = None
    """The size that it is meant to have, where that is more than its workers: it reserves the rest by itself."""
    on_resize: OnResize = field(default_factory=OnResize)
    hang_timeout_s: float | None = HANG_TIMEOUT_S
    reschedule_timeout_s: float = START_LIMIT_S
    """How long lost workers may take to be back (their nodes may be gone, and have to be replaced too)."""

    @property
    def wanted(self) -> int:
        """The size that the gang is meant to have."""
        return max(self.workers, self.most or 0)

    @property
    def collectives(self) -> str:
        """How ranks reach one another: the backend's own way; else nccl if each has a GPU of its own, or gloo."""
        own = BACKENDS[self.backend].collectives or self.process_group
        if own is not None:
            return own
        return "nccl" if self.gpus_per_worker >= 1 else "gloo"

    @property
    def roams(self) -> bool:
        """True where ranks that meet on one node may later have to meet others on the network, in the same processes.

        NCCL chooses its network interface once in a process's life: such a gang meets on the network from the start.
        """
        return "nccl" in self.collectives and (self.least is not None or self.wanted > self.workers)


def driver_paths() -> tuple[str, ...]:
    """Return the folders that this process imports from, absolute, for its workers to import from too."""
    return tuple(dict.fromkeys(os.path.abspath(path or ".") for path in sys.path))  # noqa: PTH100
