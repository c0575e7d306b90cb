"""Lightning's view of a gang: ranks come from where a rank is placed, and processes are there already."""

from __future__ import annotations

from tunelight.compat.lightning import ClusterEnvironment, rank_zero_only
from tunelight.messages import Place


class GangEnvironment(ClusterEnvironment):
    """Ranks and sizes of the gang; the setters do nothing, since the gang is what it is."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        rank_zero_only.rank = place.rank  # type: ignore[attr-defined]

    @property
    def creates_processes_externally(self) -> bool:
        """Say that nobody has to launch processes."""
        return True

    @property
    def main_address(self) -> str:
        """Return nothing of use: the gang has met before Lightning starts."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Return nothing of use; see ``main_address``."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Return False: Lightning is told, it need not guess."""
        return False

    def world_size(self) -> int:
        """Return the gang's size."""
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing."""

    def global_rank(self) -> int:
        """Return this worker's rank in the gang."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing."""

    def local_rank(self) -> int:
        """Return this worker's rank on its node."""
        return self._place.local_rank

    def node_rank(self) -> int:
        """Return the rank of this worker's node."""
        return self._place.node_rank
