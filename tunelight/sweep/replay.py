"""Rebuild a sweep's scheduler and searcher from its record, before anything runs. Runs on: driver.

The record's events are replayed to both in the recorded order, through the calls that Tune makes; there are no actors,
and nothing is sent.

A Follower (Optuna's searcher) takes every recorded trial. Any other searcher is asked for its suggestions again, which
also restores the state of its random generator. If it suggests the recorded configuration, as tunelight's own and
seeded ones do, it gets the trial's reports; else it gets the trial by ``add_evaluated_point`` if it has that method
(Ray's OptunaSearch), or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from tunelight.compat.ray import flattened, set_last_result, stub_trial
from tunelight.errors import SettingsError
from tunelight.messages import RESULT_KEY
from tunelight.record import (
    ERROR,
    FAILED,
    INTERRUPTED,
    PAUSED,
    PENDING,
    RUNNING,
    STOPPED,
    TERMINAL,
    SweepState,
    Training,
    apply,
    to_json_types,
)
from tunelight.schedulers.base import GangScheduler
from tunelight.searchers import ResumedTrial, ResumeState, TrackingSearcher, teach
from tunelight.space import SearchSpace
from tunelight.trial.fitting import recall, remember

if TYPE_CHECKING:
    from tunelight.settings import Settings
    from tunelight.sweep.past import SavedSweep

_ENDS: Final = TERMINAL - {INTERRUPTED}
_STATUS: Final = {PENDING: Trial.PENDING, RUNNING: Trial.RUNNING, PAUSED: Trial.PAUSED, ERROR: Trial.ERROR}


class _NoController:
    """Stands in for Tune's controller in calls of the scheduler."""

    def __init__(self, trials: Mapping[str, Trial]) -> None:
        self._trials = trials

    def get_trials(self) -> list[Trial]:
        return list(self._trials.values())

    get_live_trials = get_trials


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
    try:
        return _tell_scheduler(lines, scheduler)
    except Exception as error:
        raise SettingsError(
            f"The scheduler {name} cannot be rebuilt from the sweep's record: told of its earlier reports, it raised "
            f"{type(error).__name__}: {error}. Resume with scheduler='asha' or 'fifo'."
        ) from error


def _tell_scheduler(lines: Sequence[Mapping[str, Any]], scheduler: Any) -> frozenset[str]:
    state, trials, paused = SweepState(), dict[str, Trial](), set[str]()
    changes = _Changes()
    controller = _NoController(trials)
    for line in lines:
        kind, trial_id = line["kind"], line.get("trial")
        before = known.state if (known := state.trials.get(str(trial_id))) else None
        apply(state, line)
        if trial_id in state.repetitions:  # no scheduler learned of it
            continue
        if kind == "state" and line["state"] != INTERRUPTED:
            trials[line["trial"]].status = _STATUS.get(line["state"], Trial.TERMINATED)
        if kind == "trial":
            trials[line["trial"]] = stub_trial(line["trial"], dict(line["config"]))
            scheduler.on_trial_add(controller, trials[line["trial"]])
        elif kind == "config":
            changes.take(line)
        elif kind == "report":
            trial, result = trials[line["trial"]], _result(state, line)
            changes.before(trial, result)
            set_last_result(trial, result)
            decision = scheduler.on_trial_result(controller, trial, result)
            changes.after(trial)
            (paused.add if decision == TrialScheduler.PAUSE else paused.discard)(trial.trial_id)
        elif kind == "state" and line["state"] == PENDING:
            scheduler.on_trial_add(controller, trials[line["trial"]])
        elif kind == "state" and line["state"] == ERROR:
            scheduler.on_trial_error(controller, trials[line["trial"]])
        elif kind == "state" and line["state"] in _ENDS:
            trial = trials[line["trial"]]
            paused.discard(trial.trial_id)
            if before in (PENDING, PAUSED):  # as Tune does
                scheduler.on_trial_remove(controller, trial)
                continue
            scheduler.on_trial_complete(controller, trial, trial.last_result)
    for trial in trials.values():
        changes.after(trial)  # of changes whose report was lost
    return frozenset(paused)


class _Changes:
    """Recorded changes of configurations; each is recorded just before the report at which it was decided."""

    def __init__(self) -> None:
        self._configs: dict[str, dict[str, Any]] = {}
        self._undone: set[str] = set()

    def take(self, line: Mapping[str, Any]) -> None:
        """Take a "config" line; without a parent, it says that the previous change failed."""
        self._configs[line["trial"]] = dict(line["config"])
        if line["parent"] is None:
            self._undone.add(line["trial"])

    def before(self, trial: Trial, result: dict[str, Any]) -> None:
        """Mark a report as before, if the change before it failed."""
        if trial.trial_id in self._undone:
            self._undone.discard(trial.trial_id)
            result[f"{RESULT_KEY}/adopted"] = "none"

    def after(self, trial: Trial) -> None:
        """Set the configuration that a trial has after its report."""
        if trial.trial_id in self._configs:
            trial.set_config(self._configs.pop(trial.trial_id))


def _result(state: SweepState, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded report as Tune passes it to schedulers and searchers: flat, with Tune's keys."""
    trial = state.trials[line["trial"]]
    own = {
        "trial_id": trial.id,
        "done": False,
        "time_total_s": trial.elapsed(line["time"]),
        **{key: line[key] for key in ("training_iteration", "epoch", "timestamp")},
        RESULT_KEY: {"workers": line.get("workers"), "seconds": trial.trained},
    }
    return flattened({**line["metrics"], **own})


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
    teller = _Teller(searcher, space, foreign=foreign, baselines=baselines)
    ends = {line["trial"]: number for number, line in enumerate(lines) if _is_end(line)}
    state = SweepState()
    try:
        for number, line in enumerate(lines):
            apply(state, line)
            if line["kind"] == "trial":
                teller.add(line)
            elif line["kind"] == "report":
                teller.report(line, _result(state, line))
            elif ends.get(line.get("trial", "")) == number and line["trial"] not in again:
                teller.end(line)
        for trial in state.trials.values():  # the driver died between the scheduler's STOP and the trial's end
            if trial.id not in again and trial.id not in ends and trial.decision == "STOP":
                teller.end({"trial": trial.id, "state": STOPPED})
    except Exception as error:
        name = type(searcher).__name__
        raise SettingsError(
            f"The searcher {name} cannot be rebuilt from the sweep's record: told of its earlier trials, it raised "
            f"{type(error).__name__}: {error}. Give a fresh {name}, or resume with searcher='random'."
        ) from error
    return ResumeState(
        created=teller.created,
        known=frozenset(teller.told),
        points={trial: values for trial, values in teller.points.items() if trial in again},
        last={trial: result for trial, result in teller.last.items() if trial in again},
        repetitions=len(teller.repetitions),
    )


def _is_end(line: Mapping[str, Any]) -> bool:
    return line["kind"] == "state" and line["state"] in _ENDS


class _Teller:
    """Passes recorded trials to a searcher: as its own where it suggests them again, else as evaluated points."""

    def __init__(self, searcher: Searcher, space: SearchSpace, *, foreign: bool, baselines: int) -> None:
        self._searcher = searcher
        self._space = space
        self._foreign = foreign
        self._baselines = baselines
        self._takes_points = type(searcher).add_evaluated_point is not Searcher.add_evaluated_point
        self.last: dict[str, dict[str, Any]] = {}
        """The last report of each trial."""
        self.created = 0
        self.repetitions: set[str] = set()
        self.told: set[str] = set()
        self.points: dict[str, dict[str, Any]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a recorded trial; trials whose lines are lost were suggested, too."""
        missing_from, self.created = self.created, max(self.created, line["index"] + 1)
        if line.get("repeats") is not None:
            self.repetitions.add(line["trial"])
            return
        if isinstance(self._searcher, TrackingSearcher):
            self._searcher.take(line["trial"], line["config"], asked=not line.get("baseline"))
            self.told.add(line["trial"])
            return
        for missing in range(missing_from, line["index"]):
            if missing >= self._baselines:
                self._suggest(f"{missing:05d}", None)
        if line.get("baseline") or self._suggest(line["trial"], line["config"]):
            return
        values = self._space.dotted(line["config"])
        if self._takes_points and values.keys() == self._space.domains.keys():
            self.points[line["trial"]] = values

    def _suggest(self, trial_id: str, config: Mapping[str, Any] | None) -> bool:
        """Ask for a suggestion; return whether it is the recorded one, else report it to the searcher as failed."""
        suggested = self._searcher.suggest(trial_id)
        if not isinstance(suggested, Mapping):
            return False
        same = self._space.from_dotted(suggested) if self._foreign else suggested
        if config is not None and to_json_types(same) == config:
            self.told.add(trial_id)
            return True
        self._searcher.on_trial_complete(trial_id=trial_id, result=None, error=True)
        return False

    def report(self, line: Mapping[str, Any], result: dict[str, Any]) -> None:
        self.last[line["trial"]] = result
        if line["trial"] in self.told and line["decision"] != "STOP":
            self._searcher.on_trial_result(line["trial"], result)

    def end(self, line: Mapping[str, Any]) -> None:
        trial = line["trial"]
        if trial in self.repetitions:
            return
        if isinstance(self._searcher, TrackingSearcher):
            self.told.discard(trial)
            self._searcher.end(trial, line["state"], self.last.get(trial))
            return
        error = line["state"] in FAILED
        result = None if error else self.last.get(trial)
        if trial in self.points:
            teach(self._searcher, self.points[trial], result)
        elif trial in self.told:
            self.told.discard(trial)
            self._searcher.on_trial_complete(trial_id=trial, result=result, error=error)


def start_from(
    past: SavedSweep, space: SearchSpace, settings: Settings, scheduler: GangScheduler, searcher: Searcher
) -> ResumeState:
    """Replay the record to scheduler and searcher; return the state that the search resumes from."""
    again = past.again(settings.max_epochs, repetitions=settings.repeats is not None)
    paused = replay_scheduler(past.lines, scheduler)
    foreign, again_ids = searcher is settings.searcher, [trial.id for trial in again]
    start = replay_searcher(
        past.lines, searcher, space, foreign=foreign, baselines=len(past.baselines(space)), again=again_ids
    )
    taken_up_again = [
        ResumedTrial(
            trial.id,
            trial.config,
            trial.history[-1]["training_iteration"] if trial.history else 0,
            past.folder / trial.folder,
            trial.id in paused,
        )
        for trial in sorted(again, key=lambda trial: trial.id not in paused)  # paused ones first: all are then known
    ]
    return replace(start, resumed=tuple(taken_up_again), past=() if settings.repeats is None else _past(past))


def remember_pieces(past: SavedSweep) -> None:
    """Tell trials how small the pieces of a batch had to be in earlier runs of the sweep. Call it with Ray started."""
    for trial in past.state.trials.values():
        if trial.pieces > 1:
            config, folder = trial.config, past.folder.absolute()
            remember(folder, config, max(trial.pieces, recall(folder, config)))


def _past(past: SavedSweep) -> tuple[tuple[Training, dict[str, Any]], ...]:
    """Return the recorded trainings with their configurations."""
    found = []
    for trial in past.state.trials.values():
        training = Training.of(trial)
        if trial.state not in TERMINAL and trial.decision == "STOP":  # the driver died before the trial's end
            training.state = STOPPED
        found.append((training, trial.config))
    return tuple(found)
