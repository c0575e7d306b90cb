"""Somebody beside a sweep that runs, who sends it commands."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.waiting import until
from tunelight.errors import CommandError
from tunelight.record import driver_of

wait = functools.partial(until, limit_s=240, every_s=0.05)


def with_person(
    person: Callable[[Any], None], folder: Path, run: Callable[[], tl.SweepResults], *, reports: int
) -> tl.SweepResults:
    """Run the sweep ``s`` in ``folder``, and ``person`` beside it once it has so many reports.

    ``person`` gets the attached sweep; what fails there fails here.
    """
    failed: list[BaseException] = []

    def act() -> None:
        record = folder / "s" / "record.jsonl"
        try:
            wait(lambda: driver_of(folder / "s") is not None)
            wait(lambda: record.exists() and record.read_text().count('"report"') >= reports)
            person(tl.attach("s", folder))
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            failed.append(error)
            with contextlib.suppress(CommandError):
                tl.attach("s", folder).stop()

    thread = threading.Thread(target=act)
    thread.start()
    results = run()
    thread.join(60)
    if failed:
        raise failed[0]
    return results
