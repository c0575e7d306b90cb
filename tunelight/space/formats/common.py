"""What the formats share: a domain taken apart, and the errors for what one of them has no word for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunelight.errors import SpaceError
from tunelight.space.domains import describe, whole_bounds

if TYPE_CHECKING:
    from tunelight.space.space import SearchSpace


@dataclass(frozen=True)
class Entry:
    """One key of a space, as plain data: {"loguniform": [1e-4, 1e-1], "around": 1e-3} taken apart."""

    key: str
    name: str
    arguments: Any
    around: Any = None

    def bounds(self) -> tuple[Any, Any, Any]:
        """Return the least and the largest value of a domain with bounds, and its step (None without one)."""
        lower, upper, *step = self.arguments
        if "int" in self.name:
            lower, upper = whole_bounds(lower, upper, *step)
        return lower, upper, step[0] if step else None


def entries(space: SearchSpace) -> dict[str, Entry]:
    """Return the keys of a space, taken apart."""
    found = {}
    for key, domain in space.domains.items():
        told = describe(domain)
        if not isinstance(told, Mapping):
            told = {"fixed": told}
        around = told.pop("around", None)
        ((name, arguments),) = told.items()
        found[key] = Entry(key, name, arguments, around)
    return found


def refuse(program: str, key: str, what: str, instead: str = "") -> SpaceError:
    """Return the error for a key with something that a program has no word for."""
    return SpaceError(f"{key}: {program} has no word for {what}.{f' {instead}' if instead else ''}")


def unknown(program: str, key: str, what: str, valid: str) -> SpaceError:
    """Return the error for something of a program that tunelight has no word for."""
    return SpaceError(f"{key}: tunelight has no word for {program}'s {what}. It reads: {valid}.")


def refuse_constraints(program: str, space: SearchSpace) -> None:
    """Raise SpaceError where a space has conditions or constraints."""
    for key, when in space.when.items():
        raise refuse(
            program, key, f"its condition, when: {dict(when)}", "Leave that out, or give the key a domain of its own."
        )
    for text in space.require:
        raise refuse(program, "require", f"the constraint {text!r}")
