"""SweepSearch: the SearchAlgorithm of a sweep, which asks a Searcher for one configuration at a time."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm, Searcher

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import TRAINING_ITERATION, forget_default_result, pass_to_heads, set_last_result
from tunelight.errors import SettingsError, TunelightError
from tunelight.messages import RESULT_KEY, Adoption
from tunelight.record import ERROR, FINISHED, STOPPED, Branch, Standing, Training, metric_value, plan, standings
from tunelight.record.repeated import chosen, length
from tunelight.searchers.random import TrackingSearcher
from tunelight.settings.values import Repeats

_PATIENCE_S = 600.0
_ERROR_KEY = f"{RESULT_KEY}/error"


@dataclass(frozen=True)
class ResumedTrial:
    """A trial of the sweep's last run that goes on in this one."""

    trial_id: str
    config: dict[str, Any]
    number: int
    """Its last recorded report."""
    paused: bool = False
    """True if it waits until the scheduler chooses it."""
    branch: Branch | None = None
    """Where it began, if that is with another trial's state."""
    adopted: Adoption | None = None
    """What it was told to take over last."""


@dataclass(frozen=True)
class ResumeState:
    """The state that a resumed sweep starts from; empty by default."""

    created: int = 0
    """How many trials have been created before, repetitions included."""
    resumed: tuple[ResumedTrial, ...] = ()
    known: frozenset[str] = frozenset()
    """Ids of the trials that the searcher knows as its own suggestions, and whose reports and end it gets."""
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trial id -> values by dotted key, for searchers that learn a trial as a point once it has ended."""
    last: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trial id -> its last recorded report, as a result of Tune's: of the trials that are resumed."""
    past: Past = ()
    """All recorded trainings with their configurations, where the best are to be repeated."""
    repetitions: int = 0
    """How many of those created were repetitions."""
    branches: int = 0
    """How many of those created were branches."""
    lost: int = 0
    """How many of those created are not recorded; as many are made in their places."""

    @property
    def searched(self) -> int:
        """How many trials of the search are recorded."""
        return self.created - self.repetitions - self.branches - self.lost


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

    A resumed sweep passes the baselines that it has not tried yet.

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
        searcher: Searcher,
        num_samples: int,
        baselines: Sequence[Mapping[str, Any]] = (),
        max_concurrent: int | None = None,
        *,
        reservation: PlacementGroupFactory | None = None,
        written: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
        start: ResumeState | None = None,
        admit: Callable[[], bool] = lambda: True,
        repeats: Repetitions | None = None,
        longest: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.searcher = searcher
        self._longest = longest
        self.held = False
        """Whether no trial begins any more, because the sweep was told to end."""
        self._num_samples = num_samples
        self._baselines = deque(dict(config) for config in baselines)
        self._baseline_ids: set[str] = set()
        self._max_concurrent = max_concurrent
        self._reservation = reservation
        self._written = written
        self._admit = admit
        self._clock = clock
        self._repeats = repeats
        start = start or ResumeState()
        self._created = start.created
        self._searched = start.searched
        self._resumed = deque(start.resumed)
        self._branches = {past.trial_id: past.branch for past in start.resumed if past.branch is not None}
        self._branched = start.branches
        self._known = set(start.known)
        self._points = start.points
        self._last: dict[str, Mapping[str, Any]] = dict(start.last)
        """The last reports of trials that live."""
        self._live: dict[str, Trial] = {}
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
        return self._num_samples + self._branched

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
        if self.held or not self.has_room():
            return None
        if self._resumed:
            return self._go_on(self._resumed.popleft())
        if (self._over and self._to_repeat is None) or not self._admit():
            return None
        trial_id = f"{self._created:05d}"
        if self._over:
            return self._repeat(trial_id)
        config = self._suggest(trial_id)
        if config is None:
            return None
        self._created += 1
        self._searched += 1
        if self._repeats is not None:
            self._repeats.begin(trial_id, config)
        self._live[trial_id] = trial = self._make(trial_id, config)
        return trial

    @property
    def _to_repeat(self) -> tuple[str, int] | None:
        """The trial whose configuration is trained again next, and which training that is; None if there is none now.

        The search has to be over, and all of its trials have ended.
        """
        if self._repeats is None or not self._over or self._resumed:
            return None
        if self._repeats.searching(self._live.keys() - self._branches.keys()):
            return None
        return self._repeats.next()

    def _repeat(self, trial_id: str) -> Trial | None:
        if self._repeats is None or self._to_repeat is None:
            return None
        first, repetition = self._to_repeat
        config = self._again(self._repeats.config(first), repetition)
        self._created += 1
        self._repeats.begin(trial_id, config, first, repetition)
        self._live[trial_id] = trial = self._make(trial_id, config)
        return trial

    def _again(self, config: dict[str, Any], repetition: int) -> dict[str, Any]:
        """Return the configuration of a repetition."""
        return config

    def repetition_of(self, trial_id: str) -> tuple[str, int] | None:
        """Return which trial a trial trains again, and which training that is; None for a trial of the search."""
        return None if self._repeats is None else self._repeats.of(trial_id)

    def ends_at(self, trial_id: str) -> float | None:
        """Return the report at which a trial is stopped that competes with no other; None for trials that do.

        Those are repetitions and branches. Infinite: it ends by itself.
        """
        if trial_id in self._branches:
            return self._longest
        return None if self._repeats is None else self._repeats.ends_at(trial_id)

    def limit(self, max_concurrent: int | None) -> None:
        """Let at most so many trials run at a time from now on (None: as many as fit)."""
        self._max_concurrent = max_concurrent

    def extend(self, num_samples: int) -> None:
        """Make ``num_samples`` trials in all. Raises: SettingsError where more have been made."""
        if num_samples < self._searched:
            raise SettingsError(f"num_samples must be {self._searched} or more: so many trials were made already.")
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
        past = ResumedTrial(self.next_id, config, branch.number, branch=branch)
        self._created += 1
        self._branched += 1
        self._branches[past.trial_id] = branch
        return self._go_on(past)

    def branch_of(self, trial_id: str) -> Branch | None:
        """Return where a branch began; None for other trials."""
        return self._branches.get(trial_id)

    def root_of(self, trial_id: str) -> str:
        """Return the trial whose seed a trial has: of a branch, the first one of its line."""
        return trial_id if (branch := self.branch_of(trial_id)) is None else branch.root

    def has_room(self) -> bool:
        """Tell whether another trial may run, beside those that run or wait for resources; paused ones hold none."""
        most = self._max_concurrent
        return most is None or sum(trial.status != Trial.PAUSED for trial in self._live.values()) < most

    def _go_on(self, past: ResumedTrial) -> Trial:
        """Return a trial that goes on from its last checkpoint, which its head finds in the trial's folder."""
        if self._repeats is not None and past.branch is None:
            self._repeats.begin(past.trial_id, past.config)
        self._live[past.trial_id] = trial = self._make(past.trial_id, past.config)
        pass_to_heads(trial, adopted=past.adopted, since=past.number)
        if past.paused:
            trial.status = Trial.PAUSED
        if past.number:  # where nothing is left to train, Tune ends the trial with this
            set_last_result(trial, {TRAINING_ITERATION: past.number, **self._last.get(past.trial_id, {})})
        return trial

    def _suggest(self, trial_id: str) -> dict[str, Any] | None:
        if self._baselines:
            baseline = self._baselines.popleft()
            self._baseline_ids.add(trial_id)
            if isinstance(self.searcher, TrackingSearcher):
                self.searcher.take(trial_id, baseline)
                self._known.add(trial_id)
            return baseline
        config: Any = self.searcher.suggest(trial_id)
        if config == Searcher.FINISHED:
            self._exhausted = True
            return None
        if config is None:
            self._check_patience()
            return None
        self._idle_since = None
        self._known.add(trial_id)
        return self._written(config)

    def is_baseline(self, trial_id: str) -> bool:
        """Tell whether a trial of this run was a baseline."""
        return trial_id in self._baseline_ids

    def _check_patience(self) -> None:
        now = self._clock()
        if self._live or self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _PATIENCE_S:
            raise TunelightError(
                f"{type(self.searcher).__name__} has suggested nothing for {_PATIENCE_S:.0f} s while no trial ran."
            )

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
            trial_dirname_creator=_folder,
            log_to_file=spec.get("log_to_file"),
            max_failures=int(spec.get("max_failures") or 0),
            storage=spec.get("storage"),
        )
        trial.classes = self._classes
        if trial.storage is not None:
            trial.init_local_path()  # it is recorded with its folder, which has no name before, also where it waits
        branch, (_, repetition) = self.branch_of(trial_id), self.repetition_of(trial_id) or ("", 0)
        pass_to_heads(trial, repetition=repetition, root=None if branch is None else branch.root, heard=0)
        return trial

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report to the searcher, if it knows the trial."""
        self._last[trial_id] = result
        if self._repeats is not None and trial_id not in self._branches:
            self._repeats.report(trial_id, result)
        if trial_id in self._known:
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the searcher how the trial ended: as an error if its training raised."""
        trial = self._live.pop(trial_id, None)
        if trial is not None:
            forget_default_result(trial)
            trial.run_metadata.last_result.pop(RESULT_KEY, None)  # what the record has, and Tune would keep to the end
        last = self._last.pop(trial_id, {})
        result = result or dict(last) or None  # Tune gives none of a trial that waited
        error = error or any(key.startswith(_ERROR_KEY) and value for key, value in (result or {}).items())
        state = self._ended(trial, result or {}, last, error=error)
        if self._repeats is not None and trial_id not in self._branches:
            self._repeats.end(trial_id, state, result or {})
        if trial_id in self._points:
            teach(self.searcher, self._points[trial_id], None if error else result)
        if trial_id not in self._known:
            return
        if isinstance(self.searcher, TrackingSearcher):
            self.searcher.end(trial_id, state, result)
        else:
            self.searcher.on_trial_complete(trial_id=trial_id, result=None if error else result, error=error)

    def _ended(self, trial: Trial | None, result: Mapping[str, Any], last: Mapping[str, Any], *, error: bool) -> str:
        """Return the state that the record will have.

        A trial that ends by itself does so with a report that was passed on before; one that the scheduler answers with
        STOP is not passed on. Trials that wait, or were stopped at another's report, are not done.
        """
        if error:
            return str(result.get(f"{_ERROR_KEY}/state") or ERROR)
        waits = trial is not None and trial.status in (Trial.PENDING, Trial.PAUSED)
        reported = _which(last) == _which(result)
        return FINISHED if result.get("done") and reported and not waits else STOPPED

    def is_finished(self) -> bool:
        """Tell whether no trial lives and none is to come, or Tune has ended the search before."""
        return bool(self._finished) or self.complete

    @property
    def complete(self) -> bool:
        """Whether no trial lives and none was to come."""
        if self._live or not self.all_made:
            return False
        return self._to_repeat is None or not self._admit()

    @property
    def all_made(self) -> bool:
        """Tell whether no trial of the search is to come, unless somebody adds one; repetitions are none of it."""
        return not self._resumed and (self._over or not self._admit())

    @property
    def _over(self) -> bool:
        """True once no trial of the search is to be made."""
        return self._searched >= self._num_samples or (self._exhausted and not self._baselines)


def _which(result: Mapping[str, Any]) -> Any:
    return result.get(TRAINING_ITERATION), result.get("timestamp")


def teach(searcher: Searcher, values: Mapping[str, Any], result: Mapping[str, Any] | None) -> None:
    """Pass a completed trial that was not suggested in this process to a searcher; a failed one has no result."""
    value = (result or {}).get(searcher.metric) if isinstance(searcher.metric, str) else None
    if isinstance(value, int | float) and not math.isnan(value):
        searcher.add_evaluated_point(dict(values), float(value))
    else:
        searcher.add_evaluated_point(dict(values), 0.0, error=True)


def _folder(trial: Trial) -> str:
    return f"trial_{trial.trial_id}"


# --- Repetitions: which trained configurations a sweep's search trains again, and what it needs to know for that

Past = Sequence[tuple[Training, Mapping[str, Any]]]
"""Trainings of earlier runs of the sweep, with their configurations."""


class Repetitions:
    """Follows the trials of a sweep, and says which to train again once all of the search have ended.

    Args:
        repeats: how often, and how many.
        metric, mode: what trials are judged by.
        past: the trials of earlier runs; those that go on are among them.
    """

    def __init__(self, repeats: Repeats, metric: str, mode: str, past: Past = ()) -> None:
        self._repeats, self._metric, self._mode = repeats, metric, mode
        self._trainings = {one.id: replace(one) for one, _ in past}
        self._configs = {one.id: dict(config) for one, config in past}
        self._plan: list[tuple[str, int]] | None = None
        self._length: float | None = None

    def begin(self, trial_id: str, config: Mapping[str, Any], repeats: str | None = None, repetition: int = 0) -> None:
        """Take a new trial, or one of an earlier run that goes on."""
        known = self._trainings.get(trial_id)
        if known is None:
            index = max((one.index for one in self._trainings.values()), default=-1) + 1
            self._trainings[trial_id] = Training(trial_id, index, repeats, repetition)
            self._configs[trial_id] = dict(config)
        else:
            known.state = ""
        self._plan = self._length = None

    def report(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Take a report."""
        known = self._trainings[trial_id]
        known.reports = max(known.reports, int(result.get(TRAINING_ITERATION) or 0))
        value = metric_value(result, self._metric)
        if value is not None and math.isfinite(value):
            best = max if self._mode == "max" else min
            known.value = value if known.value is None else best(known.value, value)

    def end(self, trial_id: str, state: str, result: Mapping[str, Any]) -> None:
        """Take a trial's end, as the record has it, with its last report."""
        self.report(trial_id, result)
        self._trainings[trial_id].state = state
        self._plan = self._length = None

    def next(self) -> tuple[str, int] | None:
        """Return the trial to train again now, and which training of its configuration that is; None if there is none.

        Only for when all trials of the search have ended.
        """
        if self._plan is None:
            self._plan = plan(self._ordered, self._repeats, self._mode)
        return next(iter(self._plan), None)

    def standings(self) -> list[Standing]:
        """Return the configurations that were trained again, the best mean first."""
        return standings(self._ordered, self._repeats, self._mode)

    @property
    def _ordered(self) -> list[Training]:
        return sorted(self._trainings.values(), key=lambda one: one.index)

    def config(self, trial_id: str) -> dict[str, Any]:
        """Return a trial's configuration."""
        return dict(self._configs[trial_id])

    def of(self, trial_id: str) -> tuple[str, int] | None:
        """Return which trial a trial trains again, and which training that is; None for a trial of the search."""
        known = self._trainings.get(trial_id)
        return None if known is None or known.repeats is None else (known.repeats, known.repetition)

    def searching(self, live: Iterable[str]) -> bool:
        """Tell whether a trial of the search is among those that live."""
        return any(self.of(trial_id) is None for trial_id in live)

    def ends_at(self, trial_id: str) -> float | None:
        """Return the report at which a repetition is to be stopped; None for a trial of the search.

        Infinite where those that came furthest ended by themselves: repetitions do so too. None also where the trial
        that it repeats is not of this sweep, which then reproduces a training.
        """
        known = self._trainings.get(trial_id)
        if known is None or known.repeats in (None, trial_id) or known.repeats not in self._trainings:
            return None
        if self._length is None:
            self._length = length(chosen(self._ordered, self._repeats.top, self._mode))
        return self._length
