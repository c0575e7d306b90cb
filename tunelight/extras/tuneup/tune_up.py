"""tune_up(): measure how fast a sweep's training is under other settings with the same result."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tunelight.cluster.connect import connected
from tunelight.errors import ResourceError, SettingsError
from tunelight.extras.tuneup.result import Foretold, TuneUp
from tunelight.extras.tuneup.search import Choices, Figures, Search, Setting, UnmeasuredError, bottleneck
from tunelight.machine.signals import StopSignals
from tunelight.resources import Reservation, check_fits
from tunelight.session.task import WithObjects
from tunelight.settings import Settings, check_names, checks
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.space.parts import split_config
from tunelight.sweep.building import build_parts

if TYPE_CHECKING:
    from tunelight.extras.tuneup.bench import Bench

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
    from tunelight.extras.tuneup.bench import Bench  # imports Ray
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

    if settings.proxy is not None:
        return [], ["the sweep itself is not foretold, for it has a proxy"]
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
