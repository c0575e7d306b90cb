"""SizeInvariantTraining: training that stays what it was, whatever is missing of the gang and wherever it goes on.

In a gang that is smaller than wanted, one step of Lightning's is still one global batch of the full gang: this rank
runs it in turns, one for each part that it plays (see ``batches``). All counters, schedules and limits of Lightning
count these steps, so they mean what they mean in the full gang.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.compat.lightning import (
    ClosureResult,
    RunningStage,
    _set_sampler_epoch,
    has_iterable_dataset,
    is_param_in_hook_signature,
)
from tunelight.lightning.exact.ddp_buckets import warm_ddp_buckets
from tunelight.lightning.exact.evaluation import ExactEvaluation
from tunelight.lightning.exact.train_batches import Parts, TrainingBatches, TurnLoader
from tunelight.lightning.state.recovery import Recovery, recovery_of
from tunelight.lightning.strategies.base import GangStrategy
from tunelight.session.session import current


class SizeInvariantTraining(ExactEvaluation, GangStrategy):
    """Give a strategy training that is the same in a smaller gang; put it first among its bases.

    What Lightning would shard is cut as a full gang cuts it. Data that the user has sharded (with
    ``use_distributed_sampler=False``, a DistributedSampler, an IterableDataset) cannot be: each rank then reads more
    of its own batches a step, so that the global batch keeps its size. Under manual optimization a rank gets its
    share of the global batch as one larger batch.
    """

    _whole_step = True
    """False while more of this step's turns are to come."""

    @property
    def parts(self) -> Parts:
        """Return which parts of a full gang's data this rank plays."""
        workers, worker = self._shards()
        session = self._session
        if session is None or session.task.on_resize.keep != "batch":
            return Parts(workers, workers, worker)
        return Parts(max(workers, session.context.wanted * workers // self.world_size), workers, worker)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return how Lightning's sampler shards; for training as in a full gang."""
        kwargs = super().distributed_sampler_kwargs
        module = self.lightning_module
        if self.joined and module is not None and module._trainer is not None and module.trainer.training:
            kwargs = {**kwargs, "num_replicas": self.parts.whole}
        return kwargs

    turns = 1
    """How many backward passes make one of Lightning's steps."""

    went_on = False
    """True before the first step of a fit that goes on from a checkpoint, where the last bit is to be the same."""

    def count_turns(self) -> None:
        """Find out how many turns the steps of a fit take."""
        self.turns = 1 if self._by_hand() else self.parts.turns

    def _by_hand(self) -> bool:
        """Tell whether a step is the user's own: nobody but them can run it in turns."""
        module = self.lightning_module
        if module is None:
            return False
        step = module.training_step
        return not module.automatic_optimization or is_param_in_hook_signature(step, "dataloader_iter", explicit=True)

    # -- data

    def process_dataloader(self, dataloader: object) -> object:
        """Cut a training loader as the full gang does, and start it where the checkpoint stands."""
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        if not self.joined or module is None or module.trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        return self._training_loader(dataloader, recovery_of(module.trainer) or Recovery(current()))

    def _training_loader(self, loader: Any, recovery: Recovery) -> object:
        self.count_turns()
        parts, by_hand, generators = self.parts, self._by_hand(), recovery.generators
        self.went_on = recovery.goes_on and self.root_device.type == "cpu" and not by_hand
        others = [part for part in range(parts.whole) if part != parts.worker]
        done = recovery.begin_data(self._trainer(), [parts.worker, *others] if by_hand else parts.played)
        # Lightning does it once the first iterator is made, whose workers have begun to read by then.
        _set_sampler_epoch(loader, self._trainer().fit_loop.epoch_progress.current.processed)
        if parts.turns == 1 and not done:
            return loader
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            done = 0  # it finds its place itself, and Lightning helps it
        indexed = isinstance(loader, DataLoader) and not has_iterable_dataset(loader)
        cut = False
        if indexed:
            at = "sampler" if loader.batch_sampler is None else "batch_sampler"
            inner = getattr(loader, at)
            sampler = getattr(inner, "sampler", inner)
            sharding = self._trainer()._accelerator_connector.use_distributed_sampler
            cut = sharding and isinstance(sampler, DistributedSampler) and sampler.num_replicas == parts.whole
            batches = TrainingBatches(inner, sampler if cut else None, parts, generators.play, joined=by_hand)
            loader = copy.copy(loader)  # it may be the user's own
            vars(loader)[at] = batches  # DataLoader admits no assignment, and building anew asks for its arguments
            if done:
                batches.start = self._start(batches, recovery, done) if cut else _read(done * self.turns, len(inner))
                done = 0
        self._note(parts.turns, by_hand=by_hand, cut=cut)
        if self.turns > 1 or done:
            return TurnLoader(loader, parts, generators.play, cut=cut, over=done)
        return loader

    def _note(self, turns: int, *, by_hand: bool, cut: bool) -> None:
        """Say what a smaller gang does otherwise than the full one, if anything."""
        if turns == 1 or (cut and not by_hand):
            return
        if cut:
            what = "under manual optimization each rank gets its share of the global batch as one larger batch"
        elif by_hand:
            what = "the global batch is smaller, for neither its steps nor its data are Lightning's to divide"
        else:
            what = (
                f"Lightning does not shard its training data, so each rank reads {turns} of its own batches a step: "
                "the global batch keeps its size, but holds other samples"
            )
        assert self._session is not None  # asked on a rank
        size = f"{self._session.context.world_size} of {self._session.context.wanted} workers"
        self._session.note(f"With {size}, training differs from the full gang's in one thing: {what}.")

    def _start(self, batches: TrainingBatches, recovery: Recovery, done: int) -> int:
        """Return how many samples ``done`` batches were, and let Lightning count them as this gang's batches."""
        size, whole, before = batches.size or 1, batches.parts.whole, recovery.parts_before or batches.parts.whole
        if before == whole:
            return _read(done, len(batches.batches)) * whole * size
        start = done * before * size
        if batches.size is None:
            start -= start % whole  # batches of nobody knows what: the nearest one
        total = len(batches.batches)
        recovery.count_batches(self._trainer(), max(0, total - batches.left(start)))
        return start

    # -- steps

    def _turn_loaders(self) -> list[Any]:
        return [one for one in self._trainer().fit_loop._combined_loader.flattened if isinstance(one, TurnLoader)]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of the first part; ``backward`` runs the others'."""
        if self.turns == 1:
            if self.went_on:
                self.went_on = False
                with self._played_by(self.parts.worker, keep=False):
                    warm_ddp_buckets(self, partial(super().training_step, *args, **kwargs))
            return super().training_step(*args, **kwargs)
        self._arguments = args
        with self.block_backward_sync(), self._played_by(self.parts.worker):
            return super().training_step(*args, **kwargs)

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a batch to this rank's device; hooks that change it draw the first part's random numbers."""
        if self.turns == 1 or not self._trainer().training:
            return super().batch_to_device(batch, *args, **kwargs)
        with self._played_by(self.parts.worker):
            return super().batch_to_device(batch, *args, **kwargs)

    def _played_by(self, part: int, keep: bool = True) -> AbstractContextManager[None]:
        recovery = recovery_of(self._trainer())
        return contextlib.nullcontext() if recovery is None else recovery.generators.play(part, keep)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Add the gradients of all parts that this rank plays; the ranks reduce them after the last."""
        if (turns := self.turns) == 1:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        parts, trainer = self.parts, self._trainer()
        all_ours = any(not one.cut for one in self._turn_loaders())
        share = 1 / turns if all_ours else parts.workers / parts.whole
        logged = StepLogs(trainer._results)
        logged.add(parts.players(0))
        self._whole_step = False
        try:
            with self.block_backward_sync():
                result = super().backward(closure_loss * share, optimizer, *args, **kwargs)
            for turn in range(1, turns):
                self._whole_step = turn == turns - 1
                ours = all_ours or turn < len(parts.played)
                with self._as_a_part(turn, ours), contextlib.ExitStack() as stack:
                    if not self._whole_step:
                        stack.enter_context(self.block_backward_sync())
                    loss = self._forward(turn, ours)
                    super().backward(loss * (share if ours else 0), optimizer, *args, **kwargs)
                    logged.add(parts.players(turn))
        finally:
            self._whole_step = True
        logged.put_mean()
        return result

    def _forward(self, turn: int, ours: bool) -> torch.Tensor:
        """Return the loss of a turn, as Lightning takes it from a training step."""
        trainer = self._trainer()
        module = trainer.lightning_module
        combined = trainer.fit_loop._combined_loader
        batch = tree_unflatten([_batch(one, turn if ours else 0) for one in combined.flattened], combined._spec)
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = super().batch_to_device(batch, dataloader_idx=0)
        trainer._results.batch, trainer._results.batch_size = batch, None
        hook, module._current_fx_name = module._current_fx_name, "training_step"
        try:
            output = super().training_step(batch, *self._arguments[1:])
        finally:
            module._current_fx_name = hook
        loss = ClosureResult.from_training_step_output(output, trainer.accumulate_grad_batches).closure_loss
        assert loss is not None  # Lightning refuses to skip a step in a gang
        return loss

    @contextlib.contextmanager
    def _as_a_part(self, turn: int, ours: bool) -> Iterator[None]:
        """Run a turn with its part's random numbers; buffers stay as the first turn left them: rank 0's count."""
        trainer = self._trainer()
        parts = self.parts
        part = parts.played[turn] if turn < len(parts.played) else parts.worker
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._played_by(part, keep=ours))
            if not ours:
                self.borrowing = True
                stack.callback(setattr, self, "borrowing", False)
                stack.enter_context(self._without_trace(trainer.fit_loop))
            put_back = remember_buffers(trainer.lightning_module)
            yield
            put_back()


def _read(done: int, length: int) -> int:
    """Return how many batches a loader has handed out since it began, perhaps anew beside a longer one."""
    return (done - 1) % length + 1 if done else 0


def _batch(loader: Any, turn: int) -> Any:
    assert isinstance(loader, TurnLoader)  # in turns all loaders are
    return loader.group[min(turn, len(loader.group) - 1)]


def remember_buffers(module: torch.nn.Module) -> Callable[[], None]:
    """Return a function that puts a module's buffers back to what they are now."""
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if type(buffer) is torch.Tensor]

    def put_back() -> None:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)

    return put_back


class StepLogs:
    """Makes one value for a step of what each turn has logged ``on_step``, as the ranks of a full gang reduce it."""

    def __init__(self, results: Any) -> None:
        self._results = results
        self._values: dict[str, list[tuple[torch.Tensor, int]]] = {}

    def add(self, players: int) -> None:
        """Take down what the turn has logged, which ``players`` ranks had a part in."""
        for key, metric in self._results.items():
            if metric.is_tensor and metric.meta.on_step and isinstance(metric._forward_cache, torch.Tensor):
                value = metric._forward_cache.detach()
                self._values.setdefault(key, []).append((value, players if metric.meta.sync.should else 1))

    def put_mean(self) -> None:
        """Put the turns' mean (or what the metric is reduced by) where Lightning looks for the step's value."""
        for key, values in self._values.items():
            metric = self._results[key]
            stacked = torch.stack([value for value, _ in values])
            if metric.meta.is_mean_reduction:
                weights = stacked.new_tensor([weight for _, weight in values])
                value = (stacked * weights).sum() / weights.sum()
            else:
                value = metric.meta.reduce_fx(stacked)
            metric._forward_cache = value
            if not metric.meta.on_epoch:
                metric.value = value
