"""Tasks, starts and specs of trials for tests, by their fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tests.kit.fakes import MemoryControl
from tunelight.checkpoints.policy import Checkpoints
from tunelight.gang.spec import GangSpec
from tunelight.messages import Ended, Place, Report, Terminal
from tunelight.resources import Reservation
from tunelight.session.mailbox import Mailbox
from tunelight.session.session import Session
from tunelight.session.task import Home, Start, Task
from tunelight.trial.trial import TrialSpec


def _split(values: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Take the fields of a dataclass out of ``values``."""
    return {entry.name: values.pop(entry.name) for entry in fields(kind) if entry.name in values}


def trial(folder: Path | str, train: Any = b"", trial_id: str = "00000", **values: Any) -> tuple[Task, Start]:
    """Return a trial's task and its start in ``folder``, with these fields of either; or a ``job``'s."""
    if values.pop("job", False):
        values |= {"terminal": Terminal(), "reports_to": "driver"}
    task = Task(train, **_split(values, Task))
    return task, Start(trial_id, str(folder), values.pop("config", {}), values.pop("seed", 1), **values)


def session_of(
    folder: Path | str,
    rank: int = 0,
    size: int = 1,
    *,
    hear: Callable[[Any], None] = lambda _: None,
    mailbox: Mailbox | None = None,
    **values: Any,
) -> Session:
    """Return the session of a rank of a gang on one node, with these fields of its place, its task or its start."""
    place = replace(Place(rank, size, rank, size, 0, "127.0.0.1"), **_split(values, Place))
    return Session(*trial(folder, **values), place, MemoryControl(), hear, mailbox or Mailbox(None))


def here(folder: Path | str, train: Any, **values: Any) -> tuple[Task, Start]:
    """Return the task and start of a trial that trains in this process's working directory and needs no answers."""
    return trial(folder, train, home=Home.here(), **{"until": None, "seed": 5, **values})


def run(gang: Any, task: Task, start: Start) -> tuple[list[Report], Any]:
    """Train once on a gang, which needs no answers; return the reports, and the cause of its failure, if any."""
    gang.start(task, start)
    reports, cause = [], None
    while gang.running:
        event = gang.next_event(60)
        if isinstance(event, Report):
            reports.append(event)
        if isinstance(event, Ended) and event.error is not None:
            cause, _ = gang.fail(event.error)
    return reports, cause


def trial_spec(train: Any, reservation: Reservation | None = None, **values: Any) -> TrialSpec:
    """Return the spec of a trial, with these fields of it, of its gang or of its task."""
    gang = GangSpec(reservation or Reservation(), **_split(values, GangSpec))
    if values.setdefault("reports_to", "tuner") == "tuner":
        values.setdefault("checkpoints", Checkpoints(share=1.0))
    return TrialSpec(gang, Task(train, **_split(values, Task)), **values)
