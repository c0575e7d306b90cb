"""The driver's launcher: sends a Trainer's run to a gang and brings its results back."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle

from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import Checkpoints
from tunelight.cluster.connect import check_cluster, use_ray
from tunelight.cluster.local import with_forks
from tunelight.compat.lightning import VARIABLE, Callback, Checkpoint, _Launcher, pl
from tunelight.compat.ray import in_function_trainable, is_client, session_folder, without_hints_on_deaths
from tunelight.errors import ResourceError, StrategyError, WorkerFailedError, guess
from tunelight.extras.standalone import job
from tunelight.extras.standalone.cell import shown
from tunelight.extras.standalone.pool import Held, pool
from tunelight.extras.standalone.transfer import Files, read
from tunelight.gang.gang import Gang
from tunelight.gang.orders import DRAINED, make_leave_check
from tunelight.gang.parcel import Packed, arrives, unpack
from tunelight.gang.placement import current_group
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec, passed_on
from tunelight.lightning.launcher import give_back, hold
from tunelight.lightning.strategies.base import GangStrategy
from tunelight.machine.processes import is_terminal, write
from tunelight.messages import CheckpointInfo, Continue, Report, Stop, Terminal, Text
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation, check_devices
from tunelight.session.task import Home, Start, Task

_serials = itertools.count(1)
_runs = itertools.count(1)
_SAFE = ".tunelight"
SAFE_EVERY_S = 5.0
"""Seconds between the checkpoints that a run writes to survive a lost worker, at least."""
_LOOK_S = 1.0
"""Seconds after which the driver of an elastic gang looks again whether workers have arrived."""
_NO_STATES = (
    "The optimizers' states are gone with the workers that held them: there was no fit, its workers have ended, or "
    "another job has run on them since. Ask for them right after fit."
)


class DriverLauncher(_Launcher):
    """Runs fit, validate, test and predict of one Trainer on a gang. Runs on: driver."""

    def __init__(self, strategy: GangStrategy, before: _Launcher | None) -> None:
        self.trainer: pl.Trainer
        self._strategy = strategy
        self._busy = threading.Lock()
        self._held: Held | None = None
        self._lease = 0
        if isinstance(before, DriverLauncher):
            self._busy, self._held, self._lease = before._busy, before._held, before._lease
        self._trained: tuple[Held, int] | None = None
        self._stopped = False
        """True where Tune has stopped the trial of this process in the last run: its ranks have ended it by then."""

    @property
    def is_interactive_compatible(self) -> bool:
        """Return True: it works in notebooks."""
        return True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Run ``function``, a method of the Trainer, on the gang; return its result.

        Raises: the exception of the rank that failed, or WorkerFailedError where there is none; StrategyError,
            ResourceError, TrainFunctionError or SettingsError before any worker starts; GangError if workers do not
            start.
        """
        if trainer is None:
            return function(*args, **kwargs)
        self._check(trainer)
        if not self._busy.acquire(blocking=False):
            raise StrategyError(
                f"This {type(self._strategy).__name__} is running another Trainer's job. Give each Trainer a strategy "
                "of its own."
            )
        try:
            self.trainer = trainer
            give_back(trainer)
            self._stopped = False
            for logger in trainer.loggers:
                _ = logger.version  # fixes the folder, once for all ranks
            sent = job.pack_run(trainer, function.__name__, args, kwargs)
            needed = job.needed_checkpoints(trainer, function.__name__, args, kwargs)
            name = f"{socket.gethostname()}-{os.getpid()}-{next(_runs)}"
            safe = Path(trainer.default_root_dir, _SAFE, name).absolute()  # a gang on several nodes needs it on all
            handed_in = self._run(job.run_on_rank, run=sent.run, files=needed, folder=safe)
        except BaseException as error:
            # A checkpoint would be of the driver's weights: the ranks' callbacks have written the trained ones.
            hold(trainer, Callback if self._stopped else Checkpoint, loggers=self._stopped)
            if isinstance(error, WorkerFailedError):
                error = own_error(error)
                if isinstance(error, job.NotUnpickledError):
                    error = job.unsent(trainer, args, kwargs, error, arrives)
                raise error from None
            raise
        finally:
            self._busy.release()
        return job.recover(trainer, sent, handed_in, (*args, *kwargs.values()), self._fetch)

    def kill(self, signum: int) -> None:
        """End the workers."""
        self.shutdown()

    def shutdown(self) -> None:
        """End this strategy's workers, unless another strategy has taken them since."""
        if self._held is not None:
            pool.end(self._held, self._lease)
            self._held = self._trained = None

    def training_state(self, *, missing_ok: bool = False) -> dict[str, Any]:
        """Fetch the optimizers' and schedulers' states of the last fit. Raises: StrategyError if they are gone."""
        held, serial = self._trained or (None, 0)
        if held is None or held.closed or held.gang.trials != serial:
            if missing_ok:
                return {}
            raise StrategyError(_NO_STATES)
        (packed,) = self._run(job.hand_in_training_state).values()
        state = unpack(ray.get(packed))
        if state is None and not missing_ok:
            raise StrategyError(_NO_STATES)
        return dict(state or {})

    def _fetch(self, paths: list[str]) -> Files:
        """Fetch checkpoints from rank 0's disk."""
        (reference,) = self._run(job.hand_in_files, paths=paths).values()
        files: Files = ray.get(reference)
        return files

    # -- checks before anything starts

    def _check(self, trainer: pl.Trainer) -> None:
        strategy, wanted = self._strategy, self._strategy.workers
        name = type(strategy).__name__
        if trainer._accelerator_connector.precision_plugin is not strategy.precision_plugin or (
            strategy.launcher is not self
        ):
            raise StrategyError(
                f"This {name} has been given to another Trainer since: a strategy belongs to one Trainer. Make one "
                "for each; they share warm workers all the same."
            )
        _check_group(getattr(strategy, "_process_group_backend", None))
        connector = trainer._accelerator_connector
        flag = connector._devices_flag
        devices = len(flag) if isinstance(flag, list | tuple) else int(flag)
        nodes = connector._num_nodes_flag
        automatic = (1, torch.cuda.device_count())  # what Lightning makes of devices="auto"
        if (nodes > 1 and devices * nodes != wanted.number) or (
            nodes == 1 and devices not in (*automatic, wanted.number)
        ):
            raise StrategyError(
                f"Trainer(devices={devices}, num_nodes={nodes}) contradicts {name}(num_workers={wanted.number}): leave "
                "devices and num_nodes out, the strategy says how many workers there are."
            )

    # -- a job on the gang

    def _run(
        self,
        function: Callable[[dict[str, Any]], None],
        *,
        run: Packed | None = None,
        files: Sequence[str] = (),
        paths: Sequence[str] = (),
        folder: Path | None = None,
    ) -> dict[int, Any]:
        """Run ``function`` on every rank; return their results by rank.

        Args:
            run: a packed Trainer's run.
            files: checkpoints that it may load.
            paths: files to fetch from rank 0.
            folder: where a run writes checkpoints to survive a lost worker; deleted after it.
        """
        folder = folder or Path.cwd()
        held = self._take(runs_code=run is not None)
        config: dict[str, Any] = {"paths": list(paths)}
        if files and _elsewhere(held.gang):
            config["files"] = ray.put(read(files))
        reporter = _reporter()
        start = Start(
            trial_id=f"job-{next(_serials)}",
            trial_dir=reporter.folder if reporter else str(folder),
            config=config,
            until=1 if reporter else None,
        )
        task = Task(
            train=cloudpickle.dumps(function),
            home=Home.here(),
            verbose=1,
            terminal=Terminal(is_terminal(sys.stdout), shutil.get_terminal_size().columns),
            reports_to="tuner" if reporter else "driver",
            evaluation="ddp" if self._strategy.workers.least is None else "exact",
            checkpoints=Checkpoints(share=1.0) if reporter else Checkpoints(every_s=SAFE_EVERY_S),
        )
        steady = _JobRun(task, start, self._strategy.workers.failures, run)
        while True:
            leave = None if reporter or run is None else make_leave_check(held.gang, with_head=False)
            try:
                with without_hints_on_deaths():
                    return self._finished(steady, held, leave, reporter, folder)
            except WorkerFailedError as error:
                if error.error.type_name != DRAINED:
                    raise
                _say(f"tunelight: {error.error.message}; going on elsewhere")
            pool.close(held)
            held = self._take(runs_code=run is not None)

    def _finished(
        self,
        steady: ResilientRun,
        held: Held,
        leave: Callable[[], Stop | None] | None,
        reporter: TrialReporter | None,
        folder: Path,
    ) -> dict[int, Any]:
        """Run a job to its end; return the ranks' results. Gives the gang back or closes it, unless it must move."""
        try:
            steady.start(held.gang, leave)
            handed_in = _listen(steady, reporter)
        except WorkerFailedError as error:
            if error.error.type_name == DRAINED:
                raise
            if (last := _newest(folder)) is not None:
                error.add_note(f"Its last checkpoint is {last.path}: fit(..., ckpt_path=...) continues from there.")
            else:
                _forget(folder)  # a run without checkpoints leaves a note of its loggers there
            self._give_back(held, reporter)
            raise
        except BaseException as error:  # Ctrl-C, or a stop by Tune: the ranks' next boundary is not waited for
            if isinstance(error, SystemExit) and reporter is not None:
                self._stopped = True
                held.gang.finish(reason="stopped")
                self._give_back(held, reporter)
            else:
                pool.close(held)
            raise
        _forget(folder)
        self._trained = held, held.gang.trials  # later requests leave its states as they are
        self._give_back(held, reporter)
        return handed_in

    def _give_back(self, held: Held, reporter: TrialReporter | None) -> None:
        if reporter is not None:
            reporter.close()
        pool.give_back(held, self._strategy.workers.idle_timeout_s)

    def _take(self, *, runs_code: bool) -> Held:
        """Return a gang: this strategy's, another warm one like it, or a new one; see :meth:`Pool.take`."""
        wanted, strategy = self._strategy.workers, self._strategy
        timeout: timedelta | None = getattr(strategy, "_timeout", None)
        check_devices(wanted.gpus, wanted.resources or {}, "resources_per_worker['GPU']")
        group = current_group()
        custom = dict(wanted.resources or {})
        each = Reservation(wanted.number, wanted.cpus, wanted.gpus, resources_per_worker=custom, least=wanted.least)
        first, per_bundle, reservation = 0, 1, each
        if group is not None:
            first = _first_bundle(group.bundle_specs, each, type(strategy).__name__)
        else:
            use_ray()
            if wanted.hosts is not None:
                per_bundle = wanted.number // wanted.hosts
                reservation = Reservation(
                    wanted.hosts,
                    wanted.cpus * per_bundle,
                    wanted.gpus * per_bundle,
                    resources_per_worker={name: amount * per_bundle for name, amount in custom.items()},
                )
            who = f"{type(strategy).__name__}(num_workers={wanted.number})"
            reservation = check_cluster(reservation, who=who, spread=wanted.hosts is not None)
        spec = GangSpec(
            replace(each, workers=reservation.workers * per_bundle, most=wanted.number),
            wanted.failures,
            runtime_env=with_forks(None, each.cpus_per_worker),
            backend=strategy.backend,
            first_bundle=first,
            workers_per_bundle=per_bundle,
            process_group=getattr(strategy, "_process_group_backend", None),
            timeout_s=None if timeout is None else timeout.total_seconds(),
            environ={
                **passed_on(),
                VARIABLE: pl.__name__,
            },
            init_hook=None if wanted.init_hook is None else cloudpickle.dumps(wanted.init_hook),
            home=Home.here(),
        )
        self._held = pool.take(spec, reservation, group, spread=wanted.hosts is not None, say=_say, runs_code=runs_code)
        self._lease = self._held.lease
        return self._held


class _JobRun(ResilientRun):
    """The run of a job; ``run``: a packed Trainer's run."""

    def __init__(self, task: Task, start: Start, failures: FailurePolicy, run: Packed | None) -> None:
        super().__init__(task, start, failures)
        self._run = run

    def say(self, text: str) -> None:
        _say(f"tunelight: {text}")

    def newest(self, number: int, base: CheckpointInfo | None) -> CheckpointInfo | None:
        if self.task.reports_to == "tuner":  # only what it has got counts
            return super().newest(number, base)
        return _newest(Path(self.next_start.trial_dir))

    def complete(self, start: Start) -> Start:
        # Put into Ray's store at each start, so that Ray may free it once all ranks have it.
        return start if self._run is None else replace(start, config={**start.config, "run": ray.put(self._run)})


def _check_group(backend: str | None) -> None:
    """Raise StrategyError for a ``process_group_backend`` that torch does not have, before workers start."""
    known = torch.distributed.Backend.backend_list if torch.distributed.is_available() else []
    for name in [] if backend is None or not known else [part.split(":")[-1] for part in backend.split(",")]:
        if name.lower() not in known:
            raise StrategyError(
                f"torch.distributed has no process_group_backend={name!r}, only {', '.join(known)}."
                f"{guess(name, known)} Leave it out (nccl for GPUs, else gloo), or import the module that registers it "
                "here too."
            )


def _listen(run: ResilientRun, reporter: TrialReporter | None) -> dict[int, Any]:
    """Follow a job to its end; return the ranks' results of its last start. Raises: TrialError with the cause."""
    elastic = run.gang.spec.elastic
    with shown() as show:
        while run.running:
            event = run.next_event(_LOOK_S if elastic else None)
            run.resize_if_due()
            if isinstance(event, Text):
                show(event)
            elif isinstance(event, Report) and reporter is not None:
                for note in event.notes:
                    _say(note)
                reporter(event)
                run.answer(Continue(until=event.number + 1))
    return run.handed_in


def _newest(folder: Path) -> CheckpointInfo | None:
    """Return the checkpoint that a run continues from, if there is one."""
    info, warning = checkpoints.resume_point(folder)
    if warning is not None:
        _say(f"tunelight: {warning}")
    return info


def _forget(folder: Path) -> None:
    """Delete the folder of a run's own checkpoints."""
    if folder.parent.name == _SAFE:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless another run's is in it


def _elsewhere(gang: Gang) -> bool:
    """Return whether a rank runs on another node than this process, perhaps with another disk."""
    if is_client():
        return True  # the node that Ray names is its server's: nothing says where this process is
    here = ray.get_runtime_context().get_node_id()
    return any(location.node_id != here for location in gang.locations)


def _say(text: str) -> None:
    write(Text(f"{text}\n", error=True))


def _first_bundle(bundles: Sequence[Mapping[str, float]], each: Reservation, name: str) -> int:
    """Return the index of worker 0's bundle in a trial's reservation. Raises: ResourceError if it is too small."""
    first = len(bundles) - each.workers
    enough = first >= 0 and all(
        bundle.get(resource, 0) + 1e-9 >= amount
        for bundle in bundles[first:]
        for resource, amount in each.worker.items()
    )
    if not enough:
        raise ResourceError(
            f"{name}(num_workers={each.workers}) needs {each}, one bundle each, but this trial has reserved {bundles}: "
            "its workers would never start. Pass resources_per_trial=tunelight.get_tune_resources(num_workers="
            f"{each.workers}, ...) to Ray Tune."
        )
    return first


class TrialReporter:
    """Passes reports on to the Tune trial of this process. Runs on: the trial's own process.

    Tune keeps copies of checkpoints (``num_to_keep`` of them).
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, report: Report) -> None:
        """Report to Tune, which may end the trial here by SystemExit."""
        from ray import tune

        if report.checkpoint is None:
            tune.report(report.metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.copy_into(report.checkpoint, folder)
            tune.report(report.metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    def close(self) -> None:
        """Delete the gang's files at its end: Tune has copies of the checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _reporter() -> TrialReporter | None:
    """Return the reporter to the Tune trial that this process runs; None outside of one.

    Its folder is not the trial's: when Tune saves the sweep, it copies that to the storage, and deletes nothing there.
    """
    if (tune := sys.modules.get("ray.tune")) is None or not in_function_trainable():
        return None
    return TrialReporter(str(Path(session_folder(), "tunelight", str(tune.get_context().get_trial_id()))))


def own_error(failed: WorkerFailedError) -> Exception:
    """Return the exception that was raised on a worker, with a note of rank, node and traceback.

    Returns ``failed`` itself where the exception was not `carried`, or this process cannot import its class.
    """
    try:
        original: Any = cloudpickle.loads(failed.error.exception or b"")
    except Exception:  # noqa: BLE001 - as above
        return failed
    if not isinstance(original, Exception):
        return failed
    for note in (str(failed), *getattr(failed, "__notes__", ())):
        original.add_note(note)
    return original
