"""What is compared by benchmarks/search.py: sweeps through the simulator, and peers' own code on the same trainings.

Each row plays a task on so many slots for so many worker-hours of virtual time, and says which configuration it would
have chosen when: that of the best report so far. Peers pay for no starts and no idle slots.
"""

from __future__ import annotations

import datetime as dt
import heapq
import math
import shutil
import tempfile
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from curve_tasks import Task
from live_curves import EPOCH_S, LiveCurves, space_of

from tests.world import simulate
from tunelight.extras.optuna import OptunaSearcher
from tunelight.searchers.random import RandomSearcher, TrackingSearcher


@dataclass(frozen=True)
class Choice:
    """From so many worker-hours on, this configuration is the best one that was reported."""

    hours: float
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """One sweep of a row."""

    choices: list[Choice]
    hours: float
    wall_hours: float
    trials: int


Row = Callable[[Task, int, int, float], Played]
"""task, seed, slots, worker-hours -> what was chosen when."""

STARTS = 10
"""Configurations that every row begins with, but for DEHB, which takes none, and for those that know earlier sweeps."""


def starts(space: Any, seed: int) -> list[dict[str, Any]]:
    """Return what random search begins with."""
    searcher = RandomSearcher(space, seed)
    return [searcher.suggest(str(number)) for number in range(STARTS)]


class Begun(TrackingSearcher):
    """A searcher whose first trials have these configurations."""

    def __init__(self, inner: Any, configs: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner, self._left = inner, deque(configs)
        self._tracks = isinstance(inner, TrackingSearcher)

    def suggest(self, trial_id: str) -> Any:
        """Return the next of them, or what the searcher suggests."""
        if not self._left:
            return self._inner.suggest(trial_id)
        config = dict(self._left.popleft())
        if self._tracks:
            self._inner.take(trial_id, config)
        return config

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass it on."""
        self._inner.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass it on."""
        self._inner.on_trial_complete(trial_id, result, error)

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """Pass it on to a searcher that tracks its trials."""
        if self._tracks:
            self._inner.end(trial_id, state, result)

    def close(self, states: Mapping[str, str]) -> None:
        """Pass it on to a searcher that tracks its trials."""
        if self._tracks:
            self._inner.close(states)


def simulated(searcher: Callable[[Any, int], Any], scheduler: Any) -> Row:
    """Return a row that runs tunelight's own objects through ``tests.world.simulate``."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        curves = LiveCurves(task, seed)
        sweep = simulate(
            curves,
            scheduler,
            searcher=searcher(space_of(task), seed),
            num_samples=int(hours * 3600 / EPOCH_S),
            slots=slots,
            seed=seed,
            time_budget=hours / slots * 3600,
        )
        configs = {trial.trial_id: trial.config for trial in sweep.trials}
        held = _Hours(sweep.world.usage)
        choices, best = [], math.inf
        for event in sweep.world.happened:
            if event.what == "report" and event.detail[1] is not None and event.detail[1] < best:
                best = event.detail[1]
                choices.append(Choice(held.until(event.time), configs[event.trial]))
        return Played(choices, held.until(sweep.makespan_s), sweep.makespan_s / 3600, len(sweep.trials))

    return play


class _Hours:
    """Worker-hours that gangs have held until a time; times are asked in order."""

    def __init__(self, usage: Any) -> None:
        self._times = np.array([use.time for use in usage])
        held = np.array([use.held for use in usage], float)
        self._held = held
        self._sums = np.concatenate(([0.0], np.cumsum(np.diff(self._times) * held[:-1])))

    def until(self, time: float) -> float:
        """Return the worker-hours so far."""
        at = int(np.searchsorted(self._times, time, side="right")) - 1
        return float(self._sums[at] + (time - self._times[at]) * self._held[at]) / 3600


class Advisor(Protocol):
    """A peer: what to train next, and whether to go on after a report."""

    def ask(self) -> tuple[Any, Mapping[str, Any], int] | None:
        """Return a trial, its configuration, and up to which epoch it trains; None while nothing is to be trained."""

    def tell(self, trial: Any, epoch: int, loss: float) -> bool:
        """Take a report; return whether the trial goes on."""


def played_by(make: Callable[[Any, int, Task], Advisor]) -> Row:
    """Return a row that asks a peer, on virtual time."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        advisor = make(space_of(task), seed, task)
        curves, epochs = LiveCurves(task, seed), int(hours * 3600 / EPOCH_S)
        running: list[tuple[float, int, Any, Mapping[str, Any], int, int]] = []
        now, trained, trials, choices, best = 0.0, 0, 0, [], math.inf
        while trained < epochs:
            while len(running) < slots and (asked := advisor.ask()) is not None:
                trial, config, until = asked
                heapq.heappush(running, (now + 1, trials, trial, config, 1, until))
                trials += 1
            if not running:
                break
            now, number, trial, config, epoch, until = heapq.heappop(running)
            trained += 1
            loss = curves.curve(config).at(epoch)["loss"]
            if math.isfinite(loss) and loss < best:
                best = loss
                choices.append(Choice(trained * EPOCH_S / 3600, config))
            if advisor.tell(trial, epoch, loss if math.isfinite(loss) else 6e4) and epoch < until:
                heapq.heappush(running, (now + 1, number, trial, config, epoch + 1, until))
        return Played(choices, trained * EPOCH_S / 3600, now * EPOCH_S / 3600, trials)

    return play


class OptunaAdvisor:
    """Optuna's TPE, or another of its samplers, with one of its pruners, as its documentation has it."""

    def __init__(self, space: Any, seed: int, task: Task, pruner: Any, sampler: Any = None) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        self._optuna, self._task = optuna, task
        distributions = {}
        for key, domain in space.domains.items():
            parameter = space.kinds[key].parameter(key, domain)
            assert parameter is not None  # the tasks' spaces hold nothing that Optuna lacks
            distributions[key] = parameter.distribution
        self._distributions = distributions
        sampler = sampler or optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler, pruner=pruner)
        for config in starts(space, seed):
            self._study.enqueue_trial(config)

    def ask(self) -> tuple[Any, Mapping[str, Any], int]:
        """Ask the study."""
        trial = self._study.ask(self._distributions)
        return trial, trial.params, self._task.epochs

    def tell(self, trial: Any, epoch: int, loss: float) -> bool:
        """Report to the pruner; end the trial in the study where it ends."""
        trial.report(loss, epoch)
        if epoch == self._task.epochs:
            self._study.tell(trial, min(trial.storage.get_trial(trial._trial_id).intermediate_values.values()))
            return False
        if trial.should_prune():
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
            return False
        return True


def optuna_asha(space: Any, seed: int, task: Task) -> Advisor:
    """Return Optuna's TPE with its successive halving."""
    import optuna

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return OptunaAdvisor(space, seed, task, pruner)


def optuna_gp(space: Any, seed: int, task: Task) -> Advisor:
    """Return Optuna's Gaussian process with its successive halving."""
    import optuna

    warnings.simplefilter("ignore")  # it is experimental
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return OptunaAdvisor(space, seed, task, pruner, optuna.samplers.GPSampler(seed=seed))


def optuna_hyperband(space: Any, seed: int, task: Task) -> Advisor:
    """Return Optuna's TPE with its Hyperband."""
    import optuna

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=task.epochs, reduction_factor=3)
    return OptunaAdvisor(space, seed, task, pruner)


class SyneAdvisor:
    """A scheduler of Syne Tune's, asked as its tuner asks it."""

    def __init__(self, scheduler: Any, task: Task) -> None:
        from syne_tune.backend.trial_status import Trial

        self._trial, self._scheduler, self._task, self._count = Trial, scheduler, task, 0

    def ask(self) -> tuple[Any, Mapping[str, Any], int] | None:
        """Ask the scheduler."""
        suggestion = self._scheduler.suggest()
        if suggestion is None:
            return None
        trial = self._trial(self._count, suggestion.config, dt.datetime.fromtimestamp(0, dt.UTC))
        self._count += 1
        self._scheduler.on_trial_add(trial)
        config = {key: value.item() if hasattr(value, "item") else value for key, value in suggestion.config.items()}
        return trial, config, self._task.epochs

    def tell(self, trial: Any, epoch: int, loss: float) -> bool:
        """Report to the scheduler."""
        result = {"loss": loss, "epoch": epoch}
        if epoch == self._task.epochs:
            self._scheduler.on_trial_complete(trial, result)
            return False
        return bool(self._scheduler.on_trial_result(trial, result) == "CONTINUE")


def syne_tune(name: str) -> Callable[[Any, int, Task], Advisor]:
    """Return what makes one of Syne Tune's schedulers."""

    def make(space: Any, seed: int, task: Task) -> Advisor:
        from syne_tune import config_space as domains
        from syne_tune.optimizer import baselines

        np.random.seed(seed)  # noqa: NPY002 - it draws its brackets from there
        translated = {}
        for key, described in space.describe().items():
            match next(iter(described.items())):
                case "choice", values:
                    translated[key] = domains.choice(list(values))
                case ("randint" | "lograndint") as kind, [low, high]:
                    translated[key] = getattr(domains, kind)(low, high - 1)
                case kind, [low, high]:
                    translated[key] = getattr(domains, kind)(low, high)
        scheduler = getattr(baselines, name)(
            config_space=translated,
            metric="loss",
            time_attr="epoch",
            max_t=task.epochs,
            random_seed=seed,
            points_to_evaluate=starts(space, seed),
        )
        return SyneAdvisor(scheduler, task)

    return make


class DehbAdvisor:
    """DEHB, asked for jobs and told their losses at the end.

    Each job trains from the beginning to its fidelity in epochs, also that of a configuration which DEHB promotes: it
    keeps no checkpoints for its users. The loss that it is told is that of the last epoch.
    """

    def __init__(self, dehb: Any) -> None:
        self._dehb = dehb

    def ask(self) -> tuple[Any, Mapping[str, Any], int]:
        """Ask for a job."""
        job = self._dehb.ask()
        config = {key: value.item() if hasattr(value, "item") else value for key, value in dict(job["config"]).items()}
        return job, config, round(float(job["fidelity"]))

    def tell(self, trial: Any, epoch: int, loss: float) -> bool:
        """Tell the loss at the job's last epoch."""
        if epoch < round(float(trial["fidelity"])):
            return True
        self._dehb.tell(trial, {"fitness": loss, "cost": float(epoch)})
        return False


def dehb(space: Any, seed: int, task: Task) -> Advisor:
    """Return DEHB, whose files go to a folder that is removed with it."""
    import ConfigSpace
    from dehb import DEHB

    parameters: list[Any] = []
    for key, described in space.describe().items():
        match next(iter(described.items())):
            case "choice", values:
                parameters.append(ConfigSpace.CategoricalHyperparameter(key, list(values)))
            case ("randint" | "lograndint") as kind, [low, high]:
                log = kind == "lograndint"
                parameters.append(ConfigSpace.UniformIntegerHyperparameter(key, low, high - 1, log=log))
            case kind, [low, high]:
                log = kind == "loguniform"
                parameters.append(ConfigSpace.UniformFloatHyperparameter(key, low, high, log=log))
    domains = ConfigSpace.ConfigurationSpace(seed=seed)
    domains.add(parameters)
    folder = tempfile.mkdtemp(prefix="dehb-")
    made = DEHB(
        cs=domains,
        min_fidelity=1,
        max_fidelity=task.epochs,
        eta=3,
        n_workers=1,
        seed=seed,
        save_freq="end",
        output_path=folder,
        log_level="ERROR",
    )
    advisor = DehbAdvisor(made)
    weakref.finalize(advisor, shutil.rmtree, folder, ignore_errors=True)
    return advisor


def _random(space: Any, seed: int) -> Any:
    return RandomSearcher(space, seed, "loss", "min")


def _optuna(kind: str) -> Callable[[Any, int], Any]:
    def make(space: Any, seed: int) -> Any:
        return Begun(OptunaSearcher(kind, space=space, metric="loss", mode="min", seed=seed), starts(space, seed))

    return make


BASE = "ASHA, random"
OURS: dict[str, Row] = {
    BASE: simulated(_random, "asha"),
    "ASHA, tpe": simulated(_optuna("tpe"), "asha"),
    "ASHA, gp": simulated(_optuna("gp"), "asha"),
    "to the end, random": simulated(_random, "fifo"),
    "to the end, tpe": simulated(_optuna("tpe"), "fifo"),
}
PEERS: dict[str, tuple[str, Row]] = {
    "Optuna TPE, its ASHA": ("optuna", played_by(optuna_asha)),
    "Optuna GP, its ASHA": ("optuna", played_by(optuna_gp)),
    "Optuna TPE, its Hyperband": ("optuna", played_by(optuna_hyperband)),
    "Syne Tune ASHA": ("syne_tune", played_by(syne_tune("ASHA"))),
    "Syne Tune BOHB": ("syne_tune", played_by(syne_tune("BOHB"))),
    "DEHB": ("dehb", played_by(dehb)),
}
"""Row -> the package that it needs, and what plays it."""
