"""ExactEvaluation: metrics and predictions that do not depend on the number of ranks.

Lightning pads each rank's shard of a validation set with repeated samples, which shifts every metric. With
``evaluation="exact"`` the batches are those of a single process, in its order, and are dealt to the ranks in turns: in
turn ``t`` of ``W`` ranks, rank ``r`` gets batch ``t*W + r``. So all that is computed per batch (a sum of means, a
maximum, what ``drop_last`` and ``limit_val_batches`` leave out) is the same as in a single process.

In the last turn some ranks may have no batch, and skip it; the ranks agree on names and sums at the end. Sharded models
need every rank in each forward: there a rank without a batch borrows the first one, and its step is undone.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
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
from tunelight.lightning.exact.borrowed import remember, remember_attributes, remember_logged
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
    reads the same. Validation and test with fewer batches than ranks are left to Lightning's sampler. Runs on: worker.
    Raises: StrategyError if the ranks' loaders differ in length, and for collectives in steps.
    """

    borrowing = False
    """True in a step on a borrowed batch: what is logged or reduced then is left out."""
    backend: ClassVar[str]
    _alone = _logging = False
    """Whether this rank is in a step, which other ranks may skip, and logs a value there."""

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
        least = 0 if predicting else self._parts()[0]  # hooks at the end expect that a rank has had a batch
        limit: float = getattr(module.trainer, f"limit_{stage.dataloader_prefix}_batches")
        sharding = module.trainer._accelerator_connector.use_distributed_sampler
        if not isinstance(dataloader, DataLoader) or has_iterable_dataset(dataloader):
            if sharding and isinstance(dataloader, Dealable):
                return dataloader.dealt(*self._parts(), limit, least)
            if not (sharding and predicting):
                return dataloader
            return StreamShare(dataloader, *self._parts(), limit, gather=self.gather_objects)
        sampler = getattr(dataloader.batch_sampler, "sampler", dataloader.sampler)
        ours = isinstance(getattr(sampler, "num_replicas", None), WholeDataset)
        if not ours and (not sharding or isinstance(sampler, DistributedSampler)):
            return dataloader
        return self._dealt(dataloader, sampler, limit, least)

    def _parts(self) -> tuple[int, int]:
        """Return the number of shards of the data and the index of this rank's, as for training."""
        kwargs = super().distributed_sampler_kwargs
        return int(kwargs["num_replicas"]), int(kwargs["rank"])

    def _dealt(self, loader: DataLoader[Any], sampler: Any, limit: float, least: int) -> DataLoader[Any]:
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
            if length is not None and length < least:
                shuffle, seed, drop_last = sampler.shuffle, sampler.seed, sampler.drop_last
                DistributedSampler.__init__(sampler, sampler.dataset, *self._parts(), shuffle, seed, drop_last)
                return loader
        share = BatchShare(inner, sampler, *self._parts(), limit=limit, least=least, seed=everywhere[0][1])
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
        if self._logging:
            return tensor  # the epoch's value is reduced at its end
        self._check_all_are_here("reduce")
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
        """Return every rank's tensor. Raises: StrategyError in a step of an exact evaluation."""
        self._check_all_are_here("all_gather")
        return super().all_gather(tensor, group=group, sync_grads=sync_grads)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return rank ``src``'s object. Raises: StrategyError in a step of an exact evaluation."""
        self._check_all_are_here("broadcast")
        return super().broadcast(obj, src)  # type: ignore[safe-super]  # as above

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks. Raises: StrategyError in a step of an exact evaluation."""
        self._check_all_are_here("barrier")
        super().barrier(name)  # type: ignore[safe-super]  # as above

    def _check_all_are_here(self, act: str) -> None:
        if self._alone:
            hook = self._trainer().lightning_module._current_fx_name
            raise StrategyError(
                f"{act} in {hook}: in an exact evaluation ranks may have different numbers of batches, so that code of "
                "a step cannot wait for other ranks. Call it at the end of the epoch, or choose evaluation='ddp', for "
                "the strategy or the sweep: every rank then gets as many rows as the others, padded, as under "
                "Lightning's DDP."
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

    def _begin_evaluation(self) -> None:
        """Broadcast rank 0's buffers, and wrap the loop's steps."""
        loop = self._trainer()._active_loop
        self._leave(loop)  # an evaluation before may have ended in an exception
        if not self.exact:
            return
        self.sync_buffers()
        if isinstance(self.model, DistributedDataParallel):
            self.model.require_forward_param_sync = False  # which waits for the other ranks in a forward
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
        """Run a loop's step, unless this rank has no batch for it; with a sharded model undo that one's."""
        _, turn, loader, source = step  # the batch, its index, the loader's, and the iterator if the step takes that
        if self._owns(loop._combined_loader, turn, loader) or source is not None:
            self._alone = self.backend != "sharded"
            try:
                original(*step)
            finally:
                self._alone = False
        elif self.backend == "sharded":
            self.borrowing = True
            try:
                with self._without_trace(loop):
                    original(*step)
            finally:
                self.borrowing = False

    def _owns(self, combined: Any, turn: int, loader: int) -> bool:
        """Return whether this rank has a batch of its own in a turn."""
        shares = [share_of(one) for one in combined.flattened]
        if combined._mode == "sequential":
            shares = shares[loader : loader + 1]
        decide = all if combined._mode == "min_size" else any
        dealt = [share.owns(turn) for share in shares if share is not None]
        return not dealt or decide(dealt)

    def _agree(self, loop: Any, original: Callable[[], None]) -> None:
        """Let all ranks log the same names before the values of a dataloader are reduced."""
        agree(loop.trainer, self.gather_objects)
        original()

    def _epoch_end(self, loop: Any, original: Callable[[], T]) -> T:
        """Run the hooks at an evaluation's end."""
        try:
            return original()
        finally:
            self._leave(loop)

    def _log(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Log a value; in a step it is not reduced."""
        self._logging = self._alone
        try:
            original(*args, **kwargs)
        finally:
            self._logging = False

    @contextlib.contextmanager
    def _without_trace(self, loop: Any) -> Iterator[None]:
        """Undo what a borrowed step does to the module, its metrics, the callbacks and the loop's outputs.

        Prediction writers are not called.
        """
        trainer = self._trainer()
        callbacks = trainer.callbacks
        owners = [*trainer.lightning_module.modules(), *callbacks]
        for callback in callbacks:
            metrics = [value for value in vars(callback).values() if isinstance(value, torch.nn.Module)]
            owners += [module for metric in metrics for module in metric.modules()]
        undo = [*map(remember_attributes, owners), remember_logged(trainer._results)]
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
