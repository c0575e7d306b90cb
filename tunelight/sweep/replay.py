"""Rebuild a sweep's scheduler and searcher from its record, before anything runs. Runs on: driver.

The record's events are replayed to both in the recorded order, through the calls that Tune makes; there are no actors,
and nothing is sent.

A Follower (Optuna's searcher) takes every recorded trial. Any other searcher is asked for its suggestions again, which
also restores the state of its random generator. If it suggests the recorded configuration, as tunelight's own and
seeded ones do, it gets the trial's reports; else it gets the trial by ``add_evaluated_point`` if it has that method
(Ray's OptunaSearch), or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from tunelight.compat.ray import set_last_result, stub_trial
from tunelight.errors import SettingsError
from tunelight.machine.processes import collector_resting
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
    TrialState,
    to_json_types,
)
from tunelight.record.record import replayed
from tunelight.schedulers.base import GangScheduler
from tunelight.searchers import TrackingSearcher
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.sweep.past import SavedSweep
from tunelight.sweep.queue import ResumeState, created_at_least, result_of, teach

_ENDS: Final = TERMINAL - {INTERRUPTED}
_STATUS: Final = {PENDING: Trial.PENDING, RUNNING: Trial.RUNNING, PAUSED: Trial.PAUSED, ERROR: Trial.ERROR}


def replay(
    lines: Iterable[tuple[Mapping[str, Any], SweepState]], *replays: SchedulerReplay | SearcherReplay
) -> list[Any]:
    """Tell replays the lines of a record; return what each ends with. Raises: SettingsError for what one raises."""
    for line, state in lines:
        known = state.trials.get(str(line.get("trial")))
        result = result_of(known, line["time"]) if known is not None and line["kind"] == "report" else {}
        for each in replays:
            _call(each, each.tell, line, known, result)
    return [_call(each, each.end) for each in replays]


def _call(replayed_to: SchedulerReplay | SearcherReplay, method: Callable[..., Any], *args: Any) -> Any:
    try:
        return method(*args)
    except Exception as error:
        raise SettingsError(
            f"The {replayed_to.what} cannot be rebuilt from the sweep's record: told of its earlier trials, it raised "
            f"{type(error).__name__}: {error}. {replayed_to.advice}"
        ) from error


class SchedulerReplay:
    """Tells a scheduler the recorded trials, reports and ends; it stands in for Tune's controller.

    Its decisions are ignored. Raises: SettingsError for a scheduler that cannot be replayed.

    Args:
        scheduler: a new one.
        final: what the whole record says.
    """

    advice = "Resume with scheduler='asha' or 'fifo'."

    def __init__(self, scheduler: GangScheduler, final: SweepState) -> None:
        name = type(scheduler.inner).__name__
        if not scheduler.replayable:
            raise SettingsError(
                f"A sweep under {name} cannot be resumed: it pauses, copies or resizes running trials, which no record "
                "brings back. Resume with scheduler='asha' or 'fifo', or start a new sweep under another name=."
            )
        self.what = f"scheduler {name}"
        self._scheduler: Any = scheduler
        self._final = final
        self._undone: set[str] = set()
        """Trials whose last change of configuration failed."""
        self.trials: dict[str, Any] = {}
        self._paused: set[str] = set()
        self._configs: dict[str, dict[str, Any]] = {}
        """The configurations that trials have from their next report on."""

    def get_trials(self) -> list[Trial]:
        """Return the trials so far, as Tune's controller does."""
        return list(self.trials.values())

    get_live_trials = get_trials

    def tell(self, line: Mapping[str, Any], known: TrialState | None, result: dict[str, Any]) -> None:
        """Take a line of the record, with what is known of its trial after it; and its report, as Tune passes it on."""
        if known is None or known.repeats not in (None, known.id) or known.branch is not None:  # as in the sweep
            return
        kind, trial_id = line["kind"], known.id
        if kind == "trial":
            self.trials[trial_id] = stub_trial(trial_id, dict(line["config"]))
            self._scheduler.on_trial_add(self, self.trials[trial_id])
        elif kind == "config":  # recorded just before the report at which it was decided
            self._configs[trial_id] = dict(line["config"])
            if line["parent"] is None:
                self._undone.add(trial_id)
        elif kind == "report":
            self._report(self.trials[trial_id], result)
        elif kind == "state" and line["state"] != INTERRUPTED:
            before = known.moves[-2][1] if len(known.moves) > 1 else PENDING
            self._change(self.trials[trial_id], before, line["state"])

    def end(self) -> frozenset[str]:
        """Return the trials that are paused at the end.

        Those that a report has ended, and whose driver died before it recorded that, are ended.
        """
        for trial_id, trial in self.trials.items():
            known = self._final.trials[trial_id]
            if known.decision == "STOP" and known.state not in _ENDS:
                self._change(trial, known.state, known.due)
            if trial_id in self._configs:  # of a change whose report was lost
                trial.set_config(self._configs[trial_id])
        return frozenset(self._paused)

    def _report(self, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id in self._undone:
            self._undone.discard(trial.trial_id)
            result[f"{RESULT_KEY}/adopted"] = "none"
        set_last_result(trial, result)
        decision = self._scheduler.on_trial_result(self, trial, result)
        if trial.trial_id in self._configs:
            trial.set_config(self._configs.pop(trial.trial_id))
        (self._paused.add if decision == TrialScheduler.PAUSE else self._paused.discard)(trial.trial_id)

    def _change(self, trial: Any, before: str | None, state: str) -> None:
        if state == PAUSED and trial.trial_id not in self._paused and trial.last_result:
            self._report(trial, dict(trial.last_result))  # it was made again on the way to the pause, and recorded once
        trial.status = _STATUS.get(state, Trial.TERMINATED)
        if state == PENDING:
            self._paused.discard(trial.trial_id)  # it went on, and lost or left its workers before it reported again
            self._scheduler.on_trial_add(self, trial)
        elif state == ERROR:
            self._scheduler.on_trial_error(self, trial)
        elif state in TERMINAL:
            self._paused.discard(trial.trial_id)
            if before in (PENDING, PAUSED):  # as Tune does
                self._scheduler.on_trial_remove(self, trial)
            else:
                self._scheduler.on_trial_complete(self, trial, trial.last_result)


class SearcherReplay:
    """Passes recorded trials to a searcher: as its own where it suggests them again, else as evaluated points.

    Args:
        searcher: a new one.
        space: that of the sweep.
        final: what the whole record says.
        foreign: whether it suggests dotted keys, as a user's Searcher does.
        baselines: how many of the first configurations it did not suggest, where their lines are lost.
        again: ids of trials that are resumed; their ends come later.
    """

    def __init__(
        self,
        searcher: Searcher,
        space: SearchSpace,
        final: SweepState,
        *,
        foreign: bool,
        baselines: int = 0,
        again: Collection[str] = (),
    ) -> None:
        name = type(searcher).__name__
        self.what, self.advice = f"searcher {name}", f"Give a fresh {name}, or resume with searcher='random'."
        self._searcher, self._space, self._foreign, self._baselines = searcher, space, foreign, baselines
        self._final, self._again = final, again
        ends = {trial.id: sum(state in _ENDS for _, state in trial.moves) for trial in final.trials.values()}
        self._ends = {trial: count for trial, count in ends.items() if trial not in again}
        """How many ends of each trial are to come: all but the last were taken back."""
        self._unended = {trial for trial, count in self._ends.items() if not count}
        self._takes_points = type(searcher).add_evaluated_point is not Searcher.add_evaluated_point
        self._last: dict[str, dict[str, Any]] = {}
        """The last report of each trial."""
        self._created = self._lost = 0
        self._known: set[str] = set()
        """Trials that the searcher knows as its own, and that have not ended."""
        self._points: dict[str, dict[str, Any]] = {}
        """Values of trials that it learns as evaluated points."""

    def tell(self, line: Mapping[str, Any], known: TrialState | None, result: dict[str, Any]) -> None:
        """Take a line of the record, with what is known of its trial after it; and its report, as Tune passes it on."""
        if line["kind"] == "trial":
            self._add(line)
        elif line["kind"] == "report":
            self._report(line, result)
        elif line["kind"] == "state" and line["state"] in _ENDS and line["trial"] in self._ends:
            self._ends[line["trial"]] -= 1
            if not self._ends[line["trial"]]:
                self._end(line["trial"], line["state"])

    def end(self) -> ResumeState:
        """Return what the sweep's search starts from."""
        for trial in self._final.trials.values():  # the driver died between the scheduler's STOP and the trial's end
            if trial.decision == "STOP" and trial.id in self._unended:
                self._end(trial.id, trial.due)
        points = {trial: values for trial, values in self._points.items() if trial in self._again}
        return ResumeState(created=self._created, known=frozenset(self._known), points=points)

    def _add(self, line: Mapping[str, Any]) -> None:
        """Take a recorded trial; trials whose lines are lost may have been suggested, too."""
        trial = line["trial"]
        self._lost += max(0, line["index"] - max(self._created, self._baselines))
        self._created = max(self._created, line["index"] + 1)
        if line.get("repeats") is not None or line.get("branch") is not None:
            return
        if isinstance(self._searcher, TrackingSearcher):
            self._searcher.take(trial, line["config"], asked=not line.get("baseline"))
            self._known.add(trial)
            return
        if line.get("baseline"):
            return
        tries, self._lost = self._lost + 1, 0
        if not any(self._suggest(trial, line["config"]) for _ in range(tries)):
            values = self._space.dotted(line["config"])
            if self._takes_points and values.keys() == self._space.domains.keys():
                self._points[trial] = values

    def _suggest(self, trial: str, config: Mapping[str, Any]) -> bool:
        """Ask for a suggestion; return whether it is the recorded one, else report it to the searcher as failed."""
        suggested = self._searcher.suggest(trial)
        if not isinstance(suggested, Mapping):
            return False
        same = self._space.from_dotted(suggested) if self._foreign else suggested
        if to_json_types(same) == config:
            self._known.add(trial)
            return True
        self._searcher.on_trial_complete(trial_id=trial, result=None, error=True)
        return False

    def _report(self, line: Mapping[str, Any], result: dict[str, Any]) -> None:
        self._last[line["trial"]] = result
        if line["trial"] in self._known and line["decision"] != "STOP":
            self._searcher.on_trial_result(line["trial"], result)

    def _end(self, trial: str, state: str) -> None:
        result = None if state in FAILED else self._last.get(trial)
        if trial in self._points:
            teach(self._searcher, self._points[trial], result)
        elif trial in self._known:
            self._known.discard(trial)
            if isinstance(self._searcher, TrackingSearcher):
                self._searcher.end(trial, state, self._last.get(trial))
            else:
                self._searcher.on_trial_complete(trial_id=trial, result=result, error=state in FAILED)


def start_from(
    past: SavedSweep, space: SearchSpace, settings: Settings, scheduler: GangScheduler, searcher: Searcher
) -> ResumeState:
    """Replay the record to scheduler and searcher; return the state that the search resumes from.

    Raises: SettingsError where one of them cannot be replayed.
    """
    again = past.again(settings.max_epochs, repetitions=settings.repeats is not None)
    of_scheduler = SchedulerReplay(scheduler, past.state)
    of_searcher = SearcherReplay(
        searcher,
        space,
        past.state,
        foreign=searcher is settings.searcher,
        baselines=len(past.baselines(space)),
        again=[trial.id for trial in again],
    )
    start: ResumeState
    with collector_resting():
        learns = getattr(searcher.on_trial_result, "__func__", None) is not Searcher.on_trial_result
        lines = replayed(past.folder, None if learns else scheduler.can_spare)
        paused, start = replay(lines, of_scheduler, of_searcher)
    again.sort(key=lambda trial: trial.id not in paused)  # all that wait are known before the scheduler chooses one
    created = created_at_least(start.created, past.folder)
    return replace(start, created=created, again={trial.id: trial.id in paused for trial in again})
