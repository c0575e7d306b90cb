"""HorovodRayStrategy: Horovod on a gang of Ray workers. Lightning 2 has no Horovod strategy of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch.optim import Optimizer

from tunelight.compat import replaced
from tunelight.compat.lightning import LightningOptimizer, TrainerFn, _optimizers_to_device, pl, reset_seed
from tunelight.errors import SettingsError, StrategyError, known_arguments
from tunelight.lightning.state.adoption import OF_GROUPS, OF_SCHEDULERS, each
from tunelight.lightning.strategies.base import IDLE_TIMEOUT_S, Failures, GangStrategy, NumWorkers
from tunelight.lightning.strategies.training import SizeInvariantTraining
from tunelight.messages import Evaluation
from tunelight.settings.backends import BACKENDS

T = TypeVar("T")
_COMPRESSIONS = ("none", "fp16")


def _horovod() -> Any:
    """Import Horovod. Raises: StrategyError if it is not installed."""
    try:
        import horovod.torch as hvd  # an optional dependency
    except ImportError as error:
        raise StrategyError(BACKENDS["horovod"].how_to_get) from error
    return hvd


@contextlib.contextmanager
def _writable(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Leave inference mode, whose tensors Horovod's own thread may not write; yield ``tensor``, or a copy of one."""
    with torch.inference_mode(False):
        yield tensor.clone() if tensor.is_inference() else tensor


class HorovodCollectives(GangStrategy):
    """What ranks do together, by Horovod. Every operation is named: Horovod's own numbers differ once a rank failed."""

    _numbers: Iterator[int]

    @property
    def is_distributed(self) -> bool:
        """Tell Lightning that data is to be sharded and metrics are to be reduced."""
        return True

    def _name(self, kind: str) -> str:
        return f"tunelight.{kind}.{next(self._numbers)}"

    @property
    def alone(self) -> bool:
        """True on a driver, and in a gang of one."""
        return not self.joined or self.world_size == 1

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "sum") -> Any:
        """Reduce over the ranks by mean, sum, min, max or product."""
        if self.alone or not isinstance(tensor, torch.Tensor):
            return tensor
        hvd = _horovod()
        ops = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
        name = str(reduce_op).lower().removeprefix("redoptype.").replace("avg", "mean")
        if name not in ops:
            raise StrategyError(f"Horovod reduces by {', '.join(ops)}, not by {reduce_op}.")
        with _writable(tensor) as sent:
            return hvd.allreduce(sent, op=ops[name], name=self._name("reduce"))

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        if not self.alone:
            self.reduce(torch.zeros(1))

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return rank ``src``'s object on every rank."""
        if self.alone:
            return obj
        with torch.inference_mode(False):
            return cast(T, _horovod().broadcast_object(obj, root_rank=src, name=self._name("broadcast")))

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return every rank's tensor, stacked: (world_size, *shape)."""
        if self.alone:
            return tensor.unsqueeze(0)
        with contextlib.nullcontext() if sync_grads else torch.no_grad(), _writable(tensor) as sent:
            gathered = _horovod().allgather(sent.unsqueeze(0).contiguous(), name=self._name("gather"))
        return cast(torch.Tensor, gathered)

    def gather_rows(self, tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """Return every rank's tensor; their first dimensions may differ (for torchmetrics)."""
        tensor = tensor.contiguous()
        if not tensor.ndim:
            return list(self.all_gather(tensor))
        hvd = _horovod()
        sizes = self.all_gather(torch.tensor(len(tensor))).tolist()
        with torch.no_grad(), _writable(tensor) as sent:
            return list(torch.split(hvd.allgather(sent, name=self._name("rows")), sizes))


class HorovodRayStrategy(SizeInvariantTraining, HorovodCollectives):
    """Train with Horovod on Ray workers: those of the gang that this process is in, or a new gang.

    Args:
        num_workers, num_cpus_per_worker, use_gpu, init_hook, resources_per_worker: as in ``tunelight.RayStrategy``.
        idle_timeout_s, failures, evaluation: the same.
        num_hosts, num_slots: the size in another way: the number of nodes, and of workers on each.
        compression: of gradients in transit: "none" or "fp16".
        scale_lr: multiply learning rates by the number of workers, as Horovod's examples do (False).

    The Trainer's ``accumulate_grad_batches`` becomes Horovod's ``backward_passes_per_step``. Runs on: driver,
    worker. Raises: SettingsError; StrategyError without Horovod, or in a gang of another size or kind.
    """

    strategy_name = "tunelight_horovod"
    backend = "horovod"
    _of_process = GangStrategy._of_process | {"_numbers", "_explicit", "_hooked"}

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
        num_hosts: int | None = None,
        num_slots: int | None = None,
        compression: str = "none",
        scale_lr: bool = False,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise SettingsError(f"compression must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}.")
        num_workers = _size(num_workers, num_hosts, num_slots)

        _horovod()
        gang = (num_workers, num_cpus_per_worker, use_gpu, init_hook, resources_per_worker)
        environment = self._settle(gang, evaluation, idle_timeout_s=idle_timeout_s, failures=failures, hosts=num_hosts)
        super().__init__(cluster_environment=environment, parallel_devices=self._devices())
        self._choose_accelerator()
        self._compression = compression
        self._scale_lr = scale_lr
        self._passes = 1
        self._hooked: set[torch.nn.Parameter] = set()
        """Parameters of whose gradients Horovod hears."""
        self._numbers = itertools.count()
        self._explicit = contextlib.ExitStack()

    # -- set-up

    def setup(self, trainer: pl.Trainer) -> None:
        """Move the model to this rank's device, broadcast rank 0's weights, and let Horovod reduce its gradients."""
        assert self.accelerator is not None  # Lightning's order
        assert self.model is not None
        if self._layer_sync is not None:
            raise StrategyError(
                "Trainer(sync_batchnorm=True) is torch.distributed's and does nothing for Horovod. Leave it out and "
                "use horovod.torch.SyncBatchNorm in the model (on GPUs; it refuses the CPU)."
            )
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        hvd = _horovod()
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._connect_metrics()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
            if self._scale_lr:
                _scale(trainer, self._session.context.wanted if self._session is not None else self.world_size)
            self.count_turns()
            self._passes = trainer.accumulate_grad_batches * self.turns
            self._hooked = set()
            self.optimizers = [self._distributed(optimizer) for optimizer in self.optimizers]
            for config in self.lr_scheduler_configs:
                _follow(config.scheduler, self.optimizers)
        self.setup_precision_plugin()
        if trainer.state.fn == TrainerFn.FITTING:
            _optimizers_to_device(self.optimizers, self.root_device)

    def _distributed(self, optimizer: Optimizer) -> Optimizer:
        """Wrap an optimizer in Horovod's; gradients are reduced after backward, before clipping."""
        hvd = _horovod()
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        assert self.lightning_module is not None
        wrapped = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(name, p) for name, p in self.lightning_module.named_parameters() if id(p) in mine],
            compression=getattr(hvd.Compression, self._compression),
            backward_passes_per_step=self._passes,
        )
        wrapped.defaults = optimizer.defaults  # Horovod leaves the class's own
        wrapped.state.update(optimizer.state)
        self._explicit.enter_context(wrapped.skip_synchronize())
        self._hooked.update(wrapped._requires_update)
        _track_steps(wrapped)
        _open_to_wrappers(wrapped)
        return cast(Optimizer, wrapped)

    def _connect_metrics(self) -> None:
        """Let torchmetrics gather by Horovod; by default it knows torch.distributed only."""
        from torchmetrics import Metric  # it comes with Lightning

        assert self.lightning_module is not None
        for module in self.lightning_module.modules():
            if isinstance(module, Metric):
                module.dist_sync_fn = self.gather_rows
                module.distributed_available_fn = self._several

    def _several(self) -> bool:
        return not self.alone

    def model_to_device(self) -> None:
        """Move the model to this rank's device."""
        assert self.model is not None
        self.model.to(self.root_device)

    def setup_environment(self) -> None:
        """Reset the seed, as all of Lightning's distributed strategies do."""
        with self._own_numbers():
            super().setup_environment()
            reset_seed()

    # -- training

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Let Horovod reduce what is trained now: by itself it reduces what was when the fit began, all of it."""
        super().on_train_batch_start(batch, batch_idx)
        if not self.alone:
            for optimizer in self.optimizers:
                self._reduce_trained(optimizer)

    def _reduce_trained(self, wrapped: Any) -> None:
        trained = {p for group in wrapped.param_groups for p in group["params"] if p.requires_grad}
        if trained == wrapped._requires_update:
            return
        assert self.lightning_module is not None
        for name, param in self.lightning_module.named_parameters():
            if param in trained and param not in wrapped._allreduce_delay:
                wrapped._parameter_names[param], wrapped._allreduce_delay[param] = name, self._passes
        with replaced(wrapped, param_groups=[{"params": trained - self._hooked}]):
            wrapped._register_hooks()
        self._hooked |= trained
        wrapped._requires_update = trained

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a training step; tell Horovod when the number of batches of an optimizer step changes."""
        passes = self._trainer().accumulate_grad_batches * self.turns
        if passes != self._passes:
            self._passes = passes
            for optimizer in self.optimizers:
                optimizer.set_backward_passes_per_step(passes)  # type: ignore[attr-defined]  # Horovod's
        return super().training_step(*args, **kwargs)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Wait for the gradients' sums before an optimizer step."""
        trainer = self._trainer()
        automatic = trainer.lightning_module.automatic_optimization
        if automatic and (not self._whole_step or trainer.fit_loop._should_accumulate()):
            return
        for optimizer in self.optimizers:
            if optimizer._handles:  # type: ignore[attr-defined]  # Horovod's: empty if this backward was for other optimizers
                optimizer.synchronize()  # type: ignore[attr-defined]  # Horovod's

    def teardown(self) -> None:
        """Release the model and the optimizers."""
        self._explicit.close()
        for optimizer in self.optimizers:
            getattr(optimizer, "_grad_accs", []).clear()  # with Horovod's hooks, which would live until it is collected
        _optimizers_to_device(self.optimizers, torch.device("cpu"))
        super().teardown()

    def gather_objects(self, mine: T) -> list[T]:
        """Return every rank's object, by rank."""
        if self.alone:
            return [mine]
        with torch.inference_mode(False):
            return cast(list[T], _horovod().allgather_object(mine, name=self._name("objects")))

    def gather_on_rank_0(self, mine: T) -> list[T] | None:
        """Return every rank's object, by rank, on rank 0; None on the others. Called on every rank."""
        gathered = self.gather_objects(mine)
        return gathered if self.is_global_zero else None

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite ``tensor`` with rank 0's."""
        if not self.alone:
            with torch.no_grad(), _writable(tensor) as sent:
                _horovod().broadcast_(sent, root_rank=0, name=self._name("tensor"))
            if sent is not tensor:
                tensor.copy_(sent)


def _size(num_workers: NumWorkers, num_hosts: int | None, num_slots: int | None) -> NumWorkers:
    """Return the number of workers. Raises: SettingsError if the arguments contradict each other."""
    if num_hosts is None and num_slots is None:
        return num_workers
    product = (num_hosts or 1) * (num_slots or 1)
    if isinstance(num_workers, tuple):
        return num_workers  # it contradicts num_hosts, which Workers refuses
    if num_workers is not None and num_workers != product:
        raise SettingsError(
            f"num_workers={num_workers}, but num_hosts={num_hosts or 1} with num_slots={num_slots or 1} each make "
            f"{product}. Leave one spelling out."
        )
    return product


def _scale(trainer: pl.Trainer, factor: float) -> None:
    """Multiply the learning rates of a Trainer's optimizers, and the initial and final ones of its schedulers."""
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            for name in OF_GROUPS:
                if name in group:
                    group[name] *= factor
    for config in trainer.lr_scheduler_configs:
        for scheduler in each(config.scheduler):
            for name in OF_SCHEDULERS:
                value = getattr(scheduler, name, None)
                if isinstance(value, list):
                    setattr(scheduler, name, [rate * factor for rate in value])
                elif isinstance(value, int | float):
                    setattr(scheduler, name, value * factor)


def _follow(scheduler: Any, optimizers: Iterable[Optimizer]) -> None:
    """Let a scheduler, and those it consists of, drive the wrapped optimizer in place of its original one."""
    for part in each(scheduler):
        before = getattr(part, "optimizer", None)
        for optimizer in optimizers:
            if before is not None and before.param_groups[0] is optimizer.param_groups[0]:
                part.optimizer = optimizer


def _track_steps(optimizer: Any) -> None:
    """Mark steps as torch's schedulers do, which warn of an optimizer that has not stepped."""
    step = optimizer.step

    @functools.wraps(step)
    def tracked(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return step(*args, **kwargs)

    tracked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch's own mark
    optimizer.step = tracked


def _open_to_wrappers(optimizer: Any) -> None:
    """Let methods work through Lightning's wrapper, as manual optimization calls them.

    The wrapper's class becomes a subclass of Horovod's, which calls ``super(self.__class__, self)``: that would
    recurse without end.
    """
    cls = type(optimizer)  # Horovod makes a class for each optimizer
    for name in ("zero_grad", "load_state_dict"):
        method = getattr(cls, name)

        @functools.wraps(method)
        def call(self: Any, *args: Any, _method: Any = method, **kwargs: Any) -> Any:
            return _method(self._optimizer if isinstance(self, LightningOptimizer) else self, *args, **kwargs)

        setattr(cls, name, call)
