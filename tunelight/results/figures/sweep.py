"""What a figure needs of a sweep and of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunelight.record import SweepState


class Trial(Protocol):
    """A trial; see :class:`tunelight.results.TrialResult`."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def index(self) -> int:
        """Its number, in order of creation."""
        ...

    @property
    def state(self) -> str:
        """Its state, as the record has it."""
        ...

    @property
    def plain_config(self) -> Mapping[str, Any]:
        """Its configuration, as recorded."""
        ...

    @property
    def history(self) -> Sequence[dict[str, Any]]:
        """Its reports, in order."""
        ...

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Its best report; empty before the first."""
        ...

    @property
    def value(self) -> float | None:
        """The sweep's metric in the best report."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it ended by a failure."""
        ...

    @property
    def seconds(self) -> float:
        """How long it ran."""
        ...

    @property
    def outcome(self) -> str:
        """What became of it, in words."""
        ...


class Sweep(Protocol):
    """A sweep; see :class:`tunelight.results.SweepResults`."""

    @property
    def name(self) -> str:
        """The sweep's name."""
        ...

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        ...

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials, in order of creation."""
        ...

    @property
    def record(self) -> SweepState:
        """The recorded state."""
        ...

    @property
    def metric(self) -> str | None:
        """The metric that trials are judged by; the first of several."""
        ...

    @property
    def mode(self) -> str:
        """Which values are better: min or max."""
        ...

    @property
    def objectives(self) -> Sequence[tuple[str, str]]:
        """All metrics that trials are judged by, each with its mode."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Trial]: ...
