"""reproduce(): run one trial of a sweep again, and compare its reports."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.errors import ImportPathError, NoResultError, SettingsError, unknown
from tunelight.messages import Continue
from tunelight.record import (
    INTERRUPTED,
    STOPPED_BY_COMMAND,
    Record,
    create_sweep_folder,
    read_sweep_file,
    write_sweep_file,
)
from tunelight.results import SweepResults, TrialResult
from tunelight.schedulers.base import GangScheduler
from tunelight.space.plain import Objects
from tunelight.sweep.past import CODE, changed_code
from tunelight.sweep.resume import beside, resume

_WHEN: Final = ("training_iteration", "timestamp")
_NOT_COPIED: Final = ("code", "run", "versions", "baselines", "time_budget", "warm_start")
"""Keys of sweep.yaml that do not apply to one trial's second run."""


@dataclass(frozen=True)
class Difference:
    """A metric that differs: at which report (from 1), its old and its new value."""

    report: int
    metric: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"report {self.report}: {self.metric} was {self.was!r} and is {self.now!r}"


@dataclass(frozen=True)
class Reproduction:
    """The result of running a trial again.

    ``same``: every metric of every report is the same, bit by bit; ``differences``: those that are not, by reports;
    ``folder``: of the second run; ``notes``: what else has changed (versions, code).
    """

    sweep: str
    trial: str
    folder: str
    reports: int
    compared: int
    same: bool
    differences: Sequence[Difference]
    notes: Sequence[str]
    interrupted: bool = False

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        if self.same:
            head = f"is reproduced: all metrics of its {self.reports} reports are the same, bit by bit."
        elif self.differences:
            count = len(self.differences)
            head = f"is not reproduced: {count} values differ in {self.compared} reports. First, {self.differences[0]}."
        else:
            head = f"is not reproduced: it made {self.compared} of its {self.reports} reports."
        notes = (f"- {note}" for note in self.notes)
        return "\n".join([f"Trial {self.trial} {head}", *notes, f"It was run as {self.folder}"])


def reproduce(
    sweep: str | os.PathLike[str] | SweepResults, trial: str | int, *, ignore: Iterable[str] = (), **overrides: Any
) -> Reproduction:
    """Run a trial again with its seed, configuration and workers, and compare the metrics of every report.

    It runs as a new sweep beside the first, ``<sweep>-trial-<id>-<time>``, until it has made as many reports as were
    recorded. On CPUs the metrics are the same bit by bit, also if the trial first ran on a gang that others had used,
    was stopped, or was paused and resumed; if its gang was resized, they are the same up to rounding.

    Args:
        sweep: its folder, or its results.
        trial: id or number of the trial, or "best".
        ignore: metrics not to compare, such as times.
        overrides: settings of ``run`` that sweep.yaml could not hold (``train=`` of a script), or that differ today
            (``address=``, ``progress=``).

    Raises: NoResultError for an unknown trial or one without reports; SettingsError for one that has weights of
        another, a branch or one of a population; what ``resume`` raises. Runs on: driver.
    """
    first = sweep if isinstance(sweep, SweepResults) else SweepResults.load(sweep)
    chosen, ignore = first.trial(trial), tuple(ignore)
    # Settings that are overridden are left out, so that they are not compared with the old ones.
    sweep_file = {key: value for key, value in read_sweep_file(first.folder).items() if key not in overrides}
    _check(chosen, sweep_file, ignore)
    folder = _prepare(first, chosen, sweep_file)
    until = Until(chosen.history[-1]["training_iteration"], new=False)
    try:
        again = resume(folder, **{"searcher": "random", "callbacks": (), **overrides, "scheduler": until})
    except BaseException:
        if not SweepResults.load(folder).every_trial[0].history:
            shutil.rmtree(folder, ignore_errors=True)  # no result
        raise
    return compare(first, chosen, again, ignore)


def compare(first: SweepResults, trial: TrialResult, again: SweepResults, ignore: Iterable[str] = ()) -> Reproduction:
    """Compare a trial's reports with those of its second run, the only trial of ``again``."""
    second = again.every_trial[0]
    left = {*_WHEN, *ignore}
    differences = [
        Difference(number, name, was.get(name), now.get(name))
        for number, (was, now) in enumerate(zip(trial.history, second.history, strict=False), start=1)
        for name in dict.fromkeys([*was, *now])
        if name not in left and not _same(was.get(name), now.get(name))
    ]
    compared = min(len(trial.history), len(second.history))
    notes = [*_notes(read_sweep_file(first.folder), read_sweep_file(again.folder), trial)]
    if second.error:
        notes.insert(0, f"It ended as {second.state}: {second.error.splitlines()[0]}")
    return Reproduction(
        sweep=str(first.folder),
        trial=trial.id,
        folder=str(again.folder),
        reports=len(trial.history),
        compared=compared,
        same=not differences and compared == len(trial.history),
        differences=differences,
        notes=notes,
        interrupted=again.ended in ("interrupted", STOPPED_BY_COMMAND) and compared < len(trial.history),
    )


def _check(trial: TrialResult, sweep_file: Mapping[str, Any], ignore: Iterable[str]) -> None:
    """Raise SettingsError, NoResultError or ImportPathError for a trial that cannot be run again alone."""
    if not trial.history:
        raise NoResultError(f"Trial {trial.id} made no report ({trial.state}), so there is nothing to compare.")
    if trial.changes:  # of a branch, the first one is what it began with
        after, parent = trial.changes[0]["training_iteration"], trial.changes[0]["parent"]
        raise SettingsError(
            f"Trial {trial.id} cannot be reproduced alone: after report {after} it had the weights of trial {parent}. "
            "Run the whole sweep again with its seed, or train its last configuration from the parent's checkpoint."
        )
    known = [name for name in dict.fromkeys(name for report in trial.history for name in report) if name not in _WHEN]
    for name in ignore:
        if name not in known:
            raise SettingsError(unknown(f"Trial {trial.id} reported no metric", name, known, listed="It reported"))
    with beside(sweep_file):
        Objects.recalled(sweep_file.get("space_objects"), strict=True)
    for name in CODE:
        if str(sweep_file.get(name)).startswith("__main__:"):
            raise ImportPathError(
                f"Trial {trial.id} cannot be run again from here: its {name} is {sweep_file[name]}, which only the "
                f"script that ran the sweep can define. Call tl.reproduce(results, {trial.id!r}, {name}=...) in there, "
                "or move it into a module."
            )


def _prepare(sweep: SweepResults, trial: TrialResult, sweep_file: Mapping[str, Any]) -> Path:
    """Create a sweep folder whose only trial, this one, was cut off before its first report, to be resumed."""
    folder = create_sweep_folder(sweep.folder.parent, default=f"{sweep.name}-trial-{trial.id}")
    again = {key: value for key, value in sweep_file.items() if key not in _NOT_COPIED}
    again |= {"storage": str(folder.parent), "name": folder.name, "num_samples": 1, "searcher": "random"}
    again["reproduces"] = {"sweep": str(sweep.folder), "trial": trial.id}
    again["run"] = {"file": (sweep_file.get("run") or {}).get("file")}
    write_sweep_file(folder, again)
    record = Record.open(folder)
    record.append("sweep", sweep={"name": folder.name, "metric": sweep.metric, "mode": sweep.mode})
    about = {"config": trial.plain_config, "seed": trial.seed, "folder": f"trial_{trial.id}"}
    if sweep_file.get("repeats") is not None:  # as a repetition, it has its fold, and is not repeated itself
        about |= {"repeats": trial.repeats or trial.id, "repetition": trial.repetition}
    record.append("trial", trial=trial.id, index=0, **about)
    record.append("state", trial=trial.id, state=INTERRUPTED)
    record.append("end", reason="interrupted")
    record.close()
    return folder


def _same(was: Any, now: Any) -> bool:
    """Tell whether two values of a record are identical: NaN equals NaN, and 0.0 differs from -0.0 and from 0."""
    return json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True)


def _notes(was: Mapping[str, Any], now: Mapping[str, Any], trial: TrialResult) -> list[str]:
    """Describe what has changed since the trial was trained."""
    ran = trial.runs[-1] if trial.runs else {}
    versions = now.get("versions") or {}
    notes = [
        f"{name} was {version} and is {versions.get(name)}"
        for name, version in (ran.get("versions") or was.get("versions") or {}).items()
        if version != versions.get(name)
    ]
    notes += [f"the code of {name} ({was.get(name)}) has changed" for name in changed_code(was, now)]
    git, here = ran.get("git") or {}, (now.get("run") or {}).get("git") or {}
    if git.get("commit") and here.get("commit") and git["commit"] != here["commit"]:
        notes.append(f"the repository stood at {git['commit'][:12]} and stands at {here['commit'][:12]}")
    if git.get("dirty"):
        notes.append("the repository had changes that were in no commit when it ran")
    if isinstance(was.get("workers"), list):
        notes.append("its gang was elastic: reports that a smaller one made are the same to rounding only")
    return notes


class Until(GangScheduler):
    """Stop every trial at its report ``number`` (from 1); ``new``: whether new trials may begin (True)."""

    def __init__(self, number: int, *, new: bool = True) -> None:
        super().__init__()
        self._number, self._new = number, new

    def admits(self) -> bool:
        """Tell whether a new trial may begin, beside those of an earlier run."""
        return self._new

    def initial_decision(self) -> Continue:
        """Let a trial run without answers to the report at which it ends."""
        return Continue(until=self._number)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Stop the trial at the report."""
        done = result.get("training_iteration", 0) >= self._number
        self.explain(trial.trial_id, f"was to end at report {self._number}" if done else None)
        return TrialScheduler.STOP if done else TrialScheduler.CONTINUE
