"""The Lightning of this process: its classes and functions, and which of its two packages they come from.

Lightning is published twice, as ``pytorch_lightning`` and inside the package ``lightning``; the classes of one are not
those of the other. So a process uses one flavour, and all that tunelight derives from Lightning or calls of it is
imported from here: ``from tunelight.compat.lightning import pl, Callback``. A name is looked up when it is first asked
for, so that this module costs nothing where Lightning is not needed.

The second part of the table are names that Lightning keeps private or does not document, as read in 2.6.6;
tests/unit/compat/test_lightning.py checks the installed Lightning, in both flavours, for every one of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from lightning_fabric.plugins import CheckpointIO
    from lightning_fabric.plugins.environments import ClusterEnvironment
    from lightning_fabric.utilities.apply_func import move_data_to_device
    from lightning_fabric.utilities.data import AttributeDict, _set_sampler_epoch, has_iterable_dataset, sized_len
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states, reset_seed
    from lightning_fabric.utilities.types import ReduceOp
    from pytorch_lightning.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator
    from pytorch_lightning.callbacks import BasePredictionWriter, Callback, Checkpoint, ProgressBar
    from pytorch_lightning.core.optimizer import LightningOptimizer
    from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
    from pytorch_lightning.loops.loop import _Loop
    from pytorch_lightning.loops.optimization.automatic import ClosureResult
    from pytorch_lightning.loops.prediction_loop import _PredictionLoop
    from pytorch_lightning.loops.progress import _BaseProgress
    from pytorch_lightning.overrides.distributed import _IndexBatchSamplerWrapper
    from pytorch_lightning.plugins import TorchCheckpointIO
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

DOCUMENTED: Final = {
    "Accelerator": "pl.accelerators",
    "BasePredictionWriter": "pl.callbacks",
    "CPUAccelerator": "pl.accelerators",
    "CSVLogger": "pl.loggers",
    "CUDAAccelerator": "pl.accelerators",
    "Callback": "pl.callbacks",
    "Checkpoint": "pl.callbacks",
    "CheckpointIO": "fabric.plugins",
    "ClusterEnvironment": "fabric.plugins.environments",
    "DDPStrategy": "pl.strategies",
    "LightningOptimizer": "pl.core.optimizer",
    "Logger": "pl.loggers",
    "MLFlowLogger": "pl.loggers",
    "MixedPrecision": "pl.plugins.precision",
    "ModelParallelStrategy": "pl.strategies",
    "ParallelStrategy": "pl.strategies",
    "Precision": "pl.plugins.precision",
    "Profiler": "pl.profilers",
    "ProgressBar": "pl.callbacks",
    "Strategy": "pl.strategies",
    "TensorBoardLogger": "pl.loggers",
    "TorchCheckpointIO": "pl.plugins",
    "WandbLogger": "pl.loggers",
    "rank_zero_only": "fabric.utilities.rank_zero",
}
"""Public names, and the modules of Lightning (``pl``) or of its Fabric that have them."""

UNDOCUMENTED: Final = {
    "AttributeDict": "fabric.utilities.data",  # what a module's hparams are kept in
    "ClosureResult": "pl.loops.optimization.automatic",  # what a training step returns to its loop
    "ReduceOp": "fabric.utilities.types",  # torch's, or what stands for it in a torch without distributed training
    "RunningStage": "pl.trainer.states",  # what a Trainer does: train, validate, test or predict
    "TrainerFn": "pl.trainer.states",  # what a Trainer was asked for: fit, validate, test or predict
    "_BaseProgress": "pl.loops.progress",  # counters of the loops: dataclasses with a state_dict
    "_IndexBatchSamplerWrapper": "pl.overrides.distributed",  # keeps a batch's indices, for prediction writers
    "_Launcher": "pl.strategies.launchers.launcher",  # what a Trainer calls to run in other processes
    "_Loop": "pl.loops.loop",  # the base of the loops, by which they are told from other attributes
    "_Metadata": "pl.trainer.connectors.logger_connector.result",  # how a logged metric is reduced
    "_PredictionLoop": "pl.loops.prediction_loop",  # the loop whose batches have indices
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


def flavour() -> Flavour:
    """Return the flavour that tunelight's classes derive from in this process; it stays the same.

    The strategies know only ``pytorch_lightning`` yet: a Trainer of the other one is refused, see `flavour_of`.
    """
    return "pytorch_lightning"


def flavour_of(kind: type) -> Flavour | None:
    """Return the flavour that a class belongs to, by itself or by a class that it derives from; None for neither."""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return next((known for known in FABRIC if known.partition(".")[0] in packages), None)


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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name of Lightning's when it is first asked for."""
        value = globals()[name] = lookup(name, flavour())
        return value
