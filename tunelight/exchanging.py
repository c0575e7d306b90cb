"""What a trial's head does when trials give one another what they have learned: it passes references on, unopened."""

from __future__ import annotations

from typing import Any

from tunelight.checkpoints import Kept
from tunelight.gang.run import Run
from tunelight.messages import Adopt


class Exchanging:
    """The part of a Trainable that offers its trial's state and has it adopt another's. Runs on: trial."""

    _run: Run | None
    _kept: Kept
    _config: dict[str, Any]
    _until: int | None
    _decided: bool
    _adopted: str | None = None
    """What became of the last order to adopt, for the next result: "memory", "disk" or "none"."""

    def offer(self) -> tuple[Any, ...]:
        """Return a reference to what training is made of at the report that waits, alone in a tuple; () without one."""
        weights = None if self._run is None else self._run.offer()
        return () if weights is None else (weights,)

    def _adopt(self, adopt: Adopt) -> None:
        """Become another trial's training, and remember whose configuration holds from now on."""
        how = None if self._run is None else self._run.adopt(adopt)
        self._adopted = how or "none"
        self._until, self._decided = adopt.until, True
        if how is not None and self._run is not None:
            self._config = dict(adopt.config)
            self._kept.newest = self._run.resume if how == "disk" else None  # the last is of what it was before

    def _told_of_adopting(self) -> str | None:
        """Return what became of the last order, once."""
        told, self._adopted = self._adopted, None
        return told
