"""Policies for failures and divergence. They decide, without a clock and without acting."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from tunelight.errors import SettingsError, known_fields
from tunelight.messages import WorkerError

_OUT_OF_MEMORY: Final = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",  # cuBLAS, cuFFT, cuSOLVER, cuSPARSE
    "allocation_failed",  # cuDNN
)
_RAISED_FOR_MEMORY: Final = (
    "RuntimeError",
    "AcceleratorError",
    "DistBackendError",
    "OSError",
    "InductorError",  # that one and the next wrap an error of compiling for a GPU that is full
    "BackendCompilerFailed",
)
"""Exceptions that may say that memory is out."""
_ASTRAY: Final = ("returned nan values", "detected nan and/or inf")
"""Parts of the messages of torch's anomaly detection and Lightning's checks for a NaN."""
EXPLODED: Final = 1e6
"""How many times worse than its first value a metric has to be to count as exploded."""


def says_memory_is_out(text: str) -> bool:
    """Tell whether an error's message says that an allocation has failed."""
    return any(sign in text.lower() for sign in _OUT_OF_MEMORY)


def classify(error: WorkerError) -> str:
    """Return the outcome of a trial that failed with an error: a name in ``record.outcomes``.

    OOM: every exception called ...MemoryError (Python's, torch's, NumPy's, and that of Ray's memory monitor), and a
    RuntimeError, an OSError or an error of NCCL's or torch.compile's with such a message. DIVERGED:
    FloatingPointError, and what torch's anomaly detection and Lightning raise at a NaN.
    """
    name, text = error.type_name, error.message.lower()
    if name.endswith("MemoryError"):
        return "OOM"
    if name in _RAISED_FOR_MEMORY and says_memory_is_out(text):
        return "OOM"
    if name == "FloatingPointError":
        return "DIVERGED"
    if name in ("RuntimeError", "ValueError") and any(sign in text for sign in _ASTRAY):
        return "DIVERGED"
    return "ERROR"


@dataclass(slots=True)
class Divergence:
    """Detects by the sweep's metric that a trial's training has diverged.

    It has when the metric is NaN or infinite, or worse than its first value by a million times that value (or by a
    million, for small values). Values that are no numbers, such as None for a metric without data, are ignored.
    """

    metric: str | None
    mode: Literal["min", "max"] = "min"
    first: float | None = None

    def judge(self, number: int, metrics: dict[str, Any]) -> str | None:
        """Return what is wrong with report ``number`` (1-based), or None."""
        value = metrics.get(self.metric) if self.metric else None
        if not isinstance(value, int | float):
            return None
        try:
            value = float(value)
        except OverflowError:  # a whole number beyond float
            value = math.inf if value > 0 else -math.inf
        if not math.isfinite(value):
            without = " (where it has no value yet, report None)" if number == 1 else ""
            return f"{self.metric} is {value} at report {number}{without}"
        if self.first is None:
            self.first = value
        worse = value - self.first if self.mode == "min" else self.first - value
        if worse > EXPLODED * max(1.0, abs(self.first)):
            return f"{self.metric} exploded from {self.first:.4g} to {value:.4g} at report {number}"
        return None


COOLDOWN_S = 10.0
"""How long a gang keeps its size at least before workers that have arrived may join."""
_LONGEST_PAUSE_S = 60.0


@known_fields
@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What a trial survives: it goes on from its last checkpoint, on the workers that are left and new ones.

    Args:
        max_failures: how often (-1: always); a node that was taken away (preempted) does not count.
        backoff_s: seconds before the second try in a row, doubled for each further one up to a minute; the first
            one comes at once. A report in between ends the row.
        retry_exceptions: also try again where the training code raised, which is a bug as a rule.
        hang_timeout_s: how long no rank may finish a batch before the one that holds the others up is replaced
            (None: for ever). A long epoch is many batches; code between two batches may take that long at most.
        reschedule_timeout_s: how long to wait for lost workers, whose nodes may have to come back first. Elastic
            gangs go on without them, and take them in later.
        give_up_after: a sweep ends with an error once so many of its first trials have failed with the same error
            before any trial reported: a bug, or a misspelt metric (0: never). A single fit pays no attention to it.
        on_slow: "name" says in a note which rank is persistently slower than the others, and on which node; "ignore"
            does not.
        slow_by: how much longer than the median of the others its own part of a step has to take (0.25: by 25 %).

    Raises: SettingsError.
    """

    max_failures: int = 3
    backoff_s: float = 1.0
    retry_exceptions: bool = False
    hang_timeout_s: float | None = 600.0
    reschedule_timeout_s: float = 600.0
    give_up_after: int = 3
    on_slow: Literal["name", "ignore"] = "name"
    slow_by: float = 0.25

    def __post_init__(self) -> None:
        count = self.max_failures
        if not isinstance(count, int) or isinstance(count, bool) or count < -1:
            raise SettingsError(f"max_failures must be a whole number of -1 (always) or more, not {count!r}.")
        tries = self.give_up_after
        if not isinstance(tries, int) or isinstance(tries, bool) or tries < 0:
            raise SettingsError(f"give_up_after must be a whole number of 0 (never) or more, not {tries!r}.")
        slow_by = self.slow_by
        if not isinstance(slow_by, int | float) or isinstance(slow_by, bool) or not 0 < slow_by < math.inf:
            raise SettingsError(f"slow_by must be more than 0, and 0.25 for 25 %, not {slow_by!r}.")
        if self.on_slow not in ("name", "ignore"):
            raise SettingsError(f'on_slow must be "name" or "ignore", not {self.on_slow!r}.')
        for name, least in (("backoff_s", 0.0), ("hang_timeout_s", 1e-9), ("reschedule_timeout_s", 0.0)):
            value = getattr(self, name)
            if value is None and name == "hang_timeout_s":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
                wanted = "seconds, more than 0" if least else "seconds, 0 or more"
                raise SettingsError(f"{name} must be {wanted}, not {value!r}.")
        if not isinstance(self.retry_exceptions, bool):
            raise SettingsError(f"retry_exceptions must be true or false, not {self.retry_exceptions!r}.")

    @property
    def limit_of_slow(self) -> float | None:
        """``slow_by``; None where slow ranks are ignored."""
        return None if self.on_slow == "ignore" else self.slow_by

    def retries(self, error: WorkerError, failures: int) -> bool:
        """Tell whether to try again after ``failures`` failures of a trial that count, this one included.

        Failures that would occur again are not retried: exceptions (unless ``retry_exceptions``), and those that the
        configuration causes (see :func:`classify`).
        """
        if classify(error) != "ERROR" or (error.cause == "exception" and not self.retry_exceptions):
            return False
        return self.max_failures < 0 or failures <= self.max_failures


class FailureTally:
    """Counts the failures of one trial, and says by its policy whether and when it is tried again."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._counted = self._row = 0

    def report(self) -> None:
        """Note a report: the next failure is the first in a row."""
        self._row = 0

    def fail(self, error: WorkerError) -> float | None:
        """Count a failure; return how long to wait before the next try, in seconds, or None to give up."""
        self._counted += error.cause != "preempted"
        self._row += 1
        if not self._policy.retries(error, self._counted):
            return None
        return 0.0 if self._row < 2 else min(self._policy.backoff_s * 2.0 ** (self._row - 2), _LONGEST_PAUSE_S)


_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""What may differ in two messages of the same error: addresses and numbers."""
_FRAME: Final = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def signature(error: WorkerError) -> tuple[str, str, tuple[str, ...]]:
    """Return what two occurrences of an error have in common: type, message without numbers, and last frame."""
    frames = _FRAME.findall(error.traceback)
    return error.type_name, _VARYING.sub("#", error.message), tuple(frames[-1]) if frames else ()


_SURE: Final = 3
"""How many times ``limit`` trials in any order are as conclusive as the first ``limit`` ones."""


class FirstTrials:
    """Detects by the first trials of a sweep that its training code fails with any configuration.

    It does if the first ``limit`` trials, in the order in which they began, all failed with the same error of the code
    before any trial reported. A trial that lost workers, ran out of memory or was ended by the scheduler does not
    count, and the next one takes its place. Trials that still run are waited for, unless ``_SURE`` times as many
    others have failed with that error meanwhile. 0 as the limit: never.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: dict[str, WorkerError | None] = {}
        self._works = False

    def begin(self, trial: str) -> None:
        """Note that a trial begins, or begins again."""
        self._ends.setdefault(trial, None)

    def report(self) -> None:
        """Note that a trial has reported: the code works."""
        self._works = True

    def fail(self, trial: str, error: WorkerError) -> None:
        """Note how a trial failed."""
        if error.cause == "exception" and classify(error) == "ERROR":
            self._ends[trial] = error
        else:
            self.leave_out(trial)

    def leave_out(self, trial: str) -> None:
        """Note that a trial ended in a way that does not count."""
        if self._ends.get(trial) is None:
            self._ends.pop(trial, None)

    @property
    def failures(self) -> int:
        """How many trials that count have failed so far."""
        return sum(error is not None for error in self._ends.values())

    @property
    def verdict(self) -> WorkerError | None:
        """The error with which all of the first trials failed; None where they did not, or not all have ended."""
        first = [error for error in list(self._ends.values())[: self._limit] if error is not None]
        failed = [error for error in self._ends.values() if error is not None]
        if self._works or not self._limit:
            return None
        for errors, wanted in ((first, self._limit), (failed, _SURE * self._limit)):
            if len(errors) >= wanted and len({signature(error) for error in errors}) == 1:
                return errors[0]
        return None
