"""Shared by the formats: the description of a search space, and errors for what a format does not support."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunelight.errors import SpaceError
from tunelight.space.domains import describe, whole_bounds


@dataclass(frozen=True)
class Entry:
    """One key of a space: its description, {"loguniform": [1e-4, 1e-1], "around": 1e-3}, taken apart."""

    key: str
    name: str
    arguments: Any
    around: Any = None
    domain: Any = None

    def bounds(self) -> tuple[Any, Any, Any]:
        """Return the smallest and the largest value of a domain with bounds, and its step or None."""
        lower, upper, *step = self.arguments
        if "int" in self.name:
            lower, upper = whole_bounds(lower, upper, *step)
        return lower, upper, step[0] if step else None


@dataclass(frozen=True)
class Described:
    """A search space as plain data, for programs that it is written for."""

    entries: Mapping[str, Entry]
    """By dotted key, in the order of the space."""
    when: Mapping[str, Mapping[str, Sequence[Any]]]
    """Conditions by dotted key: the values that other keys may have."""
    require: Sequence[str]
    trees: Sequence[ast.expr]
    """The constraints, as text and parsed."""
    settings: Mapping[str, Any]
    written: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Nests values by dotted key as the space is written."""


def described_entry(key: str, domain: Any) -> Entry:
    """Return the entry of a key and its domain."""
    described = describe(domain)
    if not isinstance(described, Mapping):
        described = {"fixed": described}
    around = described.pop("around", None)
    ((name, arguments),) = described.items()
    return Entry(key, name, arguments, around, domain)


def refuse(program: str, key: str, what: str, instead: str = "") -> SpaceError:
    """Return the error for something that another program does not support."""
    return SpaceError(f"{key}: {program} has no equivalent of {what}.{f' {instead}' if instead else ''}")


def unreadable(program: str, key: str, what: str, valid: str) -> SpaceError:
    """Return the error for something of another program that tunelight does not support."""
    return SpaceError(f"{key}: tunelight has no equivalent of {program}'s {what}. It reads: {valid}.")


def refuse_constraints(program: str, space: Described) -> None:
    """Raise SpaceError where a space has conditions or constraints."""
    for key, when in space.when.items():
        raise refuse(
            program, key, f"its condition, when: {dict(when)}", "Leave that out, or give the key a domain of its own."
        )
    for text in space.require:
        raise refuse(program, "require", f"the constraint {text!r}")
