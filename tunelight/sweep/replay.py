"""Rebuild a sweep's scheduler and searcher from its record, before anything runs. Runs on: driver.

The record's events are replayed to both in the recorded order, through the calls that Tune makes; there are no actors,
and nothing is sent.

A Follower (Optuna's searcher) takes every recorded trial. Any other searcher is asked for its suggestions again, which
also restores the state of its random generator. If it suggests the recorded configuration, as tunelight's own and
seeded ones do, it gets the trial's reports; else it gets the trial by ``add_evaluated_point`` if it has that method
(Ray's OptunaSearch), or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from tunelight.compat.ray import set_last_result, stub_trial
from tunelight.errors import SettingsError
from tunelight.messages import RESULT_KEY
from tunelight.record import (
    ERROR,
    FAILED,
    INTERRUPTED,
    PAUSED,
    PENDING,
    RUNNING,
    TERMINAL,
    SweepState,
    apply,
    to_json_types,
)
from tunelight.schedulers.base import GangScheduler
from tunelight.searchers import TrackingSearcher
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.sweep.past import SavedSweep
from tunelight.sweep.queue import ResumeState, created_at_least, result_of, teach

_ENDS: Final = TERMINAL - {INTERRUPTED}
_STATUS: Final = {PENDING: Trial.PENDING, RUNNING: Trial.RUNNING, PAUSED: Trial.PAUSED, ERROR: Trial.ERROR}


@contextlib.contextmanager
def _rebuilding(what: str, advice: str) -> Iterator[None]:
    """Raise SettingsError for whatever a scheduler or searcher raises while it is told of earlier trials."""
    try:
        yield
    except Exception as error:
        raise SettingsError(
            f"The {what} cannot be rebuilt from the sweep's record: told of its earlier trials, it raised "
            f"{type(error).__name__}: {error}. {advice}"
        ) from error


def replay_scheduler(lines: Sequence[Mapping[str, Any]], scheduler: GangScheduler) -> frozenset[str]:
    """Replay recorded trials, reports and ends to ``scheduler``; return the trials that are paused at the end.

    Its decisions are ignored. Raises: SettingsError for a scheduler that cannot be replayed.
    """
    name = type(scheduler.inner).__name__
    if not scheduler.replayable:
        raise SettingsError(
            f"A sweep under {name} cannot be resumed: it pauses, copies or resizes running trials, which no record "
            "brings back. Resume with scheduler='asha' or 'fifo', or start a new sweep under another name=."
        )
    replay = _SchedulerReplay(scheduler)
    with _rebuilding(f"scheduler {name}", "Resume with scheduler='asha' or 'fifo'."):
        for line in lines:
            replay.tell(line)
        replay.end()
        for trial_id, config in replay.configs.items():  # of changes whose report was lost
            replay.trials[trial_id].set_config(config)
    return frozenset(replay.paused)


class _SchedulerReplay:
    """Tells a scheduler the lines of a record; it stands in for Tune's controller."""

    def __init__(self, scheduler: GangScheduler) -> None:
        self._scheduler: Any = scheduler
        self._state = SweepState()
        self._undone: set[str] = set()
        """Trials whose last change of configuration failed."""
        self.trials: dict[str, Any] = {}
        self.paused: set[str] = set()
        self.configs: dict[str, dict[str, Any]] = {}
        """The configurations that trials have from their next report on."""

    def get_trials(self) -> list[Trial]:
        return list(self.trials.values())

    get_live_trials = get_trials

    def tell(self, line: Mapping[str, Any]) -> None:
        kind, trial_id = line["kind"], str(line.get("trial"))
        before = known.state if (known := self._state.trials.get(trial_id)) else None
        apply(self._state, line)
        known = self._state.trials.get(trial_id)
        if trial_id in self._state.repetitions or (known is not None and known.branch is not None):  # as in the sweep
            return
        if kind == "trial":
            self.trials[trial_id] = stub_trial(trial_id, dict(line["config"]))
            self._scheduler.on_trial_add(self, self.trials[trial_id])
        elif kind == "config":  # recorded just before the report at which it was decided
            self.configs[trial_id] = dict(line["config"])
            if line["parent"] is None:
                self._undone.add(trial_id)
        elif kind == "report":
            self._report(self.trials[trial_id], result_of(self._state.trials[trial_id], line["time"]))
        elif kind == "state" and line["state"] != INTERRUPTED:
            self._change(self.trials[trial_id], before, line["state"])

    def end(self) -> None:
        """End the trials that a report has ended, if their driver died before it recorded that."""
        for known in self._state.trials.values():
            if known.id in self.trials and known.decision == "STOP" and known.state not in _ENDS:
                self._change(self.trials[known.id], known.state, known.due)

    def _report(self, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id in self._undone:
            self._undone.discard(trial.trial_id)
            result[f"{RESULT_KEY}/adopted"] = "none"
        set_last_result(trial, result)
        decision = self._scheduler.on_trial_result(self, trial, result)
        if trial.trial_id in self.configs:
            trial.set_config(self.configs.pop(trial.trial_id))
        (self.paused.add if decision == TrialScheduler.PAUSE else self.paused.discard)(trial.trial_id)

    def _change(self, trial: Any, before: str | None, state: str) -> None:
        if state == PAUSED and trial.trial_id not in self.paused and trial.last_result:
            self._report(trial, dict(trial.last_result))  # it was made again on the way to the pause, and recorded once
        trial.status = _STATUS.get(state, Trial.TERMINATED)
        if state == PENDING:
            self.paused.discard(trial.trial_id)  # it went on, and has lost or left its workers before it reported again
            self._scheduler.on_trial_add(self, trial)
        elif state == ERROR:
            self._scheduler.on_trial_error(self, trial)
        elif state in TERMINAL:
            self.paused.discard(trial.trial_id)
            if before in (PENDING, PAUSED):  # as Tune does
                self._scheduler.on_trial_remove(self, trial)
            else:
                self._scheduler.on_trial_complete(self, trial, trial.last_result)


def replay_searcher(
    lines: Sequence[Mapping[str, Any]],
    searcher: Searcher,
    space: SearchSpace,
    *,
    foreign: bool,
    baselines: int = 0,
    again: Collection[str] = (),
) -> ResumeState:
    """Tell ``searcher`` of the recorded trials, and return what the sweep's search starts from.

    Args:
        lines: the record.
        foreign: whether it suggests dotted keys, as a user's Searcher does.
        baselines: how many of the first configurations it did not suggest, where their lines are lost.
        again: ids of trials that are resumed; their ends come later.

    Raises: SettingsError for a searcher that cannot be replayed.
    """
    name, state = type(searcher).__name__, SweepState()
    teller = _Teller(searcher, space, foreign=foreign, baselines=baselines)
    ends = {line["trial"]: n for n, line in enumerate(lines) if line["kind"] == "state" and line["state"] in _ENDS}
    with _rebuilding(f"searcher {name}", f"Give a fresh {name}, or resume with searcher='random'."):
        for number, line in enumerate(lines):
            apply(state, line)
            if line["kind"] == "trial":
                teller.add(line)
            elif line["kind"] == "report":
                teller.report(line, result_of(state.trials[line["trial"]], line["time"]))
            elif ends.get(line.get("trial", "")) == number and line["trial"] not in again:
                teller.end(line["trial"], line["state"])
        for trial in state.trials.values():  # the driver died between the scheduler's STOP and the trial's end
            if trial.id not in again and trial.id not in ends and trial.decision == "STOP":
                teller.end(trial.id, trial.due)
    return ResumeState(
        created=teller.created,
        known=frozenset(teller.known),
        points={trial: values for trial, values in teller.points.items() if trial in again},
    )


class _Teller:
    """Passes recorded trials to a searcher: as its own where it suggests them again, else as evaluated points."""

    def __init__(self, searcher: Searcher, space: SearchSpace, *, foreign: bool, baselines: int) -> None:
        self._searcher, self._space, self._foreign, self._baselines = searcher, space, foreign, baselines
        self._takes_points = type(searcher).add_evaluated_point is not Searcher.add_evaluated_point
        self.last: dict[str, dict[str, Any]] = {}
        """The last report of each trial."""
        self.created = self._lost = 0
        self.known: set[str] = set()
        """Trials that the searcher knows as its own, and that have not ended."""
        self.points: dict[str, dict[str, Any]] = {}
        """Values of trials that it learns as evaluated points."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a recorded trial; trials whose lines are lost may have been suggested, too."""
        trial = line["trial"]
        self._lost += max(0, line["index"] - max(self.created, self._baselines))
        self.created = max(self.created, line["index"] + 1)
        if line.get("repeats") is not None or line.get("branch") is not None:
            return
        if isinstance(self._searcher, TrackingSearcher):
            self._searcher.take(trial, line["config"], asked=not line.get("baseline"))
            self.known.add(trial)
            return
        if line.get("baseline"):
            return
        tries, self._lost = self._lost + 1, 0
        if not any(self._suggest(trial, line["config"]) for _ in range(tries)):
            values = self._space.dotted(line["config"])
            if self._takes_points and values.keys() == self._space.domains.keys():
                self.points[trial] = values

    def _suggest(self, trial: str, config: Mapping[str, Any]) -> bool:
        """Ask for a suggestion; return whether it is the recorded one, else report it to the searcher as failed."""
        suggested = self._searcher.suggest(trial)
        if not isinstance(suggested, Mapping):
            return False
        same = self._space.from_dotted(suggested) if self._foreign else suggested
        if to_json_types(same) == config:
            self.known.add(trial)
            return True
        self._searcher.on_trial_complete(trial_id=trial, result=None, error=True)
        return False

    def report(self, line: Mapping[str, Any], result: dict[str, Any]) -> None:
        self.last[line["trial"]] = result
        if line["trial"] in self.known and line["decision"] != "STOP":
            self._searcher.on_trial_result(line["trial"], result)

    def end(self, trial: str, state: str) -> None:
        result = None if state in FAILED else self.last.get(trial)
        if trial in self.points:
            teach(self._searcher, self.points[trial], result)
        elif trial in self.known:
            self.known.discard(trial)
            if isinstance(self._searcher, TrackingSearcher):
                self._searcher.end(trial, state, self.last.get(trial))
            else:
                self._searcher.on_trial_complete(trial_id=trial, result=result, error=state in FAILED)


def start_from(
    past: SavedSweep, space: SearchSpace, settings: Settings, scheduler: GangScheduler, searcher: Searcher
) -> ResumeState:
    """Replay the record to scheduler and searcher; return the state that the search resumes from."""
    again = past.again(settings.max_epochs, repetitions=settings.repeats is not None)
    paused = replay_scheduler(past.lines, scheduler)
    start = replay_searcher(
        past.lines,
        searcher,
        space,
        foreign=searcher is settings.searcher,
        baselines=len(past.baselines(space)),
        again=[trial.id for trial in again],
    )
    again.sort(key=lambda trial: trial.id not in paused)  # all that wait are known before the scheduler chooses one
    created = created_at_least(start.created, past.folder)
    return replace(start, created=created, again={trial.id: trial.id in paused for trial in again})
