"""Numbers in words."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 trial``, ``2 trials``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a number as in a row: ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
