"""Training with the same result in a smaller gang and after a restart; and RayStrategy, which does so by DDP.

In a gang that is smaller than intended, a step of Lightning's is still one global batch of the full gang: each rank
runs it in turns, one for each part of the data that it takes over (see ``train_batches``). Lightning's counters,
schedules and limits count these steps, so they keep their meaning.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_unflatten
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.compat import replaced
from tunelight.compat.lightning import (
    ClosureResult,
    DDPStrategy,
    DistributedSamplerWrapper,
    RunningStage,
    UnrepeatedDistributedSamplerWrapper,
    _set_sampler_epoch,
    has_iterable_dataset,
    is_param_in_hook_signature,
)
from tunelight.errors import check_keywords
from tunelight.lightning.exact.eval_shards import batches_of, with_batches
from tunelight.lightning.exact.evaluation import ExactEvaluation, remember
from tunelight.lightning.exact.generators import draw_alike
from tunelight.lightning.exact.train_batches import DataParts, TrainingBatches, TurnLoader, groups_in_use
from tunelight.lightning.state.recovery import Recovery, only_fitting_weights, recovery_of
from tunelight.lightning.strategies.base import IDLE_TIMEOUT_S, Failures, GangStrategy, NumWorkers
from tunelight.messages import Evaluation
from tunelight.session.session import current

T = TypeVar("T")


class SizeInvariantTraining(ExactEvaluation, GangStrategy):
    """Adds size-invariant training to a strategy; put it first among the base classes.

    Data that Lightning shards is divided as in the full gang. Data that the user shards (with
    ``use_distributed_sampler=False``, a DistributedSampler, an IterableDataset) cannot be: each rank then reads more
    of its own batches a step, so that the global batch keeps its size. Under manual optimization a rank gets its
    share of the global batch as one larger batch.
    """

    _whole_step = True
    """False before the last turn of a step."""

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the model's weights. Raises: CheckpointError where another configuration has made another model."""
        recovery = recovery_of(self._trainer())
        session = self._session if recovery is not None and recovery.own else None
        with only_fitting_weights(checkpoint, None if session is None else session.context.config):
            super().load_model_state_dict(checkpoint, strict=strict)

    def gather_on_rank_0(self, mine: T) -> list[T] | None:
        """Return every rank's object, by rank, on rank 0; None on the others. Called on every rank."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return [mine]
        gathered: list[Any] | None = [None] * self.world_size if self.is_global_zero else None
        torch.distributed.gather_object(mine, gathered)
        return gathered

    @property
    def exact(self) -> bool:
        """Return whether what the Trainer does now is evaluated exactly: as chosen, else by the gang.

        Prediction on a driver is: it returns all predictions in the order of the data. So is every prediction of
        sharded models, whose forward all ranks have to run equally often.
        """
        session = self._session
        if session is None:
            return False
        asked = self.evaluation is not None or not session.task.job
        if self._doing("predicting") and (self.backend == "sharded" or not asked):
            return True
        return (self.evaluation or session.task.evaluation) == "exact"

    @property
    def counts_ranks(self) -> bool:
        """Return whether means leave out ranks that borrow: in turns of training, one without a part does."""
        return self.exact or (self.turns > 1 and self._doing("training"))

    def _doing(self, what: str) -> bool:
        """Return whether the Trainer is "training" or "predicting"."""
        module = self.lightning_module
        return module is not None and bool(getattr(module._trainer, what, False))

    @property
    def parts(self) -> DataParts:
        """Return the parts of a full gang's data that this rank trains on."""
        workers, worker = self._shards()
        session = self._session
        if session is None:
            return DataParts(workers, workers, worker)
        return DataParts(max(workers, session.context.wanted * workers // self.world_size), workers, worker)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the arguments of Lightning's sampler; for training those of a full gang."""
        kwargs = super().distributed_sampler_kwargs
        module = self.lightning_module
        if self.joined and module is not None and module._trainer is not None and module.trainer.training:
            kwargs = {**kwargs, "num_replicas": self.parts.total}
        return kwargs

    turns = 1
    """Backward passes in one of Lightning's steps."""

    def count_turns(self) -> None:
        """Set the number of turns of the steps of a fit."""
        self.turns = 1 if self._by_hand() else self.parts.turns
        self._logged = {}
        if self._session is not None:
            forward = self.backend != "sharded" and not self._by_hand()
            steps, gpu = self._session.progress.steps, self.root_device.type == "cuda"
            self._own_time = OwnTime(steps, gpu=gpu, forward=forward)

    _own_time: OwnTime | None = None
    _logged: dict[str, torch.Tensor]
    """The last value of each metric that the fit has logged ``on_step``."""

    def _by_hand(self) -> bool:
        """Return whether the user's code runs the step (manual optimization), so that it cannot be run in turns."""
        module = self.lightning_module
        if module is None:
            return False
        step = module.training_step
        return not module.automatic_optimization or is_param_in_hook_signature(step, "dataloader_iter", explicit=True)

    # -- data

    def process_dataloader(self, dataloader: object) -> object:
        """Divide a training loader as in the full gang, and start it at the checkpoint's position."""
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        if not self.joined or module is None:
            return dataloader
        recovery = recovery_of(module.trainer) or Recovery(current())
        sampler = _sampler_of(dataloader)
        wrapped = isinstance(sampler, DistributedSamplerWrapper | UnrepeatedDistributedSamplerWrapper)
        if wrapped and recovery.draws_apart():
            draw_alike(sampler)
        if recovery.resumed:
            _draw_no_seed_again(dataloader, module.trainer)
        if module.trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        return self._training_loader(dataloader, recovery)

    def _training_loader(self, loader: Any, recovery: Recovery) -> object:
        self.count_turns()
        parts, by_hand, generators = self.parts, self._by_hand(), recovery.generators
        others = [part for part in range(parts.total) if part != parts.worker]
        done = recovery.begin_data(self._trainer(), [parts.worker, *others] if by_hand else parts.played)
        # Lightning does it after making the first iterator, whose workers have begun to read by then.
        _set_sampler_epoch(loader, self._trainer().fit_loop.epoch_progress.current.processed)
        inner, sampler = batches_of(loader), _sampler_of(loader)
        if parts.turns == 1 and self.turns == 1 and not done:
            return loader
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            done = 0  # it restores its position itself, with Lightning
        indexed = isinstance(loader, DataLoader) and not has_iterable_dataset(loader)
        cut = False
        if indexed:
            sharding = self._trainer()._accelerator_connector.use_distributed_sampler
            cut = sharding and isinstance(sampler, DistributedSampler) and sampler.num_replicas == parts.total
            batches = TrainingBatches(inner, sampler if cut else None, parts, generators.play, joined=by_hand)
            loader = with_batches(loader, batches)
            if done:
                batches.start = self._start(batches, recovery, done) if cut else _read(done * parts.turns, len(inner))
                done = 0
        self._note(parts.turns, by_hand=by_hand, cut=cut)
        if self.turns > 1 or done:
            return TurnLoader(loader, parts, generators.play, cut=cut, over=done)
        return loader

    def _note(self, turns: int, *, by_hand: bool, cut: bool) -> None:
        """Warn if training in a smaller gang differs from that in the full one."""
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
        assert self._session is not None  # called on a rank
        size = f"{self._session.context.world_size} of {self._session.context.wanted} workers"
        self._session.note(f"With {size}, training differs from the full gang's in one thing: {what}.")

    def _start(self, batches: TrainingBatches, recovery: Recovery, done: int) -> int:
        """Return the number of samples in ``done`` batches, and set Lightning's counters to this gang's batches."""
        size, whole, before = batches.size or 1, batches.parts.total, recovery.parts_before or batches.parts.total
        if before == whole:
            return _read(done, len(batches.batches)) * whole * size
        start = done * before * size
        if batches.size is None:
            start -= start % whole  # batches of unknown size: the nearest boundary
        total = len(batches.batches)
        recovery.count_batches(self._trainer(), max(0, total - batches.left(start)))
        return start

    # -- steps

    def _turn_loaders(self) -> list[Any]:
        return [dl for dl in self._trainer().fit_loop._combined_loader.flattened if isinstance(dl, TurnLoader)]

    @property
    def _all_ours(self) -> bool:
        """Whether each rank reads as many of its own batches a step as there are turns, for Lightning divides none."""
        return any(not loader.cut for loader in self._turn_loaders())

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of the first part; ``backward`` runs those of the others."""
        own_time = self._own_time
        if own_time is not None:
            own_time.begin(self._trainer().fit_loop._data_fetcher)
        self._arguments = args
        with contextlib.ExitStack() as stack:
            if self.turns > 1:
                if own_time is not None:
                    own_time.loads = self.parts.turns if self._all_ours else len(self.parts.played)
                stack.enter_context(self.block_backward_sync())
                stack.enter_context(self._played_by(self.parts.worker))
            result = super().training_step(*args, **kwargs)
        if own_time is not None:
            own_time.end()
        return result

    def reduce(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Reduce over the ranks; where a training step does so, its own part ends there."""
        if self._own_time is not None:
            self._own_time.end()
        return super().reduce(*args, **kwargs)

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a batch to this rank's device; hooks that change it use the first part's random generators."""
        training = self._session is not None and self._trainer().training
        if self.turns == 1 or not training:
            return super().batch_to_device(batch, *args, **kwargs)
        self._groups = groups_in_use(self._turn_loaders(), self._trainer().fit_loop._data_fetcher)
        self._first = batch
        with self._played_by(self.parts.worker):
            return super().batch_to_device(batch, *args, **kwargs)

    def _played_by(self, part: int, keep: bool = True) -> AbstractContextManager[None]:
        recovery = recovery_of(self._trainer())
        return contextlib.nullcontext() if recovery is None else recovery.generators.play(part, keep)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Add up the gradients of all parts of this rank; the ranks reduce them after the last."""
        if self.turns == 1:
            result = super().backward(closure_loss, optimizer, *args, **kwargs)
        else:
            self._backward_in_turns(closure_loss, lambda loss: self._add_gradients(loss, optimizer, *args, **kwargs))
            result = self.precision_plugin.post_backward(closure_loss, self._trainer().lightning_module)
            self.post_backward(result)
        return result

    def _backward_in_turns(self, closure_loss: torch.Tensor, backward: Callable[[torch.Tensor], None]) -> None:
        parts, turns = self.parts, self.turns
        all_ours = self._all_ours
        share = 1 / turns if all_ours else parts.workers / parts.total
        logged = StepLogs(self._trainer()._results, self._logged)
        logged.add(parts.players(0))
        self._whole_step = False
        try:
            with self.block_backward_sync():
                backward(closure_loss * share)
            for turn in range(1, turns):
                self._whole_step = turn == turns - 1
                ours = all_ours or turn < len(parts.played)
                with self._as_a_part(turn, ours), contextlib.ExitStack() as stack:
                    if not self._whole_step:
                        stack.enter_context(self.block_backward_sync())
                    loss = self._forward(self._take(turn) if ours else self._first)
                    if loss is not None:
                        backward(loss * (share if ours else 0))
                    logged.add(parts.players(turn), ours=ours)
        finally:
            self._whole_step = True
        logged.put_mean()

    def _add_gradients(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Do what ``backward`` does before the hooks that follow it, which see the gradients of the whole step."""
        self.pre_backward(loss)
        loss = self.precision_plugin.pre_backward(loss, self._trainer().lightning_module)
        self.precision_plugin.backward(loss, self._trainer().lightning_module, optimizer, *args, **kwargs)

    def _take(self, number: int) -> Any:
        """Return the batch of this rank's part ``number``."""
        combined = self._trainer().fit_loop._combined_loader
        flat = [group[min(number, len(group) - 1)] if group else None for group in self._groups]
        batch = self.precision_plugin.convert_input(tree_unflatten(flat, combined._spec))
        return self._trainer().lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)

    def _forward(self, batch: Any) -> torch.Tensor | None:
        """Return the loss of a turn's training step; None where it returned none."""
        trainer, module = self._trainer(), self._trainer().lightning_module
        batch = super().batch_to_device(batch, dataloader_idx=0)
        trainer._results.batch, trainer._results.batch_size = batch, None
        with replaced(module, _current_fx_name="training_step"):
            output = super().training_step(batch, *self._arguments[1:])
        loss = ClosureResult.from_training_step_output(output, trainer.accumulate_grad_batches).closure_loss
        if loss is None and self.world_size > 1:
            raise RuntimeError(
                "Skipping the training_step by returning None is not possible in a gang of several workers."
            )
        return loss

    @contextlib.contextmanager
    def _as_a_part(self, number: int, ours: bool) -> Iterator[None]:
        """Run a turn of this rank's part ``number`` with its random generators; buffers stay as after the first."""
        trainer = self._trainer()
        parts = self.parts
        part = parts.played[number] if number < len(parts.played) else parts.worker
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._played_by(part, keep=ours))
            if not ours:
                self.borrowing = True
                stack.callback(setattr, self, "borrowing", False)
                stack.enter_context(self._without_trace(trainer.fit_loop))
            buffers = [remember(buffer) for buffer in trainer.lightning_module.buffers()]
            # In the epoch's first batch Lightning empties a hook's results when another hook has logged meanwhile.
            connector = trainer._logger_connector
            stack.callback(setattr, connector, "_first_loop_iter", connector._first_loop_iter)
            connector._first_loop_iter = False
            yield
            for put_back in buffers:
                put_back()


def _draw_no_seed_again(loader: Any, trainer: Any) -> None:
    """Keep a loader with persistent processes from drawing their seed after a restart, if it has drawn it before.

    It draws one number when it is first read, in the run's first epoch; a second one would shift what is drawn later.
    """
    fit = trainer.fit_loop
    if trainer.state.stage == RunningStage.TRAINING:
        read = fit.epoch_progress.current.processed > 0
    else:  # counted anew in each epoch, in whose midst there may be none so far
        every, epochs = trainer.check_val_every_n_epoch, fit.epoch_progress.current.processed
        before = trainer.num_sanity_val_steps > 0 or (every is not None and epochs >= every)
        read = before or fit.epoch_loop.val_loop.batch_progress.total.ready > 0
    kept = getattr(loader, "persistent_workers", False) and not trainer.reload_dataloaders_every_n_epochs
    if read and kept and loader.generator is None:
        loader.generator = torch.Generator().manual_seed(torch.initial_seed())


def _sampler_of(loader: Any) -> Any:
    """Return the sampler of a loader, or of its batch sampler; None without one."""
    batches = batches_of(loader)
    return getattr(batches, "sampler", batches)


def _read(done: int, length: int) -> int:
    """Return how many batches a loader has yielded since it last began; it may repeat beside a longer one."""
    return (done - 1) % length + 1 if done else 0


class StepLogs:
    """Combines the turns' values of metrics logged ``on_step``, as the ranks of a full gang would.

    ``last`` has each metric's last value, by which one that a turn has not logged is known; it is kept up to date.
    """

    def __init__(self, results: Any, last: dict[str, torch.Tensor]) -> None:
        self._results, self._last = results, last
        self._values: dict[str, list[tuple[torch.Tensor, float]]] = {}

    def add(self, players: int, *, ours: bool = True) -> None:
        """Add what a turn has logged: ``players`` ranks had a part in it; one not ``ours`` repeats another."""
        for key, metric in self._results.items():
            value = metric._forward_cache
            if not (metric.is_tensor and metric.meta.on_step and isinstance(value, torch.Tensor)):
                continue
            if value is not self._last.get(key):
                self._last[key] = value
                weight = players if metric.meta.sync.should else ours
                if weight:
                    self._values.setdefault(key, []).append((value.detach(), weight))

    def put_mean(self) -> None:
        """Set the step's value to the turns' mean, or to the metric's own reduction of them."""
        for key, values in self._values.items():
            metric = self._results[key]
            stacked = torch.stack([value for value, _ in values])
            if metric.meta.is_mean_reduction:
                weights = stacked.new_tensor([weight for _, weight in values])
                value = (stacked * weights).sum() / weights.sum()
            else:
                value = metric.meta.reduce_fx(stacked)
            metric._forward_cache = self._last[key] = value
            if not metric.meta.on_epoch:
                metric.value = value


# Measures a rank's own part of each training step: loading the batch, and forward up to the first collective.


Marks = tuple[Any, Any]
"""When something began and ended: seconds, or events of the GPU."""
_MOST_PENDING = 64


class OwnTime:
    """Adds (own seconds, seconds from this step to the next) to ``steps``. Own seconds are those of one turn.

    On a GPU it records events, and reads those that the GPU has passed at later steps; it never waits for the GPU.

    Args:
        steps: what it adds to.
        gpu: True where the rank trains on a GPU.
        forward: False where other ranks are waited for all over the forward: only loading counts.
    """

    def __init__(self, steps: deque[tuple[float, float]], *, gpu: bool, forward: bool) -> None:
        self._steps, self._gpu, self._counts_forward = steps, gpu, forward
        self.loads = 1
        """How many batches the rank loads for a step: one for each of its parts in a smaller gang."""
        self._before: Any = None
        self._fetches: list[Marks] = []
        self._step: list[Marks] = []
        """The loading of the running step's batch."""
        self._forward: Any = None
        self._forwards: Marks | None = None
        self._began: float | None = None
        self._pending: deque[tuple[list[Marks], Marks | None, float]] = deque(maxlen=_MOST_PENDING)

    def begin(self, fetcher: Any) -> None:
        """Begin a training step on a batch of ``fetcher``."""
        now = time.perf_counter()
        if self._began is not None:
            self._pending.append((self._step, self._forwards, now - self._began))
            self._read()
        if fetcher._start_profiler is not self._before:  # Lightning sets its own at the start of an epoch
            self._follow(fetcher)
        self._step, self._fetches, self._forwards = self._fetches, [], None
        self._began = now if self._step else None
        self._forward = self._mark() if self._counts_forward else None

    def end(self) -> None:
        """End the own part of the step: at its first collective, or at the end of its forward."""
        if self._forward is not None:
            self._forwards, self._forward = (self._forward, self._mark()), None

    def _follow(self, fetcher: Any) -> None:
        """Measure how long a fetcher of Lightning's takes for each batch, from the next one on."""
        self._fetches = []
        start, stop = fetcher._start_profiler, fetcher._stop_profiler
        began: Any = None

        def before() -> None:
            nonlocal began
            start()
            began = self._mark()

        def after() -> None:
            self._fetches.append((began, self._mark()))
            stop()

        self._before = fetcher._start_profiler = before
        fetcher._stop_profiler = after

    def _mark(self) -> Any:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        """Add the steps whose ends have passed."""
        while self._pending:
            fetches, forward, step = self._pending[0]
            last = forward or fetches[-1]
            if self._gpu and not last[1].query():
                return
            self._pending.popleft()
            own_time = sum(map(self._between, fetches)) / self.loads + (self._between(forward) if forward else 0.0)
            self._steps.append((own_time, step))

    def _between(self, marks: Marks) -> float:
        begin, end = marks
        return float(begin.elapsed_time(end)) / 1000 if self._gpu else float(end - begin)


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
