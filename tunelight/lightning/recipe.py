"""The train function of a ``model=`` sweep: builds module, data module and Trainer on each worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunelight.errors import SettingsError
from tunelight.session.task import WithObjects
from tunelight.settings import Settings, check_model, check_train
from tunelight.settings.backends import BACKENDS
from tunelight.space import SearchSpace
from tunelight.space.plain import split_config

_FIRST_ERROR = r"Errors:\n\s*- (.*?)(?:\n\s*- |$)"
"""In a message of jsonargparse; those that follow are of the other types that the argument may have."""


@dataclass(frozen=True)
class Recipe:
    """A train function made of the arguments ``model.*``, ``data.*`` and ``trainer.*``. Runs on: worker."""

    model: Callable[..., Any]
    data: Callable[..., Any] | None = None
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    max_epochs: int | None = None
    checkpoints: bool = True

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Train one configuration; everything that Lightning logs is reported after each validation."""
        from tunelight.compat.lightning import Checkpoint, pl  # only workers import Lightning
        from tunelight.lightning.callbacks import TuneReportCallback, TuneReportCheckpointCallback
        from tunelight.session.session import get_context

        parts = split_config(config)
        context = get_context()
        args: dict[str, Any] = {}
        if self.max_epochs is not None:
            args["max_epochs"] = self.max_epochs
        args |= built(dict(self.trainer_args) | parts["trainer"])
        args = with_device(args, BACKENDS[context.backend].load_strategy(), on_gpu=context.gpu is not None)
        if "logger" in args:
            args["logger"] = _made(args["logger"])
        callbacks = callbacks_of(args)
        args.setdefault("enable_checkpointing", any(isinstance(callback, Checkpoint) for callback in callbacks))
        report = TuneReportCheckpointCallback() if self.checkpoints else TuneReportCallback()
        args["callbacks"] = [*callbacks, report]
        module = self.model(**parts["model"])
        data = self.data(**parts["data"]) if self.data is not None else None
        pl.Trainer(**args).fit(module, datamodule=data)


def callbacks_of(args: Mapping[str, Any]) -> list[Any]:
    """Return the callbacks among a Trainer's arguments, where one may stand for a list."""
    given = args.get("callbacks") or []
    return list(given) if isinstance(given, Iterable) else [given]  # hydra.utils.instantiate makes a ListConfig


def built(args: Mapping[str, Any], *, make: bool = True) -> dict[str, Any]:
    """Return a Trainer's arguments with the objects that a ``class_path`` describes, built as LightningCLI does.

    Without ``make`` they are only checked. Raises: SettingsError for a class or arguments that do not fit.
    """
    described = {name: value for name, value in args.items() if _describes(value)}
    # jsonargparse puts its own objects into lists, and the driver's check must leave them as the workers need them.
    described = {name: list(value) if isinstance(value, list) else value for name, value in described.items()}
    if not described:
        return dict(args)
    from jsonargparse import ArgumentError, ArgumentParser

    from tunelight.compat.lightning import pl

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(pl.Trainer, fail_untyped=False)
    try:
        parsed = parser.parse_object(described, defaults=False)
    except ArgumentError as error:
        first = re.search(_FIRST_ERROR, str(error), re.DOTALL)
        why = " ".join((first[1] if first else str(error)).split()).rstrip(".")
        raise SettingsError(
            f"The Trainer's {' and '.join(described)} cannot be built: {why}. Give a class_path and its init_args, as "
            "for LightningCLI."
        ) from error
    made = parser.instantiate_classes(parsed) if make else described
    return {**args, **{name: made[name] for name in described}}


def _describes(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_describes, value))
    return isinstance(value, Mapping) and "class_path" in value


def with_device(args: Mapping[str, Any], strategy: Callable[[], Any], *, on_gpu: bool) -> dict[str, Any]:
    """Return a Trainer's arguments with the worker's strategy and accelerator, where they do not say another."""
    if str(args.get("accelerator")).lower() == "mps":
        # One worker alone, as checked before the sweep: Lightning refuses the DDP family there.
        return {"strategy": "auto", **args}
    if "strategy" not in args and not on_gpu and str(args.get("accelerator", "auto")) == "auto":
        # Left to itself, Lightning takes MPS where it sees it, and refuses the strategy then.
        args = {**args, "accelerator": "cpu"}
    return {"strategy": strategy(), **args} if "strategy" not in args else dict(args)


def training_setting(settings: Settings) -> str:
    """Return the setting that is the training code: "train", "model" or "script"."""
    return next((name for name in ("train", "script") if getattr(settings, name) is not None), "model")


def training_code(space: SearchSpace, settings: Settings) -> Callable[[dict[str, Any]], object]:
    """Return the checked train function, or the recipe of a model= sweep. Raises: TrainFunctionError, SettingsError."""
    from tunelight.gang.parcel import check_picklable  # imports Ray

    with space.placing(settings, training_setting(settings)):
        if settings.script is not None:
            from tunelight.extras.scripts.script import script_of

            return script_of(space, settings)
        if settings.model is None:
            check_train(settings.train)
        else:
            check_model(settings.model, settings.data)
    with space.placing(settings, "trainer_args"):
        built(settings.trainer_args or {}, make=False)
    for what in ("train", "model", "data", "trainer_args"):
        with space.placing(settings, what):
            check_picklable(getattr(settings, what), what)
    code = settings.train or Recipe(
        model=settings.model,
        data=settings.data,
        trainer_args=dict(settings.trainer_args or {}),
        max_epochs=settings.max_epochs,
        checkpoints=bool(settings.checkpoints),
    )
    if not space.objects:
        return code
    check_picklable(space.objects, "A choice of the search space")
    return WithObjects(code, space.objects.restored)


def _made(logger: Any) -> Any:
    """Return loggers as given; one that was given as a class or as a function is made here, anew for each trial."""
    from tunelight.compat.lightning import Logger

    if isinstance(logger, list | tuple):
        return [_made(item) for item in logger]
    return logger() if callable(logger) and not isinstance(logger, Logger) else logger
