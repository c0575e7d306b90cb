"""What commands print with --json, as types: scripts/reference.py makes docs/output.schema.json of them.

A change that a reader of the older form would trip over raises `VERSION`; a new key does not.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

VERSION: Final = 1


class Printed(BaseModel):
    """An object; numbers that are NaN or infinite are null."""

    model_config = ConfigDict(extra="forbid")


class Failure(Printed):
    """The type of an error, and its message."""

    type: str
    message: str


class Error(Printed):
    """What every command prints where it fails."""

    error: Failure


class Branch(Printed):
    """Where a trial began with another one's state: after which report."""

    parent: str
    root: str
    number: int


class Trial(Printed):
    """A trial: value and metrics are those of its best report."""

    trial: str
    state: str
    stop_reason: str | None
    value: float | None
    metrics: dict[str, Any]
    config: dict[str, Any]
    reports: int
    seconds: float
    seed: int | None
    checkpoint: str | None
    error: str | None
    repeats: str | None = None
    repetition: int = 0
    branch: Branch | None = None


class TrialInDetail(Trial):
    """A trial with all its reports, changes of its configuration, and the runs that trained it."""

    history: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    runs: list[dict[str, Any]]


class BestTrial(Trial):
    """A trial, and in which format it was exported, if it was."""

    exported: str | None


class _Sweep(Printed):
    sweep: str
    folder: str
    metric: str | None
    mode: Literal["min", "max"]
    objectives: list[list[str]]
    ended: str | None
    running: bool
    states: dict[str, int]
    best: Trial | None
    repeated: list[dict[str, Any]] = []
    pareto: list[str] = []


class Sweep(_Sweep):
    """A sweep; where ``ended`` is null and it is not running, it was cut off. ``trials`` is their number."""

    trials: int


class SweepWithTrials(_Sweep):
    """A sweep and its trials."""

    trials: list[Trial]


class Listed(Sweep):
    """A sweep in a list; ``state`` is how it ended, "running" or "cut off"."""

    written: float
    state: str


class Unreadable(Printed):
    """A sweep whose record cannot be read."""

    sweep: str
    folder: str
    written: float
    error: str
    state: Literal["unreadable"]


class Answer(Printed):
    """The answer of a running sweep to a command."""

    sweep: str
    answer: str


class Written(Printed):
    """Files that were written."""

    written: list[str]


class Checked(Printed):
    """A sweep that could run: its space, samples, number of trials, and what a trial reserves."""

    space: dict[str, Any]
    samples: list[dict[str, Any]]
    commands: list[list[str]] = []
    num_samples: int
    metric: str | None
    mode: str | None
    gang: list[dict[str, float]]
    cluster: str
    nodes: list[dict[str, Any]]
    batch: dict[str, Any] | None


class Plan(Printed):
    """The estimated time and cost of a sweep."""

    model_config = ConfigDict(extra="allow")

    scheduler: str
    num_samples: int
    workers: int
    cluster: str
    feasible: bool
    verdict: str


class TunedUp(Printed):
    """Measured settings: those of now, the fastest and the best for the sweep; what to paste; figures."""

    now: dict[str, Any] | None
    fastest: dict[str, Any] | None
    best: dict[str, Any] | None
    settings: dict[str, Any]
    measured: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    global_batch: int
    limit: str
    search_s: float
    notes: list[str]


class Down(Printed):
    """Whether a Ray was kept ready, which has ended."""

    ended: bool


class Deleted(Printed):
    """A sweep, and whether it, or its checkpoints, was deleted."""

    sweep: str
    folder: str
    deleted: bool
    bytes: int


class Report(Printed):
    """The file of a report, those of figures, or where a study was written."""

    report: str = ""
    figures: list[str] = []
    study: str = ""
    sweeps: list[str] = []


class Serving(Printed):
    """Where a storage is served; the address holds the token."""

    storage: str
    address: str


class Reproduced(Printed):
    """The comparison of a trial with its second run."""

    model_config = ConfigDict(extra="allow")


class Event(Printed):
    """What happened: `show --follow --json` prints one a line, and "end" as the last one."""

    type: Literal["sweep", "trial", "state", "report", "config", "checkpoint", "note", "command", "end"]
    time: float
    trial: str | None = None
    state: str | None = None
    why: str | None = None
    error: str | None = None
    training_iteration: int | None = None
    epoch: float | None = None
    metrics: dict[str, Any] = {}
    value: float | None = None
    decision: str | None = None
    workers: int | None = None
    config: dict[str, Any] = {}
    branch: Branch | None = None
    parent: str | None = None
    path: str | None = None
    text: str | None = None
    do: str | None = None
    ok: bool = True
    said: str | None = None
    reason: str | None = None
    metric: str | None = None
    mode: str | None = None
    num_samples: int | None = None


COMMANDS: Final[dict[str, Any]] = {
    "init": Written,
    "check": Checked,
    "run": Sweep,
    "train": Sweep,
    "resume": Sweep | Answer,
    "down": Down,
    "ls": list[Listed | Unreadable],
    "show": SweepWithTrials | TrialInDetail,
    "show --follow": Event,
    "rm": list[Deleted],
    "best": BestTrial,
    "reproduce": Reproduced,
    "report": Report,
    "serve": Serving,
    "plan": Plan,
    "tune-up": TunedUp,
    **dict.fromkeys(("stop", "enqueue", "branch", "set"), Answer),
}
"""What each command prints; a list is printed as one."""


def schema() -> dict[str, Any]:
    """Return the JSON Schema; what a command prints stands under its name in ``properties``."""
    inputs: list[tuple[str, Literal["serialization"], TypeAdapter[Any]]] = [
        (name, "serialization", TypeAdapter(kind)) for name, kind in {**COMMANDS, "error": Error}.items()
    ]
    made, described = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")
    commands = {name: part for (name, _), part in made.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the commands of tunelight print with --json",
        "version": VERSION,
        "properties": commands,
        "$defs": _without_titles(described["$defs"]),
    }


def _without_titles(part: Any) -> Any:
    """Return a part of the schema without the titles that pydantic makes of its fields' names."""
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: _without_titles(each) for key, each in part.items() if key != "title" or isinstance(each, dict)}
