"""CheckpointWriter: writes a trial's checkpoints on one rank, one at a time, in the background where it can.

A checkpoint that is handed over as a copy (see :meth:`CheckpointWriter.defer`) is written by a thread while training
goes on, so that at most one copy lies in memory. What the storage refuses costs that checkpoint and not the trial.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tunelight import stores
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo, Wrote
from tunelight.policies import CheckpointPolicy

SETTLE_LIMIT_S = 600.0
"""How long the end of a trial waits for its last checkpoint."""

_TORCHS = ("PytorchStreamWriter", "iostream error", "unexpected pos")
"""What torch's file writer says, in a RuntimeError, of a full disk: it depends on where in the file that was."""

Writer = Callable[[str], object]
"""Writes a checkpoint to the path it is given; called on every rank with the same path."""


class CheckpointWriter:
    """Runs on: worker.

    Args:
        lead: True on rank 0, which decides, finishes checkpoints and tells of them.
        policy: when a report's checkpoint may be written.
        note: warns the person who runs the sweep, with the next report. Called in the training thread.
        post: sends the head what became of a checkpoint; None: it is always waited for.
        away: True where this rank is on another node than rank 0.
        clock: seconds, that of ``policy``.
    """

    def __init__(
        self,
        lead: bool,
        policy: CheckpointPolicy,
        note: Callable[[str], None],
        post: Callable[[Wrote], None] | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        away: bool = False,
    ) -> None:
        self._lead = lead
        self._away = away
        self._policy = policy
        self._note = note
        self._post = post
        self._clock = clock
        self._draft: str | None = None
        self._later: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: CheckpointInfo | None = None
        self._failing = False
        self._in_hand = False

    # -- rank 0 decides

    def admit(self) -> bool:
        """Decide whether the report at hand writes a checkpoint. The one before is waited for as long as that is cheap.

        Raises: what the one before has failed of, unless it was the storage.
        """
        now = self._clock()
        if not self._policy.due(now):
            return False
        allowance = self._policy.allowance_s(now)
        admitted = allowance > 0 and self._settled(allowance)
        self._policy.waited(self._clock() - now)
        if not admitted:
            self._note(
                f"Checkpoints cost more than {self._policy.share:.0%} of the time, so that not every report writes "
                "one; a restart then repeats more than one report. Checkpoints(share=) allows more, and every= or "
                "every_s= say when to write them."
            )
        return admitted

    # -- writing

    def writes(self, path: str | os.PathLike[str]) -> bool:
        """Tell whether ``path`` is the checkpoint that is being made now, so that :meth:`defer` may take it over."""
        return self._draft is not None and os.fspath(path) == self._draft

    def defer(self, write: Callable[[], object]) -> None:
        """Have ``write`` called soon, by another thread: it writes the checkpoint that is being made off a copy."""
        self._later = write

    def write(
        self, info: CheckpointInfo, checkpoint: str | os.PathLike[str] | Writer, *, wait: bool = False
    ) -> CheckpointInfo | None:
        """Write checkpoint ``info``; return it if it is finished already. Called on every rank.

        ``wait`` for it to be finished. Raises: CheckpointError where ``checkpoint`` wrote nothing, or is a path
        where nothing lies.
        """
        began = self._clock()
        self._in_hand = True
        try:
            self.settle()
            return self._write(info, checkpoint, wait)
        finally:
            self._in_hand = False
            self._policy.wrote(began, self._clock() - began)

    def _write(
        self, info: CheckpointInfo, checkpoint: str | os.PathLike[str] | Writer, wait: bool
    ) -> CheckpointInfo | None:
        if self._lead and not callable(checkpoint) and not Path(checkpoint).exists():
            raise CheckpointError(f"The checkpoint {os.fspath(checkpoint)} was reported, and nothing lies there.")
        draft = checkpoints.temp_path(info)
        with suppress(OSError):  # the same will be said by whoever writes into it
            draft.parent.mkdir(parents=True, exist_ok=True)
        self._draft, self._later = str(draft), None
        try:
            if callable(checkpoint):
                checkpoint(str(draft))
            elif self._lead:
                shutil.move(os.fspath(checkpoint), draft)
        except (OSError, RuntimeError) as error:
            self._refused(error, draft, self._note)
            return None
        finally:
            self._draft = None
            later, self._later = self._later, None
        if self._away and stores.inside(draft) and draft.exists():
            checkpoints.discard(draft)
            raise CheckpointError(
                "This checkpoint is written by several nodes, each its part, which needs a folder that all of them "
                "share. In an object store, let rank 0 write it whole (save_distributed_checkpoint=False)."
            )
        if not self._lead:
            return None
        if later is None or wait or self._post is None:
            return self._finish(info, draft, later, self._note)
        self._thread = threading.Thread(target=self._run, args=(info, draft, later), name="tunelight-checkpoint")
        self._thread.daemon = True  # a storage that never answers must not keep the process
        self._thread.start()
        return None

    def _refused(self, error: Exception, draft: Path, note: Callable[[str], None]) -> None:
        """Pass over what the storage refused, and say so once; raise the rest."""
        if not _is_storages(error):
            raise error
        with suppress(OSError):
            checkpoints.discard(draft)
        if not self._failing:
            note(_told(error, draft))
        self._failing = True

    def _finish(
        self, info: CheckpointInfo, draft: Path, write: Callable[[], object] | None, note: Callable[[str], None]
    ) -> CheckpointInfo | None:
        try:
            if write is not None:
                draft.parent.mkdir(parents=True, exist_ok=True)
                write()
            self._last = checkpoints.commit(info, draft)
        except (OSError, RuntimeError) as error:
            self._refused(error, draft, note)
            return None
        if self._failing:
            note("Checkpoints are written again.")
        self._failing = False
        return self._last

    def _run(self, info: CheckpointInfo, draft: Path, write: Callable[[], object]) -> None:
        notes: list[str] = []
        try:
            done = self._finish(info, draft, write, notes.append)
        except BaseException as error:  # noqa: BLE001 - the training thread raises it
            self._error = error
            return
        assert self._post is not None  # there is no thread without it
        if done is not None or notes:
            self._post(Wrote(done, notes[0] if notes else None))

    # -- the one before

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written. Callable from any thread."""
        thread = self._thread
        return self._in_hand or (thread is not None and thread.is_alive())

    def settle(self) -> None:
        """Wait until nothing is being written. Raises: what that failed of, unless it was the storage."""
        if not self._settled(SETTLE_LIMIT_S):
            self._thread = None  # it is left behind: what it may still finish is in a folder of its own
            self._note(f"A checkpoint was not written within {SETTLE_LIMIT_S:.0f} s: is the storage gone?")

    def written(self, number: int) -> CheckpointInfo | None:
        """Return the checkpoint of report ``number`` if it is the last; wait for it if it is being written."""
        self.settle()
        return self._last if self._last is not None and self._last.number == number else None

    def _settled(self, limit_s: float) -> bool:
        if self._thread is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True


def _is_storages(error: BaseException) -> bool:
    """Tell whether it was the storage that failed."""
    if isinstance(error, RuntimeError):
        return isinstance(error.__context__, OSError) or any(sign in str(error) for sign in _TORCHS)
    return isinstance(error, OSError)


def _told(error: BaseException, draft: Path) -> str:
    cause = error if isinstance(error, OSError) else error.__context__
    why = getattr(cause, "strerror", None) or "the storage did not take it"
    return (
        f"A checkpoint could not be written ({why}). Training goes on without it, and the next one is tried as "
        f"usual. Make room on the storage of {draft.parents[2]}, or bring it back."
    )
