"""Tells a gang that hangs from a slow one, by the batches that its ranks finish."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import CodeType, FrameType
from typing import Any

from tunelight.machine.versions import node_name
from tunelight.messages import Slow
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
    run: of other code, which may evaluate or export for hours, no progress is known. That is rank 0's as a rule: the
    others have ``limit_s`` to end after it.
    """

    limit_s: float | None
    _signs: dict[int, Sign] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def restart_timer(self) -> None:
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
        ended = None if 0 in ranks else self._heard.get(0)
        for rank in ranks:
            sign, since = self._signs.get(rank, Sign()), max(self._since.get(rank, 0.0), ended or 0.0)
            if (not sign.begun and ended is None) or self._heard.get(rank, 0.0) - since < self.limit_s:
                return None
        signs = self._signs
        in_setup = ended is None and any(not signs[rank].done for rank in ranks)
        if in_setup and len({signs[rank].waits for rank in ranks}) == 1:
            return None
        return min(ranks, key=lambda rank: (signs[rank].done, signs[rank].waits, -rank))


_COLLECTIVES = ("torch/distributed/", "horovod/")
"""Parts of the paths of code that waits for other ranks."""


_BEHIND = frozenset({
    "_FitLoop.on_run_end", "on_train_end", "on_fit_end", "on_test_end", "on_predict_end", "teardown", "on_exception",
})  # fmt: skip
"""Functions behind a Trainer's loop, in which training code may do other work."""


def is_behind_loop(frame: FrameType | None) -> bool:
    """Tell by a thread's frames whether it is in a hook behind a Trainer's loop."""
    return any(not _BEHIND.isdisjoint((code.co_name, code.co_qualname)) for code in _codes_of(frame))


def _codes_of(frame: FrameType | None) -> list[CodeType]:
    """Return the code of a thread's frames, the innermost first."""
    return [] if frame is None else [caller.f_code for caller, _ in traceback.walk_stack(frame)]


def sign_of(progress: Progress | None, frame: FrameType | None) -> Sign:
    """Return a rank's sign, by what it has counted and where its trial's thread is."""
    waits = any(  # in a collective, or in backward, which ends in one
        code.co_name == "_engine_run_backward" or any(part in code.co_filename for part in _COLLECTIVES)
        for code in _codes_of(frame)
    )
    if progress is None:
        return Sign(waits=waits)
    steps = tuple(progress.steps.popleft() for _ in range(len(progress.steps)))  # training may add others meanwhile
    return Sign(progress.done, waits, bool(progress.begun) and not is_behind_loop(frame), steps)


# Finds a rank that is slower than the others, by the part of each step in which it waits for no other rank.

# All ranks of a gang finish equally many steps, since each step ends when the slowest rank has finished it.


Step = tuple[float, float]
"""A rank's own seconds in a step, and those of the whole step."""

_STEPS = 20
_ROW = 3
"""How many windows in a row a rank has to be slow."""
_MATTERS = 0.05
"""What part of a step the others have to lose at least."""
_MOST_STEPS = 10_000


@dataclass
class SlowWatch:
    """Compares the ranks by the medians of windows: at least 20 steps of each rank, and ``window_s`` seconds.

    A rank is slow that needs ``by`` times more than the median of the others, three windows in a row, and holds up a
    step by a twentieth. None: no rank is compared. Times are seconds of one clock, passed in.
    """

    by: float | None
    window_s: float = 5.0
    _began: float | None = None
    _steps: dict[int, list[Step]] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    def hear(self, rank: int, steps: Sequence[Step], size: int, now: float) -> list[Slow]:
        """Add a rank's last steps; return the ranks of ``size`` that are slow, if a window ends with it."""
        if self.by is None or size < 2 or not steps:
            return []
        self._began = now if self._began is None else self._began
        self._steps[rank] = [*self._steps.get(rank, ()), *steps][-_MOST_STEPS:]
        complete = len(self._steps) == size and all(len(last) >= _STEPS for last in self._steps.values())
        if not complete or now - self._began < self.window_s:
            return []
        own_times = {peer: median(mine for mine, _ in steps) for peer, steps in self._steps.items()}
        whole = {peer: median(step for _, step in steps) for peer, steps in self._steps.items()}
        self._began, self._steps = now, {}
        found = []
        for member, seconds in own_times.items():
            others = median(other for peer, other in own_times.items() if peer != member)
            slow = seconds > (1 + self.by) * others and seconds - others > _MATTERS * whole[member]
            self._rows[member] = self._rows.get(member, 0) + 1 if slow else 0
            if self._rows[member] >= _ROW:
                found.append(Slow(member, seconds, others))
        return found


def describe_slow(slow: Slow, location: Any) -> str:
    """Return a note on a slow rank; ``location``: its worker's."""
    where = node_name(location.hostname, location.node_id, location.address)
    return (
        f"rank {slow.rank} on {where} is slow: its own part of a step takes {_seconds(slow.seconds)}, and "
        f"{_seconds(slow.others)} in the median of the others"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"


# Which rank a hanging gang waits for, by torch's flight recorder: the collectives that each rank has begun.

_ALL_RANKS = "default_pg"
"""The description of the group that all ranks belong to."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A rank's last collective in one process group. ``number`` counts those of the group, from 1."""

    group: str
    all_ranks: bool
    number: int
    name: str
    sizes: str
    where: str = ""
    waits: bool = False

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.name} of {self.sizes}{at}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The rank that others wait for, and in words where they wait."""

    rank: int
    text: str


def latest(entries: Iterable[Mapping[str, Any]], since_ns: int) -> tuple[Collective, ...]:
    """Return the last collective of each group that a rank has begun since a time, in nanoseconds of Unix time.

    ``entries`` are the flight recorder's (:func:`tunelight.compat.torch.flight_records`).
    """
    last: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if entry["is_p2p"] or entry["time_created_ns"] < since_ns:
            continue
        name = str(entry["process_group"][0])
        if name not in last or entry["collective_seq_id"] >= last[name]["collective_seq_id"]:
            last[name] = entry
    return tuple(
        Collective(
            group,
            entry["process_group"][1] == _ALL_RANKS,
            entry["collective_seq_id"],
            entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
            " and ".join(str(tuple(size)) for size in entry["input_sizes"]) or "nothing",
            _where(entry.get("frames") or ()),
            not entry["retired"] and entry["state"] != "completed",
        )
        for group, entry in last.items()
    )


def _where(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line outside torch that led to a collective."""
    for frame in frames:
        if "/torch/" not in frame["filename"]:
            return f"{frame['filename'].rpartition('/site-packages/')[2]}:{frame['line']} ({frame['name']})"
    return ""


def find_missing(of_ranks: Mapping[int, Iterable[Collective]]) -> Finding | None:
    """Return the rank that has not joined a collective in which others wait; None if the recorders do not tell.

    ``of_ranks``: the last collective of each group, by rank, of all ranks that answered.
    """
    groups: dict[str, dict[int, Collective]] = defaultdict(dict)
    for rank, collectives in of_ranks.items():
        for collective in collectives:
            groups[collective.group][rank] = collective
    for lasts in groups.values():
        foremost = max(last.number for last in lasts.values())
        waiting = {rank: last for rank, last in sorted(lasts.items()) if last.number == foremost and last.waits}
        if not waiting:
            continue
        some = next(iter(waiting.values()))
        members = of_ranks if some.all_ranks else lasts
        behind = {rank: lasts[rank].number if rank in lasts else 0 for rank in members if rank not in waiting}
        behind = {rank: number for rank, number in behind.items() if number < foremost}
        if behind:
            rank = min(behind, key=lambda late: (behind[late], late))
            before = f", whose last collective was {lasts[rank]}" if rank in lasts else ""
            return Finding(rank, f"{_ranks(waiting)} in {some}, which rank {rank} has not joined{before}")
        if len({(last.name, last.sizes) for last in waiting.values()}) > 1:
            waits = "; ".join(f"rank {rank} in {last}" for rank, last in waiting.items())
            return Finding(max(waiting), f"the ranks wait in collectives that do not fit together: {waits}")
    return None


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]} waits" if len(names) == 1 else f"ranks {', '.join(names)} wait"
