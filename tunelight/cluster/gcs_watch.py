"""Notice that the head of the Ray cluster is gone, say so, and end the sweep.

Without its head (the GCS) a cluster starts nothing more: running gangs train on, while calls that need the head
wait in Ray's own code, until Ray ends the whole process 60 s later with a line that says nothing of the sweep.
So a thread looks whether the head still answers. When it has not for ``LOST_S``, the sweep's next step raises; a
driver that is not there within ``GRACE_S`` more, for it waits in Ray, is ended with ``EXIT_CODE``.

A signal to the driver's whole process group ends a Ray that the driver started, too. The driver, which has stopped the
sweep by then, would wait for it in the same way: it is ended within seconds, with the code that a shell gives to the
signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ray.tune import Callback

from tunelight.errors import HeadLostError, ResourceError

PING_S: Final = 2.0
LOST_S = 30.0
"""How long a head may be away: one that keeps its state elsewhere can be started again by its supervisor."""
GRACE_S = 15.0
"""How long the driver may take to end by itself; Ray's own shutdown takes 5 s without a head."""
SIGNALLED_S = 3.0
"""How long a head may be away after a signal that stops the sweep, and the driver take to end then."""
EXIT_CODE: Final = os.EX_TEMPFAIL
"""75: a temporary failure, worth another try."""


class GcsWatch:
    """Looks whether the head of a Ray cluster still answers, in a thread of its own. Runs on: driver.

    ``trouble`` says what else keeps the sweep from going on, when ``check`` asks (None: nothing does); ``signalled``
    which signal has stopped it (None: none has).
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
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. Callable more than once."""
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
            f"What was recorded is not lost: record and checkpoints lie in {self._folder}. When there is a cluster "
            f"again, the same call with name={self._folder.name!r} and resume=True goes on."
        )

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(PING_S):
            signalled = self._signalled()
            if _answers(self._address):
                heard = time.monotonic()
            elif signalled is not None and time.monotonic() - heard >= SIGNALLED_S:
                self._end(self._stopped_by(signalled), 128 + signalled, SIGNALLED_S)
                return
            elif time.monotonic() - heard >= LOST_S:
                self._lost = True
                self._end(self.text, EXIT_CODE, GRACE_S)
                return

    def _stopped_by(self, signalled: signal.Signals) -> str:
        return (
            f"{signalled.name} has ended Ray together with the sweep. What was recorded is not lost: record and "
            f"checkpoints lie in {self._folder}. The same call with name={self._folder.name!r} and resume=True goes on."
        )

    def _end(self, text: str, code: int, grace_s: float) -> None:
        """End the process, unless it gets to its end by itself."""
        if self._over.wait(grace_s):
            return
        with contextlib.suppress(Exception):  # nobody may be left to read it
            print(f"\ntunelight: {text}", file=sys.stderr, flush=True)  # noqa: T201 - there is no later
        # The record needs no goodbye: each of its lines was written when it happened.
        os._exit(code)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PING_S).close()
    except (OSError, ValueError):
        return False
    return True


class GcsCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Ends Tune's loop when the head is lost."""

    def __init__(self, watch: GcsWatch) -> None:
        self._watch: GcsWatch | None = watch

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise what :meth:`GcsWatch.check` does. Called by Tune at the start of each step of its loop."""
        if self._watch is not None:
            self._watch.check()

    def __getstate__(self) -> dict[str, Any]:
        return {"_watch": None}  # Tune pickles its callbacks, and a thread stays where it is
