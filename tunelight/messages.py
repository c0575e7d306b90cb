"""What crosses a process: small, frozen records without behaviour."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

CACHE_VARIABLE = "TUNELIGHT_CACHE"
"""The environment variable for the folder through which a node's workers share their caches."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A finished checkpoint.

    ``path`` is absolute; ``number`` is its report (1-based); ``fit`` is the fit of the trial that wrote it (0 is the
    first: a trial may pretrain, then fine-tune; -1: none did); ``value`` is the sweep's metric at that report, if it
    was reported.
    """

    path: str
    number: int
    epoch: int | None = None
    step: int | None = None
    fit: int = -1
    after: int = 0
    """How many reports the training code had made since that fit had ended."""
    value: float | None = None
    checksum: str | None = None
    name: str | None = None
    """The user's name for the file, if there is one."""
    size: int = 0
    seconds: float | None = None
    """How long the trial had trained at that report (see :class:`Report`); None where unknown."""
    between: int = 0
    """The step of training behind which it was written, where that is after report ``number`` and before the next; 0
    where it is that report's own."""
    adopted: bool = False
    """Whether it holds a state that was taken over from another trial after its report."""
    owner: int = 1
    """The generation of the driver that began the record to which it belongs (``record/lease.py``)."""

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
    """The checkpoint of this report, if it is finished already; else a :class:`Saved` follows."""
    notes: tuple[str, ...] = ()
    """Warnings for the person who runs the sweep, each given once."""
    seconds: float = 0.0
    """How long the trial has trained: rank 0's seconds in the training code, without waiting for answers. After a
    restart they count on from the checkpoint's."""
    compiled: int = 0
    """How many graphs torch.compile has made on rank 0 since the trial, or its restart, began."""
    savable: bool = True
    """Whether the training code can write a checkpoint at this report."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The end of writing a checkpoint, in the background or as an answer: it is finished, or None could be written."""

    checkpoint: CheckpointInfo | None
    answers: int = 0
    """The serial of the :class:`Save` or :class:`Stop` that this answers; 0: none."""
    refused: bool = False
    """True where the training code can write one, but the storage failed: the next one may succeed."""
    note: str | None = None
    """A note on it for the person who runs the sweep."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Train on; reports before number ``until`` need no answer (None: no report does)."""

    until: int | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint at this boundary, and wait there for the next decision."""

    serial: int = 0
    """Set by the gang on every decision that has an answer, which carries it too."""


GOES_ON: Final = frozenset({"paused", "resize", "moved", "adopt"})
"""The reasons of a :class:`Stop` after which the trial trains on: later, on other workers, or from another's state."""
LEAVES: Final = "leaves its workers"
"""How the reason begins for which a trial leaves that has not failed."""
FAILED: Final = "failed"
"""How the reason begins for which the ranks of a trial are aborted once one of them has failed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial at this boundary, on every rank; as an event, what the driver tells a head that waits for these."""

    reason: str = "stopped"
    save: bool = False
    """Write a checkpoint first, and answer with :class:`Saved`; training that cannot write one goes on."""
    serial: int = 0
    ends: bool = False
    """Also where no checkpoint can be written: everything ends, so that training on would gain nothing."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """Obey a stop at the end of a training step too, and not at reports alone."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Train on with at most ``workers`` ranks from the next report on, as far as the gang has or gets them."""

    workers: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Give the training's state at this boundary for other trials to adopt, and wait for the next decision."""

    serial: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """The answer to :class:`Offer`: a reference in Ray's object store, or None where the code has no state to give."""

    weights: Any
    why: str | None = None
    """Why the store did not take the state, if there is one without a reference."""
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over another trial's weights and optimizer states at this boundary, and train on with ``config``."""

    weights: Any
    """The other trial's offer: a reference to a reference to the state, which only workers resolve."""
    config: dict[str, Any]
    parent: str = ""
    """The other trial's id."""
    folder: str | None = None
    """The other trial's folder with its checkpoints, for an offer that is gone or does not fit."""
    number: int | None = None
    """The other trial's report whose state to take; of its checkpoints, the last one up to that report."""
    until: int | None = None
    """As in :class:`Continue`, if it succeeds; otherwise training waits for the next decision."""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a trial was told to take over from another one, after its report ``number``.

    ``folder``: the name of the other trial's folder, beside this one's. ``parent_number``: the report at which it had
    offered that; None for its newest.
    """

    number: int
    parent: str
    folder: str
    parent_number: int | None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The answer to :class:`Adopt`: ``why`` it failed, or None."""

    why: str | None = None
    seconds: float = 0.0
    """How long it took the ranks."""
    answers: int = 0


Decision = Continue | Save | Stop | Offer | Adopt | Hurry
Answer = Saved | Offered | Adopted


@dataclass(frozen=True, slots=True)
class WorkerError:
    """Why a trial failed: which rank, where, and its traceback as text.

    ``cause`` is ``exception`` (the training code raised), ``died`` (the process is gone), ``preempted`` (its node
    was taken away) or ``unresponsive`` (it did not answer or make progress in time, or its store did not).
    """

    rank: int
    node: str
    type_name: str
    message: str
    traceback: str
    cause: Literal["exception", "died", "preempted", "unresponsive"] = "exception"
    secondary: bool = False
    """True for a rank that failed because another one had failed before."""
    exception: bytes | None = field(default=None, repr=False, compare=False)
    """The exception, pickled for the driver to raise it (``gang.worker.carried``); not recorded."""

    def __str__(self) -> str:
        head = f"rank {self.rank} on {self.node}: {self.type_name}: {self.message}"
        return f"{head}\n\n{self.traceback}" if self.traceback else head

    def asdict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = asdict(self)
        del data["exception"]
        return data


@dataclass(frozen=True, slots=True)
class Terminal:
    """The driver's terminal, for the progress bars of rank 0."""

    tty: bool = False
    columns: int = 80


Evaluation = Literal["ddp", "exact"]
"""How validation, test and prediction are divided among ranks: as by Lightning's DDP, or for one process's results."""


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
    """A rank's place in its gang, and what it knows of the gang. ``interface`` is the address at which they meet."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    interface: str
    gpus: tuple[str, ...] = ()
    """The GPUs that this rank's process sees: those of the ranks on its node at its first meeting."""
    gpu: int | None = None
    """The index among them of this rank's (first) GPU."""
    nodes: int = 1
    """How many nodes the gang's ranks are on."""
    backend: str = "ddp"
    """``ddp``, ``sharded`` or ``horovod``."""
    wanted: int = 0
    """The gang's target size (0: its size now)."""
    elastic: bool = False
    """Whether the gang's size may change, which must not change the result."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank's last event of a trial: it returned, was stopped, or failed."""

    rank: int
    stopped: bool = False
    error: WorkerError | None = None
    left_behind: tuple[str, ...] = ()
    """What the trial left behind that could not be cleaned up, such as threads."""
    parted: bool = False
    """True where the training code destroyed the gang's process group, so that the ranks must meet again."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that a rank printed; ``error`` is for standard error."""

    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a job on one rank: a value, or a reference to one in Ray's object store."""

    rank: int
    value: Any
    serial: int = 0
    """The serial of the start that made it: what an earlier start handed in is not part of the result."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that is slower than the others: the seconds of its own part of a step, and the median of theirs."""

    rank: int
    seconds: float
    others: float


Event = Report | Saved | Offered | Adopted | Text | Output | Ended | Slow | Stop

RESULT_KEY = "_tunelight"
"""The key of tunelight's own part of a Tune result (see ``GangTrainable.step``)."""
