"""What a reader has made of a long record, kept in a file beside it, so that the next one need not read it all.

The record is the truth. A snapshot is of its first bytes, and is thrown away where these are others now, by their
number and by checksums of their beginning and end, or where other code has read them. A reader writes it; that it
cannot is no error. Its first line has what is known of the sweep, and of its trials, as columns, what is no container;
then each trial has a line, which is decoded when its configuration is asked for, or where its reports are.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import zlib
from binascii import a2b_base64, b2a_base64
from collections import deque
from collections.abc import Iterable
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, Final

from tunelight.errors import StorageError
from tunelight.record.folder import encode
from tunelight.record.lines import History, Source, loaded, parse, sealed
from tunelight.record.state import FOLDING, Best, Branch, SweepState, TrialState, inside
from tunelight.stores import write_atomically

_FILE: Final = ".snapshot.jsonl"
"""Hidden, so that the copy of a sweep in a store has none."""
_EDGE: Final = 4096
_CODE: Final = ("state.py", "snapshot.py", "lines.py")
_NOW: Final = [f.name for f in fields(TrialState) if f.default_factory is MISSING and f.name != "folded"]
_LATER: Final = [f.name for f in fields(TrialState) if f.default_factory is not MISSING]


def keep(state: SweepState, source: Source, size: int) -> None:
    """Write the snapshot of the first ``size`` bytes of a record, if that can be done."""
    trials = state.trials.values()
    facts = {
        **vars(state),
        "events": list(state.events),
        "live": list(state.live),
        "repetitions": list(state.repetitions),
        "trials": {name: [getattr(trial, name) for trial in trials] for name in _NOW},
    }
    rest = b"\n".join(map(_encoded, trials))
    with contextlib.suppress(OSError):
        head = encode({"of": [size, *_marks(source, size)], "rest": zlib.crc32(rest), "state": facts})
        write_atomically(source.path.with_name(_FILE), sealed(head.encode("ascii")) + rest)


def fold(trial: TrialState, source: Source | None) -> None:
    """Fold a trial's containers away, which takes a fraction of their memory, if its reports are all in the record."""
    with FOLDING:
        if trial.folded is None and source is not None and source.place < source.written:
            trial.folded = partial(_decoded, _encoded(trial), source)
            for name in _LATER:
                delattr(trial, name)


def _encoded(trial: TrialState) -> bytes:
    """Return a trial's containers that are not empty."""
    if trial.folded is not None:
        return bytes(trial.folded.args[0])
    assert isinstance(trial.history, History)
    known = {name: value for name in _LATER if (value := getattr(trial, name)) and name != "history"}
    return encode({**known, "history": b2a_base64(trial.history.places, newline=False).decode()}).encode("ascii")


def _decoded(chunk: bytes, source: Source) -> dict[str, Any]:
    """Return a trial's containers. Raises: StorageError where somebody has changed them, with their checksum."""
    try:
        known = {name: [] for name in _LATER} | loaded(chunk)
        for checkpoint in known["checkpoints"]:
            inside(checkpoint["path"])
        return known | {
            "config": known["config"] or {},
            "history": History(source, a2b_base64(known["history"])),
            "moves": _tuples(known["moves"]),
            "notes": _tuples(known["notes"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StorageError(f"{source.path.with_name(_FILE)} is damaged ({error!r}). Delete it.") from error


def restored(source: Source) -> tuple[SweepState, int] | None:
    """Return what a record's snapshot has, and of how many bytes of the record; None without one that fits."""
    try:
        head, _, rest = source.path.with_name(_FILE).read_bytes().partition(b"\n")
        known: Any = parse(head)
        size, *marks = known["of"]
        if marks != _marks(source, size) or known["rest"] != zlib.crc32(rest):
            return None
        facts, trials = known["state"], dict[str, TrialState]()
        columns = facts["trials"]
        for row, chunk in zip(zip(*columns.values(), strict=True), rest.split(b"\n"), strict=True):
            trial = TrialState.__new__(TrialState)
            for name, value in zip(columns, row, strict=True):
                setattr(trial, name, value)
            trial.folded = partial(_decoded, chunk, source)
            trial.branch = trial.branch and Branch(**columns["branch"][len(trials)])
            inside(trial.folder)
            trials[trial.id] = trial
        facts["trials"] = trials
        for name in ("live", "repetitions"):
            facts[name] = {key: trials[key] for key in facts[name]}
        for name in ("best", "best_failed"):
            facts[name] = facts[name] and Best(**facts[name])
        facts["notes"] = _tuples(facts["notes"])
        facts["answers"] = {key: tuple(answer) for key, answer in facts["answers"].items()}
        facts["events"] = deque(_tuples(facts["events"]), SweepState().events.maxlen)
        return SweepState(**facts), size
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the record has all that it says
        return None


def _tuples(entries: Iterable[Any]) -> list[Any]:
    return [tuple(entry) for entry in entries]


def _marks(source: Source, size: int) -> list[int]:
    """Return checksums by which the first ``size`` bytes of a record, and the code that reads it, are known again."""
    edges = source.read(0, min(size, _EDGE)), source.read(max(0, size - _EDGE), size)
    code = (pkgutil.get_data(__package__, name) or b"" for name in _CODE)
    return [*map(zlib.crc32, (*edges, b"".join([*code, sys.byteorder.encode()])))]
