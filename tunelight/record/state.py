"""What happened in a sweep, in memory, and the one mechanism that writer and reader of a record share."""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from tunelight.record.lines import History, Source, report_of
from tunelight.record.outcomes import FAILED, INTERRUPTED, PAUSED, PENDING, RUNNING, STATES, STOPPED

GAVE_UP: Final = "gave up"
"""How a sweep ended whose first trials all failed with the same error."""
STOPPED_BY_COMMAND: Final = "stopped"
"""How a sweep ended that a person stopped on purpose, by a command."""
_MOST_EVENTS: Final = 50
FOLDING: Final = threading.Lock()


@dataclass(frozen=True)
class Branch:
    """Where a trial began that was given another one's state."""

    parent: str
    """The other trial's id."""
    root: str
    """The first trial of that line, whose seed all have."""
    number: int
    """Its report with which the trial begins, from which this one's reports are counted on."""


@dataclass(slots=True)
class TrialState:
    """One trial. ``history`` holds the reports in order, as the user reads them.

    What it holds in containers may be folded away, and is unfolded when it is asked for.
    """

    id: str
    index: int
    config: dict[str, Any] = field(default_factory=dict)
    """The current one; see ``changes``."""
    seed: int | None = None
    folder: str = ""
    """The trial's folder, relative to the sweep's where it lies inside."""
    state: str = PENDING
    history: list[dict[str, Any]] | History = field(default_factory=list)
    """Every report's metrics with ``epoch``, ``training_iteration`` and ``timestamp``."""
    best: int | None = None
    """Where in ``history`` the best report is; NaN and infinities never are, of equals the earlier one is."""
    value: float | None = None
    """The sweep's metric in the best report."""
    decision: str = "CONTINUE"
    """The scheduler's decision on the last report."""
    why: str | None = None
    """Why the scheduler stopped or paused it, in words, if that is known; None while it goes on."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    """How it took over other trials, in order: after which report (``training_iteration``), from which ``parent`` and
    which report of that, and its configuration ``before`` and after (``config``)."""
    error: dict[str, Any] | None = None
    workers: int | None = None
    seconds: float = 0.0
    """How long it was RUNNING, up to ``since``."""
    since: float | None = None
    """When it was last set to RUNNING; None while it is not."""
    training: bool = False
    """Whether its workers have met since it was last set to RUNNING; until then it is starting."""
    trained: float = 0.0
    """How long it had trained at its last report."""
    done: float | None = None
    """How far it had come by then, in units of the scheduler's rungs; None without rungs."""
    compiled: int = 0
    """How many graphs torch.compile has made for it, up to its last report, since it last began or resumed."""
    moves: list[tuple[float, str]] = field(default_factory=list)
    """(time, state) of each change of its state."""
    gangs: list[dict[str, Any]] = field(default_factory=list)
    """The gangs that trained it, in order: ``gang`` (an id), ``nodes`` (the node of each worker), ``warm``, and when
    the workers began to meet and had met, ``began`` and ``ready`` (by the clock of the gang's head)."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """(time, text) of the remarks on it for the person who runs the sweep."""
    runs: list[int] = field(default_factory=list)
    """In which of the sweep's runs it trained."""
    repeats: str | None = None
    """The trial whose configuration it trains again with another seed; None for a trial of the search."""
    repetition: int = 0
    """Which training of its configuration it is, from 0."""
    branch: Branch | None = None
    """Where it began, if not from scratch; its first one of ``changes``."""

    folded: partial[dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    """Returns what is folded away (:mod:`tunelight.record.snapshot`), by name."""

    if not TYPE_CHECKING:  # for which a trial has its fields and no others

        def __getattr__(self, name: str) -> Any:
            """Return what is folded away, which is unfolded now."""
            if name in TrialState.__slots__ and name != "folded":
                with FOLDING:  # another thread may read it, too
                    for known, value in () if self.folded is None else self.folded().items():
                        setattr(self, known, value)
                    self.folded = None
            return object.__getattribute__(self, name)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {known.name: getattr(self, known.name) for known in fields(self)} | {"folded": None}

    @property
    def starting(self) -> bool:
        """Tell whether it is RUNNING, and its workers have not met yet."""
        return self.state == RUNNING and not self.training

    @property
    def reports(self) -> int:
        """Return the number of its last report, 0 without one."""
        return int(self.history[-1]["training_iteration"] or 0) if self.history else 0

    @property
    def number(self) -> int:
        """Return the number of its last report; of a branch that has made none, that of the other trial's."""
        return self.reports if self.history or self.branch is None else self.branch.number

    @property
    def due(self) -> str:
        """The end that its last report has brought, if its driver ended before it recorded that; else INTERRUPTED."""
        return (self.error or {}).get("state") or (STOPPED if self.decision == "STOP" else INTERRUPTED)

    @property
    def changed(self) -> bool:
        """Tell whether there may be ``changes``, for which nothing is unfolded."""
        folded = self.folded  # another thread may unfold it now
        return bool(self.changes) if folded is None else b'"changes":' in folded.args[0]

    @property
    def failed(self) -> bool:
        """Tell whether it ended in one of the ways that count as a failure, as DIVERGED or ERROR."""
        return self.state in FAILED

    def elapsed(self, now: float) -> float:
        """Return the seconds it has been RUNNING until ``now``."""
        return self.seconds + (max(0.0, now - self.since) if self.since is not None else 0.0)

    def config_at(self, number: int) -> dict[str, Any]:
        """Return the configuration that report ``number`` was trained under."""
        later = (change["before"] for change in self.changes if change["training_iteration"] >= number)
        return dict(next(later, self.config))


@dataclass(frozen=True)
class Best:
    """The best report of a sweep so far."""

    value: float
    trial: str
    index: int
    training_iteration: int
    epoch: int | None


@dataclass
class SweepState:
    """A sweep: the live view of a running one, or a replayed record.

    Another thread may read it while the sweep runs if it copies a container before it iterates over it
    (``list(state.live.values())``).
    """

    sweep: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Each run of the driver: command, cwd, git, versions; empty in records that lack it."""
    trials: dict[str, TrialState] = field(default_factory=dict)
    live: dict[str, TrialState] = field(default_factory=dict)
    """The trials that are RUNNING or PAUSED."""
    repetitions: dict[str, TrialState] = field(default_factory=dict)
    """The trials that train another one's configuration again, which are beyond those of the search."""
    branches: int = 0
    """How many trials began with another one's state, which are beyond those of the search, too."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    best: Best | None = None
    """Of the trials of the search that did not fail; of equal values, that of the trial with the lower index."""
    best_failed: Best | None = None
    """The same for the trials that failed."""
    notes: list[tuple[str | None, str]] = field(default_factory=list)
    """(trial id or None, text), in order."""
    answers: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """By the id of a command: whether it was carried out, and what the driver said."""
    events: deque[tuple[float, str | None, str, str]] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    """The latest events other than reports: (time, trial id or None, kind of line, state or parent or text)."""
    started: float | None = None
    """When its last run began."""
    before: float = 0.0
    """Seconds of the runs before that."""
    updated: float | None = None
    ended: str | None = None
    """Why the sweep ended; None while it runs, or if its driver died."""

    @property
    def suggested(self) -> int:
        """How many trials of the search there are, baselines among them."""
        return len(self.trials) - len(self.repetitions) - self.branches

    @property
    def searched(self) -> list[TrialState]:
        """The trials of the search, and branches; a repetition trains the configuration of one again, and is none."""
        return [trial for trial in list(self.trials.values()) if trial.repeats in (None, trial.id)]

    @property
    def from_scratch(self) -> list[TrialState]:
        """The trials of the search; a branch has another one's training, so that its value is not its own alone."""
        return [trial for trial in self.searched if trial.branch is None]

    @property
    def ahead(self) -> Best | None:
        """The best report of the trials that failed, if it beats ``best`` or there is no other."""
        failed, best = self.best_failed, self.best
        if failed is None or best is None or is_better(failed.value, best.value, self.mode):
            return failed
        return None

    @property
    def further(self) -> list[str]:
        """The metrics after the first one, by which trials are compared, where a sweep has several."""
        return [str(metric) for metric, _ in self.sweep.get("further") or ()]

    @property
    def mode(self) -> str:
        """The direction of the metric, "min" or "max"."""
        return str(self.sweep.get("mode") or "min")


def apply(state: SweepState, line: Mapping[str, Any], source: Source | None = None) -> None:
    """Apply one line of the record to ``state``; lines of an unknown kind change nothing.

    ``source``: the record's file, in which the reports of trials that the line begins stay.
    """
    if state.started is None:
        state.started = line["time"]
    elif line["kind"] == "sweep" and state.updated is not None:
        state.before += max(0.0, state.updated - state.started)
    state.updated = line["time"]
    change = _CHANGES.get(line["kind"])
    if change is not None:
        change(state, line)
    if source is not None and line["kind"] == "trial":
        state.trials[line["trial"]].history = History(source)


def _apply_sweep(state: SweepState, line: Mapping[str, Any]) -> None:
    sweep, by = dict(line["sweep"]), _counted_by(state)
    state.runs.append(sweep.pop("run", None) or {})
    state.sweep.update(sweep)
    state.started, state.ended = line["time"], None
    for trial in state.trials.values():  # a change whose report was lost with the driver's machine was not made
        while trial.changed and trial.changes[-1]["training_iteration"] > trial.number:
            trial.config = dict(trial.changes.pop()["before"])
        if _counted_by(state) != by:  # the rungs are others now
            trial.done = _done(state, trial.history[-1]) if trial.history else None


def inside(path: str) -> str:
    """Return a path that a record names. Raises: ValueError where it leads out of the sweep's folder."""
    if path.startswith("/") or (".." in path and ".." in PurePath(path).parts):
        raise ValueError(f"the path {path!r} is not inside the sweep's folder")
    return path


def _apply_trial(state: SweepState, line: Mapping[str, Any]) -> None:
    known, config = line["trial"], line["config"]
    if not isinstance(known, str) or not isinstance(config, Mapping):
        raise TypeError(f"a trial has an id and a configuration, not {known!r} and {config!r}")
    trial = TrialState(known, int(line["index"]), dict(config), line.get("seed"), inside(line["folder"]))
    trial.repeats, trial.repetition = line.get("repeats"), line.get("repetition", 0)
    if (known_branch := line.get("branch")) is not None:
        trial.branch = branch = Branch(**known_branch)
        state.branches += 1
        parent = state.trials.get(branch.parent)  # None where its line was lost
        change = {"training_iteration": branch.number, "parent": branch.parent, "parent_iteration": branch.number}
        before = trial.config if parent is None else parent.config_at(branch.number + 1)
        trial.changes.append({**change, "config": trial.config, "before": before})
    state.trials[trial.id] = trial
    if trial.repeats not in (None, trial.id):
        state.repetitions[trial.id] = trial
    state.counts[trial.state] += 1


def _apply_state(state: SweepState, line: Mapping[str, Any]) -> None:
    trial, new, failed = state.trials[line["trial"]], sys.intern(line["state"]), state.trials[line["trial"]].failed
    if trial.since is not None:
        trial.seconds, trial.since = trial.elapsed(line.get("at", line["time"])), None
    trial.training = False
    if new == RUNNING:
        trial.since = line["time"]
        if state.runs and len(state.runs) - 1 not in trial.runs:
            trial.runs.append(len(state.runs) - 1)
    state.counts[trial.state] -= 1
    state.counts[new] += 1
    trial.state, trial.error = new, line.get("error")
    if trial.failed != failed:
        _judge_again(state, trial)
    at = line.get("at", line["time"])
    if new not in (PAUSED, STOPPED) or "why" in line:  # a trial that is stopped while paused keeps its reason
        trial.why = line.get("why")
    trial.moves.append((at, new))
    state.events.append((at, trial.id, "state", new))
    if new in (RUNNING, PAUSED):
        state.live[trial.id] = trial
    else:
        state.live.pop(trial.id, None)


def _apply_report(state: SweepState, line: Mapping[str, Any]) -> None:
    trial = state.trials[line["trial"]]
    report = report_of(line)
    trial.history.append(report)
    trial.training, trial.trained = True, line.get("seconds") or 0.0
    trial.compiled = line.get("compiled", 0)
    trial.decision, trial.why, trial.error = sys.intern(line["decision"]), line.get("why"), line.get("error")
    trial.workers = line.get("workers") or trial.workers
    trial.done = _done(state, report)
    value = metric_value(line["metrics"], state.sweep.get("metric"))
    if value is None or math.isinf(value):
        return
    if trial.value is None or is_better(value, trial.value, state.mode):
        trial.best, trial.value = len(trial.history) - 1, value
        _judge(state, trial)


def _done(state: SweepState, report: Mapping[str, Any]) -> float | None:
    done = report.get(_counted_by(state))
    return done if isinstance(done, int | float) else None


def _counted_by(state: SweepState) -> str:
    """Return the reported name in whose units the sweep's rungs are."""
    return str((state.sweep.get("rungs") or {}).get("by"))


def _judge(state: SweepState, trial: TrialState) -> None:
    """Update the sweep's best report, or its best of failed trials, by a trial's best one."""
    if trial.best is None or trial.value is None or trial.repeats not in (None, trial.id):
        return
    name = "best_failed" if trial.failed else "best"
    best: Best | None = getattr(state, name)
    equal = best is not None and trial.value == best.value and trial.index < best.index
    if best is None or equal or is_better(trial.value, best.value, state.mode):
        report = trial.history[trial.best]
        setattr(state, name, Best(trial.value, trial.id, trial.index, report["training_iteration"], report["epoch"]))


def _judge_again(state: SweepState, trial: TrialState) -> None:
    """Judge a trial again that now counts as failed, or no longer does."""
    name = "best" if trial.failed else "best_failed"
    before: Best | None = getattr(state, name)
    _judge(state, trial)
    if before is not None and before.trial == trial.id:
        setattr(state, name, None)
        for other in state.trials.values():
            if other.failed != trial.failed:
                _judge(state, other)


def _apply_checkpoint(state: SweepState, line: Mapping[str, Any]) -> None:
    known = {key: line[key] for key in line if key not in ("kind", "time", "trial")}
    state.trials[line["trial"]].checkpoints.append({**known, "path": inside(line["path"])})


def _apply_config(state: SweepState, line: Mapping[str, Any]) -> None:
    trial = state.trials[line["trial"]]
    if line["parent"] is None:  # the change before could not be made
        trial.changes.pop()
    else:
        change = {key: line[key] for key in ("training_iteration", "parent", "parent_iteration", "config")}
        trial.changes.append({**change, "before": trial.config})
        state.events.append((line["time"], trial.id, "config", line["parent"]))
    trial.config = dict(line["config"])


def _apply_gang(state: SweepState, line: Mapping[str, Any]) -> None:
    known = {key: line[key] for key in line if key not in ("kind", "time", "trial")}
    state.trials[line["trial"]].gangs.append(known)


def _apply_training(state: SweepState, line: Mapping[str, Any]) -> None:
    state.trials[line["trial"]].training = True


def _apply_note(state: SweepState, line: Mapping[str, Any]) -> None:
    trial_id, text = line.get("trial"), line["text"]
    state.notes.append((trial_id, text))
    state.events.append((line["time"], trial_id, "note", text))
    if trial_id in state.trials:
        state.trials[trial_id].notes.append((line["time"], text))


def _apply_command(state: SweepState, line: Mapping[str, Any]) -> None:
    state.answers[line["id"]] = (line["ok"], line["said"])
    if line["ok"]:
        state.notes.append((line["trial"], line["said"]))
        state.events.append((line["time"], line["trial"], "note", line["said"]))
        if line.get("num_samples") is not None:
            state.sweep["num_samples"] = line["num_samples"]


def _apply_end(state: SweepState, line: Mapping[str, Any]) -> None:
    state.ended = line["reason"]


_CHANGES: Final[dict[str, Callable[[SweepState, Mapping[str, Any]], None]]] = {
    "sweep": _apply_sweep,
    "trial": _apply_trial,
    "state": _apply_state,
    "report": _apply_report,
    "checkpoint": _apply_checkpoint,
    "config": _apply_config,
    "gang": _apply_gang,
    "training": _apply_training,
    "note": _apply_note,
    "command": _apply_command,
    "end": _apply_end,
}


def metric_value(metrics: Mapping[str, Any], metric: str | None) -> float | None:
    """Return a metric as a float (nested: ``outer/inner``); None if it is missing, no number, or NaN."""
    value: Any = metrics.get(metric) if metric else None
    if value is None and metric and "/" in metric:
        value = metrics
        for part in metric.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def is_better(value: float, other: float, mode: str) -> bool:
    """Tell whether ``value`` beats ``other``; equals do not."""
    return value > other if mode == "max" else value < other
