"""The parts of a sweep that can be built before Ray starts, and its datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.compat.lightning import decide
from tunelight.compat.ray import check_version
from tunelight.lightning.recipe import training_code, training_setting
from tunelight.messages import DatasetHandle
from tunelight.resources import Reservation, reserve
from tunelight.settings import Settings
from tunelight.space import SearchSpace

if TYPE_CHECKING:
    from ray.tune.search import Searcher

    from tunelight.schedulers.base import GangScheduler


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
    from tunelight.schedulers.choose import build_scheduler, check_company  # imports Ray Tune
    from tunelight.searchers.choose import build_searcher

    check_version()
    with space.placing(settings, "scheduler"):
        scheduler = build_scheduler(settings, space.domains, **facts)
        check_company(scheduler, settings)
    with space.placing(settings, "searcher"):
        searcher = build_searcher(space, settings, folder)
    return reservation, code, scheduler, searcher
