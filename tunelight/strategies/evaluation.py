"""ExactEvaluation: metrics and predictions that do not depend on the number of ranks.

Lightning pads each rank's shard of a validation set with repeated samples, which shifts every metric. Here the
batches are those of one process, in its order, and are dealt in turns: of turn ``t`` the ranks 0, 1, ... get the
batches ``t*W``, ``t*W + 1``, ... So whatever is computed per batch (a sum of means, a maximum, what ``drop_last`` and
``limit_val_batches`` leave out) is what one process computes.

In the last turn some ranks may be left without a batch. They borrow the first one, so that every rank takes the same
steps and no collective, in a forward, a step or at the end, waits for a peer that has nothing to do. A borrowed step
leaves no trace: what it logged, counted or appended is put back to what it was before.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from lightning_fabric.utilities.data import has_iterable_dataset, sized_len
from lightning_fabric.utilities.types import ReduceOp
from pytorch_lightning.callbacks import BasePredictionWriter
from pytorch_lightning.overrides.distributed import _IndexBatchSamplerWrapper
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.trainer.states import RunningStage
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.errors import StrategyError
from tunelight.strategies.shares import BatchShare, Limit, StreamShare, interleave, share_of

__all__ = ["ExactEvaluation", "interleave"]

T = TypeVar("T")

# --- steps that leave no trace ----------------------------------------------------------------------------


def remember(value: Any, copy_tensors: bool = True) -> Callable[[], Any]:
    """Return a function that puts back what ``value`` holds now, and returns ``value``.

    Looks into dicts, lists, deques and sets, and copies tensors (those in lists apart: they are appended, not
    added to). Parameters and objects of other classes are taken as they are.
    """
    if type(value) is torch.Tensor and copy_tensors and not value.is_meta and value.layout is torch.strided:
        copied = value.detach().clone()

        def put_back() -> Any:
            if not torch.equal(value, copied):
                value.detach().copy_(copied)
            return value

    elif isinstance(value, dict):
        entries = {key: remember(item, copy_tensors) for key, item in value.items()}

        def put_back() -> Any:
            value.clear()
            value.update({key: back() for key, back in entries.items()})
            return value

    elif isinstance(value, list | deque):
        items = list(value)
        inner = [remember(item, copy_tensors=False) for item in items if isinstance(item, dict | list | deque | set)]

        def put_back() -> Any:
            for back in inner:
                back()
            value.clear()
            value.extend(items)
            return value

    elif isinstance(value, set):
        members = set(value)

        def put_back() -> Any:
            value.clear()
            value.update(members)
            return value

    else:

        def put_back() -> Any:
            return value

    return put_back


_NOT_PUT_BACK = {
    "_parameters",  # FSDP swaps them during a forward, as it does hooks
    "_modules",
    "_computed",  # whether a metric is to be computed, and gathered, is the same on all ranks
}


def remember_attributes(owner: Any) -> Callable[[], None]:
    """Return a function that puts an object's attributes back; those that are new by then stay.

    An empty list state of a torchmetrics metric that is concatenated over the ranks gets the appended tensors
    with no rows, so that it is gathered with the dtype and the dimensions that the other ranks have.
    """
    attributes = vars(owner)
    names = [name for name in attributes if name not in _NOT_PUT_BACK and not name.endswith("_hooks")]
    kept = {name: remember(attributes[name]) for name in names}
    reductions = getattr(owner, "_reductions", {}) if hasattr(owner, "_defaults") else {}

    def put_back() -> None:
        rows = {
            name: [row[:0] for row in attributes[name] if isinstance(row, torch.Tensor) and row.ndim]
            for name, reduction in reductions.items()
            if isinstance(attributes.get(name), list) and getattr(reduction, "__name__", "") == "dim_zero_cat"
        }
        attributes.update({name: back() for name, back in kept.items()})
        for name, empty in rows.items():
            if not attributes[name]:
                attributes[name].extend(empty[:1])

    return put_back


def remember_logged(results: Any) -> Callable[[], None]:
    """Return a function that takes back what was logged into a ``_ResultCollection`` since.

    A key that only the borrowed step has logged stays, with nothing in it: at the end all ranks reduce the same
    keys. One that is not reduced over the ranks stays as it is: "nothing" would be 0/0.
    """
    if results is None:
        return lambda: None
    logged = {key: vars(metric) for key, metric in results.items() if not metric.has_reset}
    kept = {key: {name: state[name] for name in state if name not in _NOT_PUT_BACK} for key, state in logged.items()}

    def put_back() -> None:
        for key, metric in results.items():
            if key in kept:
                vars(metric).update(kept[key])
            elif metric.is_tensor and metric.meta.sync.should and not metric.has_reset:
                metric.value = torch.full_like(metric.value, metric._defaults["value"].item())
                if metric.meta.is_mean_reduction:
                    metric.cumulated_batch_size = torch.zeros_like(metric.cumulated_batch_size)

    return put_back


# --- the strategy's side ----------------------------------------------------------------------------------


class WholeDataset(int):
    """A sampler's ``num_replicas``, always 1: it yields the whole dataset, and ``ExactEvaluation`` deals it."""


_MEANS = ("mean", "avg", ReduceOp.AVG, None)


class ExactEvaluation(ParallelStrategy):
    """Give a strategy evaluation that is the same for any number of ranks; put it first among its bases.

    Validation, testing and predicting run the batches of one process, dealt in turns. A map-style dataset is dealt
    when Lightning would have sharded it: not with ``use_distributed_sampler=False`` and not under a
    DistributedSampler of the user's own, which are left as they are. An iterable without a sampler
    (IterableDataset) is left alone in validation, as Lightning does; in ``predict`` every rank reads all of it and
    keeps its own turns, unless ``use_distributed_sampler=False`` says that each rank reads a part of its own.

    Runs on: worker. Raises: StrategyError when the ranks' loaders differ in length.
    """

    borrowing = False
    """True while this rank's step is on a borrowed batch, whose results are dropped."""

    @property
    def prediction_splits(self) -> list[bool]:
        """Return for each dataloader of the last ``predict`` whether it was dealt: what ``interleave`` asks for."""
        module = self.lightning_module
        loaders = module.trainer.predict_loop._combined_loader if module is not None else None
        return [share_of(loader) is not None for loader in loaders.flattened] if loaders is not None else []

    def gather_objects(self, mine: T) -> list[T]:
        """Return every rank's object, by rank. Strategies without torch.distributed bring their own."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return [mine]
        gathered: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(gathered, mine)
        return gathered

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite ``tensor`` with rank 0's. Strategies without torch.distributed bring their own."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast(tensor, 0)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return how Lightning's sampler shards: for training by rank; else not at all, since batches are dealt."""
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
            if sharding and hasattr(dataloader, "dealt"):  # it has all of the data on every rank
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
        """Return how many parts data is in and which is this rank's, as the host's training samplers have it."""
        kwargs = super().distributed_sampler_kwargs
        return int(kwargs["num_replicas"]), int(kwargs["rank"])

    def _dealt(self, loader: DataLoader[Any], sampler: Any, limit: Limit) -> DataLoader[Any]:
        """Return ``loader`` with this rank's share in the place of its batches of indices."""
        at = "sampler" if loader.batch_sampler is None else "batch_sampler"
        holder, inner = loader, getattr(loader, at)
        if indexed := isinstance(inner, _IndexBatchSamplerWrapper):
            inner = inner._batch_sampler  # it keeps the indices of what it hands out, for the prediction writers
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
            loader.batch_sampler._batch_sampler = share  # type: ignore[union-attr]  # Lightning's wrapper, made anew
            return loader
        holder = copy.copy(loader)  # it may be the user's own
        vars(holder)[at] = share  # DataLoader admits no assignment, and building anew asks for its arguments
        return holder

    def reduce(
        self, tensor: torch.Tensor, group: Any = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> torch.Tensor:
        """Reduce over the ranks. Means are taken in float64, so that integer counts stay exact.

        In a step, a rank that is on a borrowed batch adds nothing to what ``self.log`` reduces.
        Returns a tensor of the same shape: of the same dtype if that is floating, else float32 for a mean.
        """
        if not isinstance(tensor, torch.Tensor):
            return super().reduce(tensor, group, reduce_op)
        dropped = self.borrowing and isinstance(reduce_op, str)
        if dropped:
            tensor = _neutral(tensor, str(reduce_op).lower())
        if reduce_op not in _MEANS or tensor.is_complex():
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]  # the host's, by the MRO
        # the last number counts the ranks, but for those that borrow
        numbers = torch.cat([tensor.detach().reshape(-1).to(torch.float64), tensor.new_tensor([1 - dropped]).double()])
        total: torch.Tensor = super().reduce(numbers, group, "sum")  # type: ignore[safe-super]  # as above
        mean = (total[:-1] / total[-1]).reshape(tensor.shape)
        return mean.to(tensor.dtype if tensor.is_floating_point() else torch.float32)

    def on_validation_start(self) -> None:
        """Prepare the ranks for the steps to come."""
        super().on_validation_start()
        self._begin_evaluation("_evaluation_step")

    def on_test_start(self) -> None:
        """Prepare the ranks for the steps to come."""
        super().on_test_start()
        self._begin_evaluation("_evaluation_step")

    def on_predict_start(self) -> None:
        """Prepare the ranks for the steps to come."""
        super().on_predict_start()
        self._begin_evaluation("_predict_step")

    def _begin_evaluation(self, step: str) -> None:
        """Make all ranks evaluate rank 0's model, and stand between the loop and its steps."""
        self.sync_buffers()
        loop = self._trainer()._active_loop
        vars(loop).pop(step, None)  # of an evaluation that ended in an exception
        setattr(loop, step, functools.partial(self._step, loop, getattr(loop, step)))

    def on_validation_end(self) -> None:
        """Leave the loop as it was."""
        vars(self._trainer()._active_loop).pop("_evaluation_step", None)
        super().on_validation_end()

    def on_test_end(self) -> None:
        """Leave the loop as it was."""
        vars(self._trainer()._active_loop).pop("_evaluation_step", None)
        super().on_test_end()

    def on_predict_end(self) -> None:
        """Leave the loop as it was."""
        vars(self._trainer()._active_loop).pop("_predict_step", None)
        super().on_predict_end()

    def sync_buffers(self) -> None:
        """Give every rank rank 0's buffers, as DDP does at a forward: BatchNorm's statistics differ between ranks."""
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
        """Run a loop's step; without a trace if this rank has borrowed the batch."""
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
            original(*step)
            return
        self.borrowing = True
        try:
            with self._without_trace(loop):
                original(*step)
        finally:
            self.borrowing = False

    @contextlib.contextmanager
    def _without_trace(self, loop: Any) -> Iterator[None]:
        """Drop what a borrowed step does to the module, its metrics, the callbacks and the loop's outputs."""
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
            for put_back in undo:
                put_back()


def _neutral(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """Return what leaves a reduction as it is; ``tensor`` itself where that is not known."""
    if op in ("sum", "mean", "avg"):
        return torch.zeros_like(tensor)
    if op not in ("max", "min") or tensor.is_complex() or tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point():
        return torch.full_like(tensor, -math.inf if op == "max" else math.inf)
    whole = torch.iinfo(tensor.dtype)
    return torch.full_like(tensor, whole.min if op == "max" else whole.max)
