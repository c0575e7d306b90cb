"""Results of a sweep: its best trial, all trials as objects and as a table, and exports.

They are read from the sweep's folder (the record and ``sweep.yaml``) alone, also while the sweep runs, or after it was
interrupted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight import record as storage
from tunelight import stores
from tunelight.errors import NoResultError, first_of, guess, refuse_unknown, whole
from tunelight.record import Standing, SweepState
from tunelight.record.view import finite
from tunelight.results.trial import MOST, TrialResult, counted, lines_of
from tunelight.settings import Mode, paired
from tunelight.settings.checks import flatten
from tunelight.stores.masking import printable

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    import plotly.graph_objects as go
    from optuna.storages import BaseStorage

    from tunelight.space.plain import Objects


_MOST_IDS: Final = 12


class SweepResults:
    """The results of a sweep, from ``tunelight.run`` or :meth:`load`. Iterates over the trials of its search.

    The best trial is the one with the best of all reports (not the best last report). NaN is never best; of equal
    trials, the one created first is. Failed trials (ERROR, OOM, DIVERGED) do not count: :attr:`ahead` is the one that
    had reported better. STOPPED and INTERRUPTED trials count with their reports. Where the best configurations were
    trained again (``repeats=``), the best trial is one of the configuration with the best mean: see :meth:`repeated`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        state: SweepState,
        settings: Mapping[str, Any],
        objects: Objects | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._settings = {**state.sweep, **settings}
        self._state = self.record = state
        """The recorded state: also where and when each trial was trained, and the remarks of the sweep itself."""
        self._objects = objects
        self._results: dict[str, TrialResult] = {}

    def _result(self, trial_id: str) -> TrialResult:
        """Return a trial as it is when it is first asked for."""
        if trial_id not in self._results:
            trial = self._state.trials[trial_id]
            runs = [self._state.runs[number] for number in trial.runs]
            self._results[trial_id] = TrialResult(
                trial, self._settings, self.folder, self._state.updated or 0.0, runs, restored=self._restored
            )
        return self._results[trial_id]

    @classmethod
    def load(cls, folder: str | os.PathLike[str], objects: Objects | None = None) -> SweepResults:
        """Read the sweep in ``folder`` (``storage/name``, or its URL), finished or not. Raises: StorageError.

        ``objects``: those of its search space, where this process has them (None: what the record refers to).
        """
        folder = stores.working(folder)
        return cls(folder, storage.read_record(folder, lazy=True), storage.read_sweep_file(folder), objects)

    def _restored(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recorded configuration with the objects of the search space, where their modules are imported."""
        if self._objects is None:
            from tunelight.space.plain import Objects

            self._objects = Objects.recalled(self._settings.get("space_objects"), imported=True)
        return self._objects.restored(config)

    @functools.cached_property
    def every_trial(self) -> list[TrialResult]:
        """The trials of the search and the repetitions, in order of creation."""
        return [self._result(trial.id) for trial in sorted(self._state.trials.values(), key=lambda trial: trial.index)]

    @functools.cached_property
    def trials(self) -> list[TrialResult]:
        """The trials of the search, in order of creation."""
        return [trial for trial in self.every_trial if trial.repeats in (None, trial.id)]

    @functools.cached_property
    def repetitions(self) -> list[TrialResult]:
        """The trials that train the best configurations again (``repeats=``), in order of creation."""
        return [trial for trial in self.every_trial if trial.repeats not in (None, trial.id)]

    @property
    def name(self) -> str:
        """The sweep's name: that of its folder."""
        return self.folder.name

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """Metric and mode of each objective; ``best`` goes by the first."""
        return paired(self._settings.get("metric"), self._settings.get("mode"))

    @property
    def metric(self) -> str | None:
        """The metric that trials are judged by: the first, if there are several."""
        return next((metric for metric, _ in self.objectives), None)

    @property
    def mode(self) -> str:
        """Which values are better: "min" or "max"."""
        return next((mode for _, mode in self.objectives), "min")

    @property
    def ended(self) -> str | None:
        """How it ended: "finished", "time budget", "stopped" (by command), "interrupted" or "gave up".

        None while it runs, or if its driver died.
        """
        return self._state.ended

    @property
    def best(self) -> TrialResult:
        """The trial with the best report of all that did not fail.

        Where configurations were trained again, only the trainings of the one with the best mean are compared.

        Raises: NoResultError if no trial reported a comparable value, or only failed ones did.
        """
        best = storage.winner(self._state)
        if best is None:
            raise NoResultError(self._nothing())
        return self._result(best.trial)

    def repeated(self) -> list[Standing]:
        """Return the configurations that were trained again (``repeats=``), the best mean first; else nothing.

        Each has ``trial`` (that of the search), ``trials`` (all its trainings that count), their best ``values``,
        ``mean``, ``spread`` (the standard deviation, n - 1), ``n`` and ``failed`` (repetitions that failed). With
        folds, the ``mean`` of a configuration that lacks some is corrected for how hard those were.
        """
        return storage.repeated(self._state)

    @property
    def ahead(self) -> TrialResult | None:
        """The failed trial that had reported better than :attr:`best`, or anything if there is no best; else None."""
        found = self._state.ahead
        return None if found is None else self._result(found.trial)

    def _nothing(self) -> str:
        if (failed := self.ahead) is not None:
            return (
                f"There is no best trial of {stores.shown(self.folder)}, for each trial that reported {self.metric!r} "
                f"failed: {self._states()}. The best report was that of {failed}. Look at results.trial({failed.id!r})."
            )
        if self.metric is None:
            return f"{stores.shown(self.folder)} ran a script once, without a metric. See its .trials[0]."
        text = f"No trial of {stores.shown(self.folder)} reported a number as {self.metric!r}: {self._states()}."
        if self.errors:
            first = self.errors[0]
            return f"{text} Trial {first.id} failed with {(first.error or '').splitlines()[0]}; see .errors."
        return f"{text} Look at a trial's .history for what it reported, if anything."

    def trial(self, key: str | int) -> TrialResult:
        """Return a trial by its id, by the number that the id ends with (5, "5", "trial_00005"), or as "best".

        Raises: NoResultError for an unknown trial.
        """
        if key == "best":
            return self.best
        if key in self._state.trials:
            return self._result(str(key))
        wanted = str(key).rpartition("_")[2]
        for trial in list(self._state.trials.values()):
            tail = trial.id.rpartition("_")[2]
            if str(key) == Path(trial.folder).name or (
                wanted.isdecimal() and tail.isdecimal() and int(wanted) == int(tail)
            ):
                return self._result(trial.id)
        ids = list(self._state.trials)
        shown = ", ".join(ids if len(ids) < 10 else [ids[0], ids[1], "...", ids[-1]]) or "none"
        raise NoResultError(f"{self.folder} has no trial {key!r}.{guess(key, ids)} It has: {shown}; or say 'best'.")

    def pareto(self, *metrics: str) -> list[TrialResult]:
        """Return the trials that no other beats in every metric, in order of creation.

        A trial counts with its best report (by the sweep's first metric), if that holds all metrics as finite numbers
        and the trial did not fail.

        Args:
            metrics: some of the sweep's (all of them).

        Raises: SettingsError for a metric that is none of the sweep's.
        """
        known = dict(self.objectives)
        refuse_unknown("This sweep is not judged by", metrics, known, "It is by")
        names = metrics or tuple(known)
        numbers = {trial: [finite(trial.metrics, name) for name in names] for trial in self.trials if not trial.failed}
        points = {trial: row for trial, row in numbers.items() if None not in row}
        on_front = front(list(points.values()), [known[name] for name in names])
        return [trial for trial, is_on in zip(points, on_front, strict=True) if is_on]

    def top(self, k: int) -> list[TrialResult]:
        """Return the trials of the ``k`` best configurations, best first; fewer where fewer reported the metric.

        Trials count by their best report, and those that failed are left out. Configurations that were trained again
        (``repeats=``) come first, by their means, each with its best training.
        """
        return [self._result(name) for name in storage.ranked(self._state)[: whole("k", k)]]

    @property
    def best_config(self) -> dict[str, Any]:
        """The best trial's configuration. Raises: NoResultError when nothing comparable was reported."""
        return dict(self.best.config)

    @property
    def errors(self) -> list[TrialResult]:
        """The trials that failed; not those that diverged or ran out of memory: that says something of their config."""
        return [self._result(trial.id) for trial in self._state.trials.values() if trial.state == storage.ERROR]

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are in each state, as ``counts["FINISHED"]``."""
        return dict(self._state.counts)

    def __len__(self) -> int:
        return len(self._state.trials) - len(self._state.repetitions)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.trials)

    def __bool__(self) -> bool:
        return True

    def dataframe(self) -> pd.DataFrame:
        """Return one row a trial: trial_id, state, best and last metric, epochs, reports, seconds, config.*.

        The metric's columns are ``best_<metric>`` and ``last_<metric>``. Further metrics of the sweep have both, too:
        their ``best_`` is the value in the same report, the best by the first metric. ``epochs`` is how many epochs it
        had trained at its last report (None where the reports do not say); a configuration key ``lr`` is the
        column ``config.lr``, and nested ones are joined by dots. If configurations were trained again, ``repeats`` is
        the trial whose configuration a trial trains again (None for trials of the search), and ``repetition`` which
        training of it that is.
        """
        import pandas as pd  # half a second that only this needs

        return pd.DataFrame([self._row(trial) for trial in self.every_trial])

    def _row(self, trial: TrialResult) -> dict[str, Any]:
        last = trial.history[-1] if trial.history else {}
        row: dict[str, Any] = {"trial_id": trial.id, "state": trial.state}
        if self._state.repetitions:
            row |= {"repeats": trial.repeats, "repetition": trial.repetition}
        for metric, _ in self.objectives:
            row[f"best_{metric}"] = storage.metric_value(trial.metrics, metric)
            row[f"last_{metric}"] = storage.metric_value(last, metric)
        epoch = last.get("epoch")
        row["epochs"] = None if epoch is None else epoch + 1
        row["reports"] = trial.reports
        row["seconds"] = trial.seconds
        config = {key: value for key, value in flatten(trial.plain_config, "config.").items() if value != {}}
        return row | config

    def to_study(self, storage: str | os.PathLike[str] | BaseStorage | None = None) -> optuna.Study:
        """Return the trials of the search as an Optuna study, as they are recorded now; it is named as the sweep.

        FINISHED trials are COMPLETE with their best report, STOPPED ones PRUNED, ERROR and INTERRUPTED ones FAIL,
        DIVERGED and OOM ones COMPLETE, infeasible and infinitely bad, and others RUNNING; each has its curve. Keys that
        Optuna has no distribution for are user attributes, as are the ``trial``'s id and its ``state`` here.

        Args:
            storage: a path for a journal, an address that Optuna knows as "sqlite:///studies.db", or one of Optuna's
                storages (None: in memory). An earlier study of this sweep in it is replaced.

        Raises: StorageError if it cannot be written; SettingsError if it holds another study of that name.
        """
        from tunelight.extras.study import study_of

        return study_of(self._state, self.folder, self.objectives, self._settings.get("space") or {}, storage)

    def export_best(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 - the word for it everywhere
        *,
        checkpoint: bool = False,
    ) -> Path:
        """Write the best configuration to a file, as YAML, JSON, for LightningCLI or as a command; return its path.

        Args:
            path: where to; folders are made.
            format: None goes by the file's suffix: .json, .sh; .yaml and .yml are "lightning-cli" in a sweep with
                ``model=``, else "yaml".
                "yaml", "json": ``config``, and where it came from: ``changes`` (where it was not the trial's only one),
                ``metric``, ``mode``, ``value``, ``metrics`` (the best report's), ``trial``, ``seed``,
                ``training_iteration``, ``epoch``, ``sweep`` (name, folder), ``checkpoint`` (a path or null),
                ``checkpoint_of_report`` (where the best report has none), ``versions`` (those that the sweep ran on).
                "lightning-cli": for ``python train.py fit --config FILE``, where train.py makes a
                ``LightningCLI(Model, Data)``: seed, model, data and Trainer, with workers and strategy.
                "shell": the command that trains it, of a sweep that tuned a script.
            checkpoint: also copy the best checkpoint beside the file, as NAME.ckpt, and its weights as
                NAME.safetensors (not of a folder that training code wrote); of shards without the optimizers' states.

        Raises: NoResultError when nothing comparable was reported; SettingsError for an unknown format, or one that
        cannot describe the training; StorageError for a suffix that does not fit or a file that cannot be written;
        CheckpointError without a checkpoint to copy.
        """
        return self.best.export(path, format, checkpoint=checkpoint)

    def summary(self) -> str:
        """Return a few lines for printing: trials by state, and the best one."""
        lines = [f"Sweep {self.name}: {self._states()}"]
        if self.metric is None:
            pass
        elif self._state.best is None:
            lines.append("No comparable result was reported by a trial that did not fail.")
        else:
            best = self.best
            config = ", ".join(f"{key}={_short(value)}" for key, value in best.plain_config.items())
            where = "" if (epoch := best.metrics["epoch"]) is None else f" at epoch {epoch + 1}"
            also = "".join(f", with {name}={_short(value)}" for name, value in self.further(best).items())
            lines.append(f"Best {self.metric}: {_short(best.value)}{also} (trial {best.id}{where})")
            lines.append(f"  {config}")
            if len(self.objectives) > 1:
                ids = [trial.id for trial in self.pareto()]
                names = " and ".join(f"{metric} ({mode})" for metric, mode in self.objectives)
                lines.append(f"On the Pareto front of {names}: {first_of(ids, _MOST_IDS) or 'none'}")
            lines.extend(lines_of(self._state))
        if (failed := self.ahead) is not None:
            lines.append(
                f"Trial {failed.id}, which {failed.outcome}, had reported {self.metric}={_short(failed.value)}."
            )
        errors = [f"Trial {failed.id} failed: {(failed.error or '').splitlines()[0]}" for failed in self.errors]
        lines += errors[:MOST] + ([f"and {len(errors) - MOST} more."] if len(errors) > MOST else [])
        return "\n".join(lines)

    def further(self, trial: TrialResult) -> dict[str, float | None]:
        """Return the sweep's other metrics than the first, from the trial's best report."""
        return {metric: storage.metric_value(trial.metrics, metric) for metric, _ in self.objectives[1:]}

    def _states(self) -> str:
        parts = [f"{count} {state.lower()}" for state, count in self._state.counts.items() if count]
        again = len(self._state.repetitions)
        beyond = f" and {counted(again, 'repetition')}" if again else ""
        return counted(len(self), "trial") + beyond + (f" ({', '.join(parts)})" if parts else "")

    def plot(self, figure: str = "history", **options: Any) -> go.Figure:
        """Return a figure of the sweep, which a notebook shows and ``.show()`` opens in a browser.

        Args:
            figure: ``history`` (best value so far), ``learning_curves``, ``importances`` or ``slices``.
            options: arguments of that function of ``tunelight.extras.figures``: ``metric``, for example.

        Raises: SettingsError for a figure that is not one; MetricError for a metric that no trial has reported.
        """
        from tunelight.extras.figures import FIGURES  # imports plotly

        refuse_unknown("There is no figure", [figure], FIGURES)
        return FIGURES[figure](self, **options)

    def __repr__(self) -> str:
        best = storage.winner(self._state)
        found = "nothing reported" if best is None else f"best {self.metric}={_short(best.value)}"
        return f"SweepResults({stores.shown(self.folder)!r}: {self._states()}, {found})"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def front(points: Sequence[Sequence[float | None]], modes: Sequence[Mode]) -> list[bool]:
    """Return which points no other dominates: is as good in every coordinate and better in one; ``modes``: of each."""
    import numpy as np  # a tenth of a second that only this needs

    values = np.array(points, dtype=float).reshape(len(points), len(modes))
    values *= [-1.0 if mode == "max" else 1.0 for mode in modes]
    return [not np.any(np.all(values <= point, axis=1) & np.any(values < point, axis=1)) for point in values]
