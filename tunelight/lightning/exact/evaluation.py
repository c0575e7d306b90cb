"""ExactEvaluation: metrics and predictions that do not depend on the number of ranks.

Lightning pads each rank's shard of a validation set with repeated samples, which shifts every metric. Here the
batches are those of a single process, in its order, and are dealt to the ranks in turns: in turn ``t`` of ``W`` ranks,
rank ``r`` gets batch ``t*W + r``. So all that is computed per batch (a sum of means, a maximum, what ``drop_last``
and ``limit_val_batches`` leave out) is the same as in a single process.

In the last turn some ranks may have no batch. They borrow the first one, so that every rank takes the same steps and
no collective, in a forward, a step or at the end, waits for an idle peer. A borrowed step is undone: what it logged,
counted or appended is restored.

There is one exception, for the hooks at the end of the evaluation: lists, dicts and numbers of the model and the
callbacks that are still empty or zero get the values of the borrowed step, since code in those hooks
(``torch.stack(self.outputs)``, ``self.correct / self.total``) expects the results of at least one batch. What a rank
without a batch logs in them is left out of every reduction.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.compat.lightning import (
    BasePredictionWriter,
    ParallelStrategy,
    ReduceOp,
    RunningStage,
    _IndexBatchSamplerWrapper,
    _PredictionLoop,
    has_iterable_dataset,
    sized_len,
)
from tunelight.errors import StrategyError
from tunelight.lightning.exact.borrowed import (
    LIGHTNINGS_OWN,
    copied,
    fill,
    gaps,
    remember,
    remember_attributes,
    remember_logged,
)
from tunelight.lightning.exact.eval_shards import BatchShare, Limit, StreamShare, interleave, share_of

__all__ = ["ExactEvaluation", "interleave"]

T = TypeVar("T")


class WholeDataset(int):
    """A sampler's ``num_replicas``, always 1: it yields all samples, and ``ExactEvaluation`` deals the batches."""


_MEANS = ("mean", "avg", ReduceOp.AVG, None)


class ExactEvaluation(ParallelStrategy):
    """Adds evaluation that is the same for any number of ranks to a strategy; put it first among the base classes.

    Validation, testing and predicting run the batches of a single process, dealt in turns. A map-style dataset is
    dealt if Lightning would shard it: not with ``use_distributed_sampler=False``, and not with the user's own
    DistributedSampler. An iterable without a sampler (IterableDataset) is left as it is in validation, as by
    Lightning; in ``predict`` every rank reads all of it and keeps its own turns, unless
    ``use_distributed_sampler=False`` means that each rank reads its own part.

    Runs on: worker. Raises: StrategyError if the ranks' loaders differ in length.
    """

    borrowing = False
    """True in a step on a borrowed batch, and in the hooks at the end of an evaluation in which this rank had no
    batch: what is logged or reduced then is left out."""
    _owned: bool | None = None
    """Whether this rank had a batch of its own in this evaluation; None before its first step."""
    _gaps: Sequence[tuple[Any, str, Any]] = ()
    """Values of borrowed steps for empty attributes: owner, name and gap of each."""

    @property
    def prediction_splits(self) -> list[bool]:
        """Return for each dataloader of the last ``predict`` whether it was dealt, for ``interleave``."""
        module = self.lightning_module
        loaders = module.trainer.predict_loop._combined_loader if module is not None else None
        return [share_of(loader) is not None for loader in loaders.flattened] if loaders is not None else []

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

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the arguments of Lightning's sampler: it shards for training only, otherwise batches are dealt."""
        kwargs = super().distributed_sampler_kwargs
        module = self.lightning_module
        if module is not None and module._trainer is not None and not module.trainer.training:
            kwargs = {**kwargs, "num_replicas": WholeDataset(1), "rank": 0}
        return kwargs

    def process_dataloader(self, dataloader: object) -> object:
        """Deal the batches of a loader for validation, testing or predicting. All ranks call this together."""
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        stage = module.trainer.state.stage if module is not None else None
        if module is None or stage is None or stage == RunningStage.TRAINING or share_of(dataloader) is not None:
            return dataloader
        predicting = stage == RunningStage.PREDICTING
        limit: Limit = getattr(module.trainer, f"limit_{stage.dataloader_prefix}_batches")
        sharding = module.trainer._accelerator_connector.use_distributed_sampler
        if not isinstance(dataloader, DataLoader) or has_iterable_dataset(dataloader):
            if sharding and hasattr(dataloader, "dealt"):  # every rank has all of its data
                return dataloader.dealt(*self._parts(), limit)
            if not (sharding and predicting):
                return dataloader
            return StreamShare(dataloader, *self._parts(), limit)
        sampler = getattr(dataloader.batch_sampler, "sampler", dataloader.sampler)
        ours = isinstance(getattr(sampler, "num_replicas", None), WholeDataset)
        if not ours and (not sharding or isinstance(sampler, DistributedSampler)):
            return dataloader
        return self._dealt(dataloader, sampler, limit)

    def _parts(self) -> tuple[int, int]:
        """Return the number of shards of the data and the index of this rank's, as for training."""
        kwargs = super().distributed_sampler_kwargs
        return int(kwargs["num_replicas"]), int(kwargs["rank"])

    def _dealt(self, loader: DataLoader[Any], sampler: Any, limit: Limit) -> DataLoader[Any]:
        """Return ``loader`` with this rank's share in place of its batch sampler."""
        at = "sampler" if loader.batch_sampler is None else "batch_sampler"
        holder, inner = loader, getattr(loader, at)
        if indexed := isinstance(inner, _IndexBatchSamplerWrapper):
            inner = inner._batch_sampler  # it records the indices for prediction writers
        length = sized_len(inner)
        seed = getattr(sampler, "seed", int(os.environ.get("PL_GLOBAL_SEED", "0")))
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
        holder = copy.copy(loader)  # the user may hold it
        vars(holder)[at] = share  # DataLoader refuses assignment
        return holder

    def reduce(
        self, tensor: torch.Tensor, group: Any = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> torch.Tensor:
        """Reduce over the ranks. Means are taken in float64, so that integer counts stay exact.

        A rank in a borrowed step adds nothing to what ``self.log`` reduces.
        Returns a tensor of the same shape, and of the same dtype, except that a mean of integers is float32.
        """
        if not isinstance(tensor, torch.Tensor):
            return super().reduce(tensor, group, reduce_op)
        dropped = self.borrowing and isinstance(reduce_op, str)
        if dropped:
            tensor = _neutral(tensor, str(reduce_op).lower())
        if reduce_op not in _MEANS or tensor.is_complex():
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]  # another base class's, by the MRO
        # the last number counts the ranks, except those that borrow
        numbers = torch.cat([tensor.detach().reshape(-1).to(torch.float64), tensor.new_tensor([1 - dropped]).double()])
        total: torch.Tensor = super().reduce(numbers, group, "sum")  # type: ignore[safe-super]  # as above
        mean = (total[:-1] / total[-1]).reshape(tensor.shape)
        return mean.to(tensor.dtype if tensor.is_floating_point() else torch.float32)

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
        self.sync_buffers()
        self._owned, self._gaps = None, []
        loop = self._leave_loop()  # an evaluation before may have ended in an exception
        step, epoch_end = _hooked(loop)
        setattr(loop, step, functools.partial(self._step, loop, getattr(loop, step)))
        setattr(loop, epoch_end, functools.partial(self._epoch_end, getattr(loop, epoch_end)))

    def on_validation_end(self) -> None:
        """Remove the wrappers of the loop."""
        self._leave_loop()
        super().on_validation_end()

    def on_test_end(self) -> None:
        """Remove the wrappers of the loop."""
        self._leave_loop()
        super().on_test_end()

    def on_predict_end(self) -> None:
        """Remove the wrappers of the loop."""
        self._leave_loop()
        super().on_predict_end()

    def _leave_loop(self) -> Any:
        loop = self._trainer()._active_loop
        for name in _hooked(loop):
            vars(loop).pop(name, None)
        return loop

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
        _, turn, loader, source = (
            step  # batch, batch_idx, dataloader_idx and, for a step that asks for it, the iterator
        )
        combined = loop._combined_loader
        shares = [share_of(one) for one in combined.flattened]
        if combined._mode == "sequential":
            shares = shares[loader : loader + 1]
        decide = all if combined._mode == "min_size" else any
        dealt = [share.owns(turn) for share in shares if share is not None]
        if source is not None or not dealt or decide(dealt):
            self._owned = True
            original(*step)
            return
        self.borrowing, self._owned = True, bool(self._owned)
        try:
            with self._without_trace(loop, fill=turn == 0):  # a rank that borrows in turn 0 has no batch of this loader
                original(*step)
        finally:
            self.borrowing = False

    def _epoch_end(self, original: Callable[[], T]) -> T:
        """Run a loop's hooks at its end; what a rank without a batch logs in them is left out."""
        for owner, name, gap in self._gaps:
            vars(owner)[name] = fill(vars(owner).get(name), gap)
        self._gaps = []
        self.borrowing = self._owned is False
        try:
            return original()
        finally:
            self.borrowing = False

    @contextlib.contextmanager
    def _without_trace(self, loop: Any, fill: bool = False) -> Iterator[None]:
        """Undo what a borrowed step does to the module, its metrics, the callbacks and the loop's outputs.

        With ``fill``, values for empty attributes of the module and the callbacks are kept for the hooks at the end.
        """
        trainer = self._trainer()
        callbacks = trainer.callbacks
        owners = [*trainer.lightning_module.modules(), *callbacks]
        for callback in callbacks:
            metrics = [value for value in vars(callback).values() if isinstance(value, torch.nn.Module)]
            owners += [module for metric in metrics for module in metric.modules()]
        undo = [remember_attributes(owner) for owner in owners]
        undo.append(remember_logged(trainer._results))
        undo.append(remember(getattr(loop, "_predictions", [])))
        trainer.callbacks = [one for one in callbacks if not isinstance(one, BasePredictionWriter)]
        try:
            yield
        finally:
            trainer.callbacks = callbacks
            fillable = [one for one in owners if fill and not hasattr(one, "_defaults")]  # metrics can be empty
            own = [(one, name) for one in fillable for name in vars(one).keys() - LIGHTNINGS_OWN]
            borrowed = [(one, name, copied(vars(one)[name])) for one, name in own]
            for put_back in undo:
                put_back()
            found = [(one, name, gaps(vars(one)[name], value)) for one, name, value in borrowed]
            self._gaps = [*self._gaps, *(entry for entry in found if entry[2] is not None)]


def _hooked(loop: Any) -> tuple[str, str]:
    """Return the names of a loop's methods that run a step and the hooks at the end."""
    kind = "predict" if isinstance(loop, _PredictionLoop) else "evaluation"
    return f"_{kind}_step", f"_on_{kind}_epoch_end"


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
