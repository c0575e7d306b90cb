"""Observes a training program on each rank: hooks, values logged, and the state in the end, written to files."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tunelight.compat.lightning import Callback, Logger, pl

_UNCOUNTED = {"setup", "teardown", "state_dict", "load_state_dict", "on_exception"}
HOOKS = [name for name in vars(Callback) if not name.startswith("_") and name not in _UNCOUNTED and name != "state_key"]


class Recorder(Logger):
    """Records what is logged, on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.logged.append((step, {name: float(value) for name, value in metrics.items()}))


class Observer(Callback):
    """Counts hooks, and writes what it has seen when a run of the Trainer ends."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder, self.number = folder, number
        self.hooks: dict[str, int] = {}
        self.epochs: list[dict[str, Any]] = []

    def setup(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        self.hooks, self.epochs = {}, []
        for one in trainer.loggers:
            if isinstance(one, Recorder):
                one.logged = []

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        place = f"{self.number}-{getattr(stage, 'value', stage)}-{trainer.global_rank}"
        number = len(list(Path(self.folder).glob(f"{place}-*.pt")))
        torch.save(
            self._seen(trainer, module, getattr(stage, "value", stage)), Path(self.folder, f"{place}-{number}.pt")
        )

    def _seen(self, trainer: pl.Trainer, module: Any, stage: str) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for one in trainer.callbacks:  # type: ignore[attr-defined]
            name = type(one).__name__
            own = type(one).__module__.startswith(("tunelight", "tests"))
            if not own and name != "Timer":  # whose state is the time
                states[name] = one.state_dict()
        return {
            "hooks": dict(self.hooks),
            "logged": [seen for one in trainer.loggers if isinstance(one, Recorder) for seen in one.logged],
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "epochs": self.epochs,
            "progress": {
                "epoch": trainer.current_epoch, "step": trainer.global_step, "stop": trainer.should_stop,
                "batches": str(trainer.num_training_batches),
            },
            "weights": {name: _whole(value).detach().clone() for name, value in module.state_dict().items()},
            "frozen": [name for name, value in module.named_parameters() if not value.requires_grad],
            "training": module.training,
            "optimizers": [_optimizer(one) for one in trainer.optimizers if stage == "fit"],
            "schedules": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs if stage == "fit"],
            "callbacks": states,
            "own": [getattr(module, "loaded", None), getattr(trainer.datamodule, "ready", None)],  # type: ignore[attr-defined]
        }  # fmt: skip


def _optimizer(optimizer: Any) -> Any:
    state = optimizer.state_dict()
    of_parameters = {
        number: {name: _whole(value) for name, value in one.items()} for number, one in state["state"].items()
    }
    return {"state": of_parameters, "groups": state["param_groups"]}


def _whole(value: Any) -> Any:
    """Return a tensor with the shards of all ranks, on each of which this is called."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _counted(name: str) -> Callable[..., None]:
    def hook(self: Observer, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self.hooks[name] = self.hooks.get(name, 0) + 1
        if name in ("on_train_epoch_end", "on_validation_epoch_end"):
            metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
            self.epochs.append({"hook": name, "step": trainer.global_step, "metrics": metrics})

    return hook


for _name in HOOKS:
    setattr(Observer, _name, _counted(_name))

Maker = Callable[..., pl.Trainer]


def maker(
    folder: Path, strategy: Callable[[bool], dict[str, Any]], extra: Callable[[], list[Callback]] = list
) -> Maker:
    """Return what makes the Trainers of a program.

    Args:
        folder: where runs are observed, and Lightning's own files go.
        strategy: returns the Trainer's settings, given whether the module leaves parameters unused.
        extra: returns callbacks to add.
    """
    made = 0

    def make(
        *, callbacks: list[Callback], logger: Any = (), find_unused_parameters: bool = False, **settings: Any
    ) -> pl.Trainer:
        nonlocal made
        made += 1
        return pl.Trainer(
            accelerator="cpu", callbacks=[*callbacks, *extra(), Observer(str(folder), made)],
            logger=[*logger, Recorder()], enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder / "files", **strategy(find_unused_parameters), **settings,
        )  # fmt: skip

    return make


def observed(main: Callable[..., Any], make: Maker, folder: Path, rank: Callable[[], int]) -> BaseException | None:
    """Run a program's ``main``, and write what it returned or raised; return the exception."""
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    said_by = folder / f"raised-{rank()}.json"
    said_by.unlink(missing_ok=True)  # of a start before this one
    raised: BaseException | None = None
    returned: Any = None
    try:
        model, returned = main(make, str(files))
        weights = {name: _whole(value) for name, value in model.state_dict().items()}
        torch.save({"weights": weights, "returned": returned}, folder / f"returned-{rank()}.pt")
    except Exception as error:  # noqa: BLE001 - a program's own is part of its outcome
        raised = error
        kinds = [kind.__name__ for kind in type(error).__mro__]
        said = {"type": type(error).__name__, "kinds": kinds, "text": str(error), "trace": traceback.format_exc()}
        said_by.write_text(json.dumps(said))
    return raised
