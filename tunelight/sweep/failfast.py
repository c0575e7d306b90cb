"""End a sweep early if its first trials all fail with the same error, or none reports the metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.tune import Callback

from tunelight import errors
from tunelight.errors import SweepFailedError, TunelightError, guess
from tunelight.messages import RESULT_KEY, WorkerError
from tunelight.policies import FirstTrials
from tunelight.record import FINISHED, GAVE_UP, RecordCallback
from tunelight.settings.checks import flatten
from tunelight.sweep.control import SweepControl

_TRIED_AGAIN = (
    "When the cause is mended, the same call with name={name} and resume=True goes on, and tries the failed trials "
    "again."
)
_METRIC_IS_PART = (
    "What a sweep with reports is judged by cannot change: give the right metric and another name=, or report this "
    "one too, and go on with name={name} and resume='force'."
)


class FailFast(Callback):  # type: ignore[misc,unused-ignore]
    """Ends Tune's loop if the first trials of this run failed with the same error, or finished without a metric.

    It must come after ``record`` in the list of callbacks. Runs on: driver.

    Args:
        limit: the number of first trials (0: never end the loop).
        metrics: the metrics that the sweep is judged by.
        total: the number of trials in all.
        record, control: those of the sweep.
    """

    def __init__(
        self, limit: int, metrics: Sequence[str], total: int, record: RecordCallback, control: SweepControl
    ) -> None:
        self._first = FirstTrials(limit)
        self._limit = limit
        seen = [report for trial in record.state.trials.values() for report in trial.history]  # of a resumed sweep
        self._unseen = [name for name in metrics if not any(_holds(report, name) for report in seen)]
        self._reported: list[str] = []
        self._ended: set[str] = set()
        self._total, self._record, self._control = total, record, control

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count a trial among the first."""
        self._first.begin(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take a report or a trial's error."""
        own = result.get(RESULT_KEY) or {}
        if metrics := own.get("metrics"):
            self._first.report()
            self._reported = list(metrics)
            self._unseen = [name for name in self._unseen if not _holds(metrics, name)]
        elif error := own.get("error"):
            known = {key: error[key] for key in ("rank", "node", "type_name", "message", "traceback") if key in error}
            self._first.fail(trial.trial_id, WorkerError(**known, cause=error.get("cause", "exception")))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Do not count a trial whose head failed."""
        self._first.leave_out(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count a trial that finished, but not one that was stopped without a report."""
        self._first.leave_out(trial.trial_id)
        known = self._record.state.trials.get(trial.trial_id)
        if known is not None and known.state == FINISHED:
            self._ended.add(trial.trial_id)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise SweepFailedError once the first trials have failed."""
        if (error := self._first.verdict) is not None:
            text = f"{_why(error, self._first.failures)}{self._next(_TRIED_AGAIN)}"
        elif self._unseen and self._limit and len(self._ended) >= self._limit:
            text = f"{self._missing()}{self._next(_METRIC_IS_PART)}"
            error = WorkerError(-1, "", "MetricError", text, "")
        else:
            return
        self._control.ends = GAVE_UP
        raise SweepFailedError(error, text, str(self._record.folder))

    def _missing(self) -> str:
        name = self._unseen[0]
        return (
            f"The sweep is judged by metric {name!r}, and none of the {len(self._ended)} trials that ended "
            f"has reported it. The last report held {', '.join(sorted(self._reported)) or 'nothing'}."
            f"{guess(name, self._reported)} "
        )

    def _next(self, how: str) -> str:
        """Say how many trials are left, and how to go on."""
        begun, folder = len(self._record.state.trials), self._record.folder
        left = f", with {self._total - begun} of {self._total} trials not tried" if begun < self._total else ""
        return (
            f"So the sweep has ended{left}. What ran is in {folder}. {how.format(name=repr(folder.name))} A sweep "
            "with failures=tl.FailurePolicy(give_up_after=0) tries all of its trials, whatever fails."
        )


def _why(error: WorkerError, failures: int) -> str:
    which = "The first trial" if failures == 1 else f"The first {failures} trials to end all"
    same = "" if failures == 1 else " with the same error"
    if issubclass(getattr(errors, error.type_name, Exception), TunelightError):  # says all, as one of a wrong metric
        error = replace(error, traceback="")
    return f"{which} failed{same} before anything was reported: {error}\n\n"


def _holds(metrics: Mapping[str, Any], name: str) -> bool:
    """Tell whether a report holds a metric; "outer/inner" is a nested one."""
    return name in metrics or name.replace("/", ".") in flatten(metrics)
