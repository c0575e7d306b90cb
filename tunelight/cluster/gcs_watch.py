"""Ends a sweep when the head of the Ray cluster (its GCS) is lost.

Calls that need a lost head wait in Ray's code, which ends the process after 60 s with a message that does not mention
the sweep. So a thread checks whether the head answers. When it has not for ``LOST_S``, the sweep's next step raises,
and a driver that still waits in Ray after ``GRACE_S`` is ended with ``EXIT_CODE``. A signal to the driver's process
group also ends a Ray that the driver started: the driver then ends within seconds, after SIGTERM with that code too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ray.tune import Callback

from tunelight.errors import HeadLostError, ResourceError
from tunelight.machine.network import reach

PING_S: Final = 2.0
LOST_S = 30.0
"""How long a head may be away: its supervisor may restart one that keeps its state elsewhere."""
GRACE_S = 15.0
"""How long the driver may take to end by itself; Ray's shutdown takes 5 s without a head."""
SIGNALLED_S = 3.0
"""How long a head may be away, and the driver take to end, after a signal that stops the sweep."""
EXIT_CODE: Final = os.EX_TEMPFAIL
"""75: a temporary failure."""


class GcsWatch:
    """Checks in a thread whether the head of a Ray cluster still answers. Runs on: driver.

    ``trouble`` returns what else ends the sweep, if anything; ``signalled`` the signal that has stopped it.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        trouble: Callable[[], str | None] = lambda: None,
        signalled: Callable[[], signal.Signals | None] = lambda: None,
    ) -> None:
        self._address = address
        self._folder = folder
        self._trouble = trouble
        self._signalled = signalled
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._watch, name="tunelight-headwatch", daemon=True)

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking. It may be called more than once."""
        self._over.set()
        self._thread.join(2 * PING_S)

    def check(self) -> None:
        """Raise HeadLostError once the head is lost, and ResourceError where nodes cannot take part."""
        if self._lost:
            raise HeadLostError(self.text)
        if (why := self._trouble()) is not None:
            raise ResourceError(why)

    @property
    def text(self) -> str:
        """What happened, what is left, and what to do."""
        return (
            f"The head of the Ray cluster ({self._address}) has not answered for {LOST_S:.0f} s, so the sweep ends. "
            f"{self._to_go_on}"
        )

    @property
    def _to_go_on(self) -> str:
        return (
            f"What was recorded is not lost: record and checkpoints lie in {self._folder}. When there is a cluster "
            f"again, the same call with name={self._folder.name!r} and resume=True goes on."
        )

    def _watch(self) -> None:
        answered = time.monotonic()
        while not self._over.wait(PING_S):
            signalled = self._signalled()
            host, _, port = self._address.rpartition(":")
            if reach(host.strip("[]"), int(port), PING_S) is None:
                answered = time.monotonic()
            elif signalled is not None and time.monotonic() - answered >= SIGNALLED_S:
                reason = f"{signalled.name} has ended Ray together with the sweep. {self._to_go_on}"
                self._end(reason, EXIT_CODE if signalled is signal.SIGTERM else 128 + signalled, SIGNALLED_S)
                return
            elif time.monotonic() - answered >= LOST_S:
                self._lost = True
                self._end(self.text, EXIT_CODE, GRACE_S)
                return

    def _end(self, text: str, code: int, grace_s: float) -> None:
        """End the process, unless it ends by itself."""
        if self._over.wait(grace_s):
            return
        with contextlib.suppress(Exception):  # standard error may be closed
            print(f"\ntunelight: {text}", file=sys.stderr, flush=True)  # noqa: T201 - there is no later
        # Nothing of the record is lost: each line was written when it happened.
        os._exit(code)


class GcsCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Ends Tune's loop when the head is lost."""

    def __init__(self, watch: GcsWatch) -> None:
        self._watch = watch

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise what :meth:`GcsWatch.check` does. Called by Tune at the start of each step of its loop."""
        self._watch.check()
