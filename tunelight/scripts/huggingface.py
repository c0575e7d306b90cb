"""A script's Trainers of Hugging Face's transformers: they report to the sweep, and go on from its checkpoints."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tunelight.checkpoints.files import fetch_local
from tunelight.lightning.state.loggers import inside
from tunelight.session.session import Session


@contextlib.contextmanager
def transformers_taken_in(session: Session, made_one: Callable[[], None]) -> Iterator[None]:
    """Let every ``transformers.Trainer`` that is made meanwhile report, and write into the trial's folder.

    ``made_one`` is called when one is made. Runs on: worker.
    """
    try:
        from transformers import Trainer  # type: ignore[import-not-found]  # brought by the script
    except ImportError:  # without what a Trainer needs: the script has none
        yield
        return
    from tunelight.integrations.transformers import TuneReportCallback

    make, train = Trainer.__init__, Trainer.train

    @functools.wraps(make)
    def with_reports(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made_one()
        folder = self.args.output_dir
        if folder is None or not inside(folder, session.context):
            self.args.output_dir = str(Path(session.context.trial_dir, Path(folder or "trainer").name))
        if not any(isinstance(one, TuneReportCallback) for one in self.callback_handler.callbacks):
            self.add_callback(TuneReportCallback())

    @functools.wraps(train)
    def from_checkpoint(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        resume = session.context.resume
        if resume is not None:
            resume_from_checkpoint = str(fetch_local(resume.path))
        return train(self, resume_from_checkpoint, *args, **kwargs)

    Trainer.__init__, Trainer.train = with_reports, from_checkpoint
    try:
        yield
    finally:
        Trainer.__init__, Trainer.train = make, train
