"""TuneReportCallback: a trial's reports and checkpoints from the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback  # type: ignore[import-not-found]  # brought by those who use it

from tunelight.errors import MetricError
from tunelight.session.session import get_session


class TuneReportCallback(TrainerCallback):  # type: ignore[misc]  # without the library it is Any
    """Reports every evaluation of a ``transformers.Trainer``, with the checkpoint that it saves at the same step.

    Experimental.

    Give the Trainer ``eval_strategy`` and, to be resumed, the same ``save_strategy``, an ``output_dir`` inside the
    trial's folder, and begin with ``trainer.train(resume_from_checkpoint=tunelight.get_checkpoint_path())``. The
    trial gets a copy of the checkpoint, so ``save_total_limit=1`` is enough for the Trainer's own. Runs on: worker.

    Args:
        metrics: what to report, as {name in the sweep: name in the Trainer's metrics}, such as
            {"loss": "eval_loss"}. None reports all metrics by the Trainer's names.

    Raises: MetricError at the first evaluation that lacks one of ``metrics``; ContextError outside of a trial.
    """

    def __init__(self, metrics: Mapping[str, str] | None = None) -> None:
        self.metrics = None if metrics is None else dict(metrics)
        self._evaluated: dict[str, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the sweep watch for a hang."""
        get_session().progress.begun, get_session().progress.batches = True, 0

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the sweep watch no longer."""
        get_session().progress.begun = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step, as a sign that this rank does not hang."""
        get_session().progress.batches += 1

    on_prediction_step = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **_: Any) -> None:
        """Report the evaluation, or keep it for the save that follows at this step."""
        self._evaluated = self._chosen(metrics)
        if not control.should_save:
            self._report(state, None)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the evaluation that came before this save, with its checkpoint."""
        if self._evaluated is not None:
            self._report(state, Path(args.output_dir, f"checkpoint-{state.global_step}"))

    def _chosen(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        if self.metrics is None:
            return dict(metrics)
        if lacking := sorted(set(self.metrics.values()) - set(metrics)):
            raise MetricError(
                f"TuneReportCallback was told to report {', '.join(lacking)}, and this evaluation has "
                f"{', '.join(sorted(metrics))}."
            )
        return {name: metrics[theirs] for name, theirs in self.metrics.items()}

    def _report(self, state: Any, checkpoint: Path | None) -> None:
        metrics, self._evaluated = self._evaluated or {}, None
        context = get_session().context

        def copy(path: str) -> None:
            if dist.is_initialized():
                dist.barrier()  # every rank has saved its random generators' state
            if context.rank == 0 and checkpoint is not None:
                shutil.copytree(checkpoint, path)

        # The epoch that was trained last, from 0; the Trainer counts parts of epochs, and 1.0 after the first.
        epoch = max(math.ceil(state.epoch or 0) - 1, 0)
        context.report(metrics, None if checkpoint is None else copy, epoch=epoch, step=state.global_step)
