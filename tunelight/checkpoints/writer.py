"""CheckpointWriter: writes a trial's checkpoints on one rank, one at a time, in the background where it can.

A checkpoint that was copied to memory (see :meth:`CheckpointWriter.defer`) is written by a thread while training
continues; at most one copy is in memory. If the storage fails, the trial continues without that checkpoint; other
errors, as those of the user's hooks, are raised.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import CheckpointPolicy
from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo, Saved
from tunelight.stores import delete_local, store_of

SETTLE_LIMIT_S = 600.0
"""How long the end of a trial waits for its last checkpoint."""

_TORCHS = ("PytorchStreamWriter", "iostream error", "unexpected pos")
"""Messages of torch's file writer, in a RuntimeError, for a full disk; which, depends on the position in the file."""
_OF_STORAGE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE})
"""Errors of writing to an open file, which name no file."""
_MISTAKEN = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
"""Errors of code that opens a wrong path, if the folder is there."""

Writer = Callable[[str], object]
"""Writes a checkpoint to the path it is given; called on every rank with the same path."""


class CheckpointWriter:
    """Runs on: worker.

    Args:
        lead: True on rank 0, which decides, commits checkpoints and posts events.
        policy: when a report's checkpoint may be written.
        note: warns the person who runs the sweep, with the next report. Called in the training thread.
        post: sends events to the head; None: every checkpoint is waited for.
        away: True if this rank is on another node than rank 0.
        start: names this start of the trial, the same on all ranks; part of the names of temporary files.
        whole: called once a function has written, with how many have, and whether the storage has ``refused`` this
            rank's part; on rank 0 it waits for all parts of a folder.
        resume: the checkpoint that this start continues from; other ranks may still have to read it.
        clock: returns seconds; the clock of ``policy``.
    """

    def __init__(
        self,
        lead: bool,
        policy: CheckpointPolicy,
        note: Callable[[str], None],
        post: Callable[[Saved], None] | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        away: bool = False,
        start: str = "",
        resume: str | None = None,
        whole: Callable[..., int | None] = lambda *_, refused, **__: 0 if refused else None,
    ) -> None:
        self._lead, self._whole = lead, whole
        self._written = 0
        self._start, self._resume = start, resume
        self._away = away
        self._policy = policy
        self._note = note
        self._post = post
        self._clock = clock
        self._temp: str | None = None
        self._later: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: CheckpointInfo | None = None
        self._failing = self._writing_now = self._in_hooks = False

    # -- rank 0 decides

    def admit(self, value: float | None = None, *, last: bool = False) -> bool:
        """Decide whether this report writes a checkpoint; wait for the previous one as long as the policy allows.

        ``value``: the metric, whose best are always written, unless the storage fails; as is the ``last`` report's.
        Raises: the previous checkpoint's error, unless the storage failed.
        """
        now = self._clock()
        if not last and not self._policy.due(now):
            return False
        if (last or self._policy.keeps(value)) and not self._failing:
            self.settle()
            if last or self._policy.keeps(value):  # the previous one may have been as good
                self._policy.waited(self._clock() - now)
                return True
        allowance = self._policy.allowance_s(now)
        admitted = allowance > 0 and self._settled(allowance)
        self._policy.waited(self._clock() - now)
        if not admitted:
            self._note(
                f"Checkpoints cost more than {self._policy.limits.share:.0%} of the time, so that not every report "
                "writes one, but the best and the last; a restart then repeats more than one report. "
                "Checkpoints(share=) allows more, and every= or every_s= say when to write them."
            )
        return admitted

    # -- writing

    def writes(self, path: str | os.PathLike[str]) -> bool:
        """Return whether ``path`` is the checkpoint now being written, so that :meth:`defer` can be used for it."""
        now = self._temp is not None and os.fspath(path) == self._temp
        self._in_hooks = self._in_hooks and not now
        return now

    def calls_hooks(self) -> None:
        """Raise any error until a strategy asks whether it :meth:`writes`: until then the user's hooks run."""
        self._in_hooks = True

    def defer(self, write: Callable[[], object]) -> None:
        """Call ``write`` in another thread, to write the checkpoint now being written from a copy in memory."""
        self._later = write

    def write(
        self, info: CheckpointInfo, checkpoint: str | os.PathLike[str] | Writer, *, wait: bool = False
    ) -> CheckpointInfo | None:
        """Write checkpoint ``info``; return it if it is complete already. Called on every rank.

        Args:
            info: the checkpoint, without size and checksum.
            checkpoint: a file or folder to move, or a function that writes one.
            wait: do not leave it to a thread.

        Raises: CheckpointError if ``checkpoint`` wrote nothing, or is a path that does not exist.
        """
        began = self._clock()
        self._writing_now = True
        try:
            self.settle()
            return self._write(info, checkpoint, wait)
        finally:
            self._writing_now = False
            self._policy.wrote(began, self._clock() - began)

    def _write(
        self, info: CheckpointInfo, checkpoint: str | os.PathLike[str] | Writer, wait: bool
    ) -> CheckpointInfo | None:
        if self._lead and not callable(checkpoint) and not Path(checkpoint).exists():
            raise CheckpointError(f"The checkpoint {os.fspath(checkpoint)} was reported, but does not exist.")
        temp = checkpoints.temp_path(info, self._start)
        with suppress(OSError):  # writing into it raises the same error
            temp.parent.mkdir(parents=True, exist_ok=True)
        self._temp, self._later, self._in_hooks = str(temp), None, False
        self._written += callable(checkpoint)
        refused: OSError | RuntimeError | None = None
        try:
            if callable(checkpoint):
                checkpoint(str(temp))
            elif self._lead:
                shutil.move(os.fspath(checkpoint), temp)
        except (OSError, RuntimeError) as error:
            if callable(checkpoint) and not self._may_refuse(error, temp):
                raise
            refused = error
        finally:
            self._temp = None
            later, self._later = self._later, None
        if callable(checkpoint):
            rank = self._whole(self._written, folder=temp.is_dir(), refused=refused is not None)
            if rank is not None and refused is None:
                refused = OSError(errno.EIO, f"the storage refused the part of rank {rank}")
        if refused is not None:
            self._refused(refused, temp, self._note)
            return None
        if self._away and store_of(temp) and temp.is_dir():  # a file is rank 0's, on a disk that the nodes share
            delete_local(temp)
            raise CheckpointError(
                "This checkpoint is written by several nodes, each its part, which needs a folder that all of them "
                "share. In an object store, let rank 0 write all of it (save_distributed_checkpoint=False)."
            )
        if not self._lead:
            return None
        if later is None or wait or self._post is None:
            return self._finish(info, temp, later, self._note)
        self._thread = threading.Thread(target=self._run, args=(info, temp, later), name="tunelight-checkpoint")
        self._thread.daemon = True  # a storage that never answers must not keep the process alive
        self._thread.start()
        return None

    def _may_refuse(self, error: Exception, temp: Path) -> bool:
        """Return whether what a function raised is an error of writing to ``temp``, and of nothing else in the code."""
        cause = error if isinstance(error, OSError) else error.__context__
        if self._in_hooks or not isinstance(cause, OSError):
            return not self._in_hooks and _storage_failed(error)
        files = [Path(os.fsdecode(file)) for file in (cause.filename, cause.filename2) if isinstance(file, str | bytes)]
        if not files:
            return cause.errno in _OF_STORAGE
        inside = any(file.is_relative_to(temp.parent) for file in files)
        gone = not temp.parent.is_dir() or not (self._lead or temp.exists())  # rank 0 deletes what was refused
        return inside and (cause.errno not in _MISTAKEN or gone)

    def _refused(self, error: Exception, temp: Path, note: Callable[[str], None]) -> None:
        """Warn once if the storage failed; raise other errors."""
        if not _storage_failed(error):
            raise error
        with suppress(OSError):
            if self._lead:
                delete_local(temp)
        if not self._failing:
            note(_warning(error, temp))
        self._failing = True

    def _finish(
        self, info: CheckpointInfo, temp: Path, write: Callable[[], object] | None, note: Callable[[str], None]
    ) -> CheckpointInfo | None:
        try:
            if write is not None:
                temp.parent.mkdir(parents=True, exist_ok=True)
                write()
            self._last = checkpoints.commit(info, temp, self._resume)
            self._policy.kept(info.value)
        except (OSError, RuntimeError) as error:
            self._refused(error, temp, note)
            return None
        if self._failing:
            note("Checkpoints are written again.")
        self._failing = False
        return self._last

    def _run(self, info: CheckpointInfo, temp: Path, write: Callable[[], object]) -> None:
        notes: list[str] = []
        try:
            done = self._finish(info, temp, write, notes.append)
        except BaseException as error:  # noqa: BLE001 - the training thread raises it
            self._error = error
            return
        assert self._post is not None  # there is no thread without it
        if done is not None or notes:
            self._post(Saved(done, note=notes[0] if notes else None))

    # -- the previous checkpoint

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written. Callable from any thread."""
        thread = self._thread
        return self._writing_now or (thread is not None and thread.is_alive())

    def settle(self) -> None:
        """Wait until nothing is being written. Raises: the checkpoint's error, unless the storage failed."""
        if not self._settled(SETTLE_LIMIT_S):
            self._thread = None  # it is abandoned: what it may still write is in its own folder
            self._note(f"A checkpoint was not written within {SETTLE_LIMIT_S:.0f} s: is the storage gone?")

    def written(self, number: int) -> CheckpointInfo | None:
        """Return the checkpoint of report ``number`` if it is the last one; wait for it if it is being written."""
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


def _storage_failed(error: BaseException) -> bool:
    """Return whether an error is one of the storage."""
    if isinstance(error, RuntimeError):
        return isinstance(error.__context__, OSError) or any(sign in str(error) for sign in _TORCHS)
    return isinstance(error, OSError)


def _warning(error: BaseException, temp: Path) -> str:
    cause = error if isinstance(error, OSError) else error.__context__
    why = getattr(cause, "strerror", None) or "the storage did not take it"
    return (
        f"A checkpoint could not be written ({why}). Training continues without it, and the next one is tried as "
        f"usual. Make room on the storage of {temp.parents[2]}, or bring it back."
    )
