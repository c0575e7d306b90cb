"""What a sweep found: its best trial, all trials as objects and as a table, and exports.

Everything here is read from the sweep's folder (the record and ``sweep.yaml``), so a sweep that was
interrupted, that still runs, or that ran elsewhere reads the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight import checkpoints, storage
from tunelight.errors import (
    CheckpointError,
    ImportPathError,
    NoResultError,
    StorageError,
    TrainFunctionError,
)
from tunelight.storage import SweepState, TrialState

if TYPE_CHECKING:
    import pandas as pd

_PREFIX: Final = "model."
_SUFFIXES: Final = (".yaml", ".yml", ".json")


class TrialResult:
    """One trial of a sweep, read only.

    Attributes:
        id, index: its id (str), and its number in order of creation (int, from 0).
        state: PENDING, RUNNING, PAUSED, FINISHED (ended by itself), STOPPED (early, by the scheduler), DIVERGED
            (its metric became NaN, infinite or exploded), OOM (out of memory), ERROR or INTERRUPTED.
        config: the configuration that its best report was trained under (dict; its last one without such a report).
        changes: how its configuration changed on the way (population-based training): after which report, whose it took
            over, ``before`` and ``config``.
        seed: the seed that was set on all its ranks (int or None).
        history: every report in order, a list of dicts: the metrics, ``epoch``, ``training_iteration`` and
            ``timestamp``. Each once: what a trial that went back to a checkpoint reports again is left out.
        metrics: the best report ({} if nothing comparable was reported). Best is by the sweep's metric over
            all reports, not the last; NaN is never best, and of equal reports the earlier is.
        value: the sweep's metric in the best report (float or None).
        seconds: how long it ran (pauses left out).
        path: its folder.
    """

    def __init__(self, state: TrialState, settings: Mapping[str, Any], folder: Path, now: float) -> None:
        self.id = state.id
        self.index = state.index
        self.state = state.state
        best = None if state.best is None else state.history[state.best]["training_iteration"]
        self.config = dict(state.config) if best is None else state.config_at(best)
        self.changes = [dict(change) for change in state.changes]
        self.seed = state.seed
        self.history = [dict(report) for report in state.history]
        self.metrics: dict[str, Any] = {} if state.best is None else self.history[state.best]
        self.value = state.value
        self.seconds = state.elapsed(now)
        self.path = folder / state.folder
        self._settings = settings
        self._folder = folder
        self._error = state.error
        self._checkpoints = list(state.checkpoints)

    @property
    def error(self) -> str | None:
        """Why it failed, diverged or ran out of memory: rank, error and traceback as text; None if it did not."""
        if self._error is None:
            return None
        about = self._error
        rank = about.get("rank", -1)
        where = f"rank {rank} on {about.get('node')}: " if isinstance(rank, int) and rank >= 0 else ""
        head = f"{where}{about.get('type_name', 'Error')}: {about.get('message', '')}"
        return f"{head}\n\n{about['traceback']}" if about.get("traceback") else head

    @property
    def checkpoint(self) -> Path | None:
        """The best checkpoint that is still there, else the last one that is; None if there is none.

        Best is by the sweep's metric at the report that it belongs to; of equals, the earlier.
        """
        kept = {path: known for known in self._checkpoints if (path := self._folder / known["path"]).exists()}
        for info in checkpoints.find(self.path):  # those that were finished after the last report are in no record
            kept.setdefault(Path(info.path), info.asdict())
        best: tuple[float, Path] | None = None
        for path, known in kept.items():
            value = storage.metric_value(known, "value")
            if value is not None and (best is None or storage.is_better(value, best[0], self._mode)):
                best = value, path
        if best is not None:
            return best[1]
        return list(kept)[-1] if kept else None

    @property
    def _mode(self) -> str:
        return str(self._settings.get("mode") or "min")

    def load_model(self, model_cls: type[Any] | None = None, *, weights_only: bool = True, **kwargs: Any) -> Any:
        """Return the LightningModule with the weights of :attr:`checkpoint`, on the CPU.

        Args:
            model_cls: its class; not needed after a ``model=`` sweep, which recorded it.
            weights_only: refuse checkpoints that hold more than tensors and plain data, since opening those
                runs code. False for a checkpoint of your own that holds other objects.
            kwargs: further arguments of the class; they win over all others. Where the module did not call
                ``save_hyperparameters()``, its arguments are taken from the trial's configuration.

        Raises: CheckpointError without a checkpoint, or where it cannot be loaded; TrainFunctionError where
            the class is not known; ImportPathError where it does not import. Imports torch and Lightning.
        """
        cls = model_cls if model_cls is not None else self._recorded_model()
        path = self.checkpoint
        if path is None:
            raise CheckpointError(
                f"Trial {self.id} has no checkpoint to load a model from. Use tunelight's "
                "TuneReportCheckpointCallback in the train function (a model= sweep writes checkpoints by "
                "itself, unless checkpoints=None)."
            )
        if torn := checkpoints.describe_torn(path):
            raise CheckpointError(f"{torn} Load another: {self._others(path)}.")
        import torch  # noqa: PLC0415 - whoever only reads results need not wait for torch

        try:
            saved = torch.load(path, map_location="cpu", weights_only=weights_only, mmap=True)
            has_arguments = "hyper_parameters" in saved
            del saved
            arguments = kwargs if has_arguments else {**self._model_arguments(cls), **kwargs}
            return cls.load_from_checkpoint(path, map_location="cpu", weights_only=weights_only, **arguments)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{path} holds more than weights and plain data, and opening it would run code: {error}. If "
                "you trust it, call load_model(weights_only=False)."
            ) from error
        except (OSError, RuntimeError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be loaded into {cls.__name__}: {error}. Is that the class "
                "that the trial trained? Arguments that it needs can be given to load_model(...)."
            ) from error

    def _others(self, path: Path) -> str:
        """Return which checkpoints the trial has beside ``path``, as text."""
        whole = [info for info in checkpoints.find(self.path) if info.path != str(path) and checkpoints.is_whole(info)]
        found = (info.path if info.value is None else f"{info.path} (value {_short(info.value)})" for info in whole)
        return ", ".join(found) or "the trial has no other"

    def _recorded_model(self) -> type[Any]:
        recorded = self._settings.get("model")
        if not isinstance(recorded, str):
            raise TrainFunctionError(
                f"Which class trial {self.id} trained is not known: the sweep was given a train function, "
                "not model=. Call load_model(YourLightningModule)."
            )
        module, _, name = recorded.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ImportPathError(
                f"The sweep's model {recorded!r} does not import here: {error}. Call "
                "load_model(YourLightningModule), or make its module importable."
            ) from error
        if not hasattr(found, "load_from_checkpoint"):
            raise TrainFunctionError(
                f"The sweep's model {recorded!r} is no LightningModule class but a {type(found).__name__}. "
                "Call load_model(YourLightningModule)."
            )
        return found  # type: ignore[no-any-return]

    def _model_arguments(self, cls: type[Any]) -> dict[str, Any]:
        """Return the configuration's part for the module: ``model.*``, else what its constructor takes."""
        dotted = {key.removeprefix(_PREFIX): self.config[key] for key in self.config if key.startswith(_PREFIX)}
        nested = self.config.get("model")
        if isinstance(nested, Mapping):
            dotted = {**nested, **dotted}
        if dotted:
            return dotted
        taken = inspect.signature(cls).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
            return dict(self.config)
        names = {parameter.name for parameter in taken}
        return {key: value for key, value in self.config.items() if key in names}

    def __repr__(self) -> str:
        return f"TrialResult({self.id}, {self.state}, value={self.value}, reports={len(self.history)})"


class SweepResults:
    """All that a sweep found; get it from ``tunelight.run`` or :meth:`load`. Iterates over its trials.

    The best trial is the one with the best report of all (not the best last report). NaN is never best, and
    of equal trials the one that was created first is. Failed and interrupted trials count with what they
    reported.
    """

    def __init__(self, folder: str | os.PathLike[str], state: SweepState, told: Mapping[str, Any]) -> None:
        self.folder = Path(folder).absolute()
        self._told = {**state.sweep, **told}
        self._state = state
        now = state.updated or 0.0
        self.trials = [
            TrialResult(trial, self._told, self.folder, now)
            for trial in sorted(state.trials.values(), key=lambda trial: trial.index)
        ]
        """Every trial, in order of creation."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> SweepResults:
        """Read the sweep in ``folder`` (``storage/name``), finished or not. Raises: StorageError."""
        return cls(folder, storage.read_record(folder), storage.read_sweep_file(folder))

    @property
    def name(self) -> str:
        """The sweep's name: that of its folder."""
        return self.folder.name

    @property
    def metric(self) -> str | None:
        """What trials are judged by."""
        return self._told.get("metric")

    @property
    def mode(self) -> str:
        """Which values are better: "min" or "max"."""
        return str(self._told.get("mode") or "min")

    @property
    def best(self) -> TrialResult:
        """The trial with the best report of all.

        Raises: NoResultError when nothing comparable was reported.
        """
        if self._state.best is None:
            raise NoResultError(self._nothing())
        return next(trial for trial in self.trials if trial.id == self._state.best.trial)

    def _nothing(self) -> str:
        text = f"No trial of {self.folder} reported a number as {self.metric!r}: {self._states()}."
        if self.errors:
            first = self.errors[0]
            return f"{text} Trial {first.id} failed with {(first.error or '').splitlines()[0]}; see .errors."
        return f"{text} Look at a trial's .history for what it reported, if anything."

    @property
    def best_config(self) -> dict[str, Any]:
        """The best trial's configuration. Raises: NoResultError when nothing comparable was reported."""
        return dict(self.best.config)

    @property
    def errors(self) -> list[TrialResult]:
        """The trials that failed; not those that diverged or ran out of memory: that says something of their config."""
        return [trial for trial in self.trials if trial.state == storage.ERROR]

    @property
    def num_stopped(self) -> int:
        """How many trials the scheduler stopped early."""
        return self._state.counts[storage.STOPPED]

    @property
    def num_finished(self) -> int:
        """How many trials ended by themselves."""
        return self._state.counts[storage.FINISHED]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return self._state.counts[storage.ERROR]

    @property
    def num_diverged(self) -> int:
        """How many trials were ended because their metric became NaN, infinite or exploded."""
        return self._state.counts[storage.DIVERGED]

    @property
    def num_oom(self) -> int:
        """How many trials ran out of memory."""
        return self._state.counts[storage.OOM]

    @property
    def num_interrupted(self) -> int:
        """How many trials were cut off with their sweep (Ctrl-C, time budget)."""
        return self._state.counts[storage.INTERRUPTED]

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.trials)

    def __bool__(self) -> bool:
        return True

    def dataframe(self) -> pd.DataFrame:
        """Return one row a trial: trial_id, state, best and last metric, epochs, reports, seconds, config.*.

        The metric's columns are ``best_<metric>`` and ``last_<metric>``; ``epochs`` is how many epochs it had
        trained at its last report (None where the reports do not say); a configuration key ``lr`` is the
        column ``config.lr``, and nested ones are joined by dots.
        """
        import pandas as pd  # noqa: PLC0415 - half a second that only this needs

        return pd.DataFrame([self._row(trial) for trial in self.trials])

    def _row(self, trial: TrialResult) -> dict[str, Any]:
        last = trial.history[-1] if trial.history else {}
        row: dict[str, Any] = {"trial_id": trial.id, "state": trial.state}
        if self.metric is not None:
            row[f"best_{self.metric}"] = trial.value
            row[f"last_{self.metric}"] = storage.metric_value(last, self.metric)
        epoch = last.get("epoch")
        row["epochs"] = None if epoch is None else epoch + 1
        row["reports"] = len(trial.history)
        row["seconds"] = trial.seconds
        return row | _flat(trial.config, "config")

    def export_best(self, path: str | os.PathLike[str]) -> Path:
        """Write the best configuration and where it came from, as YAML or JSON by the file's suffix.

        Keys: config; changes, where it was not the trial's only one; metric, mode, value; metrics (the best
        report's); trial, seed, training_iteration, epoch; sweep (name, folder); checkpoint (a path or null); versions
        (those that the sweep ran on).
        Returns: the path. Raises: StorageError for another suffix or a file that cannot be written,
        NoResultError when nothing comparable was reported.
        """
        target = Path(path)
        if target.suffix.lower() not in _SUFFIXES:
            raise StorageError(
                f"export_best writes YAML or JSON by the file's suffix, but {str(path)!r} has "
                f"{target.suffix or 'none'!r}. Use one of {', '.join(_SUFFIXES)}."
            )
        data = self._export()
        is_json = target.suffix.lower() == ".json"
        text = json.dumps(storage.plain(data), indent=2) + "\n" if is_json else storage.to_yaml(data)
        storage.write_atomically(target, text)
        return target

    def _export(self) -> dict[str, Any]:
        best = self.best
        report = dict(best.metrics)
        epoch, iteration, _ = (report.pop(key) for key in ("epoch", "training_iteration", "timestamp"))
        return {
            "config": best.config,
            **({"changes": best.changes} if best.changes else {}),
            "metric": self.metric,
            "mode": self.mode,
            "value": best.value,
            "metrics": report,
            "trial": best.id,
            "seed": best.seed,
            "training_iteration": iteration,
            "epoch": epoch,
            "sweep": {"name": self.name, "folder": self.folder},
            "checkpoint": best.checkpoint,
            "versions": self._told.get("versions") or storage.versions(),
        }

    def summary(self) -> str:
        """Return a few lines to print: trials by state, and the best."""
        lines = [f"Sweep {self.name}: {self._states()}"]
        if self._state.best is None:
            lines.append("No comparable result was reported.")
        else:
            best = self.best
            config = ", ".join(f"{key}={_short(value)}" for key, value in best.config.items())
            where = "" if (epoch := best.metrics["epoch"]) is None else f" in epoch {epoch}"
            lines.append(f"Best {self.metric}: {_short(best.value)} (trial {best.id}{where})")
            lines.append(f"  {config}")
        lines.extend(f"Trial {failed.id} failed: {(failed.error or '').splitlines()[0]}" for failed in self.errors)
        return "\n".join(lines)

    def _states(self) -> str:
        parts = [f"{count} {state.lower()}" for state, count in self._state.counts.items() if count]
        return f"{len(self)} trials" + (f" ({', '.join(parts)})" if parts else "")

    def __repr__(self) -> str:
        best = self._state.best
        found = "nothing reported" if best is None else f"best {self.metric}={_short(best.value)}"
        return f"SweepResults({str(self.folder)!r}: {self._states()}, {found})"


def _flat(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}.{key}"
        flat.update(_flat(value, name) if isinstance(value, Mapping) else {name: value})
    return flat


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
