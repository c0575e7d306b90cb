"""Results in words: repetitions, numbers and errors."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator
from typing import Final

from tunelight.record import Standing, SweepState, Training, repeated, repeats_of, to_repeat

_MOST: Final = 10


def lines_of(state: SweepState) -> Iterator[str]:
    """Yield a few lines: each configuration that was trained again, and what is missing."""
    found = repeated(state)
    repeats = repeats_of(state)
    if found and repeats is not None:
        what = f"on {repeats.repeats} folds" if repeats.folds else "again with other seeds"
        yield f"Trained {what}: {counted(len(found), 'configuration')}, by the mean of {state.sweep.get('metric')}"
        for one in found[:_MOST]:
            yield f"  trial {one.trial}: {in_words(one)}"
        if len(found) > _MOST:
            yield f"  and {len(found) - _MOST} more"
    if said := missing(state):
        yield said


def in_words(one: Standing) -> str:
    """Return what is known of a configuration: ``0.1234 +- 0.0021 of 3 trainings``."""
    spread = "" if one.spread is None else f" +- {one.spread:.2g}"
    parts = [f"{one.mean:.6g}{spread} of {counted(one.n, 'training')}"]
    if not one.again:
        parts.append("a single result, for its repetitions failed")
    elif one.failed:
        parts.append(f"{counted(len(one.failed), 'repetition')} failed or stopped")
    if not math.isfinite(one.mean):
        parts.append("training diverged")
    return ", ".join(parts)


def missing(state: SweepState) -> str:
    """Return how many repetitions a sweep that has ended did not make; empty if none, or while it runs."""
    if state.ended is None or repeats_of(state) is None:
        return ""
    left = to_repeat(state)
    cut = sum(Training.of(trial).live for trial in state.repetitions.values())
    if not left and not cut:
        return ""
    parts = [f"{counted(len(left), 'repetition')} not begun"] if left else []
    parts += [f"{cut} cut off"] if cut else []
    return f"The repetitions are not complete ({', '.join(parts)}): resume the sweep to make them."


# --- Numbers and errors in words ------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 trial``, ``2 trials``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a number as in a row: ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def refused(error: pickle.UnpicklingError) -> str:
    """Return what torch refused to load, without the advice on torch.load that torch gives at length."""
    found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    return str(error) if found is None else f"it holds {found[1]}"
