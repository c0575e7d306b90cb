"""SweepSearch: the queue of a sweep's trials, which asks a Searcher for one configuration at a time."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm, Searcher

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import (
    TRAINING_ITERATION,
    flattened,
    forget_default_result,
    pass_to_heads,
    set_last_result,
)
from tunelight.errors import SettingsError, TunelightError
from tunelight.messages import RESULT_KEY, Adoption
from tunelight.record import FAILED, Branch, RecordCallback, SweepState, TrialState, chosen, length, to_repeat
from tunelight.searchers import TrackingSearcher
from tunelight.settings.values import Repeats

_PATIENCE_S = 600.0


@dataclass(frozen=True)
class ResumeState:
    """What a resumed sweep starts from, beside its record; empty by default."""

    created: int = 0
    """How many trials have been created before, also those whose lines are lost."""
    again: Mapping[str, bool] = field(default_factory=dict)
    """Ids of the trials that go on now -> whether they wait until the scheduler chooses them; in this order."""
    known: frozenset[str] = frozenset()
    """Ids of the trials that the searcher knows as its own suggestions, and whose reports and end it gets."""
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trial id -> values by dotted key, for searchers that learn a trial as a point once it has ended."""


def created_at_least(recorded: int, folder: Path) -> int:
    """Return how many trials a sweep has created: the last one's line may be lost, but not its checkpoints.

    A new trial of its number would go on from them.
    """
    numbers = (path.name.removeprefix("trial_") for path in folder.glob("trial_*"))
    lost = (int(number) for number in numbers if number.isdecimal() and int(number) >= recorded)
    return max((number + 1 for number in lost if checkpoints.find(folder / f"trial_{number:05d}")), default=recorded)


_Trial: Any = Trial


class SweepTrial(_Trial):  # type: ignore[misc]
    """A Tune trial without what a sweep does not read, since a driver holds every trial until its sweep ends.

    Tune would keep running statistics of every reported number, with two queues each, and the trial as JSON for a
    snapshot of the experiment. tunelight has the reports in its own record, and resumes from that.
    """

    classes: dict[str, Any] | None = None
    """Trainables by name, which the sweep's trials share; Tune would fetch and unpickle theirs for each trial."""

    def get_trainable_cls(self) -> Any:
        """Return the trial's trainable."""
        if self.classes is None:
            return super().get_trainable_cls()
        if self.trainable_name not in self.classes:
            self.classes[self.trainable_name] = super().get_trainable_cls()
        return self.classes[self.trainable_name]

    def create_placement_group_factory(self) -> None:
        """Use the sweep's reservation. Tune would unpickle the trainable to ask it for an equal one."""
        self.placement_group_factory = self._default_placement_group_factory
        if self.placement_group_factory is None:
            super().create_placement_group_factory()

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Keep the last result, without statistics over earlier ones."""
        if self.experiment_tag:
            result.update(experiment_tag=self.experiment_tag)
        set_last_result(self, result)
        self.run_metadata.last_result_time = time.time()

    def get_json_state(self) -> tuple[str, str]:
        """Return empty JSON: no snapshot is needed."""
        return "{}", "{}"


class SweepSearch(SearchAlgorithm):
    """A Ray Tune SearchAlgorithm: ``num_samples`` trials, ``baselines`` first, then what ``searcher`` suggests.

    What is known of its trials is in ``book``, the sweep's record, where it enters each one that it makes. A resumed
    sweep passes the baselines that it has not tried yet.

    ``admit`` is asked before each new trial: the scheduler may have better use for its resources, or know that it would
    come too late. ``reservation`` is what each trial reserves (None: Tune asks the trainable). The search is not
    finished while a trial lives, because Tune then ends idle gangs at once, even if a failed or paused trial could
    still use them. Trial ids are numbers in order of creation, from 0.

    ``longest``: how many reports a branch may make.

    With ``repeats``, the best configurations are trained again once all of these trials have ended, by more trials than
    ``num_samples``; the searcher does not learn of those, and not of branches, which have another trial's training.
    """

    def __init__(
        self,
        book: RecordCallback,
        searcher: Searcher,
        num_samples: int,
        baselines: Sequence[Mapping[str, Any]] = (),
        max_concurrent: int | None = None,
        *,
        reservation: PlacementGroupFactory | None = None,
        written: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
        start: ResumeState | None = None,
        admit: Callable[[], bool] = lambda: True,
        repeats: Repeats | None = None,
        longest: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        start = start or ResumeState()
        self.searcher, self.book = searcher, book
        self._longest = longest
        self.held = False
        """Whether no trial begins any more, because the sweep was told to end."""
        self._num_samples = num_samples
        self._baselines = deque(dict(config) for config in baselines)
        self._max_concurrent = max_concurrent
        self._reservation = reservation
        self._written = written
        self._admit = admit
        self._clock = clock
        self._repeats = repeats
        self._planned: tuple[Any, list[tuple[str, int]], float] = (None, [], math.inf)
        self._created = start.created
        self._again = deque(start.again.items())
        self._known = set(start.known)
        self._points = start.points
        self._live: dict[str, Trial] = {}
        self._ended: list[Any] = []
        """Trials that have ended, until Tune's callbacks have heard of it."""
        self._exhausted = False
        self._idle_since: float | None = None
        self._spec: dict[str, Any] = {}
        self._classes: dict[str, Any] = {}

    @property
    def metric(self) -> str | None:
        """None, so that Tune accepts a closing result without the metric."""
        return None

    @property
    def total_samples(self) -> int:
        """How many trials there will be."""
        return self._num_samples + self.book.state.branches

    @property
    def num_samples(self) -> int:
        """How many trials of the search there will be."""
        return self._num_samples

    def add_configurations(self, experiments: Any) -> None:
        """Set the experiment that trials are created for."""
        (experiment,) = experiments if isinstance(experiments, list) else [experiments]
        self._spec = dict(experiment.spec)

    def next_trial(self) -> Trial | None:
        """Return the next trial, or None if there is none now.

        Raises: TunelightError if the searcher suggests nothing for ten minutes while no trial lives.
        """
        for trial in self._ended:  # Tune would keep to the end what the record has
            trial.run_metadata.last_result = {}
            trial._Trial__unresolved_config = trial.evaluated_params = trial.config
        self._ended.clear()
        if self.held or not self.has_room():
            return None
        if self._again:
            return self._resume(*self._again.popleft())
        repetition = self._to_repeat
        if (self._over and repetition is None) or not self._admit():
            return None
        if repetition is not None:
            first, number = repetition
            return self._begin(dict(self.book.state.trials[first].config), repeats=first, repetition=number)
        return self._suggest()

    @property
    def _to_repeat(self) -> tuple[str, int] | None:
        """The trial whose configuration is trained again next, and which training that is; None if there is none now.

        The search has to be over, and all of its trials have ended.
        """
        trials = self.book.state.trials
        competing = (trials[trial_id].repeats is None and trials[trial_id].branch is None for trial_id in self._live)
        if self._repeats is None or not self._over or self._again or any(competing):
            return None
        return next(iter(self._plan[0]), None)

    @property
    def _plan(self) -> tuple[list[tuple[str, int]], float]:
        """The repetitions that are left, and the report at which they end."""
        state, repeats = self.book.state, self._repeats
        if repeats is not None and self._planned[0] != (now := tuple(state.counts.values())):
            until = length(chosen(state.trials.values(), repeats.top, state.mode))
            self._planned = now, to_repeat(state, repeats), until
        return self._planned[1:]

    def ends_at(self, trial_id: str) -> float | None:
        """Return the report at which a trial is stopped that competes with no other; None for trials that do.

        Those are repetitions and branches. Infinite: it ends by itself, as repetitions do where the furthest trials
        did. A reproduction, whose first training is not of this sweep, competes.
        """
        known = self.book.state.trials[trial_id]
        if known.branch is not None:
            return self._longest
        again = self._repeats is not None and known.repeats != trial_id and known.repeats in self.book.state.trials
        return self._plan[1] if again else None

    def limit(self, max_concurrent: int | None) -> None:
        """Let at most so many trials run at a time from now on (None: as many as fit)."""
        self._max_concurrent = max_concurrent

    def extend(self, num_samples: int) -> None:
        """Make ``num_samples`` trials in all. Raises: SettingsError where more have been made."""
        if num_samples < (made := self.book.state.suggested):
            raise SettingsError(f"num_samples must be {made} or more: so many trials were made already.")
        self._num_samples = num_samples

    def enqueue(self, config: Mapping[str, Any]) -> None:
        """Try a configuration next, as one more trial."""
        self._baselines.append(dict(config))
        self._num_samples += 1

    @property
    def next_id(self) -> str:
        """The id of the next trial."""
        return f"{self._created:05d}"

    def branch(self, config: dict[str, Any], branch: Branch) -> Trial:
        """Return a branch, as one more trial, whose folder has the checkpoint with which it begins."""
        return self._begin(config, branch=branch)

    def has_room(self) -> bool:
        """Tell whether another trial may run, beside the running and waiting ones; paused ones hold no resources."""
        most = self._max_concurrent
        return most is None or sum(trial.status != Trial.PAUSED for trial in self._live.values()) < most

    def _begin(self, config: dict[str, Any], **kind: Any) -> Trial:
        """Return a new trial, which is in the book."""
        trial = self._make(self.next_id, config)
        self._created += 1
        return self._passed(trial, self.book.add(trial, **kind))

    def _resume(self, trial_id: str, paused: bool) -> Trial:
        """Return a trial that goes on from its last checkpoint, which its head finds in the trial's folder."""
        known = self.book.state.trials[trial_id]
        trial = self._passed(self._make(trial_id, known.config), known)
        if paused:
            trial.status = Trial.PAUSED
        return trial

    def _passed(self, trial: Trial, known: TrialState) -> Trial:
        """Give a trial's heads what the book has of it."""
        self._live[known.id] = trial
        root = None if known.branch is None else known.branch.root
        adopted = adoption_of(known, self.book.state)
        pass_to_heads(trial, repetition=known.repetition, root=root, heard=0, since=known.number, adopted=adopted)
        if known.number:  # where nothing is left to train, Tune ends the trial with this
            set_last_result(trial, result_of(known))
        return trial

    def _suggest(self) -> Trial | None:
        if self._baselines:
            baseline = self._baselines.popleft()
            if isinstance(self.searcher, TrackingSearcher):
                self.searcher.take(self.next_id, baseline)
                self._known.add(self.next_id)
            return self._begin(baseline, baseline=True)
        config: Any = self.searcher.suggest(self.next_id)
        if config == Searcher.FINISHED:
            self._exhausted = True
            return None
        if config is None:
            now = self._clock()
            if self._live or self._idle_since is None:
                self._idle_since = now
            elif now - self._idle_since > _PATIENCE_S:
                raise TunelightError(
                    f"{type(self.searcher).__name__} has suggested nothing for {_PATIENCE_S:.0f} s while no trial ran."
                )
            return None
        self._idle_since = None
        self._known.add(self.next_id)
        return self._begin(self._written(config))

    def _make(self, trial_id: str, config: dict[str, Any]) -> Trial:
        spec = self._spec
        trial = SweepTrial(
            trainable_name=spec["run"],
            config=copy.deepcopy(config),
            trial_id=trial_id,
            evaluated_params=config,
            experiment_tag=trial_id,
            placement_group_factory=self._reservation,
            stopping_criterion=spec.get("stop") or {},
            checkpoint_config=spec.get("checkpoint_config"),
            trial_name_creator=_folder,
            log_to_file=spec.get("log_to_file"),
            max_failures=int(spec.get("max_failures") or 0),
            storage=spec.get("storage"),
        )
        trial.classes = self._classes
        if trial.storage is not None:
            # Tune would name the folder anew where another sweep of this name began on this Ray in the same second.
            trial.relative_logdir = trial.storage.trial_dir_name = _folder(trial)
            trial.init_local_path()
        return trial

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report to the searcher, if it knows the trial."""
        if trial_id in self._known:
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the searcher how the trial ended, as the book will have it. Called by Tune before its callbacks."""
        trial = self._live.pop(trial_id, None)
        if trial is None:
            return
        forget_default_result(trial)
        state = self.book.end_of(trial, failed=error)
        failed = state in FAILED
        result = result or flattened(trial.last_result) or None  # Tune gives none of a trial that waited
        self._ended.append(trial)
        if trial_id in self._points:
            teach(self.searcher, self._points[trial_id], None if failed else result)
        if trial_id not in self._known:
            return
        if isinstance(self.searcher, TrackingSearcher):
            self.searcher.end(trial_id, state, result)
        else:
            self.searcher.on_trial_complete(trial_id=trial_id, result=None if failed else result, error=failed)

    def is_finished(self) -> bool:
        """Tell whether no trial lives, and none is to come or may begin; or Tune has ended the search before."""
        return bool(self._finished) or self.complete or (self.held and not self._live)

    @property
    def complete(self) -> bool:
        """Whether no trial lives and none was to come."""
        if self._live or not self.all_made:
            return False
        return self._to_repeat is None or not self._admit()

    @property
    def all_made(self) -> bool:
        """Tell whether no trial of the search is to come, unless somebody adds one; repetitions are none of it."""
        return not self._again and (self._over or not self._admit())

    @property
    def _over(self) -> bool:
        """True once no trial of the search is to be made."""
        made = self.book.state.suggested >= self._num_samples
        return made or (self._exhausted and not self._baselines)


def teach(searcher: Searcher, values: Mapping[str, Any], result: Mapping[str, Any] | None) -> None:
    """Pass a completed trial that was not suggested in this process to a searcher; a failed one has no result."""
    value = (result or {}).get(searcher.metric) if isinstance(searcher.metric, str) else None
    if isinstance(value, int | float) and not math.isnan(value):
        searcher.add_evaluated_point(dict(values), float(value))
    else:
        searcher.add_evaluated_point(dict(values), 0.0, error=True)


def result_of(trial: TrialState, now: float | None = None) -> dict[str, Any]:
    """Return a trial's last recorded report as Tune passes it to schedulers and searchers: flat, with Tune's keys.

    ``now``: when it was recorded (None: the trial does not run).
    """
    result = {
        "trial_id": trial.id,
        "done": False,
        "time_total_s": trial.seconds if now is None else trial.elapsed(now),
        TRAINING_ITERATION: trial.number,
        f"{RESULT_KEY}/workers": trial.workers,
        f"{RESULT_KEY}/seconds": trial.trained,
    }
    return flattened({**(trial.history[-1] if trial.history else {}), **result})


def adoption_of(trial: TrialState, state: SweepState) -> Adoption | None:
    """Return what a trial has taken over last; a branch has the checkpoint with which it began."""
    begun = trial.changes if trial.branch is None else trial.changes[1:]
    if not begun:
        return None
    change, parent = begun[-1], state.trials[begun[-1]["parent"]]
    return Adoption(change["training_iteration"], parent.id, parent.folder, change["parent_iteration"])


def _folder(trial: Trial) -> str:
    return f"trial_{trial.trial_id}"
