"""run(): connects search space, searcher, scheduler, gangs, record and reporting in one Ray Tune run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray import tune

from tunelight import errors, stores
from tunelight.cluster.connect import at_once, check_ray, connected, step_of, tune_environment, waits_for
from tunelight.cluster.gcs_watch import GcsCallback, GcsWatch
from tunelight.cluster.local import env_of_workers
from tunelight.compat.lightning import VARIABLE, decide
from tunelight.compat.ray import check_version, kill_actors, silent_callback
from tunelight.errors import (
    PreemptedError,
    StorageError,
    SweepFailedError,
    TunelightError,
    guess,
    known_arguments,
)
from tunelight.gang.orders import Orders
from tunelight.gang.parcel import Code, heavy
from tunelight.gang.seat import sweep_seats
from tunelight.gang.spec import GangSpec
from tunelight.lightning.recipe import training_code, training_setting
from tunelight.machine.processes import environ_of_child
from tunelight.machine.signals import grace_s
from tunelight.messages import RESULT_KEY, DatasetHandle, Evaluation, WorkerError
from tunelight.policies import FailurePolicy, FirstTrials
from tunelight.record import (
    FINISHED,
    GAVE_UP,
    RECORD_FILE,
    SWEEP_FILE,
    Lease,
    Owners,
    RecordCallback,
    SweepState,
    create_sweep_folder,
    leased,
    mirrored,
    record_number,
    to_repeat,
    write_sweep_file,
)
from tunelight.reporting import ProgressCallback, Steps
from tunelight.resources import Reservation, reserve
from tunelight.results import SweepResults
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.choose import build_scheduler, check_company, judged_by
from tunelight.searchers import TrackingSearcher
from tunelight.searchers.choose import build_searcher, count_trials
from tunelight.session.task import Home, Task
from tunelight.settings import Checkpoints, Mode, Settings
from tunelight.settings.backends import Backend
from tunelight.settings.checks import flatten
from tunelight.settings.code import Style
from tunelight.settings.values import Folds
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.stores import delete
from tunelight.stores.tune import for_tune
from tunelight.sweep.past import SavedSweep, open_saved_sweep, sweep_file_of
from tunelight.sweep.queue import ResumeState, SweepSearch
from tunelight.sweep.replay import start_from
from tunelight.sweep.steering import Steering, SweepControl
from tunelight.trial.trainable import make_trainable
from tunelight.trial.trial import TrialSpec, trial_seed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher


class _Unset:
    """The default of arguments: the search space's setting, else the setting's default, applies."""

    def __repr__(self) -> str:
        return "<default>"


UNSET: Any = _Unset()


@known_arguments
def run(
    search_space: SearchSpace | Mapping[str, Any] | str | os.PathLike[str],
    train: Callable[[dict[str, Any]], object] | None = UNSET,
    *,
    model: Callable[..., Any] | str | None = UNSET,
    data: Callable[..., Any] | str | None = UNSET,
    trainer_args: Mapping[str, Any] | None = UNSET,
    script: str | os.PathLike[str] | None = UNSET,
    args: Sequence[str] = UNSET,
    style: Style | None = UNSET,
    datasets: Mapping[str, Any] | None = UNSET,
    data_cpus: float | None = UNSET,
    cache: bool = UNSET,
    metric: str | Sequence[str] | None = UNSET,
    mode: Mode | Sequence[Mode] = UNSET,
    num_samples: int = UNSET,
    repeats: int | Mapping[str, int] | Folds | None = UNSET,
    max_epochs: int | None = UNSET,
    scheduler: str | Mapping[str, Any] | TrialScheduler | None = UNSET,
    searcher: str | Mapping[str, Any] | Searcher | BaseSampler | None = UNSET,
    workers: int | tuple[int, int] | None = UNSET,
    cpus_per_worker: float = UNSET,
    gpus_per_worker: float = UNSET,
    resources_per_trial: Mapping[str, Any] | None = UNSET,
    backend: Backend = UNSET,
    reuse_gangs: bool = UNSET,
    checkpoints: Checkpoints | None = UNSET,
    max_concurrent: int | None = UNSET,
    time_budget: float | str | timedelta | None = UNSET,
    storage: str | os.PathLike[str] = UNSET,
    name: str | None = UNSET,
    resume: bool | Literal["force"] = UNSET,
    seed: int | None = UNSET,
    baselines: Sequence[Mapping[str, Any]] = UNSET,
    warm_start: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = UNSET,
    callbacks: Sequence[Any] = UNSET,
    failures: FailurePolicy | Mapping[str, Any] | int = UNSET,
    evaluation: Evaluation | None = UNSET,
    address: str | None = UNSET,
    runtime_env: Mapping[str, Any] | None = UNSET,
    progress: bool | Sequence[str] = UNSET,
    web: bool = UNSET,
    verbose: int = UNSET,
) -> SweepResults:
    """Search ``search_space`` with trials that each train on a gang of workers; return the results.

    A setting that is not given is taken from the search space, else it has the default in parentheses.

    Args:
        search_space: a SearchSpace, a dict of domains, a YAML file, or the name of a space that comes with tunelight.
        train: the train function, train(config), which runs on every worker of a trial.
        model, data, trainer_args: instead of ``train``: the LightningModule's and LightningDataModule's classes, and
            further Trainer arguments. Keys of the space are then ``model.lr``, ``data.batch_size``,
            ``trainer.gradient_clip_val``.
        script, args: instead of ``train``: a training script, "train.py", or a module, which is run as it is on every
            worker, with ``args`` and then an argument for each key of the space.
        style: how the script reads these: "argparse" (click and typer too), "fire", "lightning" or "hydra" (None: found
            by what it imports).
        datasets: Ray Data's datasets by name, or where to read them: {"train": ds, "val": {"parquet": path}} (none).
            Training code reads them by RayDataModule or get_dataset_shard.
        data_cpus: CPUs that trials leave free for preprocessing datasets (None: 1 if there are datasets).
        cache: read and preprocess datasets once for all trials, and keep the result in Ray's object store (False).
        metric, mode: the metric that trials are judged by, and "min" (default) or "max". With lists, the scheduler and
            ``results.best`` use the first metric, the searcher all, and ``results.pareto()`` returns the front.
        num_samples: number of trials, including baselines (10); of ``grid_search`` axes, how often they are searched.
        repeats: how often the best 5 configurations are trained in all, each time with another seed, once all other
            trials have ended: 3, {"top": 5, "repeats": 3}, or ``Folds(5)`` (None). ``results.best`` then is of the
            configuration with the best mean.
        max_epochs: epochs of a ``model=`` sweep's Trainer, and the scheduler's ``max_t`` (None).
        scheduler: "asha" (default), "fifo" (same as None), a name of Ray's, {"name": "asha", "grace_period": 2, ...},
            or a Ray Tune TrialScheduler.
        searcher: "random", "grid" (each configuration once), "auto" (what fits of Optuna's samplers), or one of these:
            "tpe", "gp", "cmaes", "sobol", "qmc", "nsgaii", "nsgaiii"; {"name": "tpe", "n_startup_trials": 20, ...}, an
            OptunaSearcher, an Optuna sampler, or a Ray Tune Searcher (None: "random"; with several metrics "nsgaii").
        workers: workers of a trial (None: from ``resources_per_trial``, else 1). (1, 4) is an elastic gang: 4 workers,
            and at least 1 while nodes are lost.
        cpus_per_worker, gpus_per_worker: resources of each worker (1, 0), fractions too; at most 1 GPU.
        resources_per_trial: the same as Ray Tune used to write it: {"cpu": head, "extra_cpu": all workers together}.
        backend: "ddp", "horovod" or "sharded": how workers train together, which the strategy has to match ("ddp").
        reuse_gangs: keep workers warm from trial to trial, fork new ones from a process that has their imports, and
            keep the Ray that this run has started for five minutes, for the next one (True; for a script each trial has
            processes of its own unless True is given, and the rest holds).
        checkpoints: Checkpoints(keep=1, every=1, every_s=0, share=0.05): how many of the best to keep in addition to
            the last two, and when to write one. None: none with ``model=`` or ``script=``.
        max_concurrent: maximum number of trials at once (None: as many as fit the cluster).
        time_budget: seconds, a timedelta or "2h", after which the sweep ends (None). Counted anew when it is resumed.
        storage, name: the sweep's folder is storage/name ("tunelight_runs", a name made from the time). ``storage``
            may be a URL, "s3://bucket/x".
        resume: resume the sweep of that ``name``, or start it if there is none (False). Finished trials stay, cut-off
            ones go on from their last checkpoint, trials are added up to ``num_samples``, and trials train on if
            ``max_epochs`` has grown. What is searched and trained must be unchanged; "force" resumes even so, and skips
            damaged lines of the record.
        seed: configurations and the trials' seeds follow from it (None: drawn, and kept by a resumed sweep).
        baselines: configurations to try first (none).
        warm_start: folders of earlier sweeps for the searcher to learn from, as far as their search spaces overlap; a
            folder that holds sweeps stands for the last 20 that reported the metric (none).
        callbacks: Ray Tune Callbacks, on the driver.
        failures: FailurePolicy(max_failures=3, ...), {"hang_timeout_s": 60}, or only how many failures (lost workers
            and nodes, hangs) a trial survives, each time continuing from its last checkpoint.
        evaluation: Lightning's validation and test: "ddp", as its DDP does, or "exact", with one process's values for
            any number of workers (None: "ddp" for gangs of a fixed size, "exact" for elastic ones).
        address: a Ray cluster (None: an initialised Ray, else RAY_ADDRESS, else tunelight's own here).
        runtime_env: Ray's (working_dir, pip, env_vars, ...), for the sweep's workers. On a remote cluster, the driver's
            working directory is sent as working_dir (None).
        progress: show the live table (True), or which columns it has after trial and state: hyperparameters, metrics,
            ``workers``, ``epoch``, ``best``, ``time``, ``GPU``.
        web: serve a live page on this machine until a minute after the sweep, if none is open, and print where (False).
        verbose: 0: only tunelight's output; 1: also that of trials and Lightning; 2: also Ray's (0).

    Returns: the results, also after Ctrl-C or at the end of the time budget. Raises: subclasses of TunelightError,
    before Ray starts where that is possible; after SIGTERM PreemptedError, which ends a script with exit code 75 once
    trials have written a checkpoint. Runs on: driver.
    """
    given = {key: value for key, value in locals().items() if key != "search_space" and value is not UNSET}
    space = SearchSpace.of(search_space)
    settings = Settings(**{**space.settings, **given})
    check_settings(space, settings)
    control = SweepControl()
    try:
        results = _run_sweep(space, settings, control)
    except KeyboardInterrupt:  # while no trial was there to be told
        if control.signals.received is not signal.SIGTERM:
            raise
        raise PreemptedError(None) from None
    if control.signals.received is signal.SIGTERM and results.ended in ("interrupted", None):  # None: the disk is full
        raise PreemptedError(results)
    return results


def _run_sweep(space: SearchSpace, settings: Settings, control: SweepControl) -> SweepResults:
    settings = replace(settings, baselines=space.plain_configs(settings.baselines))
    space = space.plain()
    with contextlib.ExitStack() as stack:
        past = stack.enter_context(open_saved_sweep(settings)) if settings.resume else None
        settings = settings if past is None else past.steered(settings)
        if settings.seed is None:
            seed = None if past is None else past.sweep_file.get("seed")
            settings = replace(settings, seed=secrets.randbelow(2**31) if seed is None else seed)
        check_ray(settings)
        grace_s()
        if settings.web:
            from tunelight.extras.web.server import LivePage, check_installed

            check_installed(web=True)
        steps = stack.enter_context(Steps(shown=bool(settings.progress)))
        steps("Checking the sweep")
        sweep = stack.enter_context(claimed(_prepare(space, settings, past, control), past))
        if past is not None and not sweep.to_do:
            past.settle(sweep.searcher)
            return SweepResults.load(sweep.folder, space.objects)
        page = LivePage(sweep.folder) if settings.web else None
        steps(step_of(settings.address))
        with (
            connected(settings, sweep.reservation, sweep.folder / SWEEP_FILE, control.signals) as (reservation, watch),
            control.signals,  # after Ray, which installs a handler of SIGTERM when it starts
            served(settings, reservation) as handle,
        ):
            if page is not None:
                page.say()
            steps(f"Starting the first trial, workers: {reservation.workers}")
            try:
                _tune(replace(sweep, reservation=reservation), control, watch, handle, steps)
            except SweepFailedError as error:
                raise error.with_traceback(None) from None  # the traceback of Tune's loop is of no use
        if sweep.lease is not None:
            sweep.lease.check()  # what another driver records is none of this one's results
        return SweepResults.load(sweep.folder, space.objects)


def _prepare(space: SearchSpace, settings: Settings, past: SavedSweep | None, control: SweepControl) -> PreparedSweep:
    """Build a sweep's parts, and for a resumed one restore their state."""
    folder = Path() if past is None else past.folder  # that of a new sweep is created after all checks
    reservation, code, scheduler, searcher = build_parts(
        space, settings, None if past is None else folder, on_change=control.change
    )
    if isinstance(searcher, TrackingSearcher) and settings.warm_start:
        settings = replace(settings, warm_start=searcher.sweeps)
    at_first = reservation
    if scheduler.resizes and reservation.least is not None:
        at_first = reservation.starting(reservation.least)  # the scheduler decides who gets more
    sweep_file = sweep_file_of(space, settings, reservation, at_first, code)
    if past is None:
        start, baselines = ResumeState(), [space.filled(config) for config in settings.baselines]
    else:
        past.check(space, settings, sweep_file)
        scheduler.set_search_properties(**{"metric": None, "mode": None, **judged_by(scheduler, settings)})
        _begin_imports(settings, reservation)
        start = start_from(past, space, settings, scheduler, searcher)
        baselines = past.untried(space, settings)
        sweep_file["baselines"] = past.with_new(sweep_file["baselines"])
        sweep_file["steered"] = past.still_steered(settings)
    state = SweepState() if past is None else past.state
    return PreparedSweep(
        space, settings, at_first, code, scheduler, searcher, start, state, folder, sweep_file, baselines
    )


def _begin_imports(settings: Settings, reservation: Reservation) -> None:
    """Let the server of workers import, which takes as long as to read a long record, if this process has its Ray."""
    with contextlib.suppress(ImportError):
        from tunelight.extras.forks.ready import begin

        if ray.is_initialized() and (environ := environ_of_child("raylet")) is not None:
            env, of_job = env_of_workers(settings, reservation) or {}, ray.get_runtime_context().runtime_env
            environ.pop("LD_PRELOAD", None)  # which Ray sets for the raylet, and not for its workers
            variables = (of_job.get("env_vars") or {}) | (env.get("env_vars") or {})
            begin(env.get("py_executable") or "", environ | variables)


def _tune(
    sweep: PreparedSweep, control: SweepControl, watch: GcsWatch, datasets: DatasetHandle | None, steps: Steps
) -> None:
    """Run the sweep on Ray Tune, which records it in the sweep's folder."""
    if (warm := sys.modules.get("tunelight.extras.standalone.pool")) is not None:
        warm.pool.close()  # idle gangs of this process's own fits hold resources
    settings, folder, scheduler = sweep.settings, sweep.folder, sweep.scheduler
    name = f"{default_name(settings)}-{secrets.token_hex(3)}"  # two sweeps may run at once
    parts = _parts(sweep, control, watch, datasets, orders=Orders(name), steps=steps)
    with tune_environment(settings.verbose), parts as (search, wrapped, callbacks):
        try:
            tune.run(
                make_trainable(_spec_of(sweep, datasets, name)),
                name=folder.name,
                storage_path=str(folder.parent.absolute()),
                storage_filesystem=for_tune(folder.parent),
                **judged_by(scheduler, settings),
                search_alg=search,
                scheduler=wrapped,
                reuse_actors=settings.reuse_gangs is not False,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False, num_to_keep=2),
                max_failures=settings.failures.max_failures,
                time_budget_s=settings.budget_s,
                raise_on_failed_trial=False,
                callbacks=callbacks,
                verbose=2 if settings.verbose > 1 else 0,
            )
        except ValueError:  # Tune's own snapshot is not where it reads it back: its storage took nothing at the end
            if not callbacks[0].closed:
                raise
        except KeyboardInterrupt:  # a second signal: Tune leaves its actors then, and this process may keep its Ray
            if wrapped.controller is not None:
                kill_actors(wrapped.controller)
            sweep_seats()
            raise
    sweep_seats()  # of heads that were killed


def _spec_of(sweep: PreparedSweep, datasets: DatasetHandle | None, name: str) -> TrialSpec:
    """Return what all trials of the sweep have in common."""
    code: Any = sweep.code
    settings, reservation, home = sweep.settings, sweep.reservation, Home.here()
    gang = GangSpec(
        reservation,
        settings.failures,
        runtime_env=env_of_workers(settings, reservation),
        backend=settings.backend,
        actor=None if settings.script is None else code.actor(settings, sweep.scheduler),
        environ={VARIABLE: sweep.sweep_file["lightning"]},
        home=home,
    )
    task = Task(
        Code(code).sent(),
        home,
        **settings.judged_by,
        checkpoints=settings.checkpoints or Checkpoints(),
        evaluation=settings.evaluation or reservation.evaluation,
        datasets=datasets,
        folds=settings.folds,
        verbose=settings.verbose,
    )
    return TrialSpec(
        gang,
        task,
        name,
        seed=settings.seed or 0,
        until=sweep.scheduler.initial_decision().until,
        start=reservation.least if sweep.scheduler.resizes else None,
        owner=1 if sweep.lease is None else record_number(sweep.lease.owner.record),
    )


@contextlib.contextmanager
def _parts(
    sweep: PreparedSweep,
    control: SweepControl,
    watch: GcsWatch,
    datasets: DatasetHandle | None,
    *,
    orders: Orders,
    steps: Steps | None = None,
) -> Iterator[tuple[SweepSearch, Any, list[Any]]]:
    """Return the queue, the scheduler and the callbacks that Tune gets, the record's first; close them at the end."""
    settings, folder = sweep.settings, sweep.folder
    total = max(sweep.total, sweep.state.suggested) + sweep.state.branches
    write_sweep_file(folder, sweep.sweep_file)  # also of a resumed sweep: num_samples may have changed
    record = _record_of(sweep, control, orders, total)
    search = _queue_of(sweep, record)
    written: list[Any] = [record]
    with contextlib.suppress(ImportError):  # without TensorBoard, or the second storey
        from tunelight.extras.tensorboard import TensorBoardCallback

        written.append(TensorBoardCallback(folder, record.state))
    waits = functools.partial(waits_for, sweep.reservation)
    of_script = bool(settings.progress) and not sweep.space.domains
    progress = False if of_script else settings.progress
    shown = ProgressCallback(record.state, total=total, progress=progress, steps=steps, waits=waits)
    if of_script:
        from tunelight.extras.scripts.output import OutputCallback

        written.append(OutputCallback(folder))
    silent = [silent_callback()] if of_script or settings.verbose < 2 else []
    steering = Steering(
        record,
        search,
        sweep.scheduler,
        sweep.space,
        control,
        orders=orders,
        sweep_file=sweep.sweep_file,
        shown=shown,
        answered=sweep.upload,
    )
    control.begin(record, search, shown.say if settings.progress else None)
    metrics = [metric for metric, _ in settings.objectives]
    first = FailFast(settings.failures.give_up_after, metrics, total, record, control)
    tracking = sweep.searcher if isinstance(sweep.searcher, TrackingSearcher) else None
    of_parts = (part.notes for part in (tracking, datasets) if part is not None)
    for text in (
        *itertools.chain(*of_parts),
        heavy(sweep.code, training_setting(settings)),
    ):
        if text:
            record.note(text)
    try:
        code: Any = sweep.code
        watched = [code.watched(folder, record.note)] if settings.script is not None else []
        callbacks = [*watched, *written, steering, shown, *silent, first, *settings.callbacks, GcsCallback(watch)]
        yield search, steering.scheduler, callbacks
    finally:
        control.signals.graceful = False
        for callback in (*written, shown):
            callback.close()
        if tracking is not None:
            tracking.close({trial.id: trial.state for trial in record.state.trials.values()})


def _queue_of(sweep: PreparedSweep, record: RecordCallback) -> SweepSearch:
    """Return the queue of the sweep's trials."""
    space, settings, scheduler, searcher = sweep.space, sweep.settings, sweep.scheduler, sweep.searcher
    return SweepSearch(
        record,
        searcher,
        sweep.total,
        sweep.baselines,
        at_once(sweep.reservation, settings),
        reservation=sweep.reservation.factory,
        written=space.from_dotted if searcher is settings.searcher else dict,  # Ray's searchers suggest dotted keys
        start=sweep.start,
        repeats=settings.repeats,
        admit=scheduler.admits,
        longest=scheduler.longest,
    )


def _record_of(sweep: PreparedSweep, control: SweepControl, orders: Orders, total: int) -> RecordCallback:
    """Return the callback that writes the sweep's record; ``total``: how many trials there are to be."""
    settings = sweep.settings
    return RecordCallback(
        sweep.folder,
        again=sweep.start.again,
        seed_of=functools.partial(trial_seed, settings.seed or 0),
        **settings.recorded,
        seed=settings.seed or 0,
        num_samples=total,
        max_epochs=settings.max_epochs,
        workers=sweep.reservation.workers,
        scheduler=sweep.scheduler,
        budget_s=settings.budget_s,
        complete=control.complete,
        ended_by=lambda: control.ends,
        announced=orders.starts,
        lease=sweep.lease,
        run={**sweep.sweep_file["run"], "versions": sweep.sweep_file["versions"]},
    )


# --- PreparedSweep: a sweep that is ready to run, and the folder that it claims -------------------


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
    state: SweepState
    """What is recorded of its earlier runs."""
    folder: Path
    sweep_file: Mapping[str, Any]
    baselines: Sequence[Mapping[str, Any]]
    """Those not tried yet."""
    upload: Callable[[], None] = lambda: None
    """Brings the record to its store soon."""
    lease: Lease | None = None

    @functools.cached_property
    def total(self) -> int:
        """The number of trials in all."""
        return count_trials(self.space, self.settings)

    @property
    def to_do(self) -> bool:
        """Whether any trial is left to run."""
        return bool(self.start.again or self.state.suggested < self.total or self.to_repeat)

    @property
    def to_repeat(self) -> list[tuple[str, int]]:
        """(trial, repetition) of each repetition that is left."""
        return to_repeat(self.state, self.settings.repeats)


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
        name, default = settings.name, default_name(settings)
        folder = create_sweep_folder(settings.storage, name, default=default, resume=bool(settings.resume))
    try:
        if past is None:
            write_sweep_file(folder, sweep.sweep_file)
        held = None if past is None else past.lease
        lock = leased(folder) if held is None else contextlib.nullcontext(held)
        with lock as lease:
            if past is None and lease.generation > 1:
                raise StorageError(f"{stores.shown(folder)} was begun by another driver just now: resume=True goes on.")
            with mirrored(folder, lease) as upload:
                yield replace(sweep, folder=folder, lease=lease, upload=upload)
    except BaseException:
        with contextlib.suppress(OSError):
            # Other drivers may have begun it, run it and ended since this one has created its folder.
            ours = Owners(folder).newest() == (0 if lease is None else 1) and (lease is None or lease.held())
            if past is None and ours and not (folder / RECORD_FILE).stat().st_size:
                delete(folder)
                for made in new:
                    made.rmdir()
        raise


def default_name(settings: Settings) -> str:
    """Return what a sweep is called that was given no name."""
    if settings.script is not None:
        from tunelight.extras.scripts.style import script_file

        return script_file(settings.script).stem
    return str(getattr(settings.train or settings.model, "__name__", "sweep")).strip("<>")


# --- End a sweep early if its first trials all fail with the same error, or none reports the metric ---

_TRIED_AGAIN = (
    "When the cause is mended, the same call with name={name} and resume=True goes on, and tries the failed trials "
    "again."
)
_METRIC_IS_PART = (
    "What a sweep with reports is judged by cannot change: give the right metric and another name=, or report this "
    "one too, and go on with name={name} and resume='force'."
)


class FailFast(tune.Callback):  # type: ignore[misc,unused-ignore]
    """Ends Tune's loop if the first trials of this run failed with the same error, or finished without a metric.

    It must come after ``record`` in the list of callbacks. Runs on: driver.

    Args:
        limit: the number of first trials (0: never end the loop).
        metrics: the metrics that the sweep is judged by.
        total: the number of trials in all.
        record, control: those of the sweep.
    """

    def __init__(
        self, limit: int, metrics: Sequence[str], total: int, record: RecordCallback, control: SweepControl
    ) -> None:
        self._first = FirstTrials(limit)
        self._limit = limit
        trials = record.state.trials.values()  # of a resumed sweep
        self._unseen = [
            name for name in metrics if not any(_holds(report, name) for trial in trials for report in trial.history)
        ]
        self._reported: list[str] = []
        self._ended: set[str] = set()
        self._total, self._record, self._control = total, record, control

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count a trial among the first."""
        self._first.begin(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take a report or a trial's error."""
        extras = result.get(RESULT_KEY) or {}
        if metrics := extras.get("metrics"):
            self._first.report()
            self._reported = list(metrics)
            self._unseen = [name for name in self._unseen if not _holds(metrics, name)]
        elif error := extras.get("error"):
            known = {key: error[key] for key in ("rank", "node", "type_name", "message", "traceback") if key in error}
            self._first.fail(trial.trial_id, WorkerError(**known, cause=error.get("cause", "exception")))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Do not count a trial whose head failed."""
        self._first.leave_out(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count a trial that finished, but not one that was stopped without a report."""
        self._first.leave_out(trial.trial_id)
        known = self._record.state.trials.get(trial.trial_id)
        if known is not None and known.state == FINISHED:
            self._ended.add(trial.trial_id)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise SweepFailedError once the first trials have failed."""
        if (error := self._first.verdict) is not None:
            text = f"{_why(error, self._first.failures)}{self._next(_TRIED_AGAIN)}"
        elif self._unseen and self._limit and len(self._ended) >= self._limit:
            text = f"{self._missing()}{self._next(_METRIC_IS_PART)}"
            error = WorkerError(-1, "", "MetricError", text, "")
        else:
            return
        self._control.ends = GAVE_UP
        raise SweepFailedError(error, text, str(self._record.folder))

    def _missing(self) -> str:
        name = self._unseen[0]
        return (
            f"The sweep is judged by metric {name!r}, and none of the {len(self._ended)} trials that ended "
            f"has reported it. The last report held {', '.join(sorted(self._reported)) or 'nothing'}."
            f"{guess(name, self._reported)} "
        )

    def _next(self, how: str) -> str:
        """Say how many trials are left, and how to go on."""
        begun, folder = len(self._record.state.trials), self._record.folder
        left = f", with {self._total - begun} of {self._total} trials not tried" if begun < self._total else ""
        return (
            f"So the sweep has ended{left}. What ran is in {folder}. {how.format(name=repr(folder.name))} A sweep "
            "with failures=tl.FailurePolicy(give_up_after=0) tries all of its trials, whatever fails."
        )


def _why(error: WorkerError, failures: int) -> str:
    which = "The first trial" if failures == 1 else f"The first {failures} trials to end all"
    same = "" if failures == 1 else " with the same error"
    if issubclass(getattr(errors, error.type_name, Exception), TunelightError):  # says all, as one of a wrong metric
        error = replace(error, traceback="")
    return f"{which} failed{same} before anything was reported: {error}\n\n"


def _holds(metrics: Mapping[str, Any], name: str) -> bool:
    """Tell whether a report holds a metric; "outer/inner" is a nested one."""
    return name in metrics or name.replace("/", ".") in flatten(metrics)


# --- The parts of a sweep that can be built before Ray starts, and its datasets --------------------


def served(settings: Settings, reservation: Reservation) -> contextlib.AbstractContextManager[DatasetHandle | None]:
    """Serve the datasets of a sweep to its trials, if it has any."""
    if not settings.datasets:
        return contextlib.nullcontext()
    least = reservation.least or reservation.workers
    from tunelight.extras.data.server import served as serve

    return serve(settings, least)


def build_parts(
    space: SearchSpace, settings: Settings, folder: Path | None = None, **facts: Any
) -> tuple[Reservation, Callable[[dict[str, Any]], object], GangScheduler, Searcher]:
    """Build reservation, training code, scheduler and searcher of a sweep before Ray starts, so that errors come early.

    ``folder``: of a sweep that is resumed; ``facts``: for its scheduler, see :class:`SweepFacts`.
    """
    with space.placing(settings, training_setting(settings)):
        decide(settings.lightning, f"The code of this sweep uses {settings.lightning}")
    with space.placing(settings, "resources_per_trial"):
        reservation = reserve(
            settings.workers, settings.cpus_per_worker, settings.gpus_per_worker, settings.resources_per_trial
        )
    with space.placing(settings, "datasets"):
        if settings.datasets:
            from tunelight.extras.data.server import check_sources

            check_sources(settings.datasets, reservation.least or reservation.workers)
    code = training_code(space, settings)
    check_version()
    with space.placing(settings, "scheduler"):
        scheduler = build_scheduler(settings, space.domains, **facts)
        check_company(scheduler, settings)
    with space.placing(settings, "searcher"):
        searcher = build_searcher(space, settings, folder)
    return reservation, code, scheduler, searcher
