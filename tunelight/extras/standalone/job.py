"""A Trainer's run as a job for a gang: what a driver sends, what each rank does, what comes back.

The Trainer is sent with its model and data through Ray's object store, which holds large buffers once a node. The
ranks return the weights, and all other state that a run in the driver's own process would have changed.
"""

from __future__ import annotations

import gc
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch
from torch._dynamo import OptimizedModule

from tunelight.compat.lightning import (
    Callback,
    TrainerFn,
    _BaseProgress,
    _collect_rng_states,
    _Loop,
    _set_rng_states,
    call,
    flavour,
    from_compiled,
    is_overridden,
    move_data_to_device,
    pl,
    to_uncompiled,
)
from tunelight.errors import TrainFunctionError
from tunelight.extras.standalone import transfer
from tunelight.extras.standalone.changes import Changes, SharedParts, try_packing
from tunelight.extras.standalone.transfer import copy_into
from tunelight.gang.parcel import Packed, pack, pack_state, receive, unpack, unpack_view
from tunelight.gang.reset import Flags, read_flags, torch_flags, write_flags
from tunelight.lightning.exact.epoch_metrics import METRICS
from tunelight.lightning.exact.eval_shards import interleave
from tunelight.lightning.state.recovery import Reporting, reach_boundary
from tunelight.lightning.strategy_check import guard_callbacks
from tunelight.session.session import get_session
from tunelight.settings.code import find_unpicklable

_CHANGED = ("state", "should_stop", "accumulate_grad_batches")  # the last by GradientAccumulationScheduler
"""Attributes of a Trainer that a run changes."""
_SEEDS = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG")


@dataclass(frozen=True)
class Globals:
    """A process's random generators, seeds and torch flags."""

    rng: dict[str, Any]
    environ: dict[str, str]
    flags: list[Any]

    @classmethod
    def here(cls) -> Globals:
        """Return those of this process."""
        environ = {name: os.environ[name] for name in _SEEDS if name in os.environ}
        return cls(_collect_rng_states(include_cuda=False), environ, read_flags(_flags()))

    def set(self) -> None:
        """Set them in this process."""
        os.environ.update(self.environ)
        write_flags(_flags(), self.flags)
        _set_rng_states(self.rng)


def _flags() -> Flags:
    return [pair for pair in torch_flags() if pair[0] is not torch.get_num_threads]  # a worker has its own share


@dataclass(frozen=True)
class HandedIn:
    """A rank's result, packed: ``left`` is a `Left`.

    ``tensors``: of rank 0, the model's state dict if the run changed it, and `SharedParts.tensors`.
    """

    left: Packed
    tensors: Packed


@dataclass(frozen=True)
class Left:
    """The state after a run, without the weights: complete on rank 0, predictions only on the other ranks."""

    result: Any
    state: dict[str, dict[str, Any]]
    """Attributes of the Trainer, its loops and its metrics, by the names of `_holders`."""
    objects: Packed
    """The Trainer's callbacks after the run, also new ones of the model, and `Changes`. They are packed apart: a user's
    object that cannot be unpickled must not cost the metrics."""
    rng: dict[str, Any]
    predictions: Any = None
    splits: tuple[bool, ...] = ()
    """For each dataloader of ``predict``, whether its batches were divided among the ranks."""
    files: tuple[str, ...] = ()


# --- on the driver: send ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A run as sent to the ranks, and the parts of it that the driver keeps."""

    run: Packed
    parts: SharedParts


def pack_run(trainer: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sent:
    """Pack ``trainer.<name>(*args, **kwargs)`` for the ranks. Raises: TrainFunctionError."""
    given = [*args, *kwargs.values()]
    state, compiled = trainer.strategy.for_ranks(), take_off(trainer.lightning_module)
    try:
        data = [part for part in given if isinstance(part, pl.LightningDataModule)]
        others = [*trainer.callbacks, *trainer.loggers, *data, trainer, trainer.strategy, *_loops(trainer).values()]
        parts = SharedParts(_model(trainer, given), others)
        run = {"trainer": trainer, "name": name, "args": args, "kwargs": kwargs, "globals": Globals.here()}
        return Sent(pack({**run, "strategy": state, "compiled": compiled, "parts": parts}), parts)
    except Exception as error:
        if compiled is not None:
            _check_compiled(compiled, trainer.lightning_module)
        raise unsent(trainer, args, kwargs, error, pack) from error


class NotUnpickledError(TrainFunctionError):
    """A run was pickled on the driver, and cannot be unpickled on a worker."""


def _model(trainer: Any, given: Iterable[object]) -> Any:
    return next((item for item in given if isinstance(item, pl.LightningModule)), trainer.lightning_module)


def _check_compiled(compiled: Any, model: pl.LightningModule) -> None:
    """Raise TrainFunctionError if the arguments of ``torch.compile`` for ``model`` cannot be sent."""
    try:
        pack(compiled, {"model": model})
    except Exception as error:
        raise TrainFunctionError(
            f"What torch.compile was told for {type(model).__name__} cannot be sent to the workers: "
            f"{type(error).__name__}: {error}. Pass the model that is not compiled, and compile its parts in its "
            "configure_model(), which runs on each worker: self.net.compile()."
        ) from error


def unsent(trainer: Any, args: Any, kwargs: Any, error: Exception, send: Callable[..., object]) -> TrainFunctionError:
    """Return the error for a run that cannot be sent, with the path to the part that makes ``send`` fail."""
    model = trainer.strategy.lightning_module
    parts = {"model": model, "trainer.callbacks": trainer.callbacks, "trainer.loggers": trainer.loggers}
    parts |= {f"data ({type(part).__name__})": part for part in [*args, *kwargs.values()] if part is not model}
    for name, part in {**parts, "trainer": trainer}.items():
        try:
            send(part)
        except Exception as cause:  # noqa: BLE001 - whatever pickling it raises, this is the part
            words = [label.rpartition(" ")[2].strip("'") for label in find_unpicklable(part, send)[0]]
            where = ".".join([name, *(word for word in words if word != "_modules")])
            return TrainFunctionError(
                f"{where} cannot be sent to the workers: {type(cause).__name__}: {cause}. Make it where it is used (in "
                "setup() or on first use), or leave it out of pickling with __getstate__."
            )
    return TrainFunctionError(f"The Trainer cannot be sent to the workers: {type(error).__name__}: {error}.")


class Safeguard(Reporting):
    """Writes checkpoints at a fit's boundaries, so that it survives a lost worker and can be resized.

    Boundaries are the ends of validation, and those of epochs in a fit without validation. Runs on: worker.
    """

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reach a boundary."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            reach_boundary(trainer, "on_validation_end", partial(self._boundary, trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reach a boundary, in a fit without validation."""
        if not trainer.enable_validation:
            reach_boundary(trainer, "on_train_epoch_end", partial(self._boundary, trainer))

    @staticmethod
    def _boundary(trainer: pl.Trainer) -> None:
        session = get_session()
        session.boundary.writer = trainer.save_checkpoint
        session.boundary.reach(epoch=trainer.current_epoch, step=trainer.global_step)


# --- on each rank: run --------------------------------------------------------------------------------------

_optimizer_states: Callable[[], list[dict[str, Any]]] | None = None
_schedulers: list[dict[str, Any]] = []


def run_on_rank(config: dict[str, Any]) -> None:
    """Run a driver's Trainer on this rank. Runs on: worker."""
    global _optimizer_states, _schedulers  # noqa: PLW0603 - kept of this worker's last job, until the next
    kept, _optimizer_states, _schedulers = _optimizer_states is not None, None, []
    session = get_session()
    if kept and session.context.backend == "sharded":
        # The last model went with them, which collections leave alone since this run has begun: it refers to the group,
        # which peers would go on waiting in if this rank fails.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    try:
        run = receive(config.pop("run"))
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise NotUnpickledError(f"The Trainer's run cannot be unpickled: {type(error).__name__}: {error}") from error
    trainer = run["trainer"]
    strategy: Any = trainer.strategy  # one of tunelight's
    _arrive(trainer, strategy, run["strategy"])
    added = [*guard_callbacks(session, flavour()), *([Safeguard()] if session.task.reports_to == "driver" else [])]
    brought, trainer.callbacks = list(trainer.callbacks), [*trainer.callbacks, *added]
    if run["compiled"] is not None:
        from_compiled(run["compiled"])
    parts: SharedParts = run["parts"]
    if session.context.rank == 0:
        parts.watch()
    run["globals"].set()
    if "files" in config:
        transfer.write(ray.get(config.pop("files")))
    result = call._call_and_handle_interrupt(trainer, getattr(trainer, run["name"]), *run["args"], **run["kwargs"])
    after = [cb for cb in trainer.callbacks if cb not in added]  # the driver does not have them
    trainer.callbacks = sorted(after, key=lambda cb: brought.index(cb) if cb in brought else len(brought))
    changed = trainer.state.fn == TrainerFn.FITTING or trainer.ckpt_path is not None  # the weights, perhaps
    weights = strategy.full_weights() if changed else None  # a collective if the model is sharded
    left = _leave(trainer, strategy, result, parts)
    if session.context.rank == 0 or left.predictions is not None:
        tensors = (weights, parts.tensors()) if session.context.rank == 0 else None
        session.hand_in(ray.put(HandedIn(pack_state(left, parts.references()), pack_state(tensors))))
        del tensors
    del weights
    if trainer.state.fn == TrainerFn.FITTING:
        _optimizer_states = strategy.keep_optimizer_states()
        _schedulers = [entry.scheduler.state_dict() for entry in strategy.lr_scheduler_configs]


def hand_in_files(config: dict[str, Any]) -> None:
    """Send the driver files that it does not have. Runs on: worker."""
    if get_session().place.rank == 0:
        get_session().hand_in(ray.put(transfer.read(config["paths"])))


def hand_in_training_state(_config: dict[str, Any]) -> None:
    """Send the driver the optimizers' and schedulers' states of the last fit. Runs on: worker."""
    states = None if _optimizer_states is None else _optimizer_states()
    if get_session().place.rank == 0:
        state = None if states is None else {"optimizer_states": states, "lr_schedulers": _schedulers}
        get_session().hand_in(ray.put(pack(state)))


def _arrive(trainer: Any, strategy: Any, sent: Mapping[str, Any]) -> None:
    """Adapt a driver's Trainer to this rank; ``sent`` holds its strategy's attributes."""
    strategy.arrive(sent)
    connector = trainer._accelerator_connector
    connector.accelerator = strategy.accelerator
    connector.cluster_environment = strategy.cluster_environment
    connector._parallel_devices = list(strategy.parallel_devices or [])


def _leave(trainer: Any, strategy: Any, result: Any, parts: SharedParts) -> Left:
    """Return the state after a run on this rank; changes to ``parts`` on rank 0 only."""
    predicting = trainer.state.fn == TrainerFn.PREDICTING
    zero, here = strategy.is_global_zero, parts.references()
    objects: tuple[list[Callback], Changes] = ([], Changes())
    if zero:
        objects = [cb for cb in trainer.callbacks if isinstance(try_packing(cb, here), Packed)], parts.changes()
    return Left(
        result=None if predicting else result,
        state=_state(trainer) if zero else {},
        objects=pack_state(objects, here),
        rng=_collect_rng_states(include_cuda=False),
        predictions=move_data_to_device(result, "cpu") if predicting else None,
        splits=tuple(strategy.prediction_splits) if predicting else (),
        files=tuple(known_checkpoints(trainer)) if zero else (),
    )


def _loops(trainer: Any) -> dict[str, _Loop]:
    """Return all loops of a Trainer by their paths."""
    found: dict[str, _Loop] = {}

    def walk(path: str, loop: _Loop) -> None:
        found[path] = loop
        for name, value in vars(loop).items():
            if isinstance(value, _Loop):
                walk(f"{path}.{name}", value)

    for name in ("fit_loop", "validate_loop", "test_loop", "predict_loop"):
        walk(name, getattr(trainer, name))
    return found


def _holders(trainer: Any) -> dict[str, Any]:
    """Return the objects of a Trainer that hold its state, by name."""
    return {"trainer": trainer, "metrics": trainer._logger_connector, **_loops(trainer)}


def _state(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return attributes of `_holders`: of the loops their counters and flags."""
    plain = (_BaseProgress, bool, int, float, str)
    found = {
        path: {name: value for name, value in vars(loop).items() if value is None or isinstance(value, plain)}
        for path, loop in _loops(trainer).items()
    }
    found["trainer"] = {name: getattr(trainer, name) for name in _CHANGED}
    found["metrics"] = {name: move_data_to_device(getattr(trainer._logger_connector, name), "cpu") for name in METRICS}
    return found


def known_checkpoints(trainer: Any) -> list[str]:
    """Return the paths of checkpoints that a Trainer's callbacks know and that exist on this node."""
    paths: list[str] = []
    for callback in trainer.checkpoint_callbacks:
        paths += [getattr(callback, "best_model_path", ""), getattr(callback, "last_model_path", "")]
        paths += list(getattr(callback, "best_k_models", {}))
    return [path for path in dict.fromkeys(paths) if path and not transfer.missing([path])]


def needed_checkpoints(trainer: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the paths of checkpoints on this node that a run may load."""
    given = inspect.signature(getattr(trainer, name)).bind(*args, **kwargs).arguments.get("ckpt_path")
    if given is not None and not transfer.missing([str(given)]):
        return [str(given)]
    if given is None and name == "_fit_impl":
        return []
    return known_checkpoints(trainer)  # "best", "last", or what no model stands for


# --- on the driver: recover ---------------------------------------------------------------------------------


def recover(
    trainer: Any,
    sent: Sent,
    handed_in: Mapping[int, Any],
    args: tuple[Any, ...],
    fetch: Callable[[list[str]], transfer.Files],
) -> Any:
    """Bring the driver's Trainer and model into the state after the run, and fetch its files; return its result."""
    model = _model(trainer, args)
    trainer.strategy.connect(model)
    first: HandedIn = ray.get(handed_in[0])
    weights, tensors = unpack_view(first.tensors)
    if weights is not None:
        _configure(model, weights)
        copy_into(model, weights)
    sent.parts.put_tensors(tensors)
    known = sent.parts.references()
    left: Left = unpack(first.left, known)
    model.trainer = trainer
    holders = _holders(trainer)
    for name, attributes in left.state.items():
        if name in holders:
            vars(holders[name]).update(attributes)
    try:
        callbacks, changes = unpack(left.objects, known)
    except Exception as error:  # noqa: BLE001 - a module that only the workers have, say
        lost = {"callbacks and attributes": f"{type(error).__name__}: {error}"}
        callbacks, changes = list(trainer.callbacks), Changes(lost=lost)
    sent.parts.put(changes)
    trainer.callbacks[:] = callbacks
    _set_rng_states(left.rng)
    if lacking := transfer.missing(left.files):
        transfer.write(fetch(lacking))
    if left.predictions is None:
        return left.result
    others = [unpack(ray.get(handed_in[rank]).left, known) for rank in sorted(handed_in) if rank]
    return interleave([part.predictions for part in (left, *others)], list(left.splits))


def _configure(model: pl.LightningModule, weights: Mapping[str, Any]) -> None:
    """Make the layers that ``configure_model`` has made on the workers, as it would in a process that trains."""
    if weights.keys() <= model.state_dict().keys() or not is_overridden("configure_model", model):
        return
    try:
        model.configure_model()
    except Exception as error:  # noqa: BLE001 - it may need the group of processes that shares the model
        warnings.warn(
            f"configure_model() cannot be called on the driver: {type(error).__name__}: {error}. Make the layers in "
            "__init__, and divide them among the workers in configure_model.",
            stacklevel=2,
        )


# Models from ``torch.compile``: they are sent without compiled methods, and compiled again on each worker.

# Lightning puts compiled methods into such a model, which cannot be pickled; the arguments of ``torch.compile`` can.


_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def take_off(model: Any) -> OptimizedModule | None:
    """Restore a compiled model's own methods; return an object that compiles it again, or None. Runs on: driver."""
    if not isinstance(model, pl.LightningModule) or model._compiler_ctx is None:
        return None
    compiled = OptimizedModule(model, model._compiler_ctx["dynamo_ctx"])
    to_uncompiled(model)
    for name in _METHODS:  # now attributes of the model: redundant for methods of its class
        if vars(model).get(name) == getattr(type(model), name).__get__(model):
            del vars(model)[name]
    return compiled
