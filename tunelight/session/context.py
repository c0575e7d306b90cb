"""Context: what training code may know of its trial and of its place in the gang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunelight.checkpoints.writer import Writer
from tunelight.messages import CheckpointInfo
from tunelight.session.boundary import Boundary


@dataclass(frozen=True, eq=False)
class Context:
    """The trial that this worker trains. Runs on: worker. Get it with ``tunelight.get_context()``.

    Attributes:
        rank, world_size, local_rank, local_world_size, node_rank: this worker's place in its gang.
        gpu: the index of this worker's GPU among those that its process sees; None without one.
        trial_id, trial_dir: the trial's id and its folder (str).
        config: the trial's configuration, as the search space drew it.
        seed: the trial's seed; it is set on every rank before the train function starts.
        metric: the metric that the sweep judges trials by.
        backend: how the gang communicates: ``ddp``, ``sharded`` or ``horovod``.
        wanted: the gang's intended number of workers; an elastic gang may have fewer for a while.
        repetition: which training of its configuration this is: 0 in the search, then 1, 2, ... (a sweep's
            ``repeats=``).
        folds: how many folds the sweep has, with ``repeats=tl.Folds(5)``; None without folds.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    gpu: int | None
    trial_id: str
    trial_dir: str
    config: dict[str, Any]
    seed: int | None
    metric: str | None
    backend: str
    wanted: int
    _boundary: Boundary = field(repr=False, compare=False)
    repetition: int = 0
    folds: int | None = None

    @property
    def fold(self) -> int | None:
        """The fold to validate on, from 0; None without folds."""
        return None if self.folds is None else self.repetition % self.folds

    @property
    def resume(self) -> CheckpointInfo | None:
        """The checkpoint that this start continues from, and that training code loads; None if from scratch."""
        return self._boundary.given()

    @property
    def number(self) -> int:
        """Number of reports made so far, including those before a restart."""
        return self._boundary.progress.number

    def preempted(self) -> bool:
        """Tell whether the trial has to leave its workers soon: the sweep was told to end, or a node is taken away.

        A loop of your own that reports seldom asks after each step, on every rank, and reports with a checkpoint when
        it is True: the trial ends with that report, and goes on from there later. All ranks get the same answer, as
        long as they exchange gradients between two calls. Lightning's fits need none of this.
        """
        return self._boundary.preempted()

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: str | os.PathLike[str] | Writer | None = None,
        *,
        epoch: int | None = None,
        step: int | None = None,
        filename: str | None = None,
    ) -> None:
        """Report metrics at a boundary of training; the trial may end here. Call it on every rank.

        Args:
            metrics: numbers by name; those of rank 0 are used. Tensors of one element become numbers, other
                tensors tuples of numbers. Text, arrays, and lists and dicts of all these are kept; anything else
                is recorded as its ``repr``, with a warning.
            checkpoint: a file or folder that rank 0 wrote (it is moved into the trial's folder), or a function
                that writes one to the path it is given. The function is called on every rank, at those reports
                that write a checkpoint (``checkpoints=`` of the sweep). Where the storage fails as it writes there,
                the sweep warns and training continues without that checkpoint; its other errors are the trial's.
            epoch, step: progress of training, for the record.
            filename: the file's name in plain Tune's ``Result.checkpoint``.

        It raises TrialStopped (on every rank, at the same report) when the trial ends here, and MetricError when the
        sweep's metric is missing from the first report.
        """
        self._boundary.report(metrics, checkpoint, epoch=epoch, step=step, filename=filename)
