"""The worker: one rank of a gang, an actor that outlives the trials it trains."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError

from tunelight.compat import replaced
from tunelight.compat.lightning import FABRIC, decide_in_worker, flavour, know_rank
from tunelight.compat.torch import (
    compiled_graphs,
    flight_records,
    forget_compiled,
    recompile_limit,
    set_recompile_limit,
    share_graph_trees,
    versions,
)
from tunelight.errors import CheckpointError, TrainFunctionError, TrialStopped
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import Rendezvous, StoreChannel
from tunelight.gang.output import bring_home, to_trial_log
from tunelight.gang.parcel import receive
from tunelight.gang.placement import Assigned, Location, check_usable, cuda_devices, fixed_gpus, visible_variable
from tunelight.gang.reset import CleanState, GpuMemory
from tunelight.gang.watch import Collective, Sign, latest, sign_of
from tunelight.machine.processes import collector_resting
from tunelight.machine.versions import ensure_entry_points, installed
from tunelight.messages import (
    CACHE_VARIABLE,
    GOES_ON,
    Continue,
    Decision,
    Ended,
    Event,
    Place,
    Report,
    Stop,
    WorkerError,
)
from tunelight.session import session as sessions
from tunelight.session.mailbox import Mailbox
from tunelight.session.task import Home, Start, Task, WithObjects

_TIDY_LIMIT_S = 10.0
_RUNS_LIMIT_S = 300.0
"""How long the runs of a library that tracks experiments may take to end: what they have logged is uploaded then."""
_FETCH_LIMIT_S = 60.0
"""How long rank 0 may take to hand out references that it has made already."""
_LINGER_S = 0.2
"""How old a report that needs no answer may become before it is sent, with those that followed it."""
_BATCH = 1000
"""How many events are sent at once."""
_STUCK = ("connections to other ranks that did not end",)
CONCURRENCY = 6
"""How many calls a worker answers at the same time: a poll that waits, and short ones."""
WARM_IMPORTS = ("torch", "torch.distributed", "tunelight.lightning.callbacks", "tunelight.lightning.strategies")


def warm_imports() -> None:
    """Import what every trial needs, once in the life of a worker."""
    import importlib

    with collector_resting():
        for name in WARM_IMPORTS:
            importlib.import_module(name)
    import torch

    allowed = os.environ.get("OMP_NUM_THREADS", "")  # by Ray: a fork may have imported torch with another number
    if allowed.isdigit() and int(allowed) not in (0, torch.get_num_threads()):
        torch.set_num_threads(int(allowed))
    # Lightning's use of torch's trees warns once a run and rank, and users can do nothing about it.
    warnings.filterwarnings("ignore", message=r".isinstance\(treespec, LeafSpec\)", category=FutureWarning)
    for name in (flavour(), FABRIC[flavour()], "lightning", ""):  # a logger's filter would miss its children's records
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_worth_a_line)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Tell whether a record of Lightning belongs in a trial's log: not what it says of tunelight's own doings."""
    return not any(words in record.getMessage() for words in ("litlogger", "entry point 'tunelight'", "`weights_only`"))


class TrialBox:
    """The events and decisions of one trial.

    Ray may run two calls in another order than they were sent. The first call for a trial makes its box, so that no
    call reaches another trial.
    """

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.mailbox = Mailbox()
        self.given: dict[str, Any] = {}
        """What rank 0 made for all ranks, by key."""
        self._sent_at = time.monotonic()

    def read(self, timeout_s: float) -> list[Event]:
        """Return the events that have come. Waits for the first one, for up to ``timeout_s`` seconds.

        Reports that need no answer are sent together, every ``_LINGER_S`` seconds at most; all other events at once.
        """
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self.events.get(timeout=timeout_s))
            while len(events) < _BATCH:
                last = events[-1]
                waits = not isinstance(last, Report) or self.mailbox.holds(last.number)
                linger_s = 0.0 if waits else self._sent_at + _LINGER_S - time.monotonic()
                events.append(self.events.get(timeout=max(0.0, linger_s)))
        if events:
            self._sent_at = time.monotonic()
        return events


class _RayStore:
    """Ray's object store, for states that trials exchange."""

    @staticmethod
    def put(value: Any) -> Any:
        """Copy a state into this node's store, where it stays while this process and a reference live."""
        return ray.put(value)

    @staticmethod
    def get(reference: Any, timeout_s: float) -> Any:
        """Return the state that another trial's head has offered, by a reference to its answer; None for no offer."""
        offered = ray.get(reference, timeout=timeout_s)
        return ray.get(offered[0], timeout=timeout_s) if offered else None


class GangWorker:
    """One rank of a gang. The trial runs in a thread, and only ``join`` and ``poll`` wait.

    ``assigned``: in a process that Ray does not know, what it has assigned to the worker that started it.
    Runs on: worker.
    """

    _ending_runs = False
    _trackers: Any = None
    """The module for runs of W&B and MLflow, once a trial has begun."""
    _reused = False
    _stop_reason: str | None = None

    def __init__(self, home: Home, environ: dict[str, str], assigned: Assigned | None = None) -> None:
        self._assigned = mine = assigned or Assigned.here()
        os.environ.update(environ)
        _add_paths(home.sys_path)
        with contextlib.suppress(OSError):
            os.chdir(home.cwd)
        os.environ[CACHE_VARIABLE] = str(Path(mine.folder, "tunelight-cache"))  # this node's
        ensure_entry_points(Path(os.environ[CACHE_VARIABLE]))
        decide_in_worker()
        warm_imports()
        self._rendezvous = Rendezvous()
        self._gpu_memory = GpuMemory(mine.share)
        self._clean = CleanState(self._gpu_memory)
        self._compiled = Compiled()
        self._task: Task | None = None
        self._trial = TrialBox(0)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._session: sessions.Session | None = None
        self._unsettled: sessions.Session | None = None
        self._place: Place | None = None
        self._left: tuple[str, ...] = ()
        self._began_ns = 0

    def locate(self) -> Location:
        """Return where this worker runs. It answers once its imports are done."""
        return Location(
            node_id=self._assigned.node_id,
            address=self._assigned.address,
            pid=os.getpid(),
            hostname=os.uname().nodename,
            gpus=self._assigned.gpus,
            versions=installed(),
        )

    def arrive(self, hook: bytes | None) -> Location:
        """Run the user's hook, before this worker first meets others; return where it runs."""
        if hook is not None:
            with collector_resting():
                _load(hook)()
            self._clean = CleanState(self._gpu_memory)  # every trial starts with what the hook has set
        import torch

        location = self.locate()
        check_usable(location.gpus, self._assigned.share, torch.version)
        used = cuda_devices()
        if torch.version.hip is not None:
            used = torch.cuda.device_count() if torch.cuda.is_initialized() else None
        return replace(location, seen=fixed_gpus(location.gpus, used, visible_variable(torch.version)))

    def host(self, address: str, backend: str, layout: tuple[int, ...]) -> tuple[int, int]:
        """Open the gang's store, and the backend's rendezvous, on ``address``; return their ports. Runs on: rank 0."""
        return self._rendezvous.host(address, backend, layout)

    def join(self, meeting: Meeting, place: Place) -> None:
        """Meet the other ranks, as ``place``."""
        self._place = place
        if place.gpus:
            import torch

            # All GPUs of the node's ranks at the first meeting, so that they can reach one another; the same later.
            os.environ[visible_variable(torch.version)] = ",".join(place.gpus)
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            # torch looks once in a process whether deterministic products are possible, which a later trial may want.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._rendezvous.join(meeting, place)
        self._clean.remember_environment()

    def leave(self) -> tuple[str, ...]:
        """Leave the gang's group and store once the last trial has ended; return what that left behind."""
        if self._thread is not None:
            self._thread.join(_TIDY_LIMIT_S)
            if self._thread.is_alive():
                return (f"a trial that has not been cleaned up within {_TIDY_LIMIT_S:.0f} s",)
        if self._left == _STUCK or not self._rendezvous.close():
            return _STUCK
        return self._left

    def start(self, start: Start, task: Task | None) -> None:
        """Start a trial in a new thread, because grad and inference mode are thread-local.

        ``task``: None where it is that of the start before.
        """
        if self._thread is not None:
            self._thread.join()  # at once: it has posted its last event
        self._reused = task is None
        task = self._task = self._task if task is None else task
        assert task is not None  # a worker's first start brings one
        box = self._box(start.serial)
        box.mailbox.put(Continue(start.until))
        self._thread = threading.Thread(target=self._run, args=(task, start, box), name="tunelight-trial", daemon=True)
        self._thread.start()

    def _box(self, serial: int) -> TrialBox:
        with self._lock:
            if serial > self._trial.serial:
                self._trial = TrialBox(serial)
            return self._trial if serial == self._trial.serial else TrialBox(serial)

    def poll(self, serial: int, timeout_s: float) -> tuple[list[Event], Sign]:
        """Return the events of trial ``serial`` and the rank's progress; wait ``timeout_s`` at most for the first."""
        events = self._box(serial).read(timeout_s)
        progress = None if self._session is None else self._session.progress
        thread = self._thread
        frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
        return events, sign_of(progress, frame)

    def collectives(self) -> tuple[Collective, ...]:
        """Return the last collective that this rank has begun in the running trial, of each process group."""
        return latest(flight_records(), self._began_ns)

    def answer(self, serial: int, decision: Decision) -> None:
        """Give a decision to trial ``serial``. Runs on: rank 0; for Adopt and Hurry, every rank."""
        self._box(serial).mailbox.put(decision)

    def tell(self, serial: int, stop: Stop) -> None:
        """Pass on to the head of trial ``serial`` what its driver tells it. Runs on: rank 0."""
        self._box(serial).events.put(stop)

    def abort(self, serial: int, reason: str) -> None:
        """Cancel trial ``serial``, which ends where it next waits or reports."""
        self._box(serial).mailbox.abort(reason)
        session = self._session
        if session is not None and session.shared is not None and serial == self._trial.serial:
            session.shared.end()  # whoever waits for data that a lost rank should have taken stops waiting

    def writes(self, serial: int) -> bool:
        """Tell whether trial ``serial`` is writing a checkpoint, or is ending a fit or its loggers' runs."""
        session = self._unsettled
        busy = self._ending_runs or (session is not None and session.busy)
        return busy and serial == self._trial.serial

    def given(self, serial: int, key: str) -> Any:
        """Return a value that rank 0 has made for all ranks in trial ``serial``. Runs on: rank 0, called by others."""
        return self._box(serial).given[key]

    def _run(self, task: Task, start: Start, box: TrialBox) -> None:
        ended: Ended | None = None
        self._clean.freeze()
        began, self._began_ns = time.time(), time.time_ns()
        post = box.events.put
        self._left, self._stop_reason = (), None
        try:
            with self._output(task, start, post):
                ended = self._train(task, start, box)
                try:
                    late = self._end_runs(failed=ended.error is not None or box.mailbox.aborted is not None)
                finally:
                    if ended.error is not None:
                        post(ended)  # first, so that peers end soon; ``leave`` waits for the clean-up
                parted = self._clean_up(task, late)
            if not task.job:
                first = self._place is None or self._place.local_rank == 0  # of this node's, the last to need it
                bring_home(start.trial_dir, began, over=first and ended.error is None)
            if ended.error is None:
                post(Ended(ended.rank, ended.stopped, left_behind=self._left, parted=parted))
        except BaseException as error:  # noqa: BLE001 - the head must know of any error
            self._left = (f"an end that failed: {type(error).__name__}: {error}",)
            if ended is None or ended.error is None:
                lost = self._rendezvous.lost_peer(error)
                post(Ended(self._rank, error=self._describe(error, secondary=lost), left_behind=self._left))

    def _end_runs(self, *, failed: bool) -> tuple[str, ...]:
        """End the runs of libraries that track experiments; return what has not ended.

        Before the head hears of a failure, for it may end this process then.
        """
        if self._trackers is None:
            return ()
        why = self._stop_reason
        ended = "finished" if why is None else "paused" if why in GOES_ON else "stopped"
        with replaced(self, _ending_runs=True):
            outcome = "failed" if failed or why == "diverged" else ended
            return tuple(self._trackers.end_runs(outcome, limit_s=_RUNS_LIMIT_S))

    def _clean_up(self, task: Task, late: tuple[str, ...]) -> bool:
        """Reset the process after a trial; return whether the gang's group is gone.

        An error here costs the worker, and not the trial, which is over.
        """
        try:
            if not self._rendezvous.group.settle():
                self._left = _STUCK  # and what it does on a GPU may never end
                return True
            summary = self._compiled.end()
            self._left += (*late, *self._clean.restore(None if task.job else self._compiled.drop))
            if summary and self._rank == 0 and not task.job:
                sys.stdout.write(f"{summary}\n")
            return not self._rendezvous.group.tidy()
        except Exception as error:  # noqa: BLE001 - of any library that a trial has used
            self._left = (f"a clean-up that failed: {type(error).__name__}: {error}",)
            return True

    def _output(
        self, task: Task, start: Start, post: Callable[[Event], None]
    ) -> contextlib.AbstractContextManager[None]:
        if task.terminal is not None:
            from tunelight.extras.standalone.output import to_driver

            return to_driver(self._rank, task.terminal, post)
        node = 0 if self._place is None else self._place.node_rank
        return to_trial_log(start.trial_dir, self._rank, task.verbose, node)

    def _train(self, task: Task, start: Start, box: TrialBox) -> Ended:
        assert self._place is not None  # join comes before start
        channel = self._rendezvous.channel(f"{start.serial}/{start.trial_id}")
        shared = self._shared(task, start, channel, box)
        session = sessions.Session(
            task, start, self._place, channel, box.events.put, box.mailbox, shared=shared, store=_RayStore()
        )
        self._unsettled = session
        try:
            self._clean.begin(start.seed, task.home.cwd, _trial_environment(task, start.trial_dir), self._place.gpu)
            self._compiled.begin()
            _add_paths(task.home.sys_path)
            sessions.set_current(session)
            know_rank(self._place.rank)
            self._session = session
            train = _load(task.train)
            session.begin(train.restored if isinstance(train, WithObjects) else dict)
            self._trackers = _trackers()
            if self._trackers is not None and not task.job:
                self._trackers.begin(start.trial_dir, start.trial_id, start.config, rank=self._place.rank)
            train(start.config)
            session.check_finished()
        except TrialStopped as stop:
            self._stop_reason = str(stop)
            return Ended(self._rank, stopped=True)
        except BaseException as error:  # noqa: BLE001 - a SystemExit is a failure of the trial, too
            return Ended(self._rank, error=self._fail(error, channel, box, job=task.job))
        finally:
            self._session = None
            sessions.set_current(None)
            shared.end()
            with contextlib.suppress(Exception):  # an error here is no longer the trial's
                session.writing.settle()
            self._unsettled = None
        return Ended(self._rank)

    def _shared(self, task: Task, start: Start, channel: StoreChannel, box: TrialBox) -> sessions.MadeByRankZero:
        assert self._place is not None  # join comes before start
        return sessions.MadeByRankZero(
            channel,
            lead=self._place.rank == 0,
            alone=self._place.world_size == 1,
            given=box.given,
            fetch=lambda key: ray.get(start.lead.given.remote(start.serial, key), timeout=_FETCH_LIMIT_S),
            aborted=lambda: box.mailbox.aborted,
            datasets=task.datasets,
        )

    def _fail(self, error: BaseException, channel: StoreChannel, box: TrialBox, *, job: bool) -> WorkerError:
        """Describe a failure, and leave the group so that peers stop waiting for this rank."""
        if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
            error = error.__context__  # by which Lightning ended
        called_off = box.mailbox.aborted is not None  # because another rank failed
        first = channel.failed_first(self._rank)
        self._rendezvous.group.leave()
        secondary = called_off or first != self._rank or self._rendezvous.lost_peer(error) or lost_data(error)
        if advice := self._rendezvous.group.advice(error):
            error.add_note(advice)
        described = self._describe(error, secondary=secondary, carry=job)
        if not job:  # a driver raises the error of its job
            sys.stderr.write(described.traceback)  # to the trial's log, where people look first
        return described

    def _describe(self, error: BaseException, *, secondary: bool, carry: bool = False) -> WorkerError:
        text = "".join(traceback.format_exception(error))
        name = type(error).__name__
        message = f"{error}{of_reuse(str(error)) if self._reused else ''}"
        _clear_frames(error)
        exception = carried(error) if carry else None
        described = WorkerError(
            self._rank, os.uname().nodename, name, message, text, secondary=secondary, exception=exception
        )
        if isinstance(error, CheckpointError) and isinstance(error.__cause__, OSError):  # it could not be fetched
            return replace(described, cause="unresponsive")
        return described

    @property
    def _rank(self) -> int:
        return -1 if self._place is None else self._place.rank


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error and of those that led to it: they refer to the Trainer, the model and its data."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            errors += [each.__cause__, each.__context__]


def _trial_environment(task: Task, trial_dir: str) -> dict[str, str]:
    """Return variables by which Lightning writes to the trial's folder; for a job, the width of the terminal.

    A job's Trainer was made on the driver, with its own folder.
    """
    if task.terminal is not None:
        return {"COLUMNS": str(task.terminal.columns)}
    quiet = {} if task.verbose else {"PL_TRAINER_ENABLE_MODEL_SUMMARY": "False"}
    return {"PL_TRAINER_DEFAULT_ROOT_DIR": trial_dir, **quiet}


def _trackers() -> Any:
    """Return the module for runs of W&B and MLflow, ready for them; None without the second storey."""
    try:
        from tunelight.extras import trackers
    except ImportError:
        return None
    trackers.install(Path(os.environ[CACHE_VARIABLE]))
    return trackers


def _load(train: Any) -> Callable[..., object]:
    """Unpickle the train function, again for each trial, so that the objects that it captured are unchanged."""
    try:
        return receive(train)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise TrainFunctionError(
            f"The train function needs module {error.name!r}, which this worker cannot import. Pass "
            "runtime_env={'working_dir': '.'} to tunelight.run, or install the module on every node."
        ) from error


def _add_paths(paths: tuple[str, ...]) -> None:
    """Add the driver's import paths that exist on this node."""
    sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))  # noqa: PTH112


# What torch.compile has compiled in a worker: it stays from trial to trial, and takes nothing from the next one.

# torch counts the compiled versions of a function in a whole process, and runs a ninth uncompiled: a warm worker would
# train its fifth width of a model eagerly, where a new process would compile it. Here each trial may add as many
# versions as a new process, whatever earlier trials have left; what has been compiled is dropped where it becomes much.


KEPT: Final = 64
"""How many graphs stay: each call of a function tries its versions one after another."""


class Compiled:
    """The graphs of one worker. ``begin`` and ``end`` are called in the trial's thread, for which torch counts."""

    def __init__(self) -> None:
        self._limit: int | None = None
        """What torch allows by itself, once that is known."""
        self._before = compiled_graphs()
        self._dropped_at = self._before
        self._trees = share_graph_trees(None)
        """CUDA graphs: those of ``mode="reduce-overhead"``."""

    def begin(self) -> None:
        """Give a trial the room that it would have in a new process."""
        self._trees = share_graph_trees(self._trees)
        self._before = compiled_graphs()
        if (found := recompile_limit()) is None:
            return  # nothing was compiled in this process yet
        if self._limit is None:
            self._limit = found
        set_recompile_limit(self._limit + self._before - self._dropped_at)

    def drop(self) -> None:
        """Drop all graphs, and the memory that they hold on a GPU. Call it between two trials."""
        if recompile_limit() is not None:
            forget_compiled()
            self._dropped_at = compiled_graphs()

    def end(self) -> str:
        """Return what is worth a line of the trial's log, and drop graphs if there are many."""
        self._trees = share_graph_trees(self._trees)
        now, limit = compiled_graphs(), self._limit
        made, earlier = now - self._before, self._before - self._dropped_at
        summary = f"torch.compile made {made} graph{'s' * (made != 1)}" if made else ""
        if summary and earlier:
            summary += f", beside {earlier} of earlier trials"
        full = limit is not None and (versions() or 0) >= limit + earlier  # torch then runs that function eagerly
        if full or now - self._dropped_at > KEPT:
            self.drop()
            summary = f"{summary}; all are dropped after this trial" if summary else ""
        return summary


# --- A worker's exception on the driver ------------------------------------------------------------


_ONCE = ("context has already been set", "interop threads", "already registered", "already been registered")
"""Words of errors of calls that work once in a process."""


def of_reuse(message: str) -> str:
    """Return what to add to an error of a call that works once in a process, on a worker that has trained before."""
    added = " (Workers train one trial after another. reuse_gangs=False gives each trial new ones.)"
    return added if any(words in message for words in _ONCE) else ""


def carried(error: BaseException) -> bytes | None:
    """Return an exception pickled for the driver; None where that does not work, for a large one, and for an exit."""
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever pickling a user's object raises
        return None
    return data if isinstance(error, Exception) and len(data) <= _MOST_CARRIED else None


_MOST_CARRIED = 2**20
"""The largest size of a pickled exception, in bytes."""


def lost_data(error: BaseException | None) -> bool:
    """Tell whether an error follows from the end of an actor, such as a dataset's, which ends with rank 0."""
    while error is not None:
        if isinstance(error, RayActorError):
            return True
        error = error.__cause__ or error.__context__
    return False
