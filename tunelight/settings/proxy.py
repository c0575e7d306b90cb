"""The setting ``proxy``: cheaper trials that a sweep searches with, before the best of them are trained in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.errors import SettingsError
from tunelight.settings import checks

_OWN: Final = ("top", "workers")


@dataclass(frozen=True)
class Proxy:
    """The cheaper trials of a sweep's first stage, and what is taken from them."""

    values: Mapping[str, Any]
    """Their values, by dotted key: {"model.width": 64}."""
    top: int = 5
    """How many of their best configurations are trained in full."""
    workers: int | tuple[int, int] | None = None
    """Of each of them (None: as many as of a trial in full)."""

    @classmethod
    def of(cls, name: str, value: Any) -> Proxy:
        """Return a user's value as a Proxy. Raises: SettingsError."""
        if isinstance(value, Proxy):
            return value
        given = dict(checks.mapping(name, value))
        top = checks.whole(f"{name}: top", given.pop("top", 5))
        workers = given.pop("workers", None)
        if workers is not None:
            workers = checks.workers(f"{name}: workers", workers)
        if not given:
            raise SettingsError(
                f"{name} says nothing of what makes its trials cheaper. Give a key of the configuration and its value "
                "in them, {'model.width': 64} for example."
            )
        for key, one in given.items():
            if not isinstance(key, str) or not isinstance(one, bool | int | float | str):
                raise SettingsError(
                    f"{name} holds {key!r}: {one!r}. Each key is one of the configuration, 'model.width' for example, "
                    f"or one of {', '.join(_OWN)}, and each value a number or a text."
                )
        return cls(given, top, workers)

    def plain(self) -> dict[str, Any]:
        """Return the setting as plain data."""
        workers = list(self.workers) if isinstance(self.workers, tuple) else self.workers
        return {**self.values, "top": self.top, **({} if workers is None else {"workers": workers})}
