"""What all trials of a sweep have in common, and how it follows from the sweep's settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from tunelight.compat.lightning import VARIABLE as LIGHTNING_VARIABLE
from tunelight.gang.spec import GangSpec
from tunelight.messages import DatasetHandle
from tunelight.resources import Reservation
from tunelight.session.task import Home, Task
from tunelight.settings import SETTINGS, Checkpoints, Settings

Description = TypeVar("Description", GangSpec, Task)


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a sweep have in common: their gangs, what the ranks train, and what their heads go by.

    Attributes:
        task: ``train`` is as :class:`tunelight.gang.parcel.Code` sends it; the head does not unpickle it.
        until: the first report of a new trial that waits for an answer (None: none does).
        soft_errors: a failed trial ends with a result that holds its error, so that Tune keeps the head and its gang.
            Otherwise ``step`` raises, as plain Tune expects.
        real_checkpoints: ``save_checkpoint`` gives Tune the checkpoint itself, beside the pointer to it.
        start: how many workers a trial has until a ``Resize`` (None: all that it can get, as they arrive).
    """

    gang: GangSpec
    task: Task
    seed: int = 0
    until: int | None = 1
    soft_errors: bool = False
    real_checkpoints: bool = True
    start: int | None = None


def spec_of_sweep(
    settings: Settings,
    reservation: Reservation,
    train: Any,
    *,
    datasets: DatasetHandle | None,
    runtime_env: dict[str, Any] | None,
    lightning: str,
    until: int | None,
    resizes: bool,
    actor: type[Any] | None = None,
) -> TrialSpec:
    """Return the spec of a sweep's trials. Runs on: driver.

    Args:
        settings: the sweep's.
        reservation: what a trial reserves at first.
        train: the train function, as :class:`tunelight.gang.parcel.Code` sends it.
        datasets: the sweep's, as they are served.
        runtime_env: the workers'.
        lightning: the package of Lightning that the training code is written with.
        until: the first report of a new trial that waits for an answer.
        resizes: whether the scheduler changes the sizes of gangs.
        actor: as in :class:`~tunelight.gang.spec.GangSpec`.
    """
    home, judged = Home.here(), settings.judged_by
    return TrialSpec(
        _described(
            GangSpec,
            settings,
            reservation=reservation,
            runtime_env=runtime_env,
            environ={LIGHTNING_VARIABLE: lightning},
            home=home,
            actor=actor,
        ),
        _described(
            Task,
            settings,
            train=train,
            home=home,
            metric=judged["metric"],
            mode=judged["mode"],
            must_report=judged["metric"] is not None,
            checkpoints=settings.checkpoints or Checkpoints(),
            evaluation=settings.evaluation or reservation.evaluation,
            datasets=datasets,
            folds=settings.folds,
        ),
        seed=settings.seed or 0,
        until=until,
        soft_errors=True,
        real_checkpoints=False,
        start=reservation.least if resizes else None,
    )


def _described(kind: type[Description], settings: Settings, **given: Any) -> Description:
    """Return a description: what is not ``given`` of its fields is the setting of the same name, if there is one."""
    of_settings = {entry.name: getattr(settings, entry.name) for entry in fields(kind) if entry.name in SETTINGS}
    return kind(**{**of_settings, **given})
