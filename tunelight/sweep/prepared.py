"""PreparedSweep: a sweep that is ready to run, and the folder that it claims."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight import stores
from tunelight.record import (
    RECORD_FILE,
    Lease,
    create_sweep_folder,
    driver_of,
    leased,
    mirrored,
    write_sweep_file,
)
from tunelight.resources import Reservation
from tunelight.settings import Settings
from tunelight.settings.code import script_file
from tunelight.space import SearchSpace
from tunelight.stores import delete
from tunelight.sweep.past import SavedSweep

if TYPE_CHECKING:
    from ray.tune.search import Searcher

    from tunelight.schedulers.base import GangScheduler
    from tunelight.searchers import Repetitions, ResumeState


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep that is ready to run: everything that can be built and checked before Ray starts."""

    space: SearchSpace
    settings: Settings
    reservation: Reservation
    code: Callable[[dict[str, Any]], object]
    scheduler: GangScheduler
    searcher: Searcher
    start: ResumeState
    folder: Path
    sweep_file: Mapping[str, Any]
    baselines: Sequence[Mapping[str, Any]]
    """Those not tried yet."""
    repetitions: Repetitions | None
    """What decides on repetitions, if there are to be any."""
    upload: Callable[[], None] = lambda: None
    """Brings the record to its store soon."""
    lease: Lease | None = None

    @functools.cached_property
    def total(self) -> int:
        """The number of trials in all."""
        from tunelight.searchers.choose import count_trials  # imports Ray Tune

        return count_trials(self.space, self.settings)

    @property
    def to_do(self) -> bool:
        """Whether any trial is left to run."""
        left = self.start.resumed or self.start.searched < self.total
        return bool(left) or (self.repetitions is not None and self.repetitions.next() is not None)


@contextlib.contextmanager
def claimed(sweep: PreparedSweep, past: SavedSweep | None) -> Iterator[PreparedSweep]:
    """Create and lock the folder of a new sweep; a resumed one has its own.

    If the sweep fails before anything was recorded, the folder and those that were created above it are deleted, so
    that the name is free again.
    """
    settings, folder, new = sweep.settings, sweep.folder, []
    lease: Lease | None = None
    if past is None:
        storage = stores.working(settings.storage).absolute()
        new = [parent for parent in (storage, *storage.parents) if not parent.exists()]
        folder = create_sweep_folder(settings.storage, settings.name, default=default_name(settings))
    try:
        if past is None:
            write_sweep_file(folder, sweep.sweep_file)
        held = None if past is None else past.lease
        lock = leased(folder) if held is None else contextlib.nullcontext(held)
        with lock as lease, mirrored(folder, lease) as upload:
            yield replace(sweep, folder=folder, lease=lease, upload=upload)
    except BaseException:
        ours = driver_of(folder) is None if lease is None else lease.held()
        if past is None and ours and not (folder / RECORD_FILE).stat().st_size:
            with contextlib.suppress(OSError):
                delete(folder)
                for made in new:
                    made.rmdir()
        raise


def default_name(settings: Settings) -> str:
    """Return what a sweep is called that was given no name."""
    if settings.script is not None:
        return script_file(settings.script).stem
    return str(getattr(settings.train or settings.model, "__name__", "sweep")).strip("<>")
