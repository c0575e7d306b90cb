"""Plain deciders: what to do when something went wrong. They decide; the trainable acts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from tunelight.errors import SettingsError
from tunelight.messages import WorkerError

COOLDOWN_S = 10.0
"""How long a gang keeps its size at least, before workers that have arrived may join it."""
_LONGEST_PAUSE_S = 60.0


class FailureDecision(Enum):
    """What is to become of a trial that failed."""

    RETRY = "retry"
    GIVE_UP = "give up"


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

    Raises: SettingsError.
    """

    max_failures: int = 3
    backoff_s: float = 1.0
    retry_exceptions: bool = False
    hang_timeout_s: float | None = 600.0
    reschedule_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        count = self.max_failures
        if not isinstance(count, int) or isinstance(count, bool) or count < -1:
            raise SettingsError(f"max_failures must be a whole number of -1 (always) or more, not {count!r}.")
        for name, least in (("backoff_s", 0.0), ("hang_timeout_s", 1e-9), ("reschedule_timeout_s", 0.0)):
            value = getattr(self, name)
            if value is None and name == "hang_timeout_s":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
                wanted = "seconds, more than 0" if least else "seconds, 0 or more"
                raise SettingsError(f"{name} must be {wanted}, not {value!r}.")
        if not isinstance(self.retry_exceptions, bool):
            raise SettingsError(f"retry_exceptions must be true or false, not {self.retry_exceptions!r}.")

    def counts(self, error: WorkerError) -> bool:
        """Tell whether a failure counts against ``max_failures``."""
        return error.cause != "preempted"

    def delay_s(self, row: int) -> float:
        """Return how long to wait before the next try, in seconds, after ``row`` failures without a report between."""
        return 0.0 if row < 2 else min(self.backoff_s * 2.0 ** (row - 2), _LONGEST_PAUSE_S)

    def decide(self, error: WorkerError, failures: int) -> FailureDecision:
        """Decide after ``failures`` failures of a trial that count, this one included."""
        if error.cause == "exception" and not self.retry_exceptions:
            return FailureDecision.GIVE_UP
        if self.max_failures < 0 or failures <= self.max_failures:
            return FailureDecision.RETRY
        return FailureDecision.GIVE_UP
