"""A script's Trainers of Hugging Face's transformers: they report to the sweep, and go on from its checkpoints."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunelight.checkpoints.files import fetch_local
from tunelight.extras.scripts.logged import LoggedReports
from tunelight.lightning.state.loggers import inside
from tunelight.session.session import Session


@contextlib.contextmanager
def transformers_taken_in(session: Session, logged: LoggedReports | None) -> Iterator[None]:
    """Let every ``transformers.Trainer`` that is made meanwhile report, and write into the trial's folder.

    ``logged``: as for Lightning's Trainers. Runs on: worker.
    """
    trainer = _trainer()
    if trainer is None:
        yield
        return
    from tunelight.extras.transformers import TuneReportCallback

    class Reports(TuneReportCallback):
        """Reports evaluations that have the sweep's metric, unless the script reports it itself."""

        def _report(self, state: Any, checkpoint: Path | None) -> None:
            if logged is None or logged.left_to_trainer(self._evaluated or ()):
                super()._report(state, checkpoint)

    make, train = trainer.__init__, trainer.train

    @functools.wraps(make)
    def with_reports(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if logged is not None:
            logged.hold()
        folder = self.args.output_dir
        if folder is None or not inside(folder, session.context):
            self.args.output_dir = str(Path(session.context.trial_dir, Path(folder or "trainer").name))
        mine = any(isinstance(one, TuneReportCallback) for one in self.callback_handler.callbacks)
        if logged is not None and not mine:
            self.add_callback(Reports())

    @functools.wraps(train)
    def from_checkpoint(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        resume = session.context.resume
        if resume is not None:
            resume_from_checkpoint = str(fetch_local(resume.path))
        return train(self, resume_from_checkpoint, *args, **kwargs)

    trainer.__init__, trainer.train = with_reports, from_checkpoint
    try:
        yield
    finally:
        trainer.__init__, trainer.train = make, train


def _trainer() -> Any:
    """Return the class, or None without what it needs: the script has none. A script's errors then do not name it."""
    try:
        from transformers import Trainer  # type: ignore[import-not-found]  # brought by the script
    except ImportError:
        return None
    return Trainer
