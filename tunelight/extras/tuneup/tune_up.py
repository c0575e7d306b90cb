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

from tunelight.cluster.connect import connected, live_nodes
from tunelight.cluster.local import env_of_workers
from tunelight.compat.lightning import VARIABLE
from tunelight.errors import GangError, SettingsError, TrialError, TunelightError
from tunelight.extras.standalone.pool import Held, pool
from tunelight.extras.tuneup.search import Choices, Figures, Search, Setting, UnmeasuredError, bottleneck
from tunelight.extras.tuneup.worker import Measure
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec, passed_on
from tunelight.machine.signals import StopSignals
from tunelight.messages import Terminal
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation, trials_at_once
from tunelight.session.task import Home, Start, Task, WithObjects
from tunelight.settings import Settings, check_names, checks
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.space.plain import split_config
from tunelight.stores.atomic import replacing
from tunelight.sweep.run import build_parts

_LOADERS = (0, 1, 2, 4)
_MOST_WORKERS = 8
_MOST_AT_ONCE = 8


def tune_up(
    search_space: SearchSpace | Mapping[str, Any] | str | os.PathLike[str],
    *,
    try_workers: Sequence[int] | None = None,
    try_cpus: Sequence[float] | None = None,
    try_loader_workers: Sequence[int] = _LOADERS,
    budget: float | str = 120.0,
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
        budget: seconds, or "2m", after which the search ends.
        say: called with what is measured now.
        settings: settings of ``tunelight.run`` that override the space's.

    Raises: subclasses of TunelightError. Runs on: driver.
    """
    tried = {
        "workers": _numbers("try_workers", try_workers, checks.whole),
        "cpus": _numbers("try_cpus", try_cpus, checks.number),
        "loaders": _numbers("try_loader_workers", try_loader_workers, partial(checks.whole, least=0)),
    }
    budget_s = checks.seconds(budget)
    space = SearchSpace.of(search_space)
    check_names(settings)
    merged = Settings(**{**space.settings, **settings})
    with benched(space, merged, tried) as (bench, choices, names):
        search = Search(bench.measure, choices, budget_s, say=say)
        search.run()
        if not search.measured:
            raise SettingsError(f"No setting could be measured. {next(iter(search.failed.values()))}")
        search_s = search.clock() - search.began
        together = _together(space, merged, search, bench, say)
    figures = search.measured[search.fastest]
    return TuneUp(
        now=search.choices.start(search.choices.gangs[0]),
        fastest=search.fastest,
        measured=dict(sorted(search.measured.items(), key=lambda pair: -pair[1].speed)),
        failed=search.failed,
        together=together,
        limit=bottleneck(figures, adjustable=names["num_workers"] is not None),
        search_s=search_s,
        notes=_notes(merged, space, search, names, figures),
        names=names,
        fixed=names["batch_size"] not in space.domains or space.is_fixed(str(names["batch_size"])),
    )


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
            yield bench, _choices(reservation, values, batch=batch, tried=tried), names
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


def _choices(reservation: Reservation, values: Mapping[str, Any], *, batch: int, tried: Mapping[str, Any]) -> Choices:
    """Return what is tried, first what the sweep has. ``values``: of the data's arguments that can be varied."""
    now, varied = (reservation.workers, reservation.cpus_per_worker), "batch_size" in values
    sizes = tried["workers"] or [1 << power for power in range(_MOST_WORKERS.bit_length())]
    fits = [pair for pair in _gangs(reservation, sizes if varied else [now[0]], tried["cpus"]) if batch % pair[0] == 0]
    loaders = [values.get("num_workers"), *(tried["loaders"] if "num_workers" in values else ())]
    return Choices([*dict.fromkeys([now, *fits])], [*dict.fromkeys(loaders)])


def _gangs(reservation: Reservation, sizes: Sequence[int], cpus: Sequence[float] | None) -> Iterator[tuple[int, float]]:
    """Yield the gangs that the cluster can hold: their size, and the CPUs of each worker."""
    nodes, now = live_nodes(), reservation.cpus_per_worker
    largest = max(int(node.get("CPU", 0)) for node in nodes)
    for workers in sizes:
        all_of_a_node = largest // max(1, min(workers, int(largest // (now or 1))))
        for each in cpus or ([now] if reservation.gpus_per_worker else dict.fromkeys((now, max(now, all_of_a_node)))):
            if trials_at_once(Reservation(workers, each, reservation.gpus_per_worker), nodes, 0, most=1):
                yield workers, each


def _together(
    space: SearchSpace, settings: Settings, search: Search, bench: Bench, say: Callable[[str], object]
) -> dict[Setting, tuple[int, float]]:
    """Return, for each gang's best setting, how many trials the sweep runs at once, and their samples a second.

    They are measured at the same time, at most a few: what they share (disks, memory, a network) slows them down.
    """
    from tunelight.searchers.choose import count_trials  # imports Ray Tune

    nodes, total, made = live_nodes(), count_trials(space, settings), {}
    for _, group in itertools.groupby(sorted(search.measured, key=lambda s: s.gang), key=lambda s: s.gang):
        setting = max(group, key=lambda s: search.measured[s].speed)
        limit = settings.max_concurrent or total
        at_once = max(1, trials_at_once(bench.reservation(setting), nodes, 0, most=min(limit, total)))
        together = min(at_once, _MOST_AT_ONCE)
        say(f"measuring {setting}, {together} at once")
        with contextlib.suppress(UnmeasuredError):
            figures = bench.measure(setting, search.seconds, together)
            made[setting] = at_once, at_once * figures.samples / figures.step_s
    return made


def _notes(
    settings: Settings, space: SearchSpace, search: Search, names: Mapping[str, str | None], figures: Figures
) -> list[str]:
    """Return what a user has to know of the figures."""
    where, batch = "data" if settings.data is not None else "model", str(names["batch_size"])
    spared = f"{search.spared} more settings were not measured, for they could not be faster"
    if search.out_of_time:
        spared = f"the budget ended the search: {search.spared} settings were not measured. Give a larger budget"
    searched = batch in space.domains and not space.is_fixed(batch)
    notes = {
        f"workers were not varied: give {where} an argument batch_size": names["batch_size"] is None,
        f"the DataLoader's workers were not varied: give {where} an argument num_workers": names["num_workers"] is None,
        f"{batch} is searched: with another number of workers, divide its values accordingly": searched,
        "the model has BatchNorm: only settings with the same samples in a forward were measured": figures.batch_norm,
        spared: search.out_of_time or search.spared,
        f"callbacks that take no part in a step were left out: {', '.join(figures.left_out)}": figures.left_out,
    }
    return [note for note, holds in notes.items() if holds]


# --- Bench: measures settings on gangs of the cluster that this process is connected to -----------


_LONGEST_S = 600.0
"""How long one measurement may take, whatever it was to take: compiling, and data that is prepared."""


@dataclass
class Bench:
    """Measures one setting after the other. Its gang stays warm while the settings ask for the same workers.

    Runs on: driver, connected to Ray. Close it.
    """

    settings: Settings
    measures: Measure
    folder: str

    def __post_init__(self) -> None:
        self._held: list[Held] = []
        self._gang: tuple[int, float] | None = None
        self._serial = 0
        self._task = Task(
            train=cloudpickle.dumps(self.measures),
            home=Home.here(),
            terminal=Terminal(False, 80),  # what the ranks print comes as events, which nobody shows
            reports_to="driver",
            evaluation=self.settings.evaluation or "ddp",
        )

    def reservation(self, setting: Setting) -> Reservation:
        """Return what a gang for the setting reserves."""
        return Reservation(setting.workers, setting.cpus, self.settings.gpus_per_worker)

    def measure(self, setting: Setting, seconds: float, gangs: int = 1) -> Figures:
        """Measure a setting on ``gangs`` gangs at the same time; return the median gang's figures, of two the slower's.

        Raises: UnmeasuredError where training under it fails; GangError, ResourceError.
        """
        runs = []
        try:
            for held in self._take(setting, gangs):
                self._serial += 1
                config = {"setting": setting, "seconds": seconds}
                start = Start(f"tune-up-{self._serial}", self.folder, config, seed=self.settings.seed, until=None)
                run = ResilientRun(self._task, start, FailurePolicy(max_failures=0))
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
        return sorted(figures, key=lambda measured: measured.step_s)[len(figures) // 2]

    def _take(self, setting: Setting, gangs: int) -> list[Held]:
        """Return gangs for a setting, those of before where they fit."""
        if self._gang != setting.gang or any(held.closed or held.gang.unfit for held in self._held):
            self.close()
        self._gang = setting.gang
        reservation = self.reservation(setting)
        spec = GangSpec(
            reservation,
            FailurePolicy(max_failures=0),
            runtime_env=env_of_workers(self.settings, reservation),
            backend=self.settings.backend,
            environ={VARIABLE: self.settings.lightning, **passed_on()},
            home=Home.here(),
        )
        while len(self._held) < gangs:
            held = pool.take(spec, reservation)
            self._held.append(held)
            held.gang.heal()
        return self._held[:gangs]

    def close(self) -> None:
        """End the gangs."""
        held, self._held = self._held, []
        for gang in held:
            pool.close(gang)


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
class TuneUp:
    """The fastest setting for one trial, and the best for the sweep. Print it, or use :meth:`asdict`.

    Experimental.

    Attributes:
        now: the setting that the sweep has.
        fastest: of the most steps a second; of those nearly as fast ``now``, or that of the fewest CPUs.
        measured: the figures of every setting that was measured, the fastest first; ``failed``: why others were not.
        together: how many trials of the sweep train at once under a setting, and their samples a second together.
        limit: what limits the fastest setting, in words.
        search_s: how long the search took.
    """

    now: Setting
    fastest: Setting
    measured: Mapping[Setting, Figures]
    failed: Mapping[Setting, str]
    together: Mapping[Setting, tuple[int, float]]
    limit: str
    search_s: float
    notes: Sequence[str] = ()
    names: Mapping[str, str | None] = field(default_factory=dict)
    fixed: bool = True
    """Whether the batch size is one value in the space, which another may replace."""

    @property
    def best(self) -> Setting:
        """What to train the sweep with: of the most samples a second of all trials that then train at once."""
        return max(self.together, key=lambda setting: self.together[setting][1], default=self.fastest)

    @property
    def global_batch(self) -> int:
        """Samples in a step, the same for all."""
        return self.measured[self.fastest].samples

    def settings(self, setting: Setting | None = None) -> dict[str, Any]:
        """Return what a search space says for a setting (``best``): workers, and keys of data or model."""
        setting = setting or self.best
        keys: dict[str, Any] = {}
        batch, loaders = self.names.get("batch_size"), self.names.get("num_workers")
        if batch is not None and self.fixed:
            keys[batch] = self.global_batch // setting.workers
        if loaders is not None and setting.loader_workers is not None:
            keys[loaders] = setting.loader_workers
        made = {"workers": setting.workers, "cpus_per_worker": setting.cpus}
        return made | ({"space": keys} if keys else {})

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
                for key, part in value.items():
                    if key in document[name]:
                        document[name][key] = part
                    else:
                        document[name].insert(0, key, part)  # at the end it would come behind blank lines and comments
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
        settings = {name: asdict(getattr(self, name)) for name in ("now", "fastest", "best")}
        same = {name: getattr(self, name) for name in ("global_batch", "limit", "search_s", "notes")}
        measured = []
        for setting, figures in self.measured.items():
            low, rate, high = figures.rates
            row = {**asdict(setting), "steps_per_s": rate, "quartiles": [low, high]}
            row |= {"data_share": figures.data_share}
            row |= dict(zip(("at_once", "samples_per_s"), self.together.get(setting, (None, None)), strict=True))
            measured.append(row)
        failed = [{**asdict(setting), "why": why} for setting, why in self.failed.items()]
        return {**settings, "settings": self.settings(), "measured": measured, "failed": failed, **same}

    def table(self) -> list[dict[str, str]]:
        """Return a row for each measured setting, the fastest first."""
        together = {s: f"{speed:.3g} samples/s, {number} at once" for s, (number, speed) in self.together.items()}
        return [
            {
                "setting": str(setting),
                "steps/s (quartiles)": "{1:.3g} ({0:.3g} to {2:.3g})".format(*figures.rates),
                "waits for data": f"{figures.data_share:.0%}",
                "the sweep": together.get(setting, ""),
            }
            for setting, figures in self.measured.items()
        ]

    def __str__(self) -> str:
        figures, now = self.measured[self.fastest], self.measured.get(self.now)
        against = f", {figures.speed / now.speed:.2f} times now's" if now and self.fastest != self.now else ""
        lines = [
            f"{len(self.measured)} settings measured in {self.search_s:.0f} s, {self.global_batch} samples a step.",
            f"Fastest for one trial: {self.fastest}: {figures.rates[1]:.3g} steps/s{against}. It is {self.limit}",
            f"Best for this sweep: {self.best}.",
            *(f"Not possible: {setting}: {why}" for setting, why in self.failed.items()),
            *(f"- {note}" for note in self.notes),
        ]
        return "\n".join([*lines, "", yaml.safe_dump(self.settings(), sort_keys=False).rstrip()])
