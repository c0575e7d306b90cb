"""Build the scheduler that a sweep's settings name."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Mapping
from typing import Any

from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandForBOHB,
    ResourceChangingScheduler,
    TrialScheduler,
    create_scheduler,
)

from tunelight.compat.ray import schedulers_by_name
from tunelight.errors import SettingsError, refuse_unknown, unknown
from tunelight.schedulers.asha import ASHA
from tunelight.schedulers.base import PAUSING, GangScheduler, SweepFacts, adapted
from tunelight.schedulers.elastic import ElasticASHA
from tunelight.schedulers.pbt import GangPBT
from tunelight.settings import Settings
from tunelight.settings.checks import check_grace

_OURS: Mapping[str, type[TrialScheduler]] = {
    "asha": ASHA,
    "elastic_asha": ElasticASHA,
    "gang_pbt": GangPBT,
    "fifo": FIFOScheduler,
}
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


def build_scheduler(settings: Settings, domains: Mapping[str, Any] | None = None, **facts: Any) -> GangScheduler:
    """Return the scheduler that the settings name, told about its sweep.

    ``domains``: the search space by dotted key; ``facts``: further fields of :class:`SweepFacts`.
    Raises: SettingsError for an unknown one, and for one that does not fit the sweep.
    """
    given = settings.scheduler
    if isinstance(given, TrialScheduler):
        with contextlib.suppress(Exception):  # one that cannot be copied is used as it is
            given = copy.deepcopy(given)  # it keeps state by trial ids, which the next sweep has, too
    elif isinstance(given, str | Mapping):
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        given = _by_name(str(options.pop("name", "asha")), options, settings)
    else:
        raise SettingsError(_no_scheduler(given))
    scheduler = adapted(given)
    check_grace(scheduler.grace_period, scheduler.time_attr, settings.max_epochs)
    if settings.repeats is not None and scheduler.changes_configs:
        raise SettingsError(
            f"repeats= trains the best configurations again, and under {type(given).__name__} trials change their "
            "configuration while they train, so that none can be trained again from its start. Leave repeats out, or "
            "choose a scheduler that keeps configurations: 'asha', 'elastic_asha', 'fifo'."
        )
    parts = settings.model is not None or settings.script is not None
    if settings.checkpoints is None and parts and (scheduler.pauses or isinstance(scheduler.inner, PAUSING)):
        raise SettingsError(
            f"{type(given).__name__} pauses trials, which go on from their checkpoints, and checkpoints=None has them "
            "write none. Leave checkpoints out, or choose a scheduler that only stops trials: 'asha'."
        )
    workers = settings.workers[1] if isinstance(settings.workers, tuple) else None
    scheduler.prepare(SweepFacts(domains, workers, settings.room_for_data, **facts))
    return scheduler


def _by_name(name: str, options: dict[str, Any], settings: Settings) -> TrialScheduler:
    """Return tunelight's or Ray's scheduler of this name. Ray ignores unknown options silently."""
    tunes = schedulers_by_name()
    if name not in _OURS and name not in tunes:
        valid = [*_OURS, *(key for key in tunes if key not in _OURS)]
        raise SettingsError(
            f"{unknown('There is no scheduler', name, valid)} Or pass a Ray Tune TrialScheduler object."
        )
    kind: Any = _OURS.get(name, tunes.get(name))
    try:
        valid = list(inspect.signature(kind() if inspect.isfunction(kind) else kind).parameters)
    except ImportError as error:
        raise SettingsError(
            f"scheduler {name!r} cannot be used: {error}. {_OURS_FOR.get(name, '')}".rstrip()
        ) from error
    refuse_unknown(f"scheduler {name!r} has no", options, valid)
    if settings.max_epochs is not None and "max_t" in valid:
        options.setdefault("max_t", settings.max_epochs)
    if name in _OURS:
        if "seed" in valid:
            options.setdefault("seed", settings.seed or 0)
        judged = settings.judged_by if "metric" in valid else {}
        return _OURS[name](**{**judged, **options})
    try:
        return create_scheduler(name, **options)
    except Exception as error:
        ours, given = (f" Or: {_OURS_FOR[name]}." if name in _OURS_FOR else ""), options or "its name alone"
        raise SettingsError(
            f"Ray Tune's scheduler {name!r} cannot be made of {given}: {str(error).rstrip('.')}. Give what it needs "
            f"beside the name, scheduler={{'name': {name!r}, ...}}, or pass the object.{ours}"
        ) from error


def _no_scheduler(given: Any) -> str:
    """Return the error for an object that is no scheduler: a class, another library's, or something else."""
    if isinstance(given, type) and hasattr(given, "on_trial_result"):
        return (
            f"scheduler={given.__name__} is a class. Make an object of it: scheduler={given.__name__}(), with its "
            "arguments between the parentheses."
        )
    return (
        "scheduler must be a name ('asha', 'fifo', ...), a name with options ({'name': 'asha', 'grace_period': 2}), or "
        f"a Ray Tune TrialScheduler object, not {given!r}."
    )


def check_company(scheduler: GangScheduler, settings: Settings) -> None:
    """Raise SettingsError for schedulers of Ray's that would fail during a sweep with these settings."""
    if isinstance(scheduler.inner, HyperBandForBOHB) and not hasattr(settings.searcher, "on_pause"):
        raise SettingsError(
            "Ray Tune's HyperBandForBOHB ('hb_bohb') works with Ray Tune's TuneBOHB as its searcher only, and "
            f"searcher={settings.searcher!r}. Give searcher=TuneBOHB() (from ray.tune.search.bohb), or: "
            f"{_OURS_FOR['hb_bohb']}."
        )
    if isinstance(scheduler.inner, ResourceChangingScheduler) and settings.reuse_gangs is not False:
        raise SettingsError(
            "Ray Tune's ResourceChangingScheduler cannot reuse gangs. Say reuse_gangs=False, or: "
            f"{_OURS_FOR['resource_changing']}."
        )


def judged_by(scheduler: GangScheduler, settings: Settings) -> dict[str, Any]:
    """Return the metric and mode for Tune to set on the scheduler: those that it was not made with."""
    return {name: value for name, value in settings.judged_by.items() if getattr(scheduler, name) is None}
