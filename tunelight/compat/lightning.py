"""The Lightning of this process: its classes and functions, and which of its two packages they come from.

Lightning is published twice, as ``pytorch_lightning`` and inside the package ``lightning``; the classes of one are not
those of the other. A process works with one of these flavours. All that tunelight derives from Lightning or calls of
it is imported from here (``from tunelight.compat.lightning import pl, Callback``), when a name is first asked for.

The flavour is decided once, by the first of: `use`, the environment variable ``TUNELIGHT_LIGHTNING`` (workers get it
from their sweep), a sweep's code (`find_flavour`), a name that is asked for here.

The second table holds names that Lightning keeps private or does not document, as read in 2.6.6;
tests/unit/compat/test_lightning.py looks for every one of them in both packages.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from tunelight.errors import SettingsError, unknown

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from lightning_fabric.plugins import CheckpointIO
    from lightning_fabric.plugins.environments import ClusterEnvironment
    from lightning_fabric.utilities.apply_func import move_data_to_device
    from lightning_fabric.utilities.data import AttributeDict, _set_sampler_epoch, has_iterable_dataset, sized_len
    from lightning_fabric.utilities.distributed import DistributedSamplerWrapper
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states, reset_seed
    from lightning_fabric.utilities.types import ReduceOp
    from pytorch_lightning.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator
    from pytorch_lightning.callbacks import (
        BaseFinetuning,
        BasePredictionWriter,
        BatchSizeFinder,
        Callback,
        Checkpoint,
        GradientAccumulationScheduler,
        LearningRateFinder,
        ProgressBar,
    )
    from pytorch_lightning.core.optimizer import LightningOptimizer
    from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
    from pytorch_lightning.loops.loop import _Loop
    from pytorch_lightning.loops.optimization.automatic import ClosureResult
    from pytorch_lightning.loops.progress import _BaseProgress
    from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSamplerWrapper, _IndexBatchSamplerWrapper
    from pytorch_lightning.plugins import AsyncCheckpointIO, TorchCheckpointIO
    from pytorch_lightning.plugins.io.wrapper import _WrappingCheckpointIO
    from pytorch_lightning.plugins.precision import MixedPrecision, Precision
    from pytorch_lightning.profilers import Profiler
    from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy, Strategy
    from pytorch_lightning.strategies.launchers.launcher import _Launcher
    from pytorch_lightning.strategies.strategy import _optimizers_to_device
    from pytorch_lightning.trainer import call
    from pytorch_lightning.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
    from pytorch_lightning.trainer.states import RunningStage, TrainerFn
    from pytorch_lightning.utilities.compile import from_compiled, to_uncompiled
    from pytorch_lightning.utilities.exceptions import _TunerExitException
    from pytorch_lightning.utilities.model_helpers import is_overridden
    from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature

Flavour = Literal["pytorch_lightning", "lightning.pytorch"]

FABRIC: Final[dict[Flavour, str]] = {"pytorch_lightning": "lightning_fabric", "lightning.pytorch": "lightning.fabric"}
"""The flavours, each with its Fabric."""

_DOCUMENTED: Final = {
    "fabric.plugins": "CheckpointIO",
    "fabric.plugins.environments": "ClusterEnvironment",
    "fabric.utilities.rank_zero": "rank_zero_only",
    "pl.accelerators": "Accelerator CPUAccelerator CUDAAccelerator",
    "pl.callbacks": "BaseFinetuning BasePredictionWriter BatchSizeFinder Callback Checkpoint "
    "GradientAccumulationScheduler LearningRateFinder ProgressBar",
    "pl.core.optimizer": "LightningOptimizer",
    "pl.loggers": "CSVLogger Logger MLFlowLogger TensorBoardLogger WandbLogger",
    "pl.plugins": "AsyncCheckpointIO TorchCheckpointIO",
    "pl.plugins.precision": "MixedPrecision Precision",
    "pl.profilers": "Profiler",
    "pl.strategies": "DDPStrategy ModelParallelStrategy ParallelStrategy Strategy",
}
DOCUMENTED: Final = {name: place for place, names in _DOCUMENTED.items() for name in names.split()}
"""Public names, and the modules of Lightning (``pl``) or of its Fabric that have them."""

UNDOCUMENTED: Final = {
    "AttributeDict": "fabric.utilities.data",  # what a module's hparams are kept in
    "ClosureResult": "pl.loops.optimization.automatic",  # what a training step returns to its loop
    "DistributedSamplerWrapper": "fabric.utilities.distributed",  # deals a sampler of the user's to the ranks
    "ReduceOp": "fabric.utilities.types",  # torch's, or what stands for it in a torch without distributed training
    "RunningStage": "pl.trainer.states",  # what a Trainer does: train, validate, test or predict
    "TrainerFn": "pl.trainer.states",  # what a Trainer was asked for: fit, validate, test or predict
    "UnrepeatedDistributedSamplerWrapper": "pl.overrides.distributed",  # the same for prediction, without padding
    "_BaseProgress": "pl.loops.progress",  # counters of the loops: dataclasses with a state_dict
    "_IndexBatchSamplerWrapper": "pl.overrides.distributed",  # keeps a batch's indices, for prediction writers
    "_Launcher": "pl.strategies.launchers.launcher",  # what a Trainer calls to run in other processes
    "_Loop": "pl.loops.loop",  # the base of the loops, by which they are told from other attributes
    "_Metadata": "pl.trainer.connectors.logger_connector.result",  # how a logged metric is reduced
    "_ResultMetric": "pl.trainer.connectors.logger_connector.result",  # a logged metric and its state
    "_Sync": "pl.trainer.connectors.logger_connector.result",  # how a logged metric is reduced over ranks
    "_TunerExitException": "pl.utilities.exceptions",  # ends a fit that only looked for a batch size or learning rate
    "_WrappingCheckpointIO": "pl.plugins.io.wrapper",  # a CheckpointIO around another one, as AsyncCheckpointIO
    "_collect_rng_states": "fabric.utilities.seed",  # states of all random generators of a process
    "_optimizers_to_device": "pl.strategies.strategy",  # moves the state of optimizers
    "_set_rng_states": "fabric.utilities.seed",  # puts those states back
    "_set_sampler_epoch": "fabric.utilities.data",  # tells a loader's samplers the epoch
    "call": "pl.trainer",  # a module: how a Trainer calls hooks, and what it does about exceptions
    "from_compiled": "pl.utilities.compile",  # makes a module of what torch.compile returned
    "has_iterable_dataset": "fabric.utilities.data",
    "is_overridden": "pl.utilities.model_helpers",
    "is_param_in_hook_signature": "pl.utilities.signature_utils",
    "move_data_to_device": "fabric.utilities.apply_func",
    "reset_seed": "fabric.utilities.seed",  # seeds anew as seed_everything did last
    "sized_len": "fabric.utilities.data",  # the length of a loader, None where it has none
    "to_uncompiled": "pl.utilities.compile",  # the module inside of a compiled one
}
"""Private names, and those of modules that Lightning does not document."""


VARIABLE: Final = "TUNELIGHT_LIGHTNING"
"""The environment variable that chooses the flavour of a process."""

CHOICES: Final[dict[str, Flavour]] = {
    "pytorch_lightning": "pytorch_lightning",
    "lightning": "lightning.pytorch",
    "pytorch-lightning": "pytorch_lightning",
    "lightning.pytorch": "lightning.pytorch",
}
"""What the variable and `use` take: the name of the package, or of the module."""

ALIKE: Final = (
    "Lightning is published under two names, `lightning` (with lightning.pytorch in it) and `pytorch_lightning`; "
    "their classes look alike and do not recognise each other."
)
HOW_TO_CHOOSE: Final = 'tunelight.use("lightning") or tunelight.use("pytorch_lightning"), or set ' + VARIABLE
"""What to do, for error messages."""


class _Process:
    """The flavour of this process."""

    def __init__(self) -> None:
        self.used: Flavour | None = None
        """What `use` was called with."""
        self.decided: Flavour | None = None


_process = _Process()


def use(name: str) -> None:
    """Choose the package of Lightning that tunelight works with in this process: "lightning" or "pytorch_lightning".

    Only needed where both are imported and the code of a sweep does not tell. The environment variable
    ``TUNELIGHT_LIGHTNING`` does the same.

    Raises: SettingsError for another name, a package that is not installed, or where the process works with the other.
    """
    chosen = _choice(name, "tunelight.use()")
    decide(chosen, f"tunelight.use({name!r}) asks for {chosen}")
    _process.used = chosen


def decide(wanted: Flavour, why: str) -> None:
    """Let this process work with a flavour from now on. Raises: SettingsError, as `check_decided`."""
    check_decided((wanted,), why)
    _process.decided = wanted


def check_decided(wanted: Collection[Flavour], why: str) -> Flavour | None:
    """Return the flavour that this process works with, or was told to; None where it is undecided.

    Raises: SettingsError, which begins with ``why``, if that is none of ``wanted``.
    """
    decided = _process.decided or asked()
    if decided is not None and wanted and decided not in wanted:
        package = next(iter(wanted)).partition(".")[0]
        raise SettingsError(
            f"{why}, and this process works with {decided}. {ALIKE} A process works with one of them: start a new one "
            f"for this, or call tunelight.use({package!r}) (or set {VARIABLE}={package}) before anything of "
            "tunelight's needs Lightning, such as its strategies and callbacks, or a sweep."
        )
    return decided


def asked() -> Flavour | None:
    """Return the flavour that the user chose, by `use` or the environment; None where it is to be found out."""
    if _process.used is not None:
        return _process.used
    name = os.environ.get(VARIABLE)
    return _choice(name, VARIABLE) if name else None


def _choice(name: Any, where: str) -> Flavour:
    if not isinstance(name, str) or name not in CHOICES:
        raise SettingsError(unknown(f"{where}: there is no package of Lightning named", name, list(CHOICES)[:2]))
    return check_installed(CHOICES[name], where)


def check_installed(chosen: Flavour, where: str) -> Flavour:
    """Return a flavour. Raises: SettingsError, which begins with ``where``, if its package is not installed."""
    package = chosen.partition(".")[0]
    if sys.modules.get(package) is None and (package in sys.modules or find_spec(package) is None):
        raise SettingsError(
            f"{where}: the package {package} is not installed. Install it (pip install "
            f"{package.replace('_', '-')}), or use the other one."
        )
    return chosen


def flavour() -> Flavour:
    """Return the flavour as decided, else the imported one, else ``pytorch_lightning``."""
    decided = _process.decided or asked()
    if decided is not None:
        return decided
    imported = [name for name in FABRIC if name in sys.modules]
    if len(imported) == 1:
        return imported[0]
    only_other = not imported and find_spec("pytorch_lightning") is None and find_spec("lightning") is not None
    return "lightning.pytorch" if only_other else "pytorch_lightning"


def decide_in_worker() -> None:
    """Decide as the environment says; where this is a fork of a process that did otherwise, import tunelight's anew."""
    chosen = asked() or flavour()
    if _process.decided not in (None, chosen):
        for name in [name for name in sys.modules if name.startswith(("tunelight.lightning", "tunelight.extras"))]:
            del sys.modules[name]
        for name in ("pl", *DOCUMENTED, *UNDOCUMENTED):
            globals().pop(name, None)
    _process.decided = chosen


def prefer(name: str | None) -> None:
    """Work with the flavour that a sweep was recorded with, if it is installed and nothing else has decided already.

    ``name``: as the sweep's folder has it; None where that does not say.
    """
    undecided = _process.decided is None and asked() is None and not any(known in sys.modules for known in FABRIC)
    if undecided and isinstance(name, str) and name in CHOICES and find_spec(name.partition(".")[0]) is not None:
        _process.decided = CHOICES[name]


def flavour_of(kind: type) -> Flavour | None:
    """Return the flavour that a class belongs to, by itself or by a class that it derives from; None for neither."""
    return next((known for base in kind.__mro__ if (known := flavour_of_module(base.__module__))), None)


def flavour_of_module(name: Any) -> Flavour | None:
    """Return the flavour that a module of Lightning belongs to, by its name; None for any other module."""
    package = str(name).partition(".")[0]
    return {"pytorch_lightning": "pytorch_lightning", "lightning": "lightning.pytorch"}.get(package)  # type: ignore[return-value]


def loaded() -> Any:
    """Return the module ``pytorch_lightning`` or ``lightning.pytorch``; None while this process has not imported it."""
    return sys.modules.get(flavour())


def lookup(name: str, chosen: Flavour) -> Any:
    """Return what a name of the tables stands for in a flavour. Raises: AttributeError for any other name."""
    if name == "pl":
        return import_module(chosen)
    place = DOCUMENTED.get(name) or UNDOCUMENTED.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package, _, rest = place.partition(".")
    return getattr(import_module(f"{chosen if package == 'pl' else FABRIC[chosen]}.{rest}"), name)


def weights_only_for(load: Callable[..., Any], value: bool | None) -> dict[str, bool | None]:
    """Return ``weights_only`` as an argument of a method that loads a checkpoint; none before Lightning 2.6."""
    return {"weights_only": value} if "weights_only" in inspect.signature(load).parameters else {}


def take_interrupts(chosen: Flavour) -> None:
    """Let Trainers take a KeyboardInterrupt in threads: there Python sets no handlers, as Lightning does first."""

    def set_handler(number: int, handler: Any) -> Any:
        return signal.signal(number, handler) if threading.current_thread() is threading.main_thread() else None

    import_module(f"{chosen}.trainer.call").signal = SimpleNamespace(**{**vars(signal), "signal": set_handler})  # type: ignore[attr-defined]


def gang_strategy(trainer: Any) -> Any | None:
    """Return a Trainer's strategy if it is one of tunelight's; None for another one, and without a Trainer."""
    strategy = getattr(trainer, "strategy", None)
    return strategy if getattr(strategy, "_of_tunelight", False) else None


def know_rank(rank: int) -> None:
    """Tell ``rank_zero_only`` of Lightning and torchmetrics this process's rank, which they read when imported."""
    for name in ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints"):
        if (module := sys.modules.get(name)) is not None:
            module.rank_zero_only.rank = rank


def is_resuming(fit: Any) -> bool:
    """Tell whether the fit loop goes on from a checkpoint, and Lightning makes the epoch's iterators no second time.

    Before Lightning 2.5.3 no loop knows that, and its own question is only about ``restarting``.
    """
    return getattr(fit, "is_resuming", False)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name of Lightning's when it is first asked for."""
        if name != "pl" and name not in DOCUMENTED and name not in UNDOCUMENTED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = lookup(name, chosen := flavour())
        _process.decided = chosen
        globals()[name] = value
        return value
