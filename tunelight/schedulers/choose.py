"""From a sweep's settings to a scheduler object, and how far it lets a new trial run unasked."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunelight.errors import SettingsError, guess
from tunelight.messages import Continue

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

    from tunelight.settings import Settings

_OURS = ("asha", "elastic_asha", "gang_pbt")
_SCHEDULERS = (*_OURS, "fifo")
_TO_MAX_EPOCHS = ("asynchyperband", "async_hyperband", "hyperband", "hb_bohb")
"""Those of Ray's that want to know where a trial ends."""


def build_scheduler(settings: Settings, domains: Mapping[str, Any] | None = None) -> TrialScheduler:
    """Return the scheduler that the settings name, told of the space's domains (by dotted key) if it wants to know.

    Raises: SettingsError for an unknown one.
    """
    from ray.tune.schedulers import TrialScheduler  # noqa: PLC0415

    given = settings.scheduler
    if isinstance(given, TrialScheduler):
        try:
            scheduler = copy.deepcopy(given)  # it remembers trials, and the next sweep's have the same ids
        except Exception:  # noqa: BLE001 - one that cannot be copied is used as it is
            scheduler = given
    else:
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        scheduler = _by_name(str(options.pop("name", "asha")), options, settings)
    if getattr(scheduler, "resizes", False):
        _limit(scheduler, settings)
    if domains is not None and hasattr(scheduler, "set_space"):
        scheduler.set_space(domains)
    return scheduler


def _by_name(name: str, options: dict[str, Any], settings: Settings) -> TrialScheduler:
    from ray.tune.schedulers import SCHEDULER_IMPORT, FIFOScheduler, create_scheduler  # noqa: PLC0415

    if name in _OURS:
        return _ours(name, options, settings)
    try:
        if name == "fifo":
            return FIFOScheduler(**options)
        if name in SCHEDULER_IMPORT:
            if name in _TO_MAX_EPOCHS and settings.max_epochs is not None:
                options.setdefault("max_t", settings.max_epochs)
            return create_scheduler(name, **options)
    except TypeError as error:
        raise SettingsError(f"scheduler {name!r} does not take {options}: {error}.") from error
    valid = [*_SCHEDULERS, *(key for key in SCHEDULER_IMPORT if key not in _SCHEDULERS)]
    raise SettingsError(
        f"There is no scheduler {name!r}.{guess(name, valid)} There are {', '.join(valid)}, or pass a Ray Tune "
        "TrialScheduler object."
    )


def _ours(name: str, options: dict[str, Any], settings: Settings) -> TrialScheduler:
    from tunelight.schedulers import ASHA, ElasticASHA, GangPBT  # noqa: PLC0415

    kind = {"asha": ASHA, "elastic_asha": ElasticASHA, "gang_pbt": GangPBT}[name]
    valid = list(inspect.signature(kind).parameters)
    for option in options:
        if option not in valid:
            raise SettingsError(f"scheduler {name} has no {option!r}.{guess(option, valid)} It has {', '.join(valid)}.")
    if settings.max_epochs is not None:
        options.setdefault("max_t", settings.max_epochs)
    if "seed" in valid:
        options.setdefault("seed", settings.seed or 0)
    made: TrialScheduler = kind(**{**settings.judged_by, **options})
    return made


def _limit(scheduler: Any, settings: Settings) -> None:
    """Tell a scheduler that resizes how large gangs may become: those of one fixed size stay as they are."""
    most = settings.workers[1] if isinstance(settings.workers, tuple) else None
    own = getattr(scheduler, "max_workers", None)
    scheduler.max_workers = most if most is None or own is None else min(own, most)


def judged_by(scheduler: Any, settings: Settings) -> dict[str, Any]:
    """Return the metric and mode that Tune is to tell the scheduler: those that it was not made with."""
    return {
        name: value
        for name, value in settings.judged_by.items()
        if getattr(scheduler, f"_{name}", getattr(scheduler, name, None)) is None
    }


def first_decision(scheduler: Any) -> Continue:
    """Return how far a new trial may run before its first answer; FIFO never has one to give."""
    from ray.tune.schedulers import FIFOScheduler  # noqa: PLC0415

    if hasattr(scheduler, "initial_decision"):
        decision = scheduler.initial_decision()
        assert isinstance(decision, Continue)  # noqa: S101 - our own schedulers
        return decision
    return Continue(until=None if type(scheduler) is FIFOScheduler else 1)
