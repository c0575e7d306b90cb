"""A script's Trainers, made anywhere in it: they train on the gang, report to the sweep, and write checkpoints."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch import multiprocessing

from tunelight.checkpoints.files import fetch_local
from tunelight.compat import replaced
from tunelight.compat.lightning import ClusterEnvironment, DDPStrategy, ModelParallelStrategy, Strategy, pl
from tunelight.errors import StrategyError
from tunelight.extras.scripts.logged import LoggedReports
from tunelight.lightning.callbacks import TuneReportCallback, TuneReportCheckpointCallback
from tunelight.lightning.exact.generators import capture, restore
from tunelight.lightning.recipe import callbacks_of, with_device
from tunelight.lightning.state.loggers import inside
from tunelight.lightning.strategies.base import GangStrategy
from tunelight.session.session import Session, get_session
from tunelight.settings.backends import BACKENDS

_REPLACED: Final = ("auto", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
_UNUSED: Final = {"_find_unused_parameters_true": True, "_find_unused_parameters_false": False}
_SHARDED: Final = ("fsdp", "model_parallel")
_OF_DDP: Final = {
    "_ddp_comm_state": "ddp_comm_state",
    "_ddp_comm_hook": "ddp_comm_hook",
    "_ddp_comm_wrapper": "ddp_comm_wrapper",
    "_model_averaging_period": "model_averaging_period",
}
"""What a DDPStrategy keeps of its arguments, beside those of torch's class."""


@contextlib.contextmanager
def trainers_taken_in(session: Session, logged: LoggedReports | None, *, checkpoints: bool) -> Iterator[None]:
    """Let every Trainer that is made meanwhile train on the gang. Runs on: worker.

    ``logged``: the reports of what the script logs or prints itself (None: it reports by itself, its Trainers do not);
    ``checkpoints``: whether a Trainer's reports write them.
    """
    made = pl.Trainer.__init__

    @functools.wraps(made)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **taken_in(kwargs, session, logged, checkpoints=checkpoints))
        if logged is not None:
            logged.held = True
        for callback in self.callbacks:
            if type(callback).__name__ == "SaveConfigCallback":
                callback.overwrite = True  # of the start that this one continues

    with replaced(pl.Trainer, __init__=make):
        yield


def taken_in(
    given: Mapping[str, Any], session: Session, logged: LoggedReports | None, *, checkpoints: bool
) -> dict[str, Any]:
    """Return a Trainer's arguments as the gang needs them; notes what it replaces. Raises: StrategyError."""
    args, context = dict(given), session.context
    meant = {"devices": ("None", "auto", "-1", "1", str(context.world_size)), "num_nodes": ("None", "1")}
    replaced = [f"{name}={args[name]!r}" for name in meant if str(args.get(name)) not in meant[name]]
    args = {name: value for name, value in args.items() if name not in meant}
    accelerator = args.pop("accelerator", "auto")
    if isinstance(accelerator, str) and accelerator not in ("auto", "gpu" if context.gpu is not None else "cpu"):
        replaced.append(f"accelerator={accelerator!r}")
    elif not isinstance(accelerator, str):
        args["accelerator"] = accelerator
    asked = args.pop("strategy", "auto")
    strategy = the_gangs(asked, context.backend)
    if context.wanted == 1 and (asked in ("auto", None) or type(asked).__name__ == "SingleDeviceStrategy"):
        args["use_distributed_sampler"] = False  # LightningCLI gives its default, which one process ignores
        strategy.setup_environment = functools.partial(_keep_drawing, strategy.setup_environment)
    # LightningCLI gives None, which hides the variable by which Lightning finds the trial's folder.
    root = args.get("default_root_dir") or context.trial_dir
    if "://" not in str(root) and not inside(root, context):
        replaced.append(f"default_root_dir={str(root)!r}")
        root = context.trial_dir
    args["default_root_dir"] = root
    if isinstance(plugins := args.get("plugins"), Sequence):
        args["plugins"] = [plugin for plugin in plugins if not isinstance(plugin, ClusterEnvironment)]
    elif isinstance(plugins, ClusterEnvironment):
        args["plugins"] = None
    if replaced:
        session.note(
            f"The script's Trainer asks for {', '.join(replaced)}. It trains on the trial's workers instead, and "
            "writes into the trial's folder."
        )
    callbacks = callbacks_of(args)
    if logged is not None and not any(isinstance(callback, TuneReportCallback) for callback in callbacks):
        callbacks.append((CheckpointedReports if checkpoints else Reports)(logged))
    return with_device({**args, "callbacks": callbacks}, lambda: strategy, on_gpu=context.gpu is not None)


def _keep_drawing(set_up: Callable[[], None]) -> None:
    """Set up a gang of one with the random numbers of the script alone, where Lightning's DDP seeds anew."""
    state = capture()
    set_up()
    restore(state)


def the_gangs(asked: Any, backend: str) -> Any:
    """Return the gang's strategy for one that a script asks for, with its arguments. Raises: StrategyError."""
    ours: Callable[..., Any] = BACKENDS[backend].load_strategy()
    if isinstance(asked, GangStrategy):
        return asked
    if isinstance(asked, str):
        if asked.startswith("ray"):
            return asked  # one of tunelight's, by its registered name
        name = asked.lower()
        unused = next((end for end in _UNUSED if name.endswith(end)), "")
        if name.removesuffix(unused) in _REPLACED:
            return ours(find_unused_parameters=_UNUSED[unused]) if unused and backend == "ddp" else ours()
        if name.startswith(_SHARDED):
            return _sharded(asked, backend, ours)
    elif asked is None or (isinstance(asked, Strategy) and type(asked).__name__ == "SingleDeviceStrategy"):
        return ours()
    elif isinstance(asked, DDPStrategy):
        if backend != "ddp":
            return ours()
        kept = {name: value for attr, name in _OF_DDP.items() if (value := getattr(asked, attr, None)) is not None}
        return ours(**asked._ddp_kwargs, **kept)
    elif isinstance(asked, ModelParallelStrategy) or type(asked).__name__ == "FSDPStrategy":
        return _sharded(asked, backend, ours)
    name = asked if isinstance(asked, str) else type(asked).__name__
    raise StrategyError(
        f"The script's Trainer asks for strategy {name!r}, which cannot train on a trial's workers. Those that can are "
        "auto, ddp, fsdp and model_parallel, and tunelight's own."
    )


def _sharded(asked: Any, backend: str, ours: Callable[..., Any]) -> Any:
    name = asked if isinstance(asked, str) else type(asked).__name__
    if backend != "sharded":
        raise StrategyError(
            f"The script's Trainer asks for strategy {name!r}, which shards the model over the workers, and the "
            f"sweep's backend is {backend!r}. Give the sweep backend='sharded'."
        )
    size = getattr(asked, "_tensor_parallel_size", 1)
    kept = getattr(asked, "_save_distributed_checkpoint", getattr(asked, "_state_dict_type", "full") == "sharded")
    shards = None if isinstance(asked, str) else bool(kept)
    return ours(tensor_parallel_size=size if isinstance(size, int) else 1, save_distributed_checkpoint=shards)


class Reports(TuneReportCallback):
    """Report after each validation; where there is none, at the end of each training epoch.

    A Trainer without the sweep's metric does not, where the script logs or prints that itself.
    """

    def __init__(self, logged: LoggedReports) -> None:
        super().__init__(on=["validation_end", "train_epoch_end"])
        self._logged = logged

    def _handle(self, trainer: pl.Trainer, epoch: int) -> None:
        if self._logged.left_to_trainer(trainer.callback_metrics):
            super()._handle(trainer, epoch)

    def _report(self, hook: str, trainer: pl.Trainer, *more: Any, **named: Any) -> None:
        wanted = hook == "on_validation_end" or not trainer.enable_validation
        if wanted and not get_session().within_fit(trainer):
            super()._report(hook, trainer, *more, **named)


class CheckpointedReports(Reports, TuneReportCheckpointCallback):
    """The same, with a checkpoint at each report."""


# A script's Trainers of Hugging Face's transformers: they report to the sweep, and go on from its checkpoints.


@contextlib.contextmanager
def transformers_taken_in(session: Session, logged: LoggedReports | None) -> Iterator[None]:
    """Let every ``transformers.Trainer`` that is made meanwhile report, and write into the trial's folder.

    ``logged``: as for Lightning's Trainers. Runs on: worker.
    """
    trainer = _trainer()
    if trainer is None:
        yield
        return
    from tunelight.extras.transformers import TuneReportCallback

    class Reports(TuneReportCallback):
        """Reports evaluations that have the sweep's metric, unless the script reports it itself."""

        def _report(self, state: Any, checkpoint: Path | None) -> None:
            if logged is None or logged.left_to_trainer(self._evaluated or ()):
                super()._report(state, checkpoint)

    make, train = trainer.__init__, trainer.train

    @functools.wraps(make)
    def with_reports(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if logged is not None:
            logged.held = True
        folder = self.args.output_dir
        if folder is None or not inside(folder, session.context):
            self.args.output_dir = str(Path(session.context.trial_dir, Path(folder or "trainer").name))
        mine = any(isinstance(callback, TuneReportCallback) for callback in self.callback_handler.callbacks)
        if logged is not None and not mine:
            self.add_callback(Reports())

    @functools.wraps(train)
    def from_checkpoint(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        resume = session.context.resume
        if resume is not None:
            resume_from_checkpoint = str(fetch_local(resume.path))
        return train(self, resume_from_checkpoint, *args, **kwargs)

    with replaced(trainer, __init__=with_reports, train=from_checkpoint):
        yield


def _trainer() -> Any:
    """Return the class, or None without what it needs: the script has none. A script's errors then do not name it."""
    try:
        from transformers import Trainer  # type: ignore[import-not-found]  # brought by the script
    except ImportError:
        return None
    return Trainer


# --- The gang's process group, for scripts that make one by themselves, as under torchrun -----------------


@contextlib.contextmanager
def joined_group(session: Session) -> Iterator[None]:
    """Let ``init_process_group`` return the gang's group, which is there already, and outlives the script.

    Another backend than the gang's is an error at that call, and in a gang of several ranks so are processes that each
    of them would start to train with.
    """
    init, destroy = dist.init_process_group, dist.destroy_process_group

    def join(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            init(backend, *args, **kwargs)
            return
        ours = dist.get_backend()
        asked = "" if backend is None else str(backend).lower()
        if ours not in asked and asked:
            raise StrategyError(
                f"init_process_group({str(backend)!r}): the trial's workers are connected by {ours} already. Leave the "
                f"backend out, or say {ours!r}{' where there are no GPUs' if ours == 'gloo' else ''}."
            )
        session.note(
            f"init_process_group joins the trial's own process group ({ours}); its other arguments do not count."
        )

    def leave(group: Any = None) -> None:
        if group not in (None, dist.group.WORLD):
            destroy(group)

    def refuse(*_: Any, **__: Any) -> None:
        raise StrategyError(
            f"torch.multiprocessing.spawn would start processes in each of the trial's {session.context.world_size} "
            "workers. Give the sweep workers=1, with the CPUs or GPUs that they need; or let the script train one rank "
            "in each process, as under torchrun."
        )

    several = {"spawn": refuse} if session.context.world_size > 1 else {}
    with (
        replaced(dist, init_process_group=join, destroy_process_group=leave),
        replaced(multiprocessing, **several),
    ):
        yield
