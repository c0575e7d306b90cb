"""What a rank needs to know to join its gang, and the interface of a backend for collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist

COLLECTIVE_LIMIT_S = 1800.0
"""How long a collective may take before its ranks give up (torch's own default)."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What ranks need to know to meet.

    ``backend`` is ``gloo``, ``nccl`` or ``horovod``; ``host`` and ``port`` are the store's; ``group_port`` is
    that of the backend's own rendezvous, where it has one. ``layout`` counts the ranks of each node;
    ``timeout_s`` is how long a collective may take (None: the backend's own limit).
    """

    host: str
    port: int
    backend: str
    layout: tuple[int, ...] = ()
    group_port: int = 0
    timeout_s: float | None = None


class CollectiveGroup:
    """One rank's part of a backend for collectives; this one connects nothing. Runs on: worker."""

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Serve the backend's rendezvous on ``address``; return its port, or 0 for none. Runs on: rank 0."""
        return 0

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Meet the other ranks."""

    def leave(self) -> None:
        """Leave the group, or begin to; collectives in which peers wait fail with an error."""

    def settle(self) -> bool:
        """Wait, for some seconds, until a group that was left has ended; tell whether this process can meet again."""
        return True

    def close(self) -> None:
        """Close what ``host`` opened."""

    def tidy(self) -> bool:
        """Destroy the groups that a trial made beside the gang's; return whether the gang's own still stands."""
        return True

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone."""
        return False

    def advice(self, error: BaseException) -> str | None:
        """Return what to do about an error that follows from the group being there already; None for others."""
        return None
