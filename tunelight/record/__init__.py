"""The record of a sweep on disk: an append-only file, written while the sweep runs and replayed by its readers.

A sweep's folder holds ``sweep.yaml`` (its settings), ``record.jsonl`` (all events since) and one folder for each trial.
Writer and reader share :func:`apply`: the writer applies every line that it appends to its own :class:`SweepState`, the
reader applies the lines to an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunelight.record.folder import (
    Found,
    create_sweep_folder,
    find_sweep,
    is_folder,
    list_sweeps,
    provenance,
    read_sweep_file,
    sweep_folder,
    to_json_types,
    to_yaml,
    versions,
    write_sweep_file,
    write_text,
)
from tunelight.record.lease import (
    RECORD_FILE,
    SWEEP_FILE,
    Lease,
    Owner,
    Owners,
    driver_of,
    leased,
    live_driver_of,
    record_number,
    record_of,
)
from tunelight.record.outcomes import (
    ERROR,
    FAILED,
    FINISHED,
    INFEASIBLE,
    INTERRUPTED,
    OUTCOMES,
    PAUSED,
    PENDING,
    RUNNING,
    STOPPED,
    TERMINAL,
    VERBS,
    Outcome,
)
from tunelight.record.record import Record, read_record, repair
from tunelight.record.remote import has_record, mirrored, pull, reaching
from tunelight.record.repeated import (
    Standing,
    chosen,
    cut_off,
    length,
    ranked,
    repeated,
    repeats_of,
    standings,
    to_repeat,
    winner,
)
from tunelight.record.state import (
    GAVE_UP,
    STOPPED_BY_COMMAND,
    Branch,
    SweepState,
    TrialState,
    apply,
    is_better,
    metric_value,
)

if TYPE_CHECKING:
    from tunelight.record.recorder import RecordCallback


def __getattr__(name: str) -> Any:
    """Import the writer when it is asked for: it needs Ray, and readers of a record do not."""
    if name != "RecordCallback":
        raise AttributeError(f"module 'tunelight.record' has no attribute {name!r}")
    from tunelight.record.recorder import RecordCallback

    return RecordCallback
