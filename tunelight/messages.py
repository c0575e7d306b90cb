"""What crosses a process: small, frozen records with no behaviour of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CACHE_VARIABLE = "TUNELIGHT_CACHE"
"""Names the folder in which a node's workers tell each other what they have cached."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Where one finished checkpoint lies, and what it was worth when it was written.

    ``path`` is absolute; ``number`` is the report it belongs to (1-based); ``fit`` is the fit of the
    trial that wrote it (0 is the first: a trial may pretrain, then fine-tune); ``value`` is the
    sweep's metric at that report, if it was reported.
    """

    path: str
    number: int
    epoch: int | None = None
    step: int | None = None
    fit: int = 0
    value: float | None = None
    checksum: str | None = None
    name: str | None = None
    """What the user calls the file, if anything."""
    size: int = 0
    seconds: float | None = None
    """How long the trial had trained at that report (see :class:`Report`); None where nobody counted."""

    def asdict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a trial, as rank 0 sends it: ``number`` counts from 1 within the trial."""

    number: int
    metrics: dict[str, Any]
    epoch: int | None = None
    step: int | None = None
    timestamp: float = field(default_factory=time.time)
    checkpoint: CheckpointInfo | None = None
    """The checkpoint of this report, if it is finished already; else :class:`Wrote` tells of it later."""
    notes: tuple[str, ...] = ()
    """Warnings for the person who runs the sweep, each said once."""
    seconds: float = 0.0
    """How long the trial has trained up to here: rank 0's seconds in the training code, without what it waited for
    answers. A start from a checkpoint goes on from that one's."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer to :class:`Save`: a checkpoint, or None where there is none to be had."""

    checkpoint: CheckpointInfo | None
    answers: int = 0
    """The serial of the decision that this answers, a :class:`Save` or a :class:`Stop`."""
    refused: bool = False
    """True where the training code can write one, and the storage did not take it: it may the next time."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """What became of a checkpoint that was written in the background: it is finished, or there is none."""

    checkpoint: CheckpointInfo | None
    note: str | None = None
    """What the person who runs the sweep should know of it."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on; reports numbered below ``until`` need no answer (None: none of them does)."""

    until: int | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint at this boundary and wait for the next decision there."""

    serial: int = 0
    """Set by the gang that sends it, as on every decision that is answered; the answer carries it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial at this boundary, on every rank."""

    reason: str = "stopped"
    save: bool = False
    """Write a checkpoint first, and tell of it by :class:`Saved`; where training cannot, it goes on."""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Go on with at most ``workers`` ranks from the next report on, of those that the gang has or can get."""

    workers: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Give what training is made of at this boundary, for others to adopt, and wait there for the next decision."""

    serial: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """The answer to :class:`Offer`: a reference into Ray's object store, or None where training code has nothing."""

    weights: Any
    why: str | None = None
    """Why there is no reference although there is a state to give: the store did not take it."""
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over another trial's weights and optimizer states at this boundary, and go on with ``config``."""

    weights: Any
    """What the other trial offered: a reference that leads to another one, which only workers follow."""
    config: dict[str, Any]
    parent: str = ""
    """The other trial's id."""
    folder: str | None = None
    """The other trial's folder, with its checkpoints, for when what it offered is gone or does not fit."""
    number: int | None = None
    """The other trial's report that is meant: its last checkpoint up to there is taken, if it is still kept."""
    until: int | None = None
    """As in :class:`Continue`, once it is done; a training that stays what it was waits for the next decision."""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Adopted:
    """The answer to :class:`Adopt`: ``why`` the training goes on as it was; None: it is another now."""

    why: str | None = None
    seconds: float = 0.0
    """How long it took the ranks, from the boundary on."""
    answers: int = 0


Decision = Continue | Save | Stop | Offer | Adopt
Answer = Saved | Offered | Adopted


@dataclass(frozen=True, slots=True)
class WorkerError:
    """Why a trial failed: which rank, where, and its traceback as text.

    ``cause`` is ``exception`` (the training code raised), ``died`` (the process is gone), ``preempted`` (its node
    was taken away) or ``unresponsive`` (it did not answer, or get on, in time and was ended).
    """

    rank: int
    node: str
    type_name: str
    message: str
    traceback: str
    cause: Literal["exception", "died", "preempted", "unresponsive"] = "exception"
    secondary: bool = False
    """True for a rank that failed because another one had failed before it."""
    exception: bytes | None = field(default=None, repr=False, compare=False)
    """What was raised, for a driver to raise it as its own (``gang.causes``); in no record."""

    def __str__(self) -> str:
        head = f"rank {self.rank} on {self.node}: {self.type_name}: {self.message}"
        return f"{head}\n\n{self.traceback}" if self.traceback else head

    def asdict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        told = asdict(self)
        del told["exception"]
        return told


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the driver's terminal is like, for the progress bars of rank 0."""

    tty: bool = False
    columns: int = 80


@dataclass(frozen=True, slots=True)
class OnResize:
    """What keeps training the same in a gang that has another size than the one that was wanted.

    ``batch``: the global batch, by smaller batches and gradient accumulation; ``linear`` and ``sqrt``: each rank
    keeps its batch, and learning rates are scaled by the size (or its root), over ``warmup_steps`` optimizer steps.
    """

    keep: Literal["batch", "linear", "sqrt"] = "batch"
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class DatasetHandle:
    """A sweep's datasets, as its trials get at them.

    ``rows``: the number of rows of each, by name; None where it is unknown without reading the data. ``server``: the
    actor that hands the datasets out (``server.get.remote(name)``). ``notes``: what to print for the user.
    """

    rows: Mapping[str, int | None] = field(default_factory=dict)
    server: Any = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs within its gang. ``interface`` is the address that the gang meets on."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    interface: str
    gpus: tuple[str, ...] = ()
    """The GPUs that this rank's process sees, which CUDA_VISIBLE_DEVICES holds from its first meeting on: those that
    the ranks on its node had then."""
    gpu: int | None = None
    """The index in them of this rank's own (the first, if it has several)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank's last event of a trial: it returned, was stopped, or failed."""

    rank: int
    stopped: bool = False
    error: WorkerError | None = None
    left_behind: tuple[str, ...] = ()
    """What the trial left that could not be cleaned (live threads, say)."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a rank printed, ready to be written; ``error`` is for standard error."""

    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a job hands in on one rank: a value, or a reference to one in Ray's object store."""

    rank: int
    value: Any
    serial: int = 0
    """The serial of the start that made it: what an earlier start handed in is not part of the result."""


Event = Report | Saved | Offered | Adopted | Wrote | Text | Output | Ended

RESULT_KEY = "_tunelight"
"""Under this key a Tune result carries what is tunelight's own (see ``GangTrainable.step``)."""
