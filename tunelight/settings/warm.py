"""The setting ``warm_start``: the earlier sweeps that a searcher learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from tunelight.errors import SettingsError, unknown
from tunelight.settings import checks

_WORDS: Final = ("sweeps", "keys")


@dataclass(frozen=True)
class WarmStart:
    """Earlier sweeps to learn from, and what their keys are called now."""

    sweeps: Literal[True] | tuple[Path, ...] = ()
    """Folders of sweeps, or that hold sweeps; True: those in the storage that trained the same code."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """New names of their keys, by the old ones."""
    asked: bool = False
    """Whether any were asked for; ``sweeps`` are empty all the same where there were none."""

    @classmethod
    def of(cls, name: str, value: Any) -> WarmStart:
        """Return a user's value as a WarmStart. Raises: SettingsError."""
        if isinstance(value, WarmStart):
            return value
        if isinstance(value, bool):
            return cls(True, asked=True) if value else cls()
        if not isinstance(value, Mapping):
            sweeps = checks.folders(name, value)
            return cls(sweeps, asked=bool(sweeps))
        for word in value:
            if word not in _WORDS:
                raise SettingsError(unknown(f"{name} has no", word, _WORDS, listed="It has"))
        keys = checks.mapping(f"{name}: keys", value.get("keys") or {})
        for old, new in keys.items():
            if not isinstance(old, str) or not isinstance(new, str):
                raise SettingsError(
                    f"{name}: keys must map names of earlier sweeps to those of this one, {{'lr': 'model.lr'}}, and "
                    f"hold {old!r}: {new!r}."
                )
        sweeps = value.get("sweeps", True)
        if isinstance(sweeps, Mapping):
            raise SettingsError(f"{name}: sweeps must be true, a folder or a list of folders, not {sweeps!r}.")
        return replace(cls.of(f"{name}: sweeps", sweeps), keys=dict(keys), asked=sweeps is not False)

    def used(self, sweeps: Sequence[Path]) -> WarmStart:
        """Return the setting with the sweeps that were read, for the record."""
        return replace(self, sweeps=tuple(sweeps))

    def plain(self) -> Any:
        """Return the setting as plain data."""
        sweeps = True if self.sweeps is True else [str(one) for one in self.sweeps]
        if not self.keys and (sweeps or not self.asked):
            return sweeps
        return {"sweeps": sweeps, **({"keys": dict(self.keys)} if self.keys else {})}
