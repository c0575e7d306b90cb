"""tune_up(): measure how fast a sweep's training is under other settings with the same result."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from ray import cloudpickle

from tunelight.cluster.connect import connected
from tunelight.cluster.local import env_of_workers
from tunelight.compat.lightning import VARIABLE
from tunelight.errors import GangError, ResourceError, SettingsError, TrialError, TunelightError
from tunelight.extras.tuneup.search import Choices, Figures, Search, Setting, UnmeasuredError, bottleneck
from tunelight.extras.tuneup.worker import Measure
from tunelight.gang.pool import Held, pool
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec
from tunelight.machine.signals import StopSignals
from tunelight.messages import Terminal
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation, check_fits
from tunelight.session.task import Home, Start, Task, WithObjects
from tunelight.settings import Settings, check_names, checks
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.space.parts import split_config
from tunelight.stores.atomic import replacing
from tunelight.sweep.building import build_parts

BUDGET_S = 120.0
_LOADERS = (0, 1, 2, 4)
_BUCKETS = (25, 5)
_DDP = (25, False)
"""What DDP has by itself: ``bucket_cap_mb`` and ``gradient_as_bucket_view``."""
_MOST_WORKERS = 8
_MOST_AT_ONCE = 8
_FORETOLD_S = 6.0
"""How long a setting is measured at least to foretell the sweep, which takes its figures at their word: this, or half
the budget where that is less."""


def tune_up(
    search_space: SearchSpace | Mapping[str, Any] | str | os.PathLike[str],
    *,
    try_workers: Sequence[int] | None = None,
    try_cpus: Sequence[float] | None = None,
    try_loader_workers: Sequence[int] = _LOADERS,
    try_pieces: Sequence[int] = (1, 2),
    try_buckets: Sequence[int] = _BUCKETS,
    try_precision: Sequence[str] = (),
    try_compile: bool = False,
    budget: float | str = BUDGET_S,
    say: Callable[[str], object] = lambda _: None,
    **settings: Any,
) -> TuneUp:
    """Measure training under other settings that give the same result, and return the best of them. Experimental.

    One configuration is trained for some seconds under each setting, on warm gangs, without validation, checkpoints or
    loggers: the first of ``baselines``, else one that is drawn. The global batch (``batch_size`` times workers) stays
    as the sweep has it. The search measures what promises most, not every combination.

    Args:
        search_space: as ``tunelight.run`` takes it, with ``model=``.
        try_workers: sizes of gangs (None: powers of two, up to 8, the cluster and the global batch).
        try_cpus: ``cpus_per_worker``, which is how many threads torch uses (None: the sweep's, and all CPUs of a node
            divided among the workers; with GPUs only the sweep's).
        try_loader_workers: the DataLoader's ``num_workers``, if data or model has such an argument.
        try_pieces: into how many batches a worker's share of the global batch is cut, with accumulated gradients.
        try_buckets: DDP's ``bucket_cap_mb``, each with and without ``gradient_as_bucket_view``.
        try_precision: the Trainer's ``precision``; it changes results, as ``try_compile``, which uses torch.compile.
        budget: seconds, or "2m", after which the search ends.
        say: called with what is measured now.
        settings: settings of ``tunelight.run`` that override the space's.

    Raises: subclasses of TunelightError. Runs on: driver.
    """
    began = time.monotonic()
    whole: dict[str, Any] = {"workers": try_workers, "pieces": try_pieces, "buckets": try_buckets}
    tried = {name: _numbers(f"try_{name}", given, checks.whole) for name, given in whole.items()}
    tried["loaders"] = _numbers("try_loader_workers", try_loader_workers, partial(checks.whole, least=0))
    tried["cpus"] = _numbers("try_cpus", try_cpus, checks.number)
    tried |= {"precision": try_precision, "compiled": [False, True] if try_compile else [False]}
    budget_s = checks.seconds(budget)
    space = SearchSpace.of(search_space)
    check_names(settings)
    told = Settings(**{**space.settings, **settings})
    with benched(space, told, tried) as (bench, choices, names):
        search = Search(bench, choices, budget_s, say=say)
        search.run()
        if not search.measured:
            raise SettingsError(f"No setting could be measured. {next(iter(search.failed.values()))}")
        search_s = time.monotonic() - began
        each_s = max(min(_FORETOLD_S, budget_s / 2), search.seconds)
        foretold, notes = _foretell(space, told, search, bench, seconds=each_s, say=say)
    figures = search.measured[search.fastest]
    made = TuneUp(
        now=search.choices.start(search.choices.gangs[0]),
        fastest=search.fastest,
        cheapest=search.fastest,
        for_sweep=foretold[0].setting if foretold else None,
        measured=search.measured,
        failed=search.failed,
        foretold=foretold,
        global_batch=figures.samples,
        limit=bottleneck(figures, adjustable=names["num_workers"] is not None),
        search_s=search_s,
        seconds=time.monotonic() - began,
        notes=[*notes, *_notes(told, space, search, names, figures)],
        gpus_per_worker=told.gpus_per_worker,
        names=names,
        fixed=names["batch_size"] not in space.domains or space.is_fixed(str(names["batch_size"])),
        trainer_args=told.trainer_args or {},
    )
    return replace(made, cheapest=min(made.measured, key=made.cost))


@contextlib.contextmanager
def benched(
    space: SearchSpace, settings: Settings, tried: Mapping[str, Any]
) -> Iterator[tuple[Bench, Choices, Mapping[str, str | None]]]:
    """Check a sweep, connect to Ray, and yield what measures settings, which there are, and the data's arguments.

    Raises: subclasses of TunelightError. Runs on: driver.
    """
    check_settings(space, settings)
    _check(settings)
    reservation, code = build_parts(space, settings)[:2]
    settings = replace(settings, checkpoints=None, seed=settings.seed or 0)
    from tunelight.extras.tuneup.tune_up import Bench  # imports Ray
    from tunelight.extras.tuneup.worker import Measure  # imports torch

    recipe: Any = code.train if isinstance(code, WithObjects) else code
    given = settings.baselines[0] if settings.baselines else space.sample(np.random.RandomState(settings.seed))
    parts = split_config(given)
    names, values = _arguments(settings, parts)
    batch = values.get("batch_size", 0) * reservation.workers
    first = replace(reservation, workers=1, least=None)
    with (
        tempfile.TemporaryDirectory(prefix="tunelight-tune-up-") as folder,
        connected(settings, first, Path(folder, "sweep", "sweep.yaml"), StopSignals()),
    ):
        bench = Bench(settings, Measure(recipe, parts, batch, names), folder)
        try:
            yield bench, _choices(settings, reservation, recipe, values, batch=batch, tried=tried), names
        finally:
            bench.close()


def _numbers(name: str, given: Any, check: Callable[[str, Any], Any]) -> Any:
    """Return the checked numbers that are to be tried; None where the defaults are. Raises: SettingsError."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise SettingsError(f"{name} must be a list of numbers, [1, 2, 4] for example, not {given!r}.")
    return [check(name, value) for value in given]


def _check(settings: Settings) -> None:
    """Raise SettingsError for sweeps of which nothing can be varied from outside."""
    if settings.model is None:
        raise SettingsError(
            "tune_up needs model=, and data=, whose Trainer it makes: of a train function or a script it cannot vary "
            "batches, loaders or the strategy. Give model= and data=, or try settings in that code by hand."
        )
    for name, value in (("datasets", settings.datasets), ("resources_per_trial", settings.resources_per_trial)):
        if value:
            instead = "data=" if name == "datasets" else "workers= and cpus_per_worker="
            raise SettingsError(f"tune_up does not measure sweeps with {name}=. Give {instead} in its place.")


def _arguments(
    settings: Settings, parts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Return the keys of batch_size and num_workers, data.batch_size for example, and their present values."""
    names: dict[str, str | None] = {"batch_size": None, "num_workers": None}
    values: dict[str, Any] = {}
    for part, code in (("model", settings.model), ("data", settings.data)):
        taken = {} if code is None else inspect.signature(code).parameters
        for name in names:
            value = parts[part].get(name, taken[name].default if name in taken else None)
            if isinstance(value, int) and not isinstance(value, bool):
                names[name], values[name] = f"{part}.{name}", value
    return names, values


def _choices(
    settings: Settings,
    reservation: Reservation,
    recipe: Any,
    values: Mapping[str, Any],
    *,
    batch: int,
    tried: Mapping[str, Any],
) -> Choices:
    """Return what is tried, first what the sweep has. ``values``: of the data's arguments that can be varied."""
    own = reservation.workers, reservation.cpus_per_worker
    args, varied = recipe.trainer_args, "batch_size" in values
    sizes = tried["workers"] or [1 << power for power in range(_MOST_WORKERS.bit_length())]
    fits = [pair for pair in _gangs(reservation, sizes if varied else [own[0]], tried["cpus"]) if batch % pair[0] == 0]
    loaders: list[Any] = [values.get("num_workers")]
    if "num_workers" in values:
        loaders = list(dict.fromkeys([*loaders, *tried["loaders"]]))
    reduction: list[Any] = [(None, None)]
    if settings.backend == "ddp" and "strategy" not in args:
        pairs = itertools.product(tried["buckets"], (False, True))
        reduction += [pair for pair in pairs if pair != _DDP]
    return Choices(
        gangs=list(dict.fromkeys([own, *fits])),
        loader_workers=loaders,
        pieces=list(dict.fromkeys([1, *(tried["pieces"] if varied else ())])),
        reduction=reduction,
        precision=[None, *(each for each in tried["precision"] if each != args.get("precision"))],
        compiled=tried["compiled"],
        batch=batch,
        regroups=tried["workers"] is not None,
    )


def _gangs(reservation: Reservation, sizes: Sequence[int], cpus: Sequence[float] | None) -> Iterator[tuple[int, float]]:
    """Yield the gangs that the cluster can hold: their size, and the CPUs of each worker."""
    nodes = _nodes()
    for workers in sizes:
        beside = min(workers, max(_slots(reservation, nodes), default=1))
        most = max(int(node.get("CPU", 0)) for node in nodes) // beside
        own = [reservation.cpus_per_worker]
        for each in dict.fromkeys(cpus or (own if reservation.gpus_per_worker or most <= own[0] else [*own, most])):
            try:
                check_fits(Reservation(workers, each, reservation.gpus_per_worker), nodes)
            except ResourceError:
                continue
            yield workers, each


def _slots(reservation: Reservation, nodes: Sequence[Mapping[str, float]]) -> list[int]:
    """Return how many workers each node holds that holds any."""
    held = (min(int(node.get(name, 0) / amount) for name, amount in reservation.worker.items()) for node in nodes)
    return [workers for workers in held if workers]


def _nodes() -> list[dict[str, float]]:
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _foretell(
    space: SearchSpace,
    settings: Settings,
    search: Search,
    bench: Bench,
    *,
    seconds: float,
    say: Callable[[str], object],
) -> tuple[list[Foretold], list[str]]:
    """Return what the sweep would take with each gang's best setting, measured with as many gangs as it would have."""
    from tunelight.extras.plan import plan
    from tunelight.searchers.choose import count_trials  # imports Ray Tune

    nodes, total = _nodes(), count_trials(space, settings)
    best: dict[tuple[int, float], Setting] = {}
    for setting in sorted(search.measured, key=lambda one: -search.measured[one].speed):
        best.setdefault(setting.gang, setting)
    foretold = []
    for setting in best.values():
        slots = _slots(bench.reservation(setting), nodes)
        limit = replace(settings, workers=setting.workers).most_trials or total
        gangs = max(1, min(limit, total, sum(slots) // setting.workers, _MOST_AT_ONCE))
        say(f"measuring {setting}, {gangs} at once")
        try:
            figures = bench.measure(setting, seconds, gangs, validate=True)
            cluster = len(slots), sum(slots) // len(slots)
            made = plan(
                space, seconds_per_epoch=figures.epoch_s, cluster=cluster, workers=setting.workers,
                num_samples=settings.num_samples, max_epochs=settings.max_epochs, scheduler=settings.scheduler,
                start_s=max(bench.cold_s[-gangs:]), restart_s=figures.start_s,
            )  # fmt: skip
        except (SettingsError, ResourceError) as error:
            return [], [f"the sweep itself is not foretold: {error}"]
        except UnmeasuredError:
            continue
        if made.makespan_h is not None:
            foretold.append(Foretold(setting, gangs, figures.epoch_s, 3600 * made.makespan_h.p50))
    return sorted(foretold, key=lambda each: each.makespan_s), []


def _notes(
    settings: Settings, space: SearchSpace, search: Search, names: Mapping[str, str | None], figures: Figures
) -> list[str]:
    """Return what a user has to know of the figures."""
    where, batch = "data" if settings.data is not None else "model", str(names["batch_size"])
    same = "workers and pieces change it" if search.choices.regroups else "only settings with the same were measured"
    spared = f"{search.spared} more settings were not measured, for they could not be faster"
    if search.out_of_time:
        spared = f"the budget ended the search: {search.spared} settings were not measured. Give a larger budget"
    searched, measured = batch in space.domains and not space.is_fixed(batch), search.measured
    differ, compiled = any(one.changes_results for one in measured), any(one.compiled for one in measured)
    said = {
        f"workers and pieces were not varied: give {where} an argument batch_size": names["batch_size"] is None,
        f"the DataLoader's workers were not varied: give {where} an argument num_workers": names["num_workers"] is None,
        f"{batch} is searched: with another number of workers or pieces, divide its values accordingly": searched,
        f"the model has BatchNorm, whose result depends on the samples of a forward: {same}": figures.batch_norm,
        spared: search.out_of_time or search.spared,
        "* changes results: precision and torch.compile round otherwise": differ,
        "torch.compile is no setting: call self.compile() at the end of the model's __init__": compiled,
        f"callbacks that take no part in a step were left out: {', '.join(figures.left_out)}": figures.left_out,
    }
    return [note for note, holds in said.items() if holds]


# --- Bench: measures settings on gangs of the cluster that this process is connected to -----------


_LONGEST_S = 600.0
"""How long one measurement may take, whatever it was to take: compiling, and data that is prepared."""


@dataclass
class Bench:
    """Measures one setting after the other. Its gang stays warm while the settings ask for the same workers.

    ``cold_s``: how long gangs have taken to start. Runs on: driver, connected to Ray. Close it.
    """

    settings: Settings
    measures: Measure
    folder: str

    def __post_init__(self) -> None:
        self.cold_s: list[float] = []
        self._held: list[Held] = []
        self._gang: tuple[int, float] | None = None
        self._serial = 0
        self._task = Task(
            train=cloudpickle.dumps(self.measures),
            home=Home.here(),
            terminal=Terminal(False, 80),  # what the ranks print comes as events, which nobody shows
            job=True,
            evaluation=self.settings.evaluation or "ddp",
        )

    def reservation(self, setting: Setting) -> Reservation:
        """Return what a gang for the setting reserves."""
        return Reservation(setting.workers, setting.cpus, self.settings.gpus_per_worker)

    def measure(self, setting: Setting, seconds: float, gangs: int = 1, *, validate: bool = False) -> Figures:
        """Measure a setting on ``gangs`` gangs at the same time; return the median gang's figures, of two the slower's.

        Raises: UnmeasuredError where training under it fails; GangError, ResourceError.
        """
        runs = []
        config = {"setting": setting, "seconds": seconds, "validate": validate}
        try:
            for held in self._take(setting, gangs):
                self._serial += 1
                start = Start(f"tune-up-{self._serial}", self.folder, dict(config), seed=self.settings.seed, until=None)
                run = ResilientRun(self._task, start, FailurePolicy(max_failures=0), say=lambda _: None)
                run.start(held.gang)
                runs.append(run)
            figures = [_followed(run, seconds) for run in runs]
        except TrialError as error:
            self.close()
            cause = getattr(error, "error", None)
            why = error if cause is None else f"{cause.type_name}: {cause.message}"
            raise UnmeasuredError(str(why).strip().partition("\n")[0]) from error
        except BaseException:
            self.close()
            raise
        return sorted(figures, key=lambda one: one.step_s)[len(figures) // 2]

    def _take(self, setting: Setting, gangs: int) -> list[Held]:
        """Return gangs for a setting, those of before where they fit."""
        if self._gang != setting.gang or any(held.closed or held.gang.unfit for held in self._held):
            self.close()
        self._gang = setting.gang
        while len(self._held) < gangs:
            began = time.monotonic()
            held = pool.take(self._spec(setting), self.reservation(setting))
            self._held.append(held)
            held.gang.heal()
            self.cold_s.append(time.monotonic() - began)
        return self._held[:gangs]

    def _spec(self, setting: Setting) -> GangSpec:
        reservation = self.reservation(setting)
        return GangSpec(
            reservation,
            FailurePolicy(max_failures=0),
            runtime_env=env_of_workers(self.settings, reservation),
            backend=self.settings.backend,
            environ={VARIABLE: self.settings.lightning, **_passed_on()},
            home=Home.here(),
        )

    def close(self) -> None:
        """End the gangs."""
        held, self._held = self._held, []
        for gang in held:
            pool.close(gang)


def _passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "TORCH_NCCL_", "HOROVOD_"))}


def _followed(run: ResilientRun, seconds: float) -> Figures:
    """Follow a run to its end; return what rank 0 has handed in. Raises: TrialError, GangError."""
    limit_s = _LONGEST_S + 10 * seconds
    end = time.monotonic() + limit_s
    while run.running:
        run.next_event(1.0)
        if time.monotonic() > end:
            raise GangError(f"A measurement of {seconds:.1f} s has not ended after {limit_s:.0f} s.")
    figures: Figures = run.handed_in[0]
    return figures


# --- TuneUp: what was measured, what to train with, and the sweep's search space with that written into it ---


@dataclass(frozen=True)
class Foretold:
    """What the sweep would take under a setting.

    ``at_once``: how many gangs trained while its speed was measured; ``makespan_s``: the median of its plan's draws.
    """

    setting: Setting
    at_once: int
    seconds_per_epoch: float
    makespan_s: float


@dataclass(frozen=True)
class TuneUp:
    """The fastest setting for one trial, the cheapest one, and the best for the sweep. Print it, or use :meth:`asdict`.

    Experimental.

    Attributes:
        now: the setting that the sweep has.
        fastest: of the most steps a second; of those nearly as fast ``now``, or that of the fewest CPUs.
        cheapest: of the fewest seconds of held CPUs (of GPUs, where workers have them) a sample.
        for_sweep: the one by which the sweep ends first, of ``foretold``; None where that is not known.
        measured: the figures of every setting that was measured; ``failed``: why others could not be.
        global_batch: samples in a step, the same for all.
        limit: what limits the fastest setting, in words.
        search_s, seconds: how long the search took, and all of it.
    """

    now: Setting
    fastest: Setting
    cheapest: Setting
    for_sweep: Setting | None
    measured: Mapping[Setting, Figures]
    failed: Mapping[Setting, str]
    foretold: Sequence[Foretold]
    global_batch: int
    limit: str
    search_s: float
    seconds: float
    notes: Sequence[str] = ()
    gpus_per_worker: float = 0
    names: Mapping[str, str | None] = field(default_factory=dict)
    fixed: bool = True
    """Whether the batch size is one value in the space, which another may replace."""
    trainer_args: Mapping[str, Any] = field(default_factory=dict)

    def cost(self, setting: Setting) -> float:
        """Return the seconds of held CPUs, or GPUs, a sample."""
        figures = self.measured[setting]
        each = self.gpus_per_worker or setting.cpus
        return setting.workers * each * figures.step_s / figures.samples

    @property
    def best(self) -> Setting:
        """What to train with: the best for the sweep, else the fastest."""
        return self.for_sweep or self.fastest

    def settings(self, setting: Setting | None = None) -> dict[str, Any]:
        """Return what a search space says for a setting (``best``): workers, trainer_args and keys of data or model."""
        setting = setting or self.best
        made: dict[str, Any] = {"workers": setting.workers, "cpus_per_worker": setting.cpus}
        args: dict[str, Any] = {}
        if setting.pieces > 1:
            args["accumulate_grad_batches"] = setting.pieces * self.trainer_args.get("accumulate_grad_batches", 1)
        if setting.precision is not None:
            args["precision"] = setting.precision
        ddp = {"bucket_cap_mb": setting.bucket_mb, "gradient_as_bucket_view": setting.view}
        if ddp := {name: value for name, value in ddp.items() if value is not None and setting.workers > 1}:
            args["strategy"] = {"class_path": "tunelight.RayStrategy", "init_args": ddp}
        keys: dict[str, Any] = {}
        batch, loaders = self.names.get("batch_size"), self.names.get("num_workers")
        if batch is not None and self.fixed:
            keys[batch] = self.global_batch // (setting.workers * setting.pieces)
        if loaders is not None and setting.loader_workers is not None:
            keys[loaders] = setting.loader_workers
        return {**made, **({"trainer_args": args} if args else {}), **({"space": keys} if keys else {})}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the best setting into a search space's file; comments and all else stay.

        Raises: SettingsError for a file that would be no search space then; OSError.
        """
        from ruamel.yaml import YAML

        editor, made = YAML(), self.settings()
        editor.preserve_quotes, editor.width = True, 10_000
        document = editor.load(Path(path).read_text(encoding="utf-8"))
        for name, value in made.items():
            if isinstance(value, dict) and document.get(name):
                for key, one in value.items():
                    if key in document[name]:
                        document[name][key] = one
                    else:
                        document[name].insert(0, key, one)  # at the end it would come behind blank lines and comments
            else:
                document[name] = value
        try:
            with replacing(path) as draft:
                editor.dump(document, draft)
                SearchSpace.load(draft)  # else the file stays as it was
        except TunelightError as error:
            raise SettingsError(f"{path} cannot be edited: {error} Paste the settings into it.") from error

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("now", "fastest", "cheapest", "for_sweep")
        lists = {name: getattr(self, name) for name in ("global_batch", "limit", "search_s", "seconds", "notes")}
        return {
            **{name: None if getattr(self, name) is None else asdict(getattr(self, name)) for name in names},
            "settings": self.settings(),
            "measured": [
                {**asdict(setting), "steps_per_s": rate, "quartiles": [low, high]}
                | {"cost_s_per_sample": self.cost(setting), "changes_results": setting.changes_results}
                | {"data_share": figures.data_s / figures.step_s, "wait_share": figures.wait_s / figures.step_s}
                for setting, figures in self._fastest_first()
                for low, rate, high in [figures.rates]
            ],
            "failed": [{**asdict(setting), "why": why} for setting, why in self.failed.items()],
            "foretold": [asdict(each) for each in self.foretold],
            **lists,
        }

    def _fastest_first(self) -> list[tuple[Setting, Figures]]:
        return sorted(self.measured.items(), key=lambda pair: -pair[1].speed)

    @property
    def _held(self) -> str:
        return "GPU" if self.gpus_per_worker else "CPU"

    def table(self) -> list[dict[str, str]]:
        """Return a row for each measured setting, the fastest first, with what is recommended and foretold of it."""
        told = {each.setting: f"{each.makespan_s:.3g} s, {each.at_once} at once" for each in self.foretold}
        return [
            {
                "setting": f"{setting}{' *' * setting.changes_results}",
                "steps/s (quartiles)": "{1:.3g} ({0:.3g} to {2:.3g})".format(*figures.rates),
                f"{self._held} time a sample": f"{1e3 * self.cost(setting):.3g} ms",
                "waits for data": f"{figures.data_s / figures.step_s:.0%}",
                "for workers": f"{figures.wait_s / figures.step_s:.0%}",
                "the sweep": told.get(setting, ""),
            }
            for setting, figures in self._fastest_first()
        ]

    def __str__(self) -> str:
        figures, own = self.measured[self.fastest], self.measured.get(self.now)
        against = f", {figures.speed / own.speed:.2f} times now's" if own and self.fastest != self.now else ""
        lines = [
            f"{len(self.measured)} settings measured in {self.search_s:.0f} s, {self.global_batch} samples a step.",
            f"Fastest for one trial: {self.fastest}: {figures.rates[1]:.3g} steps/s{against}. It is {self.limit}",
            f"Cheapest: {self.cheapest}: {1e3 * self.cost(self.cheapest):.3g} ms of {self._held} time a sample.",
        ]
        lines += [] if self.for_sweep is None else [f"Best for this sweep: {self.for_sweep}."]
        lines += [f"Not possible: {setting}: {why}" for setting, why in self.failed.items()]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join([*lines, "", yaml.safe_dump(self.settings(), sort_keys=False).rstrip()])
