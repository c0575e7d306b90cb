"""Numbers and errors in words."""

from __future__ import annotations

import pickle
import re


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
