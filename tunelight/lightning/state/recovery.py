"""Recovery: adds to Lightning's checkpoints what a trial needs to continue exactly as without a failure.

Lightning's checkpoints hold weights, optimizers, schedules and counters. Recovery adds every rank's random generators,
logged metrics and those of a running epoch, which parameters are frozen, how the data was divided, and how many rows
the loggers had written. It also makes reports wait for the end of an epoch, where nothing of it is left to be saved.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tunelight.compat.lightning import (
    BaseFinetuning,
    Callback,
    GradientAccumulationScheduler,
    TrainerFn,
    _Loop,
    call,
    gang_strategy,
    is_resuming,
    move_data_to_device,
    pl,
)
from tunelight.compat.torch import DTensor, distribute_tensor
from tunelight.errors import CheckpointError, last_line
from tunelight.lightning.exact import epoch_metrics
from tunelight.lightning.exact.eval_shards import batches_of
from tunelight.lightning.exact.generators import Generators, State, same
from tunelight.lightning.exact.train_batches import TrainingBatches
from tunelight.lightning.state import loggers
from tunelight.lightning.state.adoption import plain_values, put_values, set_trainable, trainable
from tunelight.session.session import Session

_AT_EPOCH_END = frozenset({"on_train_epoch_end"})
_AT_VALIDATION_END = frozenset({"on_validation_epoch_end", "on_validation_end"})


class Reporting(Callback):
    """A callback that reports: it runs after the others, so that a checkpoint holds the state that they leave."""


class Recovery(Callback):
    """Saves and restores what Lightning's checkpoints lack. Each Trainer of a trial has one. Runs on: worker."""

    def __init__(self, session: Session | None) -> None:
        self.generators = Generators()
        self._session = session
        self.due: list[Callable[[], object]] = []
        """What is called once the epoch has ended, after the module's ``on_train_epoch_end`` and plateau schedulers: a
        checkpoint from there lacks nothing that the epoch has gathered."""
        self._begin()

    def _begin(self) -> None:
        self._loaded: dict[str, Any] | None = None
        self._epoch_began: dict[int, State] | None = None
        self._fetched: dict[int, State] | None = None
        self._drawn: dict[int, State] | None = None
        """The random generators behind the hooks at an epoch's start, where these have drawn."""
        self.parts_before: int | None = None
        """Number of parts that the data was divided into when the checkpoint was written."""
        self._done = 0
        self.ending: str | None = None
        """The last hook at the end of the fit that callbacks have been called with."""
        self._trains = False
        self._at_end: tuple[dict[int, State], dict[str, dict[str, Any]]] | None = None
        """The random generators and the metrics at the end of the fit, once it has ended."""
        self._at_start: dict[str, bool] = {}
        self.own = False
        """True if this fit continues from the trial's own checkpoint, which its last report wrote."""

    # -- around a fit

    def install(self, trainer: pl.Trainer, *, resumes: bool, tuning: bool = False) -> None:
        """Wrap the loops of a fit that starts, and let its loggers continue the trial's runs.

        ``resumes``: the fit continues from the trial's own checkpoint. ``tuning``: it is of Lightning's Tuner, which
        ends it before it trains.
        """
        self._begin()
        self.own = resumes
        if self._session is not None and self._session.within_fit(trainer):
            return  # it is not continued, and draws the numbers that the outer one would
        fit, epochs = trainer.fit_loop, trainer.fit_loop.epoch_loop
        fit.run = partial(self._run, trainer, fit.run)  # type: ignore[method-assign]
        fit.on_run_start = partial(self._run_start, trainer, fit.on_run_start)  # type: ignore[method-assign]
        fit.on_advance_start = partial(self._start_epoch, trainer, fit.on_advance_start)  # type: ignore[method-assign]
        epochs.run = partial(self._run_epoch, trainer, epochs.run)  # type: ignore[method-assign]
        if not tuning:
            ended = epochs.on_advance_end
            epochs.on_advance_end = partial(self._end_step, trainer, ended)  # type: ignore[method-assign]
        if self._session is not None:
            loggers.go_on(trainer, self._session, tuning=tuning)

    def uninstall(self, trainer: pl.Trainer) -> None:
        """Remove the wrappers of the loops."""
        for name in ("run", "on_run_start", "on_advance_start"):
            vars(trainer.fit_loop).pop(name, None)
        for name in ("run", "on_advance_end"):
            vars(trainer.fit_loop.epoch_loop).pop(name, None)
        self.generators.end()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Wrap the end of a fit's epochs; also for strategies that are not tunelight's, which `install` never sees."""
        self.due.clear()
        if trainer.state.fn == TrainerFn.FITTING:
            fit: Any = trainer.fit_loop
            vars(fit).pop("on_advance_end", None)
            fit.on_advance_end = partial(self._end_epoch, trainer, fit.on_advance_end)
            for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Trainer's own list
                if isinstance(callback, BaseFinetuning):  # it would put the last fit's groups in this one's checkpoints
                    callback._internal_optimizer_metadata = {}

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the fit ends. Reporting callbacks, at which it may be stopped, come later."""
        self.ending = "on_train_end"

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the fit has ended, and its state, which an evaluation would change."""
        self.ending = "on_fit_end"
        self._at_end = self.generators.states(), epoch_metrics.of(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Unwrap the end of epochs."""
        vars(trainer.fit_loop).pop("on_advance_end", None)

    def _end_epoch(self, trainer: pl.Trainer, original: Callable[[], None]) -> None:
        original()
        progress = trainer.fit_loop.epoch_progress
        counted = (progress.total, progress.current)
        for count in counted:
            count.completed -= 1  # it is still the current epoch, as for Lightning's own checkpoints at its end
        try:
            while self.due:
                self.due.pop(0)()
        finally:
            for count in counted:
                count.completed += 1

    def _end_step(self, trainer: pl.Trainer, original: Callable[[Any], None], fetcher: Any) -> None:
        """Leave at the end of a training step, if the gang has to, where neither a validation nor the epoch ended."""
        epochs: Any = trainer.fit_loop.epoch_loop
        validated = epochs.val_loop.batch_progress.total.ready
        original(fetcher)
        if self._session is None or not self._session.boundary.hurried:
            return
        ends = epochs._num_ready_batches_reached() or epochs._is_training_done or trainer.should_stop
        active = self in trainer.callbacks  # type: ignore[attr-defined]  # as above; not while a rate or batch size is sought
        if ends or epochs._should_accumulate() or not active or validated != epochs.val_loop.batch_progress.total.ready:
            return
        device = trainer.strategy.root_device
        if device.type == "cuda":  # where a step has ended once its reductions are queued
            torch.cuda.synchronize(device)
        epoch, step, batch = trainer.current_epoch, trainer.global_step, epochs.batch_progress.total.ready
        self._session.boundary.end_step(trainer.save_checkpoint, epoch=epoch, step=step, batch=batch)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move reporting callbacks to the end, so that a checkpoint holds the state that the others leave."""
        if self._session is not None:
            loggers.configuration(trainer, pl_module, self._session)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
        trainer.callbacks = sorted(callbacks, key=lambda callback: isinstance(callback, Reporting))  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the trial's own values if the checkpoint that it goes on from has those of another."""
        written = None if self._loaded is None else self._loaded.get("config")
        if self.own and written is not None and self._session is not None:
            unclear = put_values(trainer, written, plain_values(self._session.context.config))
            if unclear is not None:
                self._session.note(f"goes on with the other trial's values: {unclear}")

    # -- the checkpoint

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add every rank's state, on rank 0, which writes it. Called on every rank."""
        fits = trainer.state.fn == TrainerFn.FITTING or self.ending == "on_fit_end"  # or evaluates behind its fit
        if not fits or trainer.interrupted or self._epoch_began is None:
            return
        strategy = gang_strategy(trainer)
        now, metrics = self._at_end or (self.generators.states(), epoch_metrics.of(trainer))
        mine: dict[str, Any] = {
            "now": self._by_rank(trainer, now),
            "epoch": self._by_rank(trainer, self._epoch_began),
            "metrics": metrics,
            "logged": epoch_metrics.state(trainer.fit_loop.epoch_loop._results),
            "gradients": self._gradients(trainer),
        }
        ranks = [mine] if strategy is None else strategy.gather_on_rank_0(mine)
        if ranks is None:
            return
        checkpoint[KEY] = {
            "parts": 1 if strategy is None else int(strategy.parts.total),
            **{name: _of_all([rank[name] for rank in ranks]) for name in ("now", "epoch")},
            **{name: [rank[name] for rank in ranks] for name in ("metrics", "logged", "gradients")},
            "rows": loggers.rows(trainer),
            "config": plain_values(self._session.context.config) if self._session is not None else None,
            "trial": self._session.context.trial_id if self._session is not None else None,
            "trainable": trainable(pl_module),
            "ends": trainer.should_stop,
            "ending": self.ending,
        }

    def _gradients(self, trainer: pl.Trainer) -> Gradients:
        kept = pending(trainer)
        if kept is None and self._session is not None:
            self._session.note(
                f"Checkpoints are written between two batches of accumulate_grad_batches="
                f"{trainer.accumulate_grad_batches}, and the gradients so far are too big to be kept: after a fault, "
                "that step lacks them. Let val_check_interval be a multiple of it."
            )
        return kept or {}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Read Recovery's part of a checkpoint."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._loaded = checkpoint.get(KEY)
        if self._loaded is not None:
            self.parts_before = self._loaded["parts"]
        if self.own and self._loaded is not None:  # before DDP wraps the module: it leaves out what is frozen
            self._at_start = trainable(pl_module)
            set_trainable(pl_module, self._loaded.get("trainable", {}))
            if self._session is not None and self._loaded.get("trial") != self._session.context.trial_id:
                take_over(trainer, checkpoint)
            trainer.should_stop = self._loaded.get("ends", False)  # a callback may have ended training with this epoch
        if self.own:
            loggers.drop_lost(trainer, checkpoint, {} if self._loaded is None else self._loaded["rows"])

    @contextlib.contextmanager
    def frozen_as_at_start(self, module: pl.LightningModule) -> Iterator[None]:
        """Freeze what was frozen before the checkpoint was loaded: optimizers are made as the checkpoint's were."""
        now = {name: flag for name, flag in trainable(module).items() if name in self._at_start}
        set_trainable(module, self._at_start)
        try:
            yield
        finally:
            set_trainable(module, now)

    # -- data

    @property
    def resumed(self) -> bool:
        """True if the fit continues from a checkpoint of the trial."""
        return self._loaded is not None

    def draws_apart(self) -> bool:
        """Return whether ranks draw numbers of their own, as by Lightning's DDP unless the code seeds all ranks alike.

        In an elastic gang they draw the same: who draws for whom depends on its size.
        """
        session = self._session
        return session is not None and not session.place.elastic and session.seeds

    def begin_data(self, trainer: pl.Trainer, parts: Sequence[int]) -> int:
        """Set the generators for the epoch's iterators; return how many of the epoch's batches are done.

        ``parts``: the full gang's parts that this rank trains on. Called once for each of the user's loaders.
        """
        fit: Any = trainer.fit_loop
        counted = (fit.epoch_progress.total, fit.epoch_progress.current)
        if self.own and counted[1].ready == counted[1].processed:
            for count in counted:  # now, not after the first loader is made: it would be made a second time
                count.completed = count.processed
        done = 0
        if fit.restarting and fit.epoch_progress.current.processed < fit.epoch_progress.current.started:
            done = fit.epoch_loop.batch_progress.current.processed
        elif self.own and fit.restarting and fit.epoch_progress.current.ready == fit.epoch_progress.current.processed:
            _Loop.restarting.fset(fit, False)  # type: ignore[attr-defined]  # with max_steps Lightning would skip an epoch
        if self._epoch_began is not None and fit.restarting:
            done = self._done  # the first loader may have had the counters set to this gang's batches
        if self._epoch_began is None:
            self._done = done
            inner = self._session is not None and self._session.within_fit(trainer)  # the ranks have come apart before
            self.generators.begin(parts, trainer.strategy.root_device, apart=self.draws_apart() and not inner)
            if self._loaded is not None and (self.own or done):
                self.generators.put(self._of_mine(trainer, self._loaded["epoch" if done else "now"]))
            self._epoch_began = self.generators.states()
        return int(done)

    @staticmethod
    def count_batches(trainer: pl.Trainer, done: int) -> None:
        """Set Lightning's counters to ``done`` batches of this epoch, in a gang of this size."""
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = done

    def _run(self, trainer: pl.Trainer, original: Callable[[], None]) -> None:
        if self.own and trainer.fit_loop._combined_loader is not None:
            # `configure_optimizers` has asked for its length, before the checkpoint's counters were loaded.
            trainer.fit_loop._combined_loader = self._epoch_began = None
        self._trains = False
        original()
        if self.own and self._loaded is not None and not self._trains and trainer.limit_train_batches != 0:
            self._end_training(trainer)

    def _end_training(self, trainer: pl.Trainer) -> None:
        """End a fit whose checkpoint is of its last epoch, which Lightning skips, as one that has trained."""
        assert self._loaded is not None  # asked by the caller
        fit: Any = trainer.fit_loop
        self._put_metrics(trainer, middle=False)
        self.ending = self._loaded.get("ending")
        if self.ending != "on_fit_end":
            fit.on_run_start()
        self.generators.put(self._of_mine(trainer, self._loaded["now"]))
        end_training(trainer)
        for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop):  # the Trainer's next fit resumes nothing
            for name in ("_resuming_from_checkpoint", "_loaded_from_state_dict"):
                if hasattr(loop, name):
                    setattr(loop, name, False)

    def _run_start(self, trainer: pl.Trainer, original: Callable[[], None]) -> None:
        if self._epoch_began is None:
            self.begin_data(trainer, [0])  # not a strategy of tunelight's, in a gang of one
        self._fetched = self.generators.states()
        self._trains = True
        original()

    def _start_epoch(self, trainer: pl.Trainer, original: Callable[[], None]) -> None:
        """Start an epoch; that of a fit that goes on at its beginning, with the numbers that its hooks would draw."""
        self._drawn = None
        if self._loaded is None or not self.own or trainer.fit_loop.epoch_loop.restarting:
            original()
            return
        loaded = self._fetched if _loads_anew(trainer) else None
        self.generators.put(loaded or self._of_mine(trainer, self._loaded["now"]))
        before = self.generators.states()
        original()
        after = self.generators.states()
        self._drawn = None if same(after, before) else after

    def _run_epoch(self, trainer: pl.Trainer, original: Callable[[Any], None], fetcher: Any) -> None:
        """Run the epoch loop, with the generators as in a run without a failure."""
        fit: Any = trainer.fit_loop
        fetched, self._fetched = self._fetched, None
        middle = fit.epoch_loop.restarting
        if not self.own and not (
            middle and self._done
        ):  # as Lightning goes on from a checkpoint that the code has given
            self._loaded = None
        if fetched is None or self._loaded is None:
            if trainer.current_epoch > 0 and not is_resuming(fit) and not middle:
                self._epoch_began = self.generators.states()  # Lightning makes the epoch's iterators next
            original(fetcher)
            return
        for loader in fit._combined_loader.flattened if middle else []:
            if isinstance(batches := batches_of(loader), TrainingBatches):
                batches.begin()  # the epoch's order is drawn from the generators as they were at its beginning
        anew = self._drawn is not None or (not middle and _loads_anew(trainer))
        made = not middle and (anew or is_resuming(fit))
        self.generators.put(self._drawn or (fetched if made else self._of_mine(trainer, self._loaded["now"])))
        if anew:  # Lightning makes the iterators of such loaders twice, unless it goes on
            self._epoch_began = self.generators.states()
            if is_resuming(fit):
                iter(fetcher)
        self._put_metrics(trainer, middle)
        for callback in trainer.callbacks if middle else ():  # type: ignore[attr-defined]  # Lightning's, set elsewhere
            # Lightning does not begin an epoch again, in which these set its values, SWA its schedule.
            if isinstance(callback, GradientAccumulationScheduler | pl.callbacks.StochasticWeightAveraging):
                callback.on_train_epoch_start(trainer, trainer.lightning_module)
        self._loaded = None
        # It is resumable, by ``batches``; a trial's filters end with it.
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch")
        original(fetcher)
        fit._restarting = False  # Lightning has no metrics for plateau schedulers here; this has

    def _put_metrics(self, trainer: pl.Trainer, middle: bool) -> None:
        assert self._loaded is not None  # asked while going on
        metrics, rank = self._loaded["metrics"], trainer.global_rank
        device = trainer.strategy.root_device
        own_metrics = metrics[rank % len(metrics)]
        for name, values in own_metrics.items():
            getattr(trainer._logger_connector, name).update(move_data_to_device(values, device))
        if middle:
            put(trainer, self._loaded["gradients"])
            states = [dict(part) for part in epoch_metrics.shared_out(self._loaded["logged"], rank, trainer.world_size)]
            epoch_metrics.put(trainer, states, warnings.warn if self._session is None else self._session.note)

    # -- parts and ranks

    def _by_rank(self, trainer: pl.Trainer, states: dict[int, State]) -> dict[int, State]:
        """Return states by rank of a full gang: each rank has its generators, also if ranks share data."""
        group, place = _sharing(trainer)
        return {part * group + place: state for part, state in states.items()}

    def _of_mine(self, trainer: pl.Trainer, states: dict[int, State]) -> dict[int, State]:
        group, place = _sharing(trainer)
        return {number // group: state for number, state in states.items() if number % group == place} or states


def _of_all(ranks: Sequence[dict[int, State]]) -> dict[int, State]:
    """Return all parts' states; where several ranks have a part's, that of the rank whose first part it is."""
    first = {part: states[part] for states in ranks for part in list(states)[:1]}
    return {part: state for states in ranks for part, state in states.items()} | first


def _sharing(trainer: pl.Trainer) -> tuple[int, int]:
    """Return the number of ranks that share this rank's data, and its index among them."""
    strategy = gang_strategy(trainer)
    if strategy is None:
        return 1, 0
    workers, worker = strategy._shards()
    group = trainer.world_size // workers
    return group, trainer.global_rank - worker * group


def _loads_anew(trainer: Any) -> bool:
    every = trainer.reload_dataloaders_every_n_epochs
    return bool(every > 0 and trainer.current_epoch % every == 0)


def recovery_of(trainer: pl.Trainer) -> Recovery | None:
    """Return the Trainer's recovery; None outside of a trial."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    return next((callback for callback in callbacks if isinstance(callback, Recovery)), None)


def end_training(trainer: pl.Trainer) -> None:
    """Call the hooks at the end of training that have not been called in this fit."""
    recovery = recovery_of(trainer)
    begun = None if recovery is None else recovery.ending
    if begun is None:
        trainer.fit_loop.on_run_end()
    elif begun == "on_train_end":  # its last report was made in this hook, behind the other callbacks
        call._call_lightning_module_hook(trainer, "on_train_end")
        call._call_strategy_hook(trainer, "on_train_end")


def has_ended(trainer: pl.Trainer, hook: str) -> bool:
    """Return whether a fit goes on from a checkpoint that was written behind a hook, which Lightning calls again."""
    recovery = recovery_of(trainer)
    loaded = None if recovery is None or not recovery.own else recovery._loaded
    return hook == "on_fit_end" and loaded is not None and loaded.get("ending") == "on_fit_end"


def reach_boundary(trainer: pl.Trainer, hook: str, reach: Callable[[], object]) -> None:
    """Call ``reach`` in a callback's ``hook``; later, at the epoch's end, if nothing is trained before that."""
    recovery = recovery_of(trainer)
    if recovery is not None and (hook in _AT_EPOCH_END or (hook in _AT_VALIDATION_END and _epoch_ends(trainer))):
        recovery.due.append(reach)
    else:
        reach()


def fit_ends(trainer: pl.Trainer, every_n: int) -> bool:
    """Return whether a fit ends before ``every_n`` more validations at an epoch's end, or more epochs, without one."""
    recovery = recovery_of(trainer)
    if recovery is None or recovery.ending is not None:
        return recovery is not None
    fit: Any = trainer.fit_loop
    epochs = fit.epoch_progress.current
    more = (every_n if trainer.val_check_interval == 1 else 1) * (trainer.check_val_every_n_epoch or 1)
    trained = epochs.processed + (more - 1) * (epochs.processed == epochs.started)
    limits = ((trained, fit.max_epochs), (trainer.global_step, fit.max_steps))
    reached = any(limit is not None and 0 <= limit <= count for count, limit in limits)
    return reached or (trainer.should_stop and fit._can_stop_early)


def _epoch_ends(trainer: pl.Trainer) -> bool:
    """Return whether the running validation is the epoch's last."""
    fit = trainer.fit_loop
    return fit.epoch_loop._is_training_done or (trainer.should_stop and fit._can_stop_early)


# --- Accumulated gradients, saved with a checkpoint between two batches of ``accumulate_grad_batches`` ---


LIMIT = 256 * 2**20
"""Bytes of all ranks' gradients up to which they are saved; ranks differ until gradients are reduced."""

Gradients = dict[str, torch.Tensor]


def pending(trainer: pl.Trainer) -> Gradients | None:
    """Return this rank's gradients between two optimizer steps; None if they are too large. Called on every rank."""
    if not trainer.lightning_module.automatic_optimization or not trainer.fit_loop._should_accumulate():
        return {}
    grads = {name: p.grad for name, p in trainer.lightning_module.named_parameters() if p.grad is not None}
    if sum(grad.numel() * grad.element_size() for grad in grads.values()) * trainer.world_size > LIMIT:
        return None
    return {name: (grad.full_tensor() if isinstance(grad, DTensor) else grad).cpu() for name, grad in grads.items()}


def put(trainer: pl.Trainer, everywhere: list[Gradients]) -> None:
    """Set the gradients that all former ranks had, divided among the present ranks."""
    mine = everywhere[trainer.global_rank :: trainer.world_size]
    for name, parameter in trainer.lightning_module.named_parameters():
        kept = [gradients[name] for gradients in mine if name in gradients]
        if isinstance(parameter, DTensor):  # already reduced, and the same on every rank
            if name in everywhere[0]:
                whole: Any = everywhere[0][name].to(trainer.strategy.root_device)
                parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        elif kept:
            # their mean is taken over the present ranks
            total = kept[0] if len(kept) == 1 else torch.stack(kept).sum(0)
            ratio = trainer.world_size / len(everywhere)
            parameter.grad = (total if ratio == 1 else total * ratio).to(parameter.device)


# --- What a trial takes over with another trial's checkpoint: its weights, if they fit, and its callbacks' states

KEY = "tunelight"
"""The key of Recovery's part of a Lightning checkpoint."""


@contextlib.contextmanager
def only_fitting_weights(checkpoint: Mapping[str, Any], config: Mapping[str, Any] | None) -> Iterator[None]:
    """Say which values make the model another one, where a checkpoint's weights, of another trial, do not fit it.

    Raises: CheckpointError.
    """
    try:
        yield
    except RuntimeError as error:  # torch's, for sizes and names
        before = (checkpoint.get(KEY) or {}).get("config") or {}
        now = {} if config is None else plain_values(config)
        changed = [
            f"{key}={now[key]!r}, not {before.get(key)!r}," for key in now if now[key] != before.get(key, now[key])
        ]
        if not changed:
            raise
        raise CheckpointError(
            f"{' and '.join(changed)} makes another model, which the weights that it was to begin with do not fit: "
            f"{last_line(error).rstrip('.')}. Change what leaves the weights as they are, or train it from scratch."
        ) from error


def take_over(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Let a fit train on where another trial was ended early: patience, time and best files count from there on.

    Call it on every rank, before callbacks load their states, which it changes. Runs on: worker.
    """
    ended = checkpoint[KEY].get("ends")
    if ended:
        checkpoint[KEY] |= {"ends": False, "ending": None}
    states: dict[str, Any] = checkpoint["callbacks"]
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    for callback in callbacks:
        state = states.get(callback.state_key)
        if not state:
            continue
        if isinstance(callback, pl.callbacks.EarlyStopping):
            state |= {"patience": callback.patience, **({"wait_count": 0, "stopped_epoch": 0} if ended else {})}
            state.pop("stopping_reason", None)
        elif isinstance(callback, pl.callbacks.ModelCheckpoint) or (isinstance(callback, pl.callbacks.Timer) and ended):
            del states[callback.state_key]
