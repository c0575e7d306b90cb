"""Tells a gang that hangs from a slow one, by the batches that its ranks finish."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType

from tunelight.session.boundary import Progress


@dataclass(frozen=True, slots=True)
class Sign:
    """A rank's progress: how many batches and reports it has done, and whether it waits for other ranks."""

    done: int = 0
    waits: bool = False
    begun: bool = False
    """True from a Trainer's set-up to the end of its loop."""
    steps: tuple[tuple[float, float], ...] = ()
    """Its own seconds, and the seconds in all, of each training step since its last sign."""


@dataclass
class HangWatch:
    """Finds the rank that blocks the others in a gang that hangs. Times are seconds of one clock, passed in.

    A gang hangs when no rank has made progress for ``limit_s`` seconds, although all of them had before and all still
    answer. Between a Trainer's set-up and the first batch, which may have to be compiled, it hangs when some ranks
    wait for others for that long. None: a gang never counts as hanging. Only Trainers are watched, while their loops
    run: of other code, which may evaluate or export for hours, no progress is known.
    """

    limit_s: float | None
    _signs: dict[int, Sign] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def rest(self) -> None:
        """Start again from now: the ranks had to wait for a decision."""
        self._since.clear()
        self._heard.clear()

    def hear(self, rank: int, sign: Sign, now: float) -> None:
        """Note a rank's progress."""
        last = self._signs.get(rank, Sign(-1))
        if (sign.done, sign.begun) != (last.done, last.begun):
            self._since.pop(rank, None)
        self._since.setdefault(rank, now)
        self._signs[rank], self._heard[rank] = sign, now

    def stuck(self, ranks: list[int]) -> int | None:
        """Return which of the running ``ranks`` to give up; None while they make progress.

        It is the rank with the least progress, of those that do not wait for others if there are any.
        """
        if self.limit_s is None or not ranks:
            return None
        for rank in ranks:
            sign, quiet = self._signs.get(rank, Sign()), self._heard.get(rank, 0.0) - self._since.get(rank, 0.0)
            if not sign.begun or quiet < self.limit_s:
                return None
        signs = self._signs
        if any(not signs[rank].done for rank in ranks) and len({signs[rank].waits for rank in ranks}) == 1:
            return None
        return min(ranks, key=lambda rank: (signs[rank].done, signs[rank].waits, -rank))


_COLLECTIVES = ("torch/distributed/", "horovod/", "tunelight/session/lockstep")
"""Parts of the paths of code that waits for other ranks."""


_BEHIND = frozenset({
    "_FitLoop.on_run_end", "on_train_end", "on_fit_end", "on_test_end", "on_predict_end", "teardown", "on_exception",
})  # fmt: skip
"""Functions behind a Trainer's loop, in which training code may do other work."""


def is_behind_loop(frame: FrameType | None) -> bool:
    """Tell by a thread's frames whether it is in a hook behind a Trainer's loop."""
    while frame is not None:
        if not _BEHIND.isdisjoint((frame.f_code.co_name, frame.f_code.co_qualname)):
            return True
        frame = frame.f_back
    return False


def sign_of(progress: Progress | None, frame: FrameType | None) -> Sign:
    """Return a rank's sign, by what it has counted and where its trial's thread is."""
    waits = waits_for_peers(frame)
    if progress is None:
        return Sign(waits=waits)
    return Sign(progress.done, waits, bool(progress.begun) and not is_behind_loop(frame), progress.take_steps())


def waits_for_peers(frame: FrameType | None) -> bool:
    """Tell by a thread's frames whether it is in a collective, or in backward, which ends in one."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_engine_run_backward" or any(part in code.co_filename for part in _COLLECTIVES):
            return True
        frame = frame.f_back
    return False
