"""TensorBoard files of a sweep: one event file a trial, with its metrics and its hyperparameters.

TensorBoard's own message types and record writer are used as they are. The writers of ``torch`` and
``tensorboardX`` are not: both import torch, which a driver has no other need of, and both start a thread
(and tensorboardX a queue between processes) for each trial.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ray.tune import Callback
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from tunelight.record import FAILED, FINISHED, PAUSED, STOPPED, SweepState, TrialState
from tunelight.record.lease import EVENTS_END
from tunelight.reporting.guard import guarded
from tunelight.settings.checks import flatten

_WHEN: Final = frozenset({"epoch", "training_iteration", "timestamp"})
"""Keys of a report that are not the user's metrics."""
_STATUS: Final = {
    FINISHED: api_pb2.STATUS_SUCCESS,
    STOPPED: api_pb2.STATUS_SUCCESS,
    **dict.fromkeys(FAILED, api_pb2.STATUS_FAILURE),
}
_FLUSH_S: Final = 2.0


class TensorBoardCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Write each trial's metrics and configuration for TensorBoard, into the trial's folder.

    Every numeric metric is a scalar of its own name (nested ones as ``outer/inner``), by
    ``training_iteration``; the sweep's metric has a second one, ``<metric>/best``, the best value so far.
    The HPARAMS tab lists a trial from its start on. Values of other types (None, list) appear there as text. How it
    ended, and why it failed, is the text ``state``. A file that cannot be written never ends the sweep.

    Args:
        folder: the sweep's folder.
        state: the sweep's live view. The callback that keeps it (``RecordCallback``) must come before this
            one in Tune's list.
        clock: seconds since the epoch.

    Runs on: driver.
    """

    def __init__(
        self, folder: str | os.PathLike[str], state: SweepState, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = Path(folder)
        self._state = state
        self._clock = clock
        self._files: dict[str, _EventFile] = {}
        self._running: set[str] = set()
        """Trials that have started, and have not paused since as far as is known."""
        self._opened = 0
        # In a resumed sweep, earlier reports are in earlier files.
        self._written = {trial.id: len(trial.history) for trial in state.trials.values()}

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write the trial's configuration. Called by Tune, also when a trial starts again."""
        if self._file(trial.trial_id) is not None:
            self._running.add(trial.trial_id)

    @guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        """Write the new reports."""
        file = self._file(trial.trial_id)
        if file is not None:
            self._write_reports(file)
            file.flush_if_due(self._clock())

    @guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Close the files of trials that were paused: a scheduler may pause thousands."""
        for trial_id in [key for key in self._running if self._state.trials[key].state == PAUSED]:
            self._running.remove(trial_id)
            self._files[trial_id].rest()

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write how the trial ended, and close its file."""
        self._end(trial.trial_id)

    @guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write that the trial failed, and close its file."""
        self._end(trial.trial_id)

    @guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Close open files."""
        self.close()

    @guarded
    def close(self) -> None:
        """Close the files of trials that were cut off. May be called more than once."""
        for trial_id in list(self._files):
            self._end(trial_id)

    def _file(self, trial_id: str) -> _EventFile | None:
        """Return a trial's open file; None for a trial that is not in the live view."""
        file, trial = self._files.get(trial_id), self._state.trials.get(trial_id)
        if file is None and trial is not None:
            self._opened += 1
            file = _EventFile(self._folder, trial, self._opened, self._clock())
            self._files[trial_id] = file
        return file

    def _write_reports(self, file: _EventFile) -> None:
        """Write the reports of a trial that are in none of its files yet."""
        history = file.trial.history
        first, self._written[file.trial.id] = self._written.get(file.trial.id, 0), len(history)
        for number in range(first, len(history)):
            file.write_report(number, self._state.sweep.get("metric"), self._clock())

    def _end(self, trial_id: str) -> None:
        file = self._file(trial_id)
        if file is not None:
            del self._files[trial_id]
            self._running.discard(trial_id)
            self._write_reports(file)
            file.close(self._clock())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}  # Tune pickles its callbacks; open files stay here


class _EventFile:
    """One trial's event file: buffered, without a thread, and open only while it is used."""

    def __init__(self, folder: Path, trial: TrialState, number: int, now: float) -> None:
        self.trial = trial
        path = folder / trial.folder
        path.mkdir(parents=True, exist_ok=True)
        # The number: a trial that starts again within the same second must not replace its first file.
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{number}{EVENTS_END}"
        self._path = path / name
        self._records: RecordWriter | None = None
        self._add(Event(wall_time=now, file_version="brain.Event:2"))
        self._add(Event(wall_time=now, summary=_session_start(trial, now)))
        self.flush(now)

    def flush(self, now: float) -> None:
        """Flush the file, so that readers see what was written."""
        self._flushed = now
        if self._records is not None:
            self._records.flush()

    def rest(self) -> None:
        """Close the file until the next event, so that a paused trial holds no descriptor."""
        if self._records is not None:
            records, self._records = self._records, None
            records.close()

    def write_report(self, number: int, metric: str | None, now: float) -> None:
        """Write one report of the trial's history, all its metrics as one event."""
        report = self.trial.history[number]
        values = {tag: value for tag, value in _scalars(report) if tag not in _WHEN}
        if metric and self.trial.value is not None and self.trial.best is not None and self.trial.best <= number:
            values.setdefault(f"{metric}/best", self.trial.value)
        self._add(
            Event(
                wall_time=report.get("timestamp") or now,
                step=report.get("training_iteration") or 0,
                summary=Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]),
            )
        )

    def flush_if_due(self, now: float) -> None:
        """Flush the file, at most every two seconds."""
        if abs(now - self._flushed) >= _FLUSH_S:
            self.flush(now)

    def close(self, now: float) -> None:
        """Write how the trial ended, and close the file."""
        try:
            end = plugin_data_pb2.SessionEndInfo(
                status=_STATUS.get(self.trial.state, api_pb2.STATUS_UNKNOWN), end_time_secs=now
            )
            data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
            self._add(Event(wall_time=now, summary=_hparams(metadata.SESSION_END_INFO_TAG, data)))
            self._add(Event(wall_time=now, step=len(self.trial.history), summary=_state(self.trial)))
        finally:
            self.rest()

    def _add(self, event: Any) -> None:
        if self._records is None:
            self._records = RecordWriter(self._path.open("ab"))
        self._records.write(event.SerializeToString())


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers by name, nested ones as ``outer/inner``; True and False are 1 and 0."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{name}/")
        elif isinstance(value, int | float) and not name.startswith("_"):
            try:
                yield name, float(value)
            except OverflowError:
                yield name, math.copysign(math.inf, value)


def _session_start(trial: TrialState, now: float) -> Any:
    """Return the summary that makes a trial a row of the HPARAMS tab.

    No summary of the whole experiment is written: TensorBoard then collects the hyperparameters of all
    trials, also where they differ from trial to trial or sweeps lie side by side.
    """
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=now)
    for name, value in flatten(trial.config).items():
        if "._" in f".{name}":  # private
            continue
        known = start.hparams[name]
        if isinstance(value, bool):
            known.bool_value = value
        elif isinstance(value, int | float) and _is_plain_number(value):
            known.number_value = value
        else:
            known.string_value = value if isinstance(value, str) else _text(value)
    return _hparams(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))


def _state(trial: TrialState) -> Any:
    """Return how a trial ended, for the TEXT tab: its state in TensorBoard's markdown, errors as they are."""
    error, said = trial.error or {}, trial.why or ""
    if error:
        rank = error.get("rank")
        who = f"rank {rank}: " if isinstance(rank, int) and rank >= 0 else ""
        said = f"{who}{error.get('type_name')}: {error.get('message')}\n{error.get('traceback') or ''}"
    text = "\n".join([trial.state, "", *(f"    {line}" for line in said.splitlines())]).strip()
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto())
    made = text_metadata.create_summary_metadata(display_name="state", description="How the trial ended")
    return Summary(value=[Summary.Value(tag="state", metadata=made, tensor=tensor)])


def _hparams(tag: str, data: Any) -> Any:
    """Wrap data of the hparams plugin in the metadata of an empty value, as the plugin expects."""
    made = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=made, tensor=metadata.NULL_TENSOR)])


def _is_plain_number(value: float | int) -> bool:
    """Tell whether TensorBoard's table can hold a number: JSON's NaN and infinities break it."""
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**1023


def _text(value: Any) -> str:
    if value is None or isinstance(value, int | float):
        return str(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
