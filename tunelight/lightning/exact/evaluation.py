"""ExactEvaluation: metrics and predictions that do not depend on the number of ranks.

Lightning pads each rank's shard of a validation set with repeated samples, which shifts every metric. With
``evaluation="exact"`` the batches are those of a single process, in its order, and are dealt to the ranks in turns: in
turn ``t`` of ``W`` ranks, rank ``r`` gets batch ``t*W + r``. So all that is computed per batch (a sum of means, a
maximum, what ``drop_last`` and ``limit_val_batches`` leave out) is the same as in a single process.

In the last turn some ranks may have no batch. They borrow the first one, so that every rank takes the same steps and
no collective, in a forward, a step or at the end, waits for an idle peer. A borrowed step is undone: what it logged,
counted or appended is restored. A rank without any batch keeps what its borrowed steps did to attributes until the
hooks at the end have run, since code there (``torch.stack(self.outputs)``) expects the results of a batch; what it
logs or reduces in them is left out.

Collectives of user code may fit on one rank alone: batches have different numbers of rows, and a condition may hold for
one of them only. Each is compared with the other ranks' before it begins, as is each forward of a sharded model, and a
difference is an error.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.compat.lightning import (
    BasePredictionWriter,
    ParallelStrategy,
    ReduceOp,
    RunningStage,
    _IndexBatchSamplerWrapper,
    has_iterable_dataset,
    sized_len,
)
from tunelight.errors import StrategyError
from tunelight.lightning.exact.epoch_metrics import agree
from tunelight.lightning.exact.eval_shards import (
    BatchShare,
    Dealable,
    StreamShare,
    batches_of,
    share_of,
    with_batches,
)

T = TypeVar("T")


class WholeDataset(int):
    """A sampler's ``num_replicas``, always 1: it yields all samples, and ``ExactEvaluation`` deals the batches."""


_WRAPPERS = {
    "_evaluation_step": "_step",
    "_predict_step": "_step",
    "_on_evaluation_epoch_end": "_epoch_end",
    "_on_predict_epoch_end": "_epoch_end",
    "_store_dataloader_outputs": "_agree",
}
"""Methods of Lightning's loops, and what wraps each in an exact evaluation."""
_MEANS = ("mean", "avg", ReduceOp.AVG, None)


class ExactEvaluation(ParallelStrategy):
    """Adds evaluation that is the same for any number of ranks to a strategy; put it first among the base classes.

    Where ``exact`` is False, all of it is Lightning's. Else a map-style dataset is dealt if Lightning would shard it:
    not with ``use_distributed_sampler=False``, and not with the user's own DistributedSampler. An iterable without a
    sampler (IterableDataset) is left as it is in validation, as by Lightning; in ``predict`` it is dealt if every rank
    reads the same. Runs on: worker. Raises: StrategyError if the ranks' loaders differ in length, or the ranks come
    apart.
    """

    backend: ClassVar[str]
    borrowing = False
    """True in a step on a borrowed batch, and in the hooks at the end of an evaluation in which this rank had no
    batch: what is logged or reduced then is left out."""
    _owned: bool | None = None
    """Whether this rank had a batch of its own in this evaluation; None before its first step."""
    _undo: tuple[Callable[[], object], ...] = ()
    """Undo borrowed steps, once this rank has a batch of its own."""
    _comparing = False
    """True from the start of an exact evaluation to the end of its hooks: collectives are compared."""
    _logging: str | None = None
    """The name that ``self.log`` is at."""
    _batch = ""
    """The batch that a step is at, as comparisons name it."""

    @property
    def exact(self) -> bool:
        """Return whether what the Trainer does now is evaluated exactly."""
        raise NotImplementedError

    @property
    def counts_ranks(self) -> bool:
        """Return whether means leave out ranks that borrow; the same on all ranks."""
        return self.exact

    @property
    def prediction_splits(self) -> list[bool]:
        """Return for each dataloader of the last ``predict`` whether it was dealt, for ``interleave``."""
        module = self.lightning_module
        loaders = module.trainer.predict_loop._combined_loader if module is not None else None
        shares = [share_of(loader) for loader in loaders.flattened] if loaders is not None else []
        return [share is not None and share.dealt for share in shares]

    def gather_objects(self, mine: T) -> list[T]:
        """Return every rank's object, by rank. Strategies without torch.distributed override it."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return [mine]
        gathered: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(gathered, mine)
        return gathered

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite ``tensor`` with rank 0's. Strategies without torch.distributed override it."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast(tensor, 0)

    # -- data

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the arguments of Lightning's sampler; where batches are dealt, it does not shard."""
        kwargs = super().distributed_sampler_kwargs
        module = self.lightning_module
        if module is not None and module._trainer is not None and not module.trainer.training and self.exact:
            kwargs = {**kwargs, "num_replicas": WholeDataset(1), "rank": 0}
        return kwargs

    def process_dataloader(self, dataloader: object) -> object:
        """Deal the batches of a loader for validation, testing or predicting. All ranks call this together."""
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        stage = module.trainer.state.stage if module is not None else None
        if module is None or stage is None or stage == RunningStage.TRAINING or not self.exact:
            return dataloader
        if share_of(dataloader) is not None:
            return dataloader
        predicting = stage == RunningStage.PREDICTING
        limit: float = getattr(module.trainer, f"limit_{stage.dataloader_prefix}_batches")
        sharding = module.trainer._accelerator_connector.use_distributed_sampler
        if not isinstance(dataloader, DataLoader) or has_iterable_dataset(dataloader):
            if sharding and isinstance(dataloader, Dealable):
                return dataloader.dealt(*self._parts(), limit)
            if not (sharding and predicting):
                return dataloader
            return StreamShare(dataloader, *self._parts(), limit, gather=self.gather_objects)
        sampler = getattr(dataloader.batch_sampler, "sampler", dataloader.sampler)
        ours = isinstance(getattr(sampler, "num_replicas", None), WholeDataset)
        if not ours and (not sharding or isinstance(sampler, DistributedSampler)):
            return dataloader
        return self._dealt(dataloader, sampler, limit)

    def _parts(self) -> tuple[int, int]:
        """Return the number of shards of the data and the index of this rank's, as for training."""
        kwargs = super().distributed_sampler_kwargs
        return int(kwargs["num_replicas"]), int(kwargs["rank"])

    def _dealt(self, loader: DataLoader[Any], sampler: Any, limit: float) -> DataLoader[Any]:
        """Return ``loader`` with this rank's share in place of its batch sampler."""
        inner = batches_of(loader)
        if indexed := isinstance(inner, _IndexBatchSamplerWrapper):
            inner = inner._batch_sampler  # it records the indices for prediction writers
        length = sized_len(inner)
        seeded = isinstance(sampler, DistributedSampler)
        seed = sampler.seed if seeded else int(os.environ.get("PL_GLOBAL_SEED", "0"))
        everywhere = self.gather_objects([-1 if length is None else length, seed])
        if len({numbers[0] for numbers in everywhere}) > 1:
            counts = ", ".join(f"rank {rank} has {numbers[0]}" for rank, numbers in enumerate(everywhere))
            raise StrategyError(
                f"A dataset to evaluate has to be the same on every rank, but {counts} batches. Build the same one "
                "everywhere (its batches are dealt to the ranks), or pass Trainer(use_distributed_sampler=False) "
                "if each rank has a part of its own."
            )
        if isinstance(getattr(sampler, "num_replicas", None), WholeDataset):
            sampler.seed = everywhere[0][1]
        share = BatchShare(inner, sampler, *self._parts(), limit=limit, seed=everywhere[0][1])
        if indexed:
            loader.batch_sampler._batch_sampler = share  # type: ignore[union-attr]  # Lightning's wrapper, which is not the user's
            return loader
        return with_batches(loader, share)  # type: ignore[no-any-return]

    # -- collectives

    def reduce(
        self, tensor: torch.Tensor, group: Any = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> torch.Tensor:
        """Reduce over the ranks; in an exact evaluation without borrowed steps, and means in float64.

        Returns a tensor of the same shape and dtype, except that a mean of integers is float32.
        """
        self._together("reduce", tensor, group)
        if not isinstance(tensor, torch.Tensor) or not self.counts_ranks:
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]  # another base class's, by the MRO
        dropped = self.borrowing and isinstance(reduce_op, str)
        if dropped:
            tensor = _neutral(tensor, str(reduce_op).lower())
        if reduce_op not in _MEANS or tensor.is_complex():
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]  # as above
        # the last number counts the ranks, except those that borrow
        numbers = torch.cat([tensor.detach().reshape(-1).to(torch.float64), tensor.new_tensor([1 - dropped]).double()])
        total: torch.Tensor = super().reduce(numbers, group, "sum")  # type: ignore[safe-super]  # as above
        mean = (total[:-1] / total[-1]).reshape(tensor.shape)
        return mean.to(tensor.dtype if tensor.is_floating_point() else torch.float32)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return every rank's tensor. Raises: StrategyError in an exact evaluation where their shapes differ."""
        self._together("all_gather", tensor, group)
        return super().all_gather(tensor, group=group, sync_grads=sync_grads)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return rank ``src``'s object."""
        self._together("broadcast")
        return super().broadcast(obj, src)  # type: ignore[safe-super]  # as above

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self._together("barrier")
        super().barrier(name)  # type: ignore[safe-super]  # as above

    def _together(self, act: str, value: object = None, group: Any = None) -> None:
        """Compare what this rank does next in an exact evaluation with the other ranks. Raises: StrategyError."""
        available = torch.distributed.is_available() and torch.distributed.is_initialized()
        all_ranks = (None, torch.distributed.group.WORLD) if available else (None,)
        if not self._comparing or group not in all_ranks:
            return
        if isinstance(value, torch.Tensor):
            act = f"{act} of a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
        if self._logging is not None:
            act = f"self.log({self._logging!r}) with {act}"
        module = self.lightning_module
        hook = None if module is None else module._current_fx_name
        acts = self.gather_objects((act if hook is None else f"{act} in {hook}") + self._batch)
        if len(set(acts)) == 1:
            return
        listed = "; ".join(f"rank {rank}: {doing}" for rank, doing in enumerate(acts))
        raise StrategyError(
            f"The ranks do not do the same together ({listed}). In an exact evaluation ranks get whole batches of one "
            "process, which may differ in their number of rows, and a condition on a batch may hold on one rank alone: "
            "code that calls a collective itself (self.all_gather, self.log(..., on_step=True, sync_dist=True)) has to "
            "call it on every rank, with equal shapes. Or choose evaluation='ddp', for the strategy or the sweep: "
            "every rank then gets as many rows as the others, padded, as under Lightning's DDP."
        )

    # -- around an evaluation

    def on_validation_start(self) -> None:
        """Prepare the ranks for evaluation."""
        super().on_validation_start()
        self._begin_evaluation()

    def on_test_start(self) -> None:
        """Prepare the ranks for evaluation."""
        super().on_test_start()
        self._begin_evaluation()

    def on_predict_start(self) -> None:
        """Prepare the ranks for evaluation."""
        super().on_predict_start()
        self._begin_evaluation()

    def on_exception(self, exception: BaseException) -> None:
        """Compare collectives no longer: an exception may have ended an evaluation."""
        self._comparing = False
        super().on_exception(exception)

    def _begin_evaluation(self) -> None:
        """Broadcast rank 0's buffers, and wrap the loop's steps."""
        loop = self._trainer()._active_loop
        self._leave(loop)  # an evaluation before may have ended in an exception
        if not self.exact:
            return
        self.sync_buffers()
        self._owned, self._undo, self._comparing = None, (), self.world_size > 1
        for name, wrapper in _WRAPPERS.items():
            if hasattr(loop, name):
                setattr(loop, name, functools.partial(getattr(self, wrapper), loop, getattr(loop, name)))
        if loop._results is not None:
            loop._results.log = functools.partial(self._log, loop._results.log)

    def _leave(self, loop: Any) -> None:
        """Remove the wrappers of a loop."""
        for name in _WRAPPERS:
            vars(loop).pop(name, None)
        if loop._results is not None:
            vars(loop._results).pop("log", None)
        self._comparing, self._logging = False, None

    def sync_buffers(self) -> None:
        """Broadcast rank 0's buffers, as DDP does in a forward: BatchNorm's statistics differ between ranks."""
        model = self.model
        if isinstance(model, DistributedDataParallel):
            buffers = model.modules_buffers if model.broadcast_buffers else []
        else:
            buffers = [] if model is None else list(model.buffers())
        plain = [buffer for buffer in buffers if type(buffer) is torch.Tensor and buffer.numel()]
        for dtype in {buffer.dtype: None for buffer in plain}:
            same = [buffer for buffer in plain if buffer.dtype == dtype]
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in same])
            self.broadcast_tensor(flat)
            for buffer, part in zip(same, flat.split([buffer.numel() for buffer in same]), strict=True):
                buffer.detach().copy_(part.view_as(buffer))

    def _trainer(self) -> Any:
        module = self.lightning_module
        return None if module is None else module.trainer

    def _step(self, loop: Any, original: Callable[..., None], *step: Any) -> None:
        """Run a loop's step; undo it if this rank has borrowed the batch."""
        _, turn, loader, source = step  # the batch, its index, the loader's, and the iterator if the step takes that
        combined = loop._combined_loader
        shares = [share_of(dataloader) for dataloader in combined.flattened]
        if combined._mode == "sequential":
            shares = shares[loader : loader + 1]
        decide = all if combined._mode == "min_size" else any
        dealt = [share.owns(turn) for share in shares if share is not None]
        trace: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if source is not None or not dealt or decide(dealt):
            undo, self._undo = self._undo, ()
            for put_back in reversed(undo):
                put_back()
            self._owned = True
        else:
            self.borrowing, self._owned = True, bool(self._owned)
            trace = self._without_trace(loop, keep=not self._owned)
        self._batch = "" if source is not None else f", batch {turn} of dataloader {loader}"
        try:
            if self.backend == "sharded":
                self._together("a forward of the sharded model")
            with trace:
                original(*step)
        finally:
            self.borrowing, self._batch = False, ""

    def _agree(self, loop: Any, original: Callable[[], None]) -> None:
        """Let all ranks log the same names before the values of a dataloader are reduced."""
        self._together("the end of a dataloader")
        agree(loop.trainer, self.gather_objects)
        original()

    def _epoch_end(self, loop: Any, original: Callable[[], T]) -> T:
        """Run the hooks at an evaluation's end; what a rank without a batch logs in them is left out."""
        self.borrowing = self._owned is False
        try:
            result = original()
            self._together("the end of the evaluation")
        finally:
            self.borrowing, self._undo = False, ()
            self._leave(loop)
        return result

    def _log(self, original: Callable[..., None], hook: str, name: str, *args: Any, **kwargs: Any) -> None:
        """Log a value; note its name, since it may be reduced at once."""
        self._logging = name
        try:
            original(hook, name, *args, **kwargs)
        finally:
            self._logging = None

    @contextlib.contextmanager
    def _without_trace(self, loop: Any, keep: bool = False) -> Iterator[None]:
        """Undo what a borrowed step does to the module, its metrics, the callbacks and the loop's outputs.

        Prediction writers are not called. With ``keep``, attributes stay as the step has left them, and are restored
        when this rank gets a batch of its own; metrics are then called updated, as they are on the other ranks.
        """
        from torchmetrics import Metric  # it comes with Lightning

        trainer = self._trainer()
        callbacks = trainer.callbacks
        owners = [*trainer.lightning_module.modules(), *callbacks]
        for callback in callbacks:
            metrics = [value for value in vars(callback).values() if isinstance(value, torch.nn.Module)]
            owners += [module for metric in metrics for module in metric.modules()]
        attributes = [(owner, remember_attributes(owner)) for owner in owners]
        undo = [remember_logged(trainer._results)]
        undo += [remember(getattr(loop, name, [])) for name in ("_predictions", "epoch_batch_indices")]
        with contextlib.ExitStack() as stack:
            for writer in callbacks:
                if isinstance(writer, BasePredictionWriter):
                    vars(writer)["on_predict_batch_end"] = lambda *_, **__: None
                    stack.callback(vars(writer).pop, "on_predict_batch_end")
            try:
                yield
            finally:
                for put_back in undo:
                    put_back()
                for owner, put_back in attributes:
                    is_metric = isinstance(owner, Metric)
                    if is_metric or not keep:
                        put_back()
                    if is_metric and keep:
                        owner._update_count = max(1, owner._update_count)
                if keep:
                    self._undo = (*self._undo, *(put_back for _, put_back in attributes))


def _neutral(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """Return the neutral element of a reduction; ``tensor`` itself if there is none."""
    if op in ("sum", "mean", "avg"):
        return torch.zeros_like(tensor)
    if op not in ("max", "min") or tensor.is_complex() or tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point():
        return torch.full_like(tensor, -math.inf if op == "max" else math.inf)
    whole = torch.iinfo(tensor.dtype)
    return torch.full_like(tensor, whole.min if op == "max" else whole.max)


# --- Steps on borrowed batches, undone --------------------------------------------------------------------

_CONTAINERS = (dict, list, deque, set)


def remember(value: Any, copy_tensors: bool = True) -> Callable[[], Any]:
    """Return a function that restores the present content of ``value``, and returns ``value``.

    It looks into dicts, lists, deques and sets, and copies tensors (except in lists, where code appends tensors and
    does not change them). Parameters and objects of other classes are not copied.
    """
    if type(value) is torch.Tensor and copy_tensors and not value.is_meta and value.layout is torch.strided:
        copied = value.detach().clone()

        def put_back() -> Any:
            if not torch.equal(value, copied):
                value.detach().copy_(copied)
            return value

    elif isinstance(value, _CONTAINERS):
        keyed = isinstance(value, dict)
        items: Any = dict(value) if keyed else list(value)
        inside = items.values() if keyed else [item for item in items if isinstance(item, _CONTAINERS)]
        inner = [remember(item, copy_tensors and keyed) for item in inside]

        def put_back() -> Any:
            for back in inner:
                back()
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(items)
            return value

    else:
        return lambda: value
    return put_back


_HELD = {name for name in vars(nn.Module()) if name.endswith("_hooks")} | {"_parameters", "_modules"}
"""Attributes of modules that stay as they are: FSDP swaps them during a forward."""
_HELD_BY_METRICS = {*_HELD, "_computed"}
"""The same of metrics, which all ranks must compute, and gather, at the same time."""


def remember_attributes(owner: Any) -> Callable[[], None]:
    """Return a function that restores an object's attributes; new attributes stay.

    An empty list state of a torchmetrics metric that is concatenated over the ranks gets the appended tensors without
    rows, so that it is gathered with the dtype and the dimensions of the other ranks.
    """
    from torchmetrics import Metric  # it comes with Lightning

    attributes = vars(owner)
    held = _HELD_BY_METRICS if isinstance(owner, Metric) else _HELD if isinstance(owner, nn.Module) else ()
    kept = remember({name: value for name, value in attributes.items() if name not in held})
    reductions = owner._reductions if isinstance(owner, Metric) else {}

    def put_back() -> None:
        rows = {
            name: [row[:0] for row in attributes[name] if isinstance(row, torch.Tensor) and row.ndim]
            for name, reduction in reductions.items()
            if isinstance(attributes.get(name), list) and getattr(reduction, "__name__", "") == "dim_zero_cat"
        }
        attributes.update(kept())
        for name, empty in rows.items():
            if not attributes[name]:
                attributes[name].extend(empty[:1])

    return put_back


def remember_logged(results: Any) -> Callable[[], None]:
    """Return a function that removes later values from a ``_ResultCollection``.

    A key that only the borrowed step has logged stays, without a value: at the end all ranks reduce the same keys. A
    key that is not reduced over the ranks keeps its value: an empty mean would be 0/0.
    """
    if results is None:
        return lambda: None
    logged = {key: vars(metric) for key, metric in results.items() if not metric.has_reset}
    kept = {key: {name: state[name] for name in state if name not in _HELD_BY_METRICS} for key, state in logged.items()}

    def put_back() -> None:
        for key, metric in results.items():
            if key in kept:
                vars(metric).update(kept[key])
            elif metric.is_tensor and metric.meta.sync.should and not metric.has_reset:
                metric.value = torch.full_like(metric.value, metric._defaults["value"].item())
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    return put_back
