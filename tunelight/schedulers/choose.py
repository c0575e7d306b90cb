"""Build the scheduler that a sweep's settings name, and get its decision for new trials."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tunelight.compat.arguments import replacement
from tunelight.compat.ray import schedulers_by_name
from tunelight.errors import SettingsError, unknown
from tunelight.messages import Continue

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

    from tunelight.settings import Settings

_OURS = ("asha", "elastic_asha", "gang_pbt")
_SCHEDULERS = (*_OURS, "fifo")
_TO_MAX_EPOCHS = ("asynchyperband", "async_hyperband", "hyperband", "hb_bohb")
"""Ray's schedulers that take the length of trials."""
_OURS_FOR = {
    **dict.fromkeys(
        ("pbt", "pb2"),
        "tunelight's own, scheduler='gang_pbt', varies all that the search space holds and needs nothing more",
    ),
    "pbt_replay": "what a member of a 'gang_pbt' sweep went through is in results.trial(...).changes",
    "hb_bohb": "scheduler='hyperband' or 'asha' with searcher='tpe' combines the same two ideas",
    "resource_changing": "tunelight's own, scheduler='elastic_asha' with workers=(1, 4), resizes gangs",
}
"""What to use instead of Ray's schedulers that cannot be made by name alone."""
_ELSEWHERE = {
    "bohb": "hb_bohb",
    "median": "median_stopping_rule",
    "medianpruner": "median_stopping_rule",
    "successive_halving": "asha",
    "successivehalvingpruner": "asha",
    "hyperbandpruner": "hyperband",
    "asha_scheduler": "asha",
    "population": "gang_pbt",
    "population_based_training": "gang_pbt",
    "none": "fifo",
    "noppruner": "fifo",
}
"""Other libraries' names of schedulers -> ours."""


def build_scheduler(settings: Settings, domains: Mapping[str, Any] | None = None) -> TrialScheduler:
    """Return the scheduler that the settings name; one with ``set_space`` gets the domains (by dotted key).

    Raises: SettingsError for an unknown one.
    """
    from ray.tune.schedulers import TrialScheduler

    given = settings.scheduler
    if not isinstance(given, str | Mapping | TrialScheduler):
        raise SettingsError(_no_scheduler(given))
    if isinstance(given, TrialScheduler):
        try:
            scheduler = copy.deepcopy(given)  # it keeps state by trial ids, which the next sweep has, too
        except Exception:  # noqa: BLE001 - one that cannot be copied is used as it is
            scheduler = given
    else:
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        scheduler = _by_name(str(options.pop("name", "asha")), options, settings)
    if getattr(scheduler, "resizes", False):
        _limit(scheduler, settings)
    if domains is not None and hasattr(scheduler, "set_space"):
        scheduler.set_space(domains)
    if settings.repeats is not None:
        _check_repeats(scheduler)
    return scheduler


def _check_repeats(scheduler: TrialScheduler) -> None:
    """Raise SettingsError for a scheduler whose trials do not keep one configuration each, to train again."""
    from ray.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay

    changing = (PopulationBasedTraining, PopulationBasedTrainingReplay)
    if isinstance(scheduler, changing) or hasattr(scheduler, "on_change"):
        raise SettingsError(
            f"repeats= trains the best configurations again, and under {type(scheduler).__name__} trials change their "
            "configuration while they train, so that none can be trained again from its start. Leave repeats out, or "
            "choose a scheduler that keeps configurations: 'asha', 'elastic_asha', 'fifo'."
        )


def _by_name(name: str, options: dict[str, Any], settings: Settings) -> TrialScheduler:
    from ray.tune.schedulers import FIFOScheduler, create_scheduler

    tunes = schedulers_by_name()
    if name in _OURS:
        return _ours(name, options, settings)
    if name == "fifo":
        make: Callable[..., TrialScheduler] = FIFOScheduler
    elif name in tunes:
        make = partial(create_scheduler, name)
        _check_options(name, options)
    else:
        valid = [*_SCHEDULERS, *(key for key in tunes if key not in _SCHEDULERS)]
        known = _ELSEWHERE.get(name.lower())
        more = f"; {_OURS_FOR[known]}" if known in _OURS_FOR else ""
        near = f" Here that is {known!r}{more}." if known else ""
        raise SettingsError(
            f"{unknown('There is no scheduler', name, valid, near or None)} Or pass a Ray Tune TrialScheduler object."
        )
    if name in _TO_MAX_EPOCHS and settings.max_epochs is not None:
        options.setdefault("max_t", settings.max_epochs)
    try:
        return make(**options)
    except Exception as error:
        ours, given = (f" Or: {_OURS_FOR[name]}." if name in _OURS_FOR else ""), options or "its name alone"
        raise SettingsError(
            f"Ray Tune's scheduler {name!r} cannot be made of {given}: {str(error).rstrip('.')}. Give what it needs "
            f"beside the name, scheduler={{'name': {name!r}, ...}}, or pass the object.{ours}"
        ) from error


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise SettingsError for options that a scheduler of Ray's does not have: Ray ignores them silently."""
    kind: Any = schedulers_by_name()[name]
    try:
        valid = list(inspect.signature(kind() if inspect.isfunction(kind) else kind).parameters)
    except ImportError as error:
        raise SettingsError(
            f"scheduler {name!r} cannot be used: {error}. {_OURS_FOR.get(name, '')}".rstrip()
        ) from error
    for option in options:
        if option not in valid:
            raise SettingsError(
                unknown(f"scheduler {name!r} has no", option, valid, replacement(option, valid, "scheduler"))
            )


def _no_scheduler(given: Any) -> str:
    """Return the error for an object that is no scheduler: a class, another library's, or something else."""
    kind = given if isinstance(given, type) else type(given)
    if isinstance(given, type) and hasattr(given, "on_trial_result"):
        return (
            f"scheduler={given.__name__} is a class. Make an object of it: scheduler={given.__name__}(), with its "
            "arguments between the parentheses."
        )
    if kind.__module__.startswith("optuna."):
        known = _ELSEWHERE.get(kind.__name__.lower(), "asha")
        return (
            f"scheduler= takes no {kind.__name__} of Optuna's: trials are stopped by a scheduler here. The nearest is "
            f"scheduler={known!r}."
        )
    return (
        "scheduler must be a name ('asha', 'fifo', ...), a name with options ({'name': 'asha', 'grace_period': 2}), or "
        f"a Ray Tune TrialScheduler object, not {given!r}."
    )


def check_company(scheduler: TrialScheduler, settings: Settings) -> None:
    """Raise SettingsError for schedulers of Ray's that would fail during a sweep with these settings."""
    from ray.tune.schedulers import HyperBandForBOHB, ResourceChangingScheduler

    if isinstance(scheduler, HyperBandForBOHB) and not hasattr(settings.searcher, "on_pause"):
        raise SettingsError(
            "Ray Tune's HyperBandForBOHB ('hb_bohb') works with Ray Tune's TuneBOHB as its searcher only, and "
            f"searcher={settings.searcher!r}. Give searcher=TuneBOHB() (from ray.tune.search.bohb), or: "
            f"{_OURS_FOR['hb_bohb']}."
        )
    if isinstance(scheduler, ResourceChangingScheduler) and settings.reuse_gangs:
        raise SettingsError(
            "Ray Tune's ResourceChangingScheduler cannot reuse gangs. Say reuse_gangs=False, or: "
            f"{_OURS_FOR['resource_changing']}."
        )


def _ours(name: str, options: dict[str, Any], settings: Settings) -> TrialScheduler:
    from tunelight.schedulers import ASHA, ElasticASHA, GangPBT

    kind = {"asha": ASHA, "elastic_asha": ElasticASHA, "gang_pbt": GangPBT}[name]
    valid = list(inspect.signature(kind).parameters)
    for option in options:
        if option not in valid:
            raise SettingsError(
                unknown(f"scheduler {name} has no", option, valid, replacement(option, valid, "scheduler"))
            )
    if settings.max_epochs is not None:
        options.setdefault("max_t", settings.max_epochs)
    if "seed" in valid:
        options.setdefault("seed", settings.seed or 0)
    made: TrialScheduler = kind(**{**settings.judged_by, **options})
    return made


def _limit(scheduler: Any, settings: Settings) -> None:
    """Set the largest size of gangs on a scheduler that resizes them; gangs of a fixed size keep it."""
    largest = settings.workers[1] if isinstance(settings.workers, tuple) else None
    own = getattr(scheduler, "max_workers", None)
    scheduler.max_workers = largest if largest is None or own is None else min(own, largest)


def judged_by(scheduler: Any, settings: Settings) -> dict[str, Any]:
    """Return the metric and mode for Tune to set on the scheduler: those that it was not made with."""
    return {
        name: value
        for name, value in settings.judged_by.items()
        if getattr(scheduler, f"_{name}", getattr(scheduler, name, None)) is None
    }


def first_decision(scheduler: Any) -> Continue:
    """Return the decision for new trials: the first report that needs an answer; FIFO never answers."""
    from ray.tune.schedulers import FIFOScheduler

    if hasattr(scheduler, "initial_decision"):
        decision = scheduler.initial_decision()
        assert isinstance(decision, Continue)  # our own schedulers
        return decision
    return Continue(until=None if type(scheduler) is FIFOScheduler else 1)
