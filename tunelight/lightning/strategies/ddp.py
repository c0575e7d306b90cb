"""RayStrategy: DistributedDataParallel on a gang of Ray workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tunelight.compat.lightning import DDPStrategy
from tunelight.errors import check_keywords
from tunelight.lightning.strategies.base import IDLE_TIMEOUT_S, Failures, NumWorkers
from tunelight.lightning.strategies.training import SizeInvariantTraining
from tunelight.messages import Evaluation


def _taken() -> list[str]:
    """Return the names of a RayStrategy's arguments: its own, and those of Lightning's and torch's classes."""
    kinds = (RayStrategy, DDPStrategy, DistributedDataParallel)
    found = [name for kind in kinds for name in inspect.signature(kind).parameters]
    return [name for name in dict.fromkeys(found) if name not in _NOT_TAKEN]


_NOT_TAKEN = ("ddp_kwargs", "kwargs", "module", "cluster_environment", "parallel_devices")
"""Arguments that the strategy or Lightning sets. LightningCLI passes all others, with their defaults."""


class RayStrategy(SizeInvariantTraining, DDPStrategy):
    """Train with DDP on Ray workers: those of the gang that this process is in, or a new gang.

    Args:
        num_workers: the gang's size (1 on a driver; in a trial the number reserved, and checked if given).
            (1, 4) is an elastic gang: of 4, and of at least 1 while workers are lost.
        num_cpus_per_worker: CPUs that each worker reserves.
        use_gpu: give each worker a GPU and train on it (False).
        init_hook: called without arguments on each worker once, before the gang meets.
        resources_per_worker: further resources of each worker, by name; "CPU" and "GPU" override the arguments
            before. A fraction of a GPU lets workers share one, with gloo, since NCCL cannot.
        idle_timeout_s: seconds that the workers stay warm after a job (300).
        failures: a :class:`tunelight.FailurePolicy` or a number of failures that a job survives; it continues from
            a checkpoint, which it writes at most every few seconds.
        evaluation: how validation and test are divided, "ddp" or "exact", as in ``tunelight.run``.
        ddp_kwargs: for torch's ``DistributedDataParallel`` and Lightning's ``DDPStrategy``
            (``find_unused_parameters``, ``process_group_backend`` and so on).

    In a sweep, only ``num_workers``, ``evaluation`` and ``ddp_kwargs`` are used; the rest are settings of the sweep.
    Runs on: driver, worker. Raises: SettingsError; StrategyError in a gang of another size or kind.
    """

    strategy_name = "tunelight"
    backend = "ddp"
    _of_process = SizeInvariantTraining._of_process | {"_wrapped"}
    _wrapped: tuple[tuple[torch.nn.Parameter, bool], ...] = ()
    """The model's parameters, and which of them were trained, when DDP was made."""

    def __init__(
        self,
        num_workers: NumWorkers = None,
        num_cpus_per_worker: float = 1,
        use_gpu: bool = False,
        init_hook: Callable[[], object] | None = None,
        resources_per_worker: dict[str, float] | None = None,
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        failures: Failures = None,
        evaluation: Evaluation | None = None,
        **ddp_kwargs: Any,
    ) -> None:
        check_keywords("tl.RayStrategy", ddp_kwargs, _taken() if ddp_kwargs else ())
        gang = (num_workers, num_cpus_per_worker, use_gpu, init_hook, resources_per_worker)
        environment = self._settle(gang, evaluation, idle_timeout_s=idle_timeout_s, failures=failures)
        super().__init__(cluster_environment=environment, parallel_devices=self._devices(), **ddp_kwargs)
        self._choose_accelerator()

    def _setup_model(self, model: torch.nn.Module) -> DistributedDataParallel:
        self._wrapped = tuple((param, param.requires_grad) for param in model.parameters())
        return super()._setup_model(model)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Make DDP anew where parameters were frozen or unfrozen: it reduces those that it began with, and no others.

        Each rank would train what was unfrozen (by Lightning's BaseFinetuning, say) by gradients of its own.
        """
        super().on_train_batch_start(batch, batch_idx)
        if any(param.requires_grad != trained for param, trained in self._wrapped):
            wrapped = self.model
            assert isinstance(wrapped, DistributedDataParallel)
            self.model = wrapped.module  # for the teardown, if another rank is lost now
            del wrapped.reducer, wrapped.logger  # torch's hooks on the parameters live as long as these
            self.model = self._setup_model(wrapped.module)
            self._register_ddp_hooks()

    def on_exception(self, exception: BaseException) -> None:
        """Name tunelight's strategies where Lightning recommends its own for unused parameters."""
        super().on_exception(exception)
        ours = "strategy=tl.RayStrategy(find_unused_parameters=True)"
        advised = ("strategy='ddp_find_unused_parameters_true'", "strategy=DDPStrategy(find_unused_parameters=True)")
        for phrase in advised:
            exception.args = tuple(arg.replace(phrase, ours) if isinstance(arg, str) else arg for arg in exception.args)
