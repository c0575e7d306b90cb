"""The setting ``repeats``: how often the best configurations are trained again, with other seeds or on other folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.errors import SettingsError, unknown
from tunelight.settings import checks

_FORMS: Final = "3, {'top': 5, 'repeats': 3} or tl.Folds(5)"
_KEYS: Final = ("top", "repeats", "folds")


@dataclass(frozen=True)
class Folds:
    """Folds for cross-validation, as a sweep's ``repeats=``: each training of a configuration gets a fold of its own.

    Training code reads its fold from ``tl.get_context()``: ``fold`` (from 0) of ``folds``. The trials of the search
    train on fold 0; the ``top`` best configurations are then trained on the others.

    Args:
        folds: how many (2 or more).
        top: how many configurations are trained on all of them (5).

    Raises: SettingsError.
    """

    folds: int
    top: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "folds", checks.whole("Folds: folds", self.folds, least=2))
        object.__setattr__(self, "top", checks.whole("Folds: top", self.top))


@dataclass(frozen=True)
class Repeats:
    """How the best configurations are trained again, once the search is over."""

    repeats: int
    """How many trainings each of them has in all, its trial of the search included."""
    top: int = 5
    """How many configurations."""
    folds: bool = False
    """Whether each training has a fold of its own."""

    @classmethod
    def of(cls, name: str, value: Any) -> Repeats:
        """Return a user's value as Repeats. Raises: SettingsError."""
        if isinstance(value, Repeats):
            return value
        if isinstance(value, Folds):
            return cls(value.folds, value.top, folds=True)
        if not isinstance(value, Mapping):
            if isinstance(value, str | float | list | tuple):
                raise SettingsError(f"{name} must be a whole number of 2 or more, as in {_FORMS}, not {value!r}.")
            return cls(checks.whole(name, value, least=2))
        for key in value:
            if key not in _KEYS:
                raise SettingsError(unknown(f"{name} has no", key, _KEYS))
        if ("repeats" in value) == ("folds" in value):
            raise SettingsError(
                f"{name} must say either repeats (how often each configuration is trained in all) or folds, and is "
                f"{dict(value)!r}. Say {_FORMS}."
            )
        count = "folds" if "folds" in value else "repeats"
        return cls(
            checks.whole(f"{name}: {count}", value[count], least=2),
            checks.whole(f"{name}: top", value.get("top", 5), least=0 if count == "folds" else 1),
            folds=count == "folds",
        )

    def plain(self) -> dict[str, int]:
        """Return the setting as plain data."""
        return {"folds" if self.folds else "repeats": self.repeats, "top": self.top}
