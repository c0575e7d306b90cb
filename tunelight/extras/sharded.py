"""RayShardedStrategy: FSDP2 on a gang of Ray workers, each of which holds a shard of the model."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import torch
from torch import nn

from tunelight.compat import replaced
from tunelight.compat.lightning import (
    ModelParallelStrategy,
    ParallelStrategy,
    TrainerFn,
    is_overridden,
    pl,
    weights_only_for,
)
from tunelight.errors import SettingsError, StrategyError, known_arguments
from tunelight.lightning.strategies.base import IDLE_TIMEOUT_S, Failures, GangStrategy, NumWorkers, tensors_of
from tunelight.lightning.strategies.training import SizeInvariantTraining
from tunelight.messages import Evaluation

MIN_SHARDED = 100_000
"""Parameters from which on a block is gathered on its own; smaller blocks are gathered with their parent."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


class RayShardedStrategy(SizeInvariantTraining, ModelParallelStrategy):
    """Train with FSDP2: parameters, gradients and optimizer states are sharded over the gang's workers.

    Args:
        num_workers, num_cpus_per_worker, use_gpu, init_hook, resources_per_worker: as in ``tunelight.RayStrategy``.
        idle_timeout_s, failures, evaluation: the same.
        min_sharded: parameters (100,000) from which on a block of a model without ``configure_model`` is
            gathered on its own, so that the full model is never in memory at once.
        tensor_parallel_size: workers that share one copy of the computation; a model for more than 1
            parallelises itself in ``configure_model``, with ``self.device_mesh``.
        save_distributed_checkpoint: write checkpoints as a folder of shards in place of one file, which rank 0 gathers
            (None: where all workers are on one node). One is read by any number of workers.
        process_group_backend, timeout: as in Lightning's ``ModelParallelStrategy``.

    What a model shards in ``configure_model`` stays so; the rest is sharded as one. Runs on: driver, worker. Raises:
    SettingsError; StrategyError in a gang of another size or kind, and where a gradient would not be reduced.
    """

    strategy_name = "tunelight_sharded"
    backend = "sharded"
    _of_process = GangStrategy._of_process | {"_device_mesh", "_data_parallel_size"}

    @known_arguments
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
        min_sharded: int = MIN_SHARDED,
        tensor_parallel_size: int = 1,
        save_distributed_checkpoint: bool | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = timedelta(minutes=30),
    ) -> None:
        gang = (num_workers, num_cpus_per_worker, use_gpu, init_hook, resources_per_worker)
        environment = self._settle(gang, evaluation, idle_timeout_s=idle_timeout_s, failures=failures)
        size = environment.world_size()
        if tensor_parallel_size < 1 or size % tensor_parallel_size:
            raise SettingsError(
                f"tensor_parallel_size={tensor_parallel_size} does not divide the gang's {size} workers."
            )
        if tensor_parallel_size > 1 and not self.joined and self.workers.least is not None:
            raise SettingsError(
                f"num_workers={num_workers!r} is an elastic gang, and tensor_parallel_size={tensor_parallel_size} "
                "needs a fixed one. Say one number of workers."
            )
        super().__init__(
            data_parallel_size=size // tensor_parallel_size,
            tensor_parallel_size=tensor_parallel_size,
            save_distributed_checkpoint=bool(save_distributed_checkpoint),
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self.cluster_environment = environment
        self.parallel_devices = self._devices()
        self._choose_accelerator()
        self._min_sharded, self._asked_for_shards = min_sharded, save_distributed_checkpoint

    def _shards(self) -> tuple[int, int]:
        """Return the number of shards of the data, and the index of this rank's tensor parallel group."""
        if not self.joined:
            return super()._shards()
        data = self.device_mesh["data_parallel"]
        return data.size(), data.get_local_rank()

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard what the model has not sharded itself, then make its optimizers."""
        from tunelight.compat.torch import FSDPModule  # slow to import

        assert self.model is not None  # Lightning's order
        assert self.lightning_module is not None
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if self._session is not None and self._asked_for_shards is None:
            self._save_distributed_checkpoint = self._session.place.nodes == 1
        self.model = self.precision_plugin.convert_module(self.model)
        if not isinstance(self.model, FSDPModule):
            self._share_first()
        custom = is_overridden("configure_model", self.lightning_module)
        if not (custom and self._tensor_parallel_size == self.world_size > 1):  # whose ranks all train on the same data
            shard(self.model, self.device_mesh["data_parallel"], self._min_sharded)
        if custom:
            super().setup(trainer)
            return
        self.model_to_device()
        self.barrier()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def _share_first(self) -> None:
        """Give all ranks what rank 0 has of parameters and buffers that are not sharded yet, as DDP does."""
        assert self.model is not None  # called by setup
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            if type(tensor.data) is torch.Tensor and tensor.numel() and not tensor.is_meta:
                first = tensor.detach().to(self.root_device).contiguous()
                self.broadcast_tensor(first)
                tensor.detach().copy_(first)

    def on_train_start(self) -> None:
        """Refuse to train where ranks would come apart. Raises: StrategyError."""
        from tunelight.compat.torch import FSDPModule

        super().on_train_start()
        assert self.model is not None  # Lightning's order
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # a validation before training leaves whole parameters
        if alone := unreduced(self.model, self.device_mesh["data_parallel"]):
            raise StrategyError(
                f"The workers would train {', '.join(alone[:3])}{' and others' if alone[3:] else ''} each for itself: "
                "no gradient of it is reduced. Shard it in configure_model by fully_shard(module, "
                'mesh=self.device_mesh["data_parallel"]), without ignored_params, or leave that to tunelight.'
            )

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the model's state: on a rank in the form that checkpoints have."""
        if not self.joined:
            return ParallelStrategy.lightning_module_state_dict(self)
        self.gathered = []
        return self._noted(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return an optimizer's state, gathered on rank 0."""
        return self._noted(super().optimizer_state(optimizer))

    def _noted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Note the tensors that were made for a state, and share no memory with the training."""
        assert self.model is not None
        states = [value for optim in self.optimizers for kept in optim.state.values() for value in kept.values()]
        live = {_memory(tensor) for tensor in tensors_of([*self.model.parameters(), *self.model.buffers(), states])}
        made = [weakref.ref(tensor) for tensor in tensors_of(state) if _memory(tensor) not in live]
        self.gathered = [*self.gathered, *made]
        return state

    def full_weights(self) -> Mapping[str, Any]:
        """Gather the full model on rank 0, in main memory. Called on every rank."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        assert self.model is not None  # asked after a run
        return get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def keep_optimizer_states(self) -> Callable[[], list[dict[str, Any]]]:
        """Return a function that gathers the optimizers' states; it is called on every rank."""
        model, optimizers = self.model, list(self.optimizers)

        def gather() -> list[dict[str, Any]]:
            self.model = model
            with replaced(self, _save_distributed_checkpoint=False):
                return [self.optimizer_state(optimizer) for optimizer in optimizers]

        return gather

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a full or a sharded checkpoint into the sharded model."""
        ours = self._session is not None and str(checkpoint_path) == self._session.checkpoint_for_fit()
        if weights_only is None and ours:
            weights_only = False  # tunelight wrote it; Lightning drops here what the launcher has set
        if not self.joined:
            plain = ParallelStrategy.load_checkpoint
            return plain(self, checkpoint_path, **weights_only_for(plain, weights_only))
        load = super().load_checkpoint
        options = weights_only_for(load, weights_only)
        try:
            return load(checkpoint_path, **options)
        except IndexError:  # raised by Lightning for an optimizer without state (SGD without momentum)
            with replaced(self, _optimizers=[]):
                checkpoint = load(checkpoint_path, **options)
        for optimizer, saved in zip(self._optimizers, checkpoint.get("optimizer_states", []), strict=True):
            for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
                group.update({name: value for name, value in kept.items() if name != "params"})
        return checkpoint


def _memory(tensor: Any) -> int:
    """Return the address of a tensor's memory on this rank."""
    return int(getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr())


def shard(model: nn.Module, mesh: Any, min_parameters: int) -> None:
    """Shard ``model`` over ``mesh``: its big blocks from the bottom up, then the model with the rest.

    Gradients of parameters that no ``fully_shard`` covers are not synchronised, so the model itself is sharded last,
    and its four steps are registered as forward methods. What is sharded stays so: of a model with such parts only the
    rest is sharded, as one.
    """
    from tunelight.compat.torch import FSDPModule, fully_shard, register_fsdp_forward_method

    given = isinstance(model, FSDPModule)
    if not given:
        if not any(True for _ in model.parameters()):
            raise StrategyError(f"{type(model).__name__} has no parameters yet, so there is nothing to shard.")
        divided = any(isinstance(module, FSDPModule) for module in model.modules())
        for block in () if divided else blocks(model, min_parameters):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    for step in _STEPS:
        if is_overridden(step, cast("pl.LightningModule", model)) and not (given and step in vars(model)):
            register_fsdp_forward_method(model, step)


def unreduced(model: nn.Module, mesh: Any) -> list[str]:
    """Return the names of trained parameters whose gradients are not reduced over the ranks of ``mesh``."""
    from tunelight.compat.torch import DTensor

    def ranks(of: Any) -> set[int]:
        return set(of.mesh.flatten().tolist())

    def covered(param: nn.Parameter) -> bool:
        return isinstance(param, DTensor) and ranks(param.device_mesh) >= ranks(mesh)

    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    return [] if mesh.size() == 1 else [name for name, param in trained.items() if not covered(param)]


def blocks(model: nn.Module, min_parameters: int) -> list[nn.Module]:
    """Return the modules below ``model`` that are gathered on their own, the deepest first.

    A block is an element of a ModuleList, a ModuleDict or a Sequential, with at least ``min_parameters`` parameters
    that belong to no block below it. Elements are gathered when they are called. Other modules are not safe on their
    own: parents read the weights of some (``out_proj`` of ``nn.MultiheadAttention``), and of others methods are called
    that are not ``forward``. A parameter with several uses belongs to a module that contains them all.
    """
    uses, paths = _uses(model), Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    found: list[nn.Module] = []
    taken: set[int] = set()

    def visit(module: nn.Module) -> None:
        for child in module.children():
            visit(child)
            if not _calls(module, child):
                continue
            new = {id(param): param.numel() for param in child.parameters() if id(param) not in taken}
            inside = _uses(child)
            if sum(new.values()) >= min_parameters and all(uses[key] == inside[key] * paths[id(child)] for key in new):
                found.append(child)
                taken.update(new)

    visit(model)
    return found


def _uses(module: nn.Module) -> Counter[int]:
    """Return by how many names a module has each parameter."""
    return Counter(id(param) for _, param in module.named_parameters(remove_duplicate=False))


def _calls(container: nn.Module, element: nn.Module) -> bool:
    """Tell whether an element is called as a whole; without children, only a Sequential's is sure to be."""
    if type(element).forward is nn.Module.forward:  # a ModuleList's, which has none
        return False
    if isinstance(container, nn.Sequential) and type(container).forward is nn.Sequential.forward:
        return True
    return isinstance(container, _CONTAINERS) and any(True for _ in element.children())
