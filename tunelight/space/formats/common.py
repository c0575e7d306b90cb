"""Shared by the formats: the error for what tunelight has no equivalent of."""

from __future__ import annotations

from tunelight.errors import SpaceError


def unreadable(program: str, key: str, what: str, valid: str) -> SpaceError:
    """Return the error for something of another program that tunelight does not support."""
    return SpaceError(f"{key}: tunelight has no equivalent of {program}'s {what}. It reads: {valid}.")
