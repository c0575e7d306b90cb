"""Which rank a hanging gang waits for, by torch's flight recorder: the collectives that each rank has begun."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
        for one in collectives:
            groups[one.group][rank] = one
    for lasts in groups.values():
        foremost = max(one.number for one in lasts.values())
        waiting = {rank: one for rank, one in sorted(lasts.items()) if one.number == foremost and one.waits}
        if not waiting:
            continue
        some = next(iter(waiting.values()))
        members = of_ranks if some.all_ranks else lasts
        behind = {rank: lasts[rank].number if rank in lasts else 0 for rank in members if rank not in waiting}
        behind = {rank: number for rank, number in behind.items() if number < foremost}
        if behind:
            rank = min(behind, key=lambda one: (behind[one], one))
            before = f", whose last collective was {lasts[rank]}" if rank in lasts else ""
            return Finding(rank, f"{_ranks(waiting)} in {some}, which rank {rank} has not joined{before}")
        if len({(one.name, one.sizes) for one in waiting.values()}) > 1:
            said = "; ".join(f"rank {rank} in {one}" for rank, one in waiting.items())
            return Finding(max(waiting), f"the ranks wait in collectives that do not fit together: {said}")
    return None


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]} waits" if len(names) == 1 else f"ranks {', '.join(names)} wait"
