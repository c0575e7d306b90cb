"""Lightning callbacks that report to the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from tunelight.compat.lightning import HOW_TO_CHOOSE, Callback, TrainerFn, pl
from tunelight.errors import MetricError, SettingsError, StrategyError, guess, known_arguments
from tunelight.lightning.state.adoption import TrainerExchange
from tunelight.lightning.state.recovery import Reporting, fit_ends, has_ended, reach_boundary
from tunelight.session.session import Session, get_session

Metrics = str | Iterable[str] | Mapping[str, str] | None
_HOOKS = frozenset(name for name in vars(Callback) if name.startswith("on_")) - {
    "on_save_checkpoint",  # a report may write a checkpoint itself
    "on_load_checkpoint",
    "on_exception",
}
_FUNCTIONS = {"on_test": TrainerFn.TESTING, "on_predict": TrainerFn.PREDICTING}
"""What the Trainer has to do for a hook to report, by the hook's beginning; fit for all others."""


class TuneReportCallback(Reporting):
    """Report what Lightning has logged, on every rank, whenever a hook runs.

    Args:
        metrics: {reported name: Lightning's name}, a name, a list of names, or None for all logged metrics.
        on: a hook of Lightning's callbacks or a list of hooks, with or without ``on_``.
        every_n: report at every n-th call of the hook only.

    Hooks report while ``fit`` runs (those of tests and predictions, while these run), and not in sanity checking. At
    the end of an epoch's last validation, and at the end of a training epoch, the report is made once the module's
    ``on_train_epoch_end`` has run: it has what is logged there. Runs on: worker. Raises: MetricError for a name that
    Lightning has not logged, TrialStopped when the trial ends at this report.
    """

    _writes = False
    """Whether a report comes with a checkpoint."""

    @known_arguments
    def __init__(
        self, metrics: Metrics = None, on: str | Iterable[str] = "validation_end", *, every_n: int = 1
    ) -> None:
        super().__init__()
        if every_n < 1:
            raise SettingsError(f"every_n must be 1 or more, not {every_n}.")
        self.filename: str | None = None
        self._metrics = _as_mapping(metrics)
        self._every_n = every_n
        self._calls = 0
        for hook in _hooks(on):
            self.__dict__[hook] = partial(self._report, hook)

    def _report(self, hook: str, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Report in a hook. It is called under the hook's name, an attribute that each callback has of its own."""
        over = hook in ("on_train_end", "on_fit_end")  # Lightning counts the last epoch as completed by then
        function = next((fn for start, fn in _FUNCTIONS.items() if hook.startswith(start)), TrainerFn.FITTING)
        if trainer.state.fn == function and not trainer.sanity_checking and not has_ended(trainer, hook):
            epoch = max(0, trainer.current_epoch - over)
            reach_boundary(trainer, hook, lambda: self._handle(trainer, epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of calls, for ``every_n``."""
        return {"calls": self._calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting calls."""
        self._calls = state_dict["calls"]

    @property
    def state_key(self) -> str:
        """Return a key that depends on the metrics, so that a Trainer may have several of these callbacks."""
        return self._generate_state_key(metrics=self._metrics, kind=type(self).__name__)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a Trainer that does not train on the gang. Raises: StrategyError."""
        from tunelight.lightning.strategy_check import check_strategy

        if not isinstance(trainer, pl.Trainer):
            kind = type(trainer)
            raise StrategyError(
                f"This Trainer is {kind.__module__}.{kind.__qualname__}, and this {type(self).__name__} was made for "
                f"{pl.__name__}, another copy of the same code; the two do not mix. Import Lightning before the "
                f"callback, or choose its package: {HOW_TO_CHOOSE}."
            )
        check_strategy(trainer, get_session().context)

    def _handle(self, trainer: pl.Trainer, epoch: int) -> None:
        self._calls += 1
        if self._calls % self._every_n:
            return
        session = get_session()
        metrics = self._read(trainer, session)
        write = trainer.save_checkpoint if self._writes else None
        if inner := session.within_fit(trainer):
            if write is not None:
                session.note(
                    "Reports of a Trainer inside another one's fit have no checkpoint, which nothing could go on from. "
                    "Give the outer Trainer a tunelight.TuneReportCheckpointCallback."
                )
            write = None
        session.boundary.writer = None if inner else trainer.save_checkpoint
        session.exchange.training = None if inner else TrainerExchange(trainer)
        step, name, last = trainer.global_step, self.filename, fit_ends(trainer, self._every_n)
        session.boundary.report(metrics, write, epoch=epoch, step=step, filename=name, last=last)

    def _read(self, trainer: pl.Trainer, session: Session) -> dict[str, Any]:
        logged = trainer.callback_metrics
        names = {name: name for name in logged} if self._metrics is None else self._metrics
        if session.context.rank > 0:  # rank 0's values count; some are logged with rank_zero_only=True
            return {reported: logged[name] for reported, name in names.items() if name in logged}
        for name in names.values():
            if name not in logged:
                raise MetricError(
                    f"{type(self).__name__} was to report {name!r}, but Lightning has logged "
                    f"{', '.join(sorted(logged)) or 'nothing'} so far.{guess(name, logged)} Log it with "
                    f"self.log({name!r}, ...), or report at a later hook."
                )
        for name in unsynced(trainer) if session.context.world_size > 1 else ():
            if name in names.values():
                session.note(
                    f"{name} is logged without sync_dist=True: what is reported is rank 0's share of the data, not all "
                    "of it. Use self.log(..., sync_dist=True)."
                )
        return {reported: logged[name] for reported, name in names.items()}


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report, and write one of Lightning's full checkpoints with each report.

    Args:
        metrics, on, every_n: as in :class:`TuneReportCallback`.
        filename: what plain Ray Tune's ``Result.checkpoint`` calls the file; in the trial's own folder
            checkpoints are named by their report.

    The best by the sweep's metric and the last two are kept; ``checkpoints=`` of the sweep sets how many, and when
    they are written. The file is written in the background, from a copy in rank 0's main memory.
    """

    _writes = True

    @known_arguments
    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        on: str | Iterable[str] = "validation_end",
        *,
        every_n: int = 1,
    ) -> None:
        super().__init__(metrics, on, every_n=every_n)
        self.filename = filename


def unsynced(trainer: pl.Trainer) -> list[str]:
    """Return the names of metrics that each rank averages over its own batches of an epoch or a validation."""
    epochs = trainer.fit_loop.epoch_loop
    names = []
    for metric in [*epochs._results.values(), *(epochs.val_loop._results or {}).values()]:
        meta = metric.meta
        if metric.is_tensor and meta.on_epoch and not meta.sync.should and not meta.sync.rank_zero_only:
            names += [meta.name, f"{meta.name}_epoch"] if meta.on_step else [meta.name]
    return list(dict.fromkeys(names))


def _as_mapping(metrics: Metrics) -> dict[str, str] | None:
    if metrics is None:
        return None
    if isinstance(metrics, str):
        return {metrics: metrics}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if not isinstance(metrics, Iterable) or not all(isinstance(name, str) for name in metrics):
        raise SettingsError(
            "metrics must be the name of a metric, a list of names, or a dict of names to report and Lightning's, not "
            f"{metrics!r}."
        )
    return {name: name for name in metrics}


def _hooks(on: str | Iterable[str]) -> list[str]:
    names = []
    for given in [on] if isinstance(on, str) else list(on):
        name = given if given.startswith("on_") else f"on_{given}"
        if name not in _HOOKS:
            raise SettingsError(
                f"on={given!r} is no hook of a Lightning callback.{guess(name, _HOOKS)} There are: "
                f"{', '.join(sorted(hook.removeprefix('on_') for hook in _HOOKS))}."
            )
        names.append(name)
    return names
