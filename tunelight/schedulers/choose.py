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

_SCHEDULERS = ("asha", "gang_pbt", "fifo")


def build_scheduler(settings: Settings) -> TrialScheduler:
    """Return the scheduler that the settings name. Raises: SettingsError for an unknown one."""
    from ray.tune.schedulers import (  # noqa: PLC0415
        SCHEDULER_IMPORT,
        FIFOScheduler,
        TrialScheduler,
        create_scheduler,
    )

    from tunelight.schedulers import ASHA, GangPBT  # noqa: PLC0415

    given = settings.scheduler
    if isinstance(given, TrialScheduler):
        try:
            return copy.deepcopy(given)  # it remembers trials, and the next sweep's have the same ids
        except Exception:  # noqa: BLE001 - one that cannot be copied is used as it is
            return given
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = str(options.pop("name", "asha"))
    try:
        if name in ("asha", "gang_pbt"):
            made: type[ASHA | GangPBT] = ASHA if name == "asha" else GangPBT
            valid = list(inspect.signature(made).parameters)
            for option in options:
                if option not in valid:
                    raise SettingsError(
                        f"scheduler {name} has no {option!r}.{guess(option, valid)} It has {', '.join(valid)}."
                    )
            if settings.max_epochs is not None:
                options.setdefault("max_t", settings.max_epochs)
            if "seed" in valid:
                options.setdefault("seed", settings.seed or 0)
            return made(metric=settings.metric, mode=settings.mode, **options)
        if name == "fifo":
            return FIFOScheduler(**options)
        if name in SCHEDULER_IMPORT:
            return create_scheduler(name, **options)
    except TypeError as error:
        raise SettingsError(f"scheduler {name!r} does not take {options}: {error}.") from error
    valid = [*_SCHEDULERS, *(key for key in SCHEDULER_IMPORT if key not in _SCHEDULERS)]
    raise SettingsError(
        f"There is no scheduler {name!r}.{guess(name, valid)} There are {', '.join(valid)}, or pass a Ray Tune "
        "TrialScheduler object."
    )


def judged_by(scheduler: Any, settings: Settings) -> dict[str, Any]:
    """Return the metric and mode that Tune is to tell the scheduler: those that it was not made with."""
    return {
        name: getattr(settings, name)
        for name in ("metric", "mode")
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
