"""Where a rank joins its gang, and what a backend for collectives does for it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tunelight.messages import Place

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and as what a rank joins.

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


class CollectiveGroup(Protocol):
    """What a backend does for the ranks of a gang. Runs on: worker."""

    def host(self, address: str, layout: tuple[int, ...]) -> int:
        """Open what the ranks need to find one another on ``address``; return its port, or 0. Runs on: rank 0."""

    def join(self, meeting: Meeting, place: Place, store: dist.TCPStore) -> None:
        """Meet the other ranks."""

    def leave(self) -> None:
        """Leave the group. Peers that wait in a collective of it are freed, with an error."""

    def close(self) -> None:
        """Drop what ``host`` opened."""

    def tidy(self) -> None:
        """Drop what a trial made beside the gang's own group."""

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another rank is gone."""
