"""Trials on gangs for people who run Ray Tune themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tunelight.checkpoints.policy import Checkpoints
from tunelight.compat.ray import check_version
from tunelight.errors import SettingsError, known_arguments, whole
from tunelight.gang.spec import GangSpec
from tunelight.messages import Evaluation
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation, check_devices, reserve
from tunelight.session.task import Home, Task
from tunelight.settings.backends import Backend
from tunelight.trial.trainable import GangTrainable, make_trainable
from tunelight.trial.trial import TrialSpec

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory


@known_arguments
def gang_trainable(
    train: Callable[..., object],
    *,
    workers: int | tuple[int, int] | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    resources_per_trial: Mapping[str, Any] | None = None,
    backend: Backend = "ddp",
    metric: str | None = None,
    seed: int = 0,
    failures: FailurePolicy | Mapping[str, Any] | int = 3,
    evaluation: Evaluation | None = None,
    start: int | None = None,
) -> type[GangTrainable]:
    """Return a Trainable class that plain ``ray.tune.Tuner`` can run: each trial trains on a gang of workers.

    Args:
        train: the train function; it runs on every worker, with the trial's config. Parameters of Ray's
            ``tune.with_parameters`` may be bound to it, or to the returned class.
        workers, cpus_per_worker, gpus_per_worker, resources_per_trial: the reservation, as in ``tunelight.run``.
        backend: for collectives between the workers, as in ``tunelight.run``.
        metric: the metric that every report must have (None: whatever the Tuner asks for).
        seed: of the sweep; each trial's seed follows from it and its number.
        failures: what a trial survives, as in ``tunelight.run``.
        evaluation: how Lightning's validation and test are divided, as in ``tunelight.run``.
        start: for a scheduler that resizes gangs, as tunelight's ElasticASHA: how many of ``workers=(least, most)``
            a trial reserves and starts with, until the scheduler says otherwise (None: most of them, by itself).

    Give the Tuner ``TuneConfig(reuse_actors=True)`` to keep gangs warm from trial to trial. Tune gets the checkpoint of
    every report that has one, and keeps them as its ``CheckpointConfig`` says; with ``start``, those of pauses and of
    the end. The class is named after ``train``, so that ``Tuner.restore`` accepts it in another process.
    Raises: TrainFunctionError, SettingsError. Runs on: driver.
    """
    from tunelight.compat.lightning import VARIABLE, decide
    from tunelight.gang.parcel import Code, check_picklable
    from tunelight.settings import check_setting, check_train
    from tunelight.settings.code import find_flavour

    check_version()
    check_train(train, more=True)
    check_picklable(train, "train")
    decide(flavour := find_flavour({"train": train}), f"train uses {flavour}")
    for name, value in (("backend", backend), ("metric", metric), ("seed", seed)):
        check_setting(name, value)
    if not isinstance(metric, str | None):
        raise SettingsError(
            f"gang_trainable takes one metric, which every report must have, not metric={metric!r}. Those of the "
            "search go into TuneConfig(search_alg=...)."
        )
    reservation = reserve(workers, cpus_per_worker, gpus_per_worker, resources_per_trial)
    home = Home.here()
    named = train.func if isinstance(train, functools.partial) else train
    spec = TrialSpec(
        GangSpec(
            reservation if start is None else reservation.starting(start),
            check_setting("failures", failures),
            backend=backend,
            environ={VARIABLE: flavour},
            home=home,
        ),
        Task(
            Code(train),
            home,
            metric,
            evaluation=check_setting("evaluation", evaluation) or reservation.evaluation,
            checkpoints=Checkpoints(share=1.0) if start is None else Checkpoints(),  # saving would end a trial's run
            reports_to="tuner",
        ),
        getattr(named, "__name__", "gang"),
        seed=seed,
        start=start,
    )
    return make_trainable(spec)


@known_arguments
def get_tune_resources(
    num_workers: int = 1,
    num_cpus_per_worker: float = 1,
    use_gpu: bool = False,
    *,
    num_cpus_head: float = 0,
    resources_per_worker: Mapping[str, float] | None = None,
) -> PlacementGroupFactory:
    """Return the reservation of a trial with ``num_workers`` workers, for ``resources_per_trial`` of plain Ray Tune.

    ``use_gpu`` gives each worker one GPU; ``resources_per_worker`` may hold "CPU", "GPU" (also fractions) and custom
    resources, and takes precedence. Raises: SettingsError.
    """
    whole("num_workers", num_workers)
    custom = dict(resources_per_worker or {})
    cpus = custom.pop("CPU", num_cpus_per_worker)
    gpus = custom.pop("GPU", 1 if use_gpu else 0)
    check_devices(gpus, custom, "resources_per_worker['GPU']")
    return Reservation(num_workers, cpus, gpus, head_cpus=num_cpus_head, resources_per_worker=custom).factory
