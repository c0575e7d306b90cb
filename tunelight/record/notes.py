"""Notes and tags that people give to a sweep and its trials: ``notes.jsonl``, a file of their own.

The record has one writer, the sweep's driver. This file may be written by any process, also while the sweep runs: each
note or change of tags is one line (:class:`tunelight.record.shared.SharedLines`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError, StorageError, unknown
from tunelight.record.names import NOTES_FILE, why
from tunelight.record.remote import refresh
from tunelight.record.shared import SharedLines
from tunelight.stores import shown
from tunelight.stores.masking import masked, printable

_TAG: Final = re.compile(r"[^\s,\-][^\s,]{0,63}")


@dataclass(frozen=True)
class Note:
    """A note on a sweep, or on the trial with the id ``trial``; ``time`` is in seconds since the epoch."""

    time: float
    text: str
    trial: str | None = None


@dataclass
class _Content:
    notes: list[Note] = field(default_factory=list)
    tags: dict[str | None, dict[str, None]] = field(default_factory=dict)


class Notes:
    """The notes and tags of the sweep in ``folder``; ``trial`` is a trial's id, None stands for the sweep itself.

    The file is read when it is first needed, and again after each change that is made here.

    Raises: StorageError where the file cannot be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.path = Path(folder, NOTES_FILE)
        self._clock = clock
        self._read: _Content | None = None

    @property
    def all(self) -> list[Note]:
        """All notes, of the sweep and of its trials, in the order in which they were written."""
        return list(self._content.notes)

    def of(self, trial: str | None) -> list[Note]:
        """Return the notes on one trial, or on the sweep."""
        return [note for note in self._content.notes if note.trial == trial]

    def tags(self, trial: str | None) -> list[str]:
        """Return the tags of one trial, or of the sweep, in the order in which they were added."""
        return list(self._content.tags.get(trial, ()))

    @property
    def tagged(self) -> list[str]:
        """The ids of the trials that have tags."""
        return [trial for trial, tags in self._content.tags.items() if trial is not None and tags]

    def add(self, text: str, trial: str | None = None) -> None:
        """Add a note; passwords in addresses are masked. Raises: SettingsError for an empty one."""
        if not isinstance(text, str) or not text.strip():
            raise SettingsError(f"A note must be text, but it is {text!r}. Give some words.")
        self._append("note", trial, text=masked(text.strip()))

    def tag(self, tags: Iterable[str], trial: str | None = None) -> None:
        """Add tags; those that are there already stay as they are. Raises: SettingsError for what can be no tag."""
        wanted = [_checked(tag) for tag in tags]
        known = self.tags(trial)
        if new := [tag for tag in dict.fromkeys(wanted) if tag not in known]:
            self._append("tag", trial, add=new)

    def untag(self, tags: Iterable[str], trial: str | None = None) -> None:
        """Remove tags. Raises: SettingsError for one that is not there."""
        gone, known = list(dict.fromkeys(tags)), self.tags(trial)
        of = "The sweep" if trial is None else f"Trial {trial}"
        for tag in gone:
            if tag not in known:
                raise SettingsError(unknown(f"{of} has no tag", tag, known, listed="It has"))
        if gone:
            self._append("tag", trial, remove=gone)

    @property
    def _content(self) -> _Content:
        if self._read is None:
            lines, content = SharedLines(self.path), _Content()
            try:
                refresh(self.path, shared=True)
                for line in lines.news():
                    _take(content, line)
            except OSError as error:
                raise StorageError(f"{shown(self.path)} cannot be read: {why(error)}. Make it readable.") from error
            self._read = content
        return self._read

    def _append(self, kind: str, trial: str | None, **fields: Any) -> None:
        line = {"kind": kind, "time": self._clock(), "trial": trial, **fields}
        SharedLines(self.path).append(line, "Nothing was noted")
        self._read = None


def _checked(tag: str) -> str:
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise SettingsError(
            f"A tag must be one word of up to 64 characters, without commas and not beginning with '-', but it is "
            f"{tag!r}. Write 'best-so-far', for example, or make it a note."
        )
    return tag


def _take(content: _Content, line: Mapping[str, Any]) -> None:
    """Apply one line; what is not as it is written here is left out."""
    trial, when, text = line.get("trial"), line.get("time"), line.get("text")
    if line.get("kind") == "note" and isinstance(text, str) and isinstance(when, int | float):
        content.notes.append(Note(float(when), printable(text), trial))
    elif line.get("kind") == "tag":
        tags = content.tags.setdefault(trial, {})
        for tag in _texts(line.get("add")):
            tags[tag] = None
        for tag in _texts(line.get("remove")):
            tags.pop(tag, None)


def _texts(value: Any) -> list[str]:
    return [printable(each) for each in value if isinstance(each, str)] if isinstance(value, list) else []
