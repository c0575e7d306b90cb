"""One trial of a sweep: its reports, checkpoints and model, and exports of its configuration."""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tunelight import record as storage
from tunelight import stores
from tunelight.checkpoints import files as checkpoints
from tunelight.record import Standing, SweepState, TrialState, cut_off, repeated, repeats_of, to_repeat
from tunelight.settings import paired


class TrialResult:
    """One trial of a sweep, read only.

    Attributes:
        id, index: its id (str), and its number in order of creation (int, from 0).
        state: PENDING, RUNNING, PAUSED, FINISHED (ended by itself), STOPPED (early, by the scheduler), DIVERGED
            (its metric became NaN, infinite or exploded), OOM (out of memory), ERROR or INTERRUPTED.
        plain_config: the configuration that its best report was trained under (dict; its last one without such a
            report), as recorded: plain data, where choices that are objects have their text.
        changes: how its configuration changed on the way (population-based training, branches): after which report,
            whose it took over, ``before`` and ``config``, as recorded.
        branch: the trial with whose state it began (``parent``), after which report (``number``), and ``step`` of it;
            None for a trial that began from scratch.
        repeats: the trial whose configuration it trains again, with another seed (str; None for a trial of the search).
        repetition: which training of its configuration it is (int, from 0); with folds, its fold.
        seed: the seed that was set on all its ranks (int or None).
        history: every report in order, a list of dicts: the metrics, ``epoch``, ``training_iteration`` and
            ``timestamp``. Each once: what a trial that went back to a checkpoint reports again is left out.
        reports: how many those are (int).
        metrics: the best report ({} if nothing comparable was reported). Best is by the sweep's metric over
            all reports, not the last; NaN is never best, and of equal reports the earlier is.
        value: the sweep's metric in the best report (float or None).
        seconds: how long it ran (pauses left out).
        notes: what tunelight remarked on it, in order: a fault that it survived, a checkpoint that was not written.
        compiled: how many graphs torch.compile had made for it at its last report, since it last began or resumed.
        path: its folder.
        runs: what the sweep was run with while it trained, for each run of the driver: ``command`` (secrets masked),
            ``cwd``, ``file``, ``git`` (``commit``, ``dirty``; None outside of a repository), ``versions``.
    """

    def __init__(
        self,
        state: TrialState,
        settings: Mapping[str, Any],
        folder: Path,
        now: float,
        runs: Sequence[Mapping[str, Any]] = (),
        *,
        restored: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        self.id = state.id
        self.index = state.index
        self.state = state.state
        self._history, self._best = state.history, state.best
        self.reports = len(state.history)
        changed = bool(state.changes) and state.best is not None
        self.plain_config = state.config_at(self.metrics["training_iteration"]) if changed else dict(state.config)
        self._restored = restored
        self.changes = [dict(change) for change in state.changes]
        self.branch = state.branch
        self.repeats = state.repeats
        self.repetition = state.repetition
        self.seed = state.seed
        self.value = state.value
        self.seconds = state.elapsed(now)
        self.compiled = state.compiled
        self.notes = [text for _, text in state.notes]
        self.path = folder / state.folder
        self.runs = [dict(run) for run in runs]
        self._settings = settings
        objectives = paired(settings.get("metric"), settings.get("mode"))
        self._metric = objectives[0][0] if objectives else None
        self._mode = objectives[0][1] if objectives else "min"
        self.sweep_folder = folder
        self._error = state.error
        self._why = state.why
        self._checkpoints = list(state.checkpoints)

    @functools.cached_property
    def history(self) -> list[dict[str, Any]]:
        """Every report in order. Raises: StorageError where the file of a long record has been damaged since."""
        return [dict(report) for report in self._history[: self.reports]]

    @functools.cached_property
    def metrics(self) -> dict[str, Any]:
        """The best report. Raises: StorageError as ``history``."""
        return {} if self._best is None else dict(self._history[self._best])

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that its best report was trained under, as the training code got it.

        In another process than the sweep's, classes, functions and members of an Enum are imported where they can be,
        and dataclasses are made again; other objects are the text that the record has.
        """
        return self._restored(self.plain_config)

    @property
    def has_parts(self) -> bool:
        """Whether its sweep was run with ``model=``, so that its keys are arguments of model, data and Trainer."""
        return self._settings.get("model") is not None

    @property
    def command(self) -> list[str] | None:
        """The words of the command that trains its configuration as it was trained; None if no script was tuned.

        It is ``tunelight train``, which joins the ranks whatever the script's defaults are, and runs in the sweep's
        working directory.
        """
        if self._settings.get("call") is None:
            return None
        from tunelight.extras.scripts.script import train_command

        return train_command(self.plain_config, self._settings, self.seed or 0)

    @property
    def plain_command(self) -> list[str] | None:
        """The words of the command that does so without tunelight: with ``torchrun``, or ``python`` for one worker.

        None if no script was tuned, or none is known to do the same: for other backends than DDP, workers that share a
        GPU, and scripts that use W&B, whose configuration such a command does not give.
        """
        if self._settings.get("call") is None:
            return None
        from tunelight.extras.scripts.script import launch_command

        return launch_command(self.plain_config, self._settings, self.seed or 0)

    @property
    def failed(self) -> bool:
        """Whether it ended in an error, ran out of memory or diverged; such a trial is never the best."""
        return self.state in storage.FAILED

    @property
    def outcome(self) -> str:
        """How it ended, in words: "failed", "ran out of memory", ...; "has not ended" until then."""
        return storage.VERBS.get(self.state, "has not ended")

    @property
    def stop_reason(self) -> str | None:
        """Why the scheduler stopped it, or paused it: "place 7 of 12 at rung 4; the best 3 go on".

        "by command" where a person stopped it. None for a trial that was neither stopped nor paused, under a scheduler
        that gives no reasons, as Ray's.
        """
        return self._why

    @property
    def error(self) -> str | None:
        """Why it failed, diverged or ran out of memory: rank, error and traceback as text; None if it did not."""
        about = self._error or {}
        return f"{self._reason}\n\n{about['traceback']}" if about.get("traceback") else self._reason

    @property
    def _reason(self) -> str | None:
        """Why it failed, without the traceback."""
        if self._error is None:
            return None
        about = self._error
        rank = about.get("rank", -1)
        where = f"rank {rank} on {about.get('node')}: " if isinstance(rank, int) and rank >= 0 else ""
        return f"{where}{about.get('type_name', 'Error')}: {about.get('message', '')}"

    @property
    def checkpoint(self) -> Path | None:
        """The best checkpoint that still exists, else the last one; None if there is none.

        Best is by the sweep's metric in the checkpoint's report; of equal ones, the earlier. From a store it is
        fetched. Raises: CheckpointError if that fails.
        """
        found = self._kept
        return None if found is None else checkpoints.fetch_local(found[0])

    @property
    def address(self) -> str | None:
        """The path of :attr:`checkpoint`, or its URL in a store; nothing is fetched."""
        found = self._kept
        return None if found is None else stores.shown(found[0])

    @property
    def _kept(self) -> tuple[Path, Mapping[str, Any]] | None:
        """Where :attr:`checkpoint` is, and what is known of it."""
        paths = {self.sweep_folder / known["path"]: known for known in self._checkpoints}
        last = max((report["training_iteration"] for report in self.history), default=0)
        found = {Path(seen.path): seen.asdict() for seen in checkpoints.find(self.path) if seen.number <= last}
        kept = {path: known for path, known in paths.items() if path in found or path.exists()}
        for path, info in found.items():  # those that were finished after the last report are in no record
            kept.setdefault(path, info)
        best: tuple[float, Path] | None = None
        for path, known in sorted(kept.items(), key=lambda seen: _age(seen[1])):
            value = storage.metric_value(known, "value")
            if value is not None and (best is None or storage.is_better(value, best[0], self._mode)):
                best = value, path
        chosen = max(kept, key=lambda path: _age(kept[path]), default=None) if best is None else best[1]
        return None if chosen is None else (chosen, kept[chosen])

    def of_another_report(self) -> int | None:
        """Return the report that :attr:`checkpoint` is of, and warn, where the best report has none; else None."""
        found, best = self._kept, self.metrics.get("training_iteration")
        if found is None or best is None:
            return None
        (number, between), value = _age(found[1]), storage.metric_value(found[1], "value")
        if value == self.value or (value is None and (number, between) == (best, 0)):
            return None  # one of that report with another value is of a training that was repeated
        reached = " and the steps after it" if between else "" if value is None else f" ({self._metric}={value:.6g})"
        warnings.warn(
            f"The best report of trial {self.id}, number {best} ({self._metric}={self.value:.6g}), has no checkpoint. "
            f"{found[0].name} is that of report {number}{reached}.",
            stacklevel=4,
        )
        return number

    def load_model(
        self, model_cls: type[Any] | None = None, *, trust: bool = False, weights_only: bool = True, **kwargs: Any
    ) -> Any:
        """Return the LightningModule with the weights of :attr:`checkpoint`, on the CPU and in evaluation mode.

        Call ``.train()`` before you train it further: Lightning leaves modules in the mode that they are in.

        Args:
            model_cls: its class; not needed after a ``model=`` sweep, which recorded it, where this process has
                imported that class or can import it.
            trust: also import the recorded class from the folder of the file that the sweep was run from. That runs the
                code there, so it is for sweeps of people whom you trust.
            weights_only: refuse checkpoints that hold more than tensors and plain data, since opening those
                runs code. False for a checkpoint of your own that holds other objects.
            kwargs: further arguments of the class; they win over all others. Where the module did not call
                ``save_hyperparameters()``, its arguments are taken from the trial's configuration.

        Raises: CheckpointError without a checkpoint, or where it cannot be loaded; TrainFunctionError where the class
        is not known; ImportPathError where it does not import, which says what to do. Imports torch and Lightning.
        """
        from tunelight.extras.export import load_model

        return load_model(self, self._settings, model_cls, trust=trust, weights_only=weights_only, **kwargs)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 - the word for it everywhere
        *,
        checkpoint: bool = False,
    ) -> Path:
        """Write this trial's configuration to a file; see :meth:`SweepResults.export_best`."""
        from tunelight.extras.export import export_trial

        return export_trial(self, self._settings, Path(path), format, checkpoint=checkpoint)

    def __repr__(self) -> str:
        why = "" if self._reason is None else f", error={self._reason!r}"
        return f"TrialResult({self.id}, {self.state}, value={self.value}, reports={self.reports}{why})"

    def __str__(self) -> str:
        return repr(self) if self._reason is None else f"trial {self.id} {self.outcome}: {self._reason}"


def _age(known: Mapping[str, Any]) -> tuple[int, int]:
    """Return a key that sorts checkpoints, as they are recorded or found on the disk, from the oldest to the newest."""
    return known.get("number") or known.get("training_iteration") or 0, known.get("between") or 0


# --- Results in words: repetitions, numbers and errors ----------------------------------------------------

MOST: Final = 10


def lines_of(state: SweepState) -> Iterator[str]:
    """Yield a few lines: each configuration that was trained again, and what is missing."""
    found = repeated(state)
    repeats = repeats_of(state)
    if found and repeats is not None:
        what = f"on {repeats.repeats} folds" if repeats.folds else "again with other seeds"
        yield f"Trained {what}: {counted(len(found), 'configuration')}, by the mean of {state.sweep.get('metric')}"
        for standing in found[:MOST]:
            yield f"  trial {standing.trial}: {in_words(standing)}"
        if len(found) > MOST:
            yield f"  and {len(found) - MOST} more"
    if lacks := missing(state):
        yield lacks


def in_words(standing: Standing) -> str:
    """Return what is known of a configuration: ``0.1234 +- 0.0021 of 3 trainings``."""
    spread = "" if standing.spread is None else f" +- {standing.spread:.2g}"
    parts = [f"{standing.mean:.6g}{spread} of {counted(standing.n, 'training')}"]
    if not standing.again:
        parts.append("a single result, for its repetitions failed")
    elif standing.failed:
        parts.append(f"{counted(len(standing.failed), 'repetition')} failed or stopped")
    if not math.isfinite(standing.mean):
        parts.append("training diverged")
    return ", ".join(parts)


def missing(state: SweepState) -> str:
    """Return how many repetitions a sweep that has ended did not make; empty if none, or while it runs."""
    if state.ended is None or (repeats := repeats_of(state)) is None:
        return ""
    left = to_repeat(state, repeats)
    cut = sum(map(cut_off, state.repetitions.values()))
    if not left and not cut:
        return ""
    parts = [f"{counted(len(left), 'repetition')} not begun"] if left else []
    parts += [f"{cut} cut off"] if cut else []
    return f"The repetitions are not complete ({', '.join(parts)}): resume the sweep to make them."


# --- Numbers and errors in words ------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 trial``, ``2 trials``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a number as in a row: ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
