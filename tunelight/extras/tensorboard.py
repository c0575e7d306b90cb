"""TensorBoard files of a sweep: one event file a trial, with its metrics and its hyperparameters.

TensorBoard's own message types and record writer are used as they are. Its ``summary.Writer`` is not, nor those of
``torch`` and ``tensorboardX``: each starts a thread for each file, which it keeps open, and the last two import torch.
"""

from __future__ import annotations

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

from tunelight.record import FAILED, FINISHED, STOPPED, TERMINAL, SweepState, TrialState
from tunelight.record.lease import EVENTS_END
from tunelight.record.view import WHEN
from tunelight.reporting.display import guarded
from tunelight.settings.checks import flatten

_STATUS: Final = {
    FINISHED: api_pb2.STATUS_SUCCESS,
    STOPPED: api_pb2.STATUS_SUCCESS,
    **dict.fromkeys(FAILED, api_pb2.STATUS_FAILURE),
}
_LARGEST: Final = 2**1023
"""TensorBoard's table holds no numbers beyond: JSON's NaN and infinities break it."""


class TensorBoardCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Write each trial's metrics and configuration for TensorBoard, into the trial's folder.

    Every numeric metric is a scalar of its own name (nested ones as ``outer/inner``), by
    ``training_iteration``; the sweep's metric has a second one, ``<metric>/best``, the best value so far.
    The HPARAMS tab lists a trial from its start on. Values of other types (None, list) appear there as text. How it
    ended, and why it failed, is the text ``state``. A file that cannot be written never ends the sweep, and none is
    open but while it is written.

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
        self._folder, self._state, self._clock = Path(folder), state, clock
        self._files: dict[str, Path] = {}
        self._begun = 0
        # In a resumed sweep, earlier reports are in earlier files.
        going = (trial for trial in state.trials.values() if trial.state not in TERMINAL)
        self._written = {trial.id: len(trial.history) for trial in going}

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write the trial's configuration. Called by Tune, also when a trial starts again."""
        self._begin(trial.trial_id)

    @guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        """Write the new reports."""
        if (known := self._begin(trial.trial_id)) is not None:
            _write(self._files[trial.trial_id], *self._reports(known))

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Write how the trial ended, or that it failed."""
        self._end(trial.trial_id)

    on_trial_error = on_trial_complete

    @guarded
    def close(self) -> None:
        """End the files of trials that were cut off. May be called more than once."""
        for trial_id in list(self._files):
            self._end(trial_id)

    def _begin(self, trial_id: str) -> TrialState | None:
        """Return a trial, which has a file then; None for one that is not in the live view."""
        trial, now = self._state.trials.get(trial_id), self._clock()
        if trial is not None and trial_id not in self._files:
            self._begun += 1
            # The number: a trial that starts again within the same second must not replace its first file.
            name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{self._begun}{EVENTS_END}"
            self._files[trial_id] = path = self._folder / trial.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            start = Event(wall_time=now, file_version="brain.Event:2")
            _write(path, start, Event(wall_time=now, summary=_session_start(trial, now)))
        return trial

    def _reports(self, trial: TrialState) -> Iterator[Any]:
        """Yield the reports of a trial that are in none of its files yet, all metrics of each as one event."""
        metric = self._state.sweep.get("metric")
        first, self._written[trial.id] = self._written.get(trial.id, 0), len(trial.history)
        for number in range(first, len(trial.history)):
            report = trial.history[number]
            values = {tag: value for tag, value in _scalars(report) if tag not in WHEN}
            if metric and trial.value is not None and trial.best is not None and trial.best <= number:
                values.setdefault(f"{metric}/best", trial.value)
            yield Event(
                wall_time=report.get("timestamp") or self._clock(),
                step=report.get("training_iteration") or 0,
                summary=Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
            )

    def _end(self, trial_id: str) -> None:
        if (trial := self._begin(trial_id)) is not None:
            now, status = self._clock(), _STATUS.get(trial.state, api_pb2.STATUS_UNKNOWN)
            end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=now)
            data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
            ended = Event(wall_time=now, summary=_hparams(metadata.SESSION_END_INFO_TAG, data))
            state = Event(wall_time=now, step=len(trial.history), summary=_state(trial))
            _write(self._files.pop(trial_id), *self._reports(trial), ended, state)


def _write(file: Path, *events: Any) -> None:
    with file.open("ab") as opened:
        records = RecordWriter(opened)
        for event in events:
            records.write(event.SerializeToString())


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
        elif isinstance(value, int | float) and abs(value) < _LARGEST:
            known.number_value = value
        else:
            known.string_value = str(value)
    return _hparams(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))


def _state(trial: TrialState) -> Any:
    """Return how a trial ended, for the TEXT tab: its state in TensorBoard's markdown, errors as they are."""
    error, why = trial.error or {}, trial.why or ""
    if error:
        rank = error.get("rank")
        who = f"rank {rank}: " if isinstance(rank, int) and rank >= 0 else ""
        why = f"{who}{error.get('type_name')}: {error.get('message')}\n{error.get('traceback') or ''}"
    text = "\n".join([trial.state, "", *(f"    {line}" for line in why.splitlines())]).strip()
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto())
    made = text_metadata.create_summary_metadata(display_name="state", description="How the trial ended")
    return Summary(value=[Summary.Value(tag="state", metadata=made, tensor=tensor)])


def _hparams(tag: str, data: Any) -> Any:
    """Wrap data of the hparams plugin in the metadata of an empty value, as the plugin expects."""
    made = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=made, tensor=metadata.NULL_TENSOR)])
