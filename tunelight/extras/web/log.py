"""A trial's log, part by part, as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight import stores
from tunelight.extras.report.sections import LOG
from tunelight.record import TERMINAL
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    from tunelight.record import TrialState

_MOST_BYTES: Final = 1 << 16
_BEFORE: Final = 4096
"""Bytes before a part that are read too, so that a secret that begins there is masked."""


def log_part(folder: Path, trial: TrialState, begin: int | None) -> dict[str, Any]:
    """Return what a trial's log has from byte ``begin`` on, of whole lines, 64 kB at most; None: its last 64 kB.

    The last line of a trial that has ended need not be whole.

    Of more than that, the middle is left out: ``from`` says where the text begins. Passwords in addresses are masked.
    """
    path = folder / trial.folder / LOG
    if not path.resolve().is_relative_to(folder.resolve()):
        return {"text": "", "from": 0, "to": 0, "size": 0, "note": "Its folder lies outside of the sweep's."}
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            first = max(0, size - _MOST_BYTES, begin or 0)
            begin = first if begin is None or begin > size else max(begin, first)
            file.seek(max(0, begin - _BEFORE))
            before = file.read(begin - max(0, begin - _BEFORE))
            text = file.read(_MOST_BYTES)
    except OSError:
        note = "It has no log yet."
        if stores.store_of(folder):
            note = "Its log is in the store; nothing but the record is fetched from there."
        return {"text": "", "from": 0, "to": 0, "size": 0, "note": note}
    end = text.rfind(b"\n") + 1
    whole = text[:end] if end and not (trial.state in TERMINAL and len(text) < _MOST_BYTES) else text
    if not end and len(text) < _MOST_BYTES and trial.state not in TERMINAL:
        whole = b""  # a line that is being written
    shown = masked((before + whole).decode("utf-8", errors="replace"))
    kept = shown if not before else shown[len(masked(before.decode("utf-8", errors="replace"))) :]
    return {"text": kept, "from": begin, "to": begin + len(whole), "size": size, "note": ""}
