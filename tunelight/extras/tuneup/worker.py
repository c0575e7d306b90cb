"""Measures training on every rank of a gang: the seconds of its steps, and what each step waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from tunelight.compat.lightning import Callback, Checkpoint, Profiler, pl
from tunelight.extras.tuneup.search import Figures, Setting
from tunelight.lightning.recipe import Recipe, built, callbacks_of, with_device
from tunelight.session.session import get_session
from tunelight.settings.backends import BACKENDS

SLICES = 5
_WARM_STEPS = 3
_WARM_SHARE = 0.2
_EPOCHS = 10**6
_NOT_USED = (
    "logger", "enable_checkpointing", "fast_dev_run", "profiler", "max_time", "max_steps", "min_steps", "min_epochs",
    "limit_val_batches", "val_check_interval", "check_val_every_n_epoch", "enable_progress_bar", "enable_model_summary",
    "num_sanity_val_steps",
)  # fmt: skip
"""Arguments of the Trainer without effect on a step of training."""
_NO_PART = ("EarlyStopping", "LearningRateMonitor", "DeviceStatsMonitor", "ProgressBar", "ModelSummary", "Timer")
"""Callbacks, and Checkpoint's, that take no part in a training step."""


@dataclass(frozen=True)
class Measure:
    """A train function that measures ``config["setting"]`` for ``config["seconds"]``. Runs on: worker.

    ``arguments``: those of model, data and Trainer, ``model.lr`` and so on. ``names``: the arguments for the batch size
    and for the DataLoader's workers, such as ``data.batch_size``, where there are any.
    """

    recipe: Recipe
    arguments: Mapping[str, Mapping[str, Any]]
    batch: int
    names: Mapping[str, str | None]

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Train, and hand in the figures of rank 0."""
        session = get_session()
        setting: Setting = config["setting"]
        recipe, parts = self.recipe, self._arguments(setting)
        given = {**recipe.trainer_args, **parts["trainer"]}
        args, left_out = _trainer_args(given)
        module: Any = recipe.model(**parts["model"])
        data = recipe.data(**parts["data"]) if recipe.data is not None else None
        clock = _Clock(config["seconds"])
        trainer = pl.Trainer(**{**args, "callbacks": [clock, *args["callbacks"]], "profiler": clock.loading})
        trainer.fit(module, datamodule=data)
        if session.context.rank == 0:
            norm = any(isinstance(layer, _BatchNorm) for layer in module.modules())
            each = getattr(trainer.train_dataloader, "batch_size", None) or 1
            samples = self.batch or each * setting.workers
            figures = replace(clock.figures(), samples=samples, batch_norm=norm, left_out=left_out)
            session.hand_in(figures)

    def _arguments(self, setting: Setting) -> dict[str, dict[str, Any]]:
        parts = {part: dict(self.arguments.get(part, {})) for part in ("model", "data", "trainer")}
        values = {"batch_size": self.batch // setting.workers, "num_workers": setting.loader_workers}
        for name, value in values.items():
            if self.names[name] is not None and value is not None:
                part, _, argument = str(self.names[name]).partition(".")
                parts[part][argument] = value
        return parts


def _trainer_args(asked: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the Trainer's arguments, and the names of the callbacks that are left out."""
    context = get_session().context
    args = built({name: value for name, value in asked.items() if name not in _NOT_USED})
    strategy: Any = BACKENDS[context.backend].load_strategy()
    args = with_device(args, strategy, on_gpu=context.gpu is not None)
    given = callbacks_of(args)
    args["callbacks"] = [each for each in given if takes_part(each)]
    args |= {"max_epochs": _EPOCHS, "limit_val_batches": 0, "logger": False, "enable_checkpointing": False}
    args |= {"enable_progress_bar": False, "enable_model_summary": False}
    return args, tuple(type(each).__name__ for each in given if not takes_part(each))


def takes_part(callback: Any) -> bool:
    """Tell whether a callback may be a part of the training step."""
    names = {kind.__name__ for kind in type(callback).__mro__}
    return not isinstance(callback, Checkpoint) and not names & set(_NO_PART)


class _Loading(Profiler):
    """Adds up how long the training loop waits for its loader, by Lightning's name of that."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self._began = 0.0

    def start(self, action_name: str) -> None:
        if action_name.endswith("train_dataloader_next"):
            self._began = time.perf_counter()

    def stop(self, action_name: str) -> None:
        if action_name.endswith("train_dataloader_next"):
            self.seconds += time.perf_counter() - self._began


class _Clock(Callback):
    """Measures slices of training after a warm-up, and ends the fit.

    All ranks do the same number of steps: rank 0 says how many, once the warm-up has shown how long one takes. On a GPU
    the process waits for it only at the end of a slice, and at each step of a last slice, which shows what waits.
    """

    def __init__(self, seconds: float) -> None:
        self.loading = _Loading()
        self._seconds = seconds
        self._batches = 0
        """Those of the slice, or of the warm-up."""
        self._size = 0
        """Batches of a slice; 0 in the warm-up."""
        self._first = True
        """True until an epoch's first batch has ended, which is no usual step."""
        self._spent = self._loaded = self._longest = 0.0
        self._steps: list[float] = []
        self._data_s = 0.0
        self._gaps: list[float] = []
        self._epoch = 1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Train without schedulers that wait for a validation's metric, for there is none."""
        strategy = trainer.strategy
        strategy.lr_scheduler_configs = [kept for kept in strategy.lr_scheduler_configs if not kept.reduce_on_plateau]
        self._cuda = strategy.root_device.type == "cuda"
        self._last = time.perf_counter()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the number of batches."""
        self._epoch, self._first = int(trainer.num_training_batches), True

    def on_train_batch_start(self, *args: Any) -> None:
        """Note how long an epoch's first batch was waited for."""
        if self._first:
            self._gaps.append(time.perf_counter() - self._last)

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """Count a batch."""
        detail = len(self._steps) == SLICES
        if self._cuda and (detail or self._first or self._batches + 1 >= self._size):
            torch.cuda.synchronize()
        now = time.perf_counter()
        passed, loaded = now - self._last, self.loading.seconds
        self._last, self.loading.seconds = now, 0.0
        usual, self._first = not self._first or self._epoch == 1, False
        if not usual:
            return
        self._longest = max(self._longest, passed)
        self._batches, self._spent, self._loaded = self._batches + 1, self._spent + passed, self._loaded + loaded
        if self._size == 0:
            self._warm(trainer)
        elif self._batches == self._size:
            self._end_slice(trainer, detail=detail)

    def _warm(self, trainer: Any) -> None:
        ready = self._batches >= _WARM_STEPS and self._spent >= _WARM_SHARE * self._seconds
        usual = (self._spent - self._longest) / max(1, self._batches - 1)  # without the first, which may compile
        each = usual or self._spent
        count = max(1, round(self._seconds * (1 - _WARM_SHARE) / SLICES / each))
        self._size = int(trainer.strategy.broadcast(count if ready else 0))
        if self._size:
            self._begin_slice()

    def _begin_slice(self) -> None:
        self._batches, self._spent, self._loaded = 0, 0.0, 0.0

    def _end_slice(self, trainer: Any, *, detail: bool) -> None:
        load = self._loaded / self._batches
        if not detail:
            self._steps.append(self._spent / self._batches)
        self._data_s = load if detail else self._data_s + load / SLICES
        self._begin_slice()
        trainer.should_stop = detail or (len(self._steps) == SLICES and not self._cuda)

    def figures(self) -> Figures:
        """Return what was measured."""
        gaps = self._gaps[1:] or self._gaps  # the first starts loader workers that may stay
        return Figures(
            steps=tuple(self._steps),
            data_s=self._data_s,
            gap_s=max(0.0, median(gaps) - self._data_s) if self._epoch > 1 else 0.0,
            batches=max(1, self._epoch),
            samples=0,
        )
