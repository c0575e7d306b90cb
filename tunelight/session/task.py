"""What the ranks of a gang train: the task, which is the same at each start, and the start, which differs."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunelight.checkpoints.policy import Checkpoints
from tunelight.messages import CheckpointInfo, DatasetHandle, Evaluation, Terminal


@dataclass(frozen=True, slots=True)
class Home:
    """The driver's working directory and import paths, which its workers use too as far as their node has them."""

    cwd: str = "."
    sys_path: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Home:
        """Return those of this process, as absolute paths."""
        paths = dict.fromkeys(os.path.abspath(path or ".") for path in sys.path)  # noqa: PTH100
        return cls(os.getcwd(), tuple(paths))  # noqa: PTH109


@dataclass(frozen=True, slots=True)
class Task:
    """What a sweep's trials have in common for their ranks, or what a driver's job does. A worker gets it once.

    ``train`` is the packed train function, or a reference to it in Ray's object store.
    """

    train: Any
    home: Home = field(default_factory=Home)
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    """Which values of the metric are better."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = "ddp"
    """How Lightning's evaluation is divided, unless the strategy says it."""
    datasets: DatasetHandle | None = None
    """The sweep's datasets."""
    folds: int | None = None
    """How many folds there are, where each training of a configuration has its own."""
    verbose: int = 0
    terminal: Terminal | None = None
    """The terminal of the driver whose job it is, to which the ranks' output is sent. None for a trial, whose output
    goes to its log."""
    reports_to: Literal["sweep", "tuner", "driver"] = "sweep"
    """Who gets the reports: a sweep, a Tuner of the user's, or a driver, which uses none."""

    @property
    def job(self) -> bool:
        """Whether it is a driver's job, which returns a result."""
        return self.terminal is not None

    @property
    def passes_on(self) -> bool:
        """Whether a Tuner gets each report's checkpoint, with the report: all are written, however long that takes."""
        return self.reports_to == "tuner" and self.checkpoints.share == 1

    @property
    def must_report(self) -> bool:
        """Whether it has failed without a report: a job has not, nor a script that a sweep runs without a metric."""
        return not self.job and (self.metric is not None or self.reports_to == "tuner")


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a trial or a job: with what it begins, and from where. ``serial`` and ``lead`` are the gang's."""

    trial_id: str
    trial_dir: str
    config: dict[str, Any]
    seed: int | None = None
    """Set on every rank before the train function starts (None: not set)."""
    repetition: int = 0
    """Which training of its configuration it is, from 0: above 0, another trial's configuration is repeated."""
    resume: CheckpointInfo | None = None
    """The checkpoint to continue from (None: from the beginning)."""
    until: int | None = 1
    """The first report that waits for an answer (None: none does)."""
    owner: int = 1
    """That of its checkpoints."""
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    """Keeps files of this run's starts apart from those of other runs of the trial, which count from 0, too."""
    serial: int = 0
    """The number of this start on its gang, which keeps messages of different starts apart."""
    lead: Any = None
    """Rank 0's worker, from which others fetch what it has made for all."""

    @property
    def number(self) -> int:
        """The last report before this start; 0 from the beginning."""
        return 0 if self.resume is None else self.resume.number


@dataclass(frozen=True)
class WithObjects:
    """A train function, pickled with what gives a configuration the objects among the choices of its sweep."""

    train: Callable[[dict[str, Any]], object]
    restored: Callable[[Mapping[str, Any]], dict[str, Any]]

    def __call__(self, config: dict[str, Any]) -> None:
        """Train one configuration."""
        self.train(config)
