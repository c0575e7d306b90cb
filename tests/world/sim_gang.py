"""A simulated gang, in place of Tune's actor for a trial: it holds bundles, and its tasks take virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.world.cluster import Bundle
from tests.world.costs import uniform
from tunelight.compat.ray import DONE, RESULT_DUPLICATE, TRAINING_ITERATION
from tunelight.messages import RESULT_KEY, Resize
from tunelight.policies import Divergence

if TYPE_CHECKING:
    from tests.world.world import World


@dataclass(frozen=True)
class Saved:
    """A simulated checkpoint, with the names of Tune's own: ``checkpoint`` is the report it belongs to."""

    checkpoint: int
    metrics: dict[str, Any]


class SimGang:
    """A state machine with the interface of ``GangTrainable`` for Tune. As in an actor, tasks run one after another.

    Each task returns (seconds, value). The value is computed when the task begins, and takes effect by ``deliver`` when
    the task ends. A trial that is stopped during an epoch holds its gang to the end of the epoch.
    """

    def __init__(self, world: World, serial: int, trial: Any, demands: Sequence[int]) -> None:
        self.world = world
        self.demands = demands
        self.serial = serial
        self.bundles: list[Bundle] = []
        self.more: list[Bundle] = []
        self._arriving: list[Bundle] = []
        """Of workers that are starting, until ``_arrive_s``."""
        self._arrive_s = 0.0
        self.free_at = 0.0
        self.started = False
        self.in_use = False
        self.on_start: Callable[[Any], None] | None = None
        self.on_stop: Callable[[Any], None] | None = None
        self.decide = SimpleNamespace(remote=self._decide)
        self._warm = False
        self._begin_trial(trial)

    def __hash__(self) -> int:
        return self.serial

    def set_on_stop(self, call: Callable[[Any], None] | None) -> None:
        """Set the callback for the end of the gang."""
        self.on_stop = call

    def set_on_error(self, call: Callable[[Any, Exception], None] | None) -> None:
        """Ignore the callback for the loss of the gang: none is lost."""

    def _begin_trial(self, trial: Any) -> None:
        self.trial = trial
        self.number = 0
        self._until: int | None = self.world.first_until
        self._training = False
        self._asked = False
        self._resumed = False
        self._target_workers: int | None = None
        self._resize_from = 0
        self._divergence = Divergence(self.world.metric, self.world.mode)

    @property
    def size(self) -> int:
        """How many workers train."""
        return sum(bundle.slots for bundle in (*self.bundles, *self.more))

    @property
    def held(self) -> int:
        """How many slots the gang holds, including those of workers that are starting."""
        return self.size + len(self._arriving)

    def nodes(self) -> list[int]:
        """Return the nodes that the gang is on, without duplicates."""
        return list(dict.fromkeys(bundle.node for bundle in (*self.bundles, *self.more)))

    # -- Tune's tasks: (seconds, value)

    def reset(self, trial: Any) -> tuple[float, Any]:
        """Take another trial."""
        self.release_growth()
        self._begin_trial(trial)
        return 0.0, True

    def restore(self, saved: Saved) -> tuple[float, Any]:
        """Go on from a checkpoint."""
        self.number = int(saved.checkpoint)
        self._resumed = True
        return self.world.costs.checkpoint_s, None

    def save(self) -> tuple[float, Any]:
        """Write a checkpoint of the last report."""
        return self.world.costs.checkpoint_s, Saved(self.number, dict(self.trial.last_result))

    def stop(self) -> tuple[float, Any]:
        """End the gang."""
        self.release_growth()
        return self.world.costs.stop_s, None

    def train(self) -> tuple[float, Any]:
        """Train to the next report, or to the end."""
        costs, world = self.world.costs, self.world
        seconds = 0.0
        if not self._training:
            seconds = costs.start_warm_s if self._warm else costs.start_cold_s
            self._training = self._warm = True
            if not self._resumed:
                self.number = self.trial.reported
        elif self._asked:
            seconds = costs.report_s
        number = self.number + 1
        curve = self.trial.curve
        if self.number >= world.epochs_of(curve):
            self._training = False
            return costs.end_s, {RESULT_DUPLICATE: True, DONE: True}
        seconds += self._resize()
        draw = uniform(world.seed, self.trial.order_of_birth, number) if costs.noise else 0.5
        most = max(world.max_workers, self.size)
        epoch_s = costs.epoch_s(curve.seconds, self.size, most, draw)
        return seconds + epoch_s, self._report(number, seconds + epoch_s, epoch_s)

    def _report(self, number: int, seconds: float, epoch_s: float) -> dict[str, Any]:
        metrics = self.trial.curve.at(number)
        now = self.world.clock.now + seconds
        result: dict[str, Any] = {
            **metrics,
            TRAINING_ITERATION: number,
            "epoch": number - 1,
            "timestamp": now,
            "time_this_iter_s": seconds,
            "time_total_s": self.trial.trained_s + seconds,
            f"{RESULT_KEY}/workers": self.size,
            f"{RESULT_KEY}/seconds": self.trial.seconds + epoch_s,
        }
        if self._divergence.judge(number, metrics) is not None:
            self._training = False
            result[DONE] = True
            result[f"{RESULT_KEY}/error/state"] = "DIVERGED"
        return result

    def deliver(self, value: Any) -> None:
        """Apply the value of a finished task, before Tune gets it."""
        if isinstance(value, dict) and TRAINING_ITERATION in value:
            number = value[TRAINING_ITERATION]
            self.number = self.trial.reported = number
            self.trial.trained_s = value["time_total_s"]
            self.trial.seconds = value[f"{RESULT_KEY}/seconds"]
            self._asked = self._until is not None and number >= self._until
            if self._asked and self._until is not None:
                self._until = number + 1

    # -- the scheduler's decisions

    def _decide(self, decision: Any) -> None:
        if hasattr(decision, "until"):  # Continue, and other decisions with the next report that needs an answer
            self._until = decision.until
        elif isinstance(decision, Resize):
            reserved = sum(bundle.slots for bundle in self.bundles)
            self._target_workers = min(max(reserved, decision.workers), max(reserved, self.world.max_workers))
            self._resize_from = self.number if self._asked else self.number + 1
            self._ask()
        self.world.log("decide", self.trial, decision)

    @property
    def missing(self) -> int:
        """How many workers the gang lacks to its target size."""
        return max(0, (self._target_workers or 0) - self.size)

    def _ask(self) -> None:
        """Reserve the missing bundles, all or none; release an earlier growth of another size."""
        missing = self.missing
        if self._arriving and len(self._arriving) != missing:
            self._release(self._arriving)
            self._arriving = []
        if not self.grow():
            self.world.growing[self] = None

    def grow(self) -> bool:
        """Reserve the missing bundles, all or none; return whether none is missing any more."""
        missing = self.missing
        if missing and not self._arriving:
            bundles = self.world.cluster.grow(missing, self.nodes())
            if bundles is None:
                return False
            self._arriving, self._arrive_s = bundles, self.world.clock.now + self.world.costs.grow_s
            self.world.used(held=missing)
        return True

    def _resize(self) -> float:
        """Change the size at this report, if that is due; return the seconds that it takes."""
        if self._target_workers is None or self.number < self._resize_from:
            return 0.0
        if self._target_workers < self.size:
            keep = len(self.more) - (self.size - self._target_workers)
            gone, self.more = self.more[keep:], self.more[:keep]
            self._release(gone)
            self.world.used(busy=-len(gone) if self.in_use else 0)
            return self.world.costs.resize_s
        if self._arriving and self._arrive_s <= self.world.clock.now:
            self.more += self._arriving
            self.world.used(busy=len(self._arriving) if self.in_use else 0)
            self._arriving = []
            return self.world.costs.resize_s
        return 0.0

    # -- resources

    def use(self, in_use: bool) -> None:
        """Record whether a running trial uses the gang."""
        if in_use != self.in_use:
            self.in_use = in_use
            self.world.used(busy=self.size if in_use else -self.size)

    def release_growth(self) -> None:
        """Release all bundles that came by growing, or are on their way."""
        self._target_workers = None
        self.world.growing.pop(self, None)
        if self.in_use:
            self.world.used(busy=-len(self.more))
        self._release(self.more + self._arriving)
        self.more, self._arriving = [], []

    def release(self) -> None:
        """Release all bundles."""
        self.use(False)
        self.release_growth()
        self._release(self.bundles)
        self.bundles = []

    def _release(self, bundles: Sequence[Bundle]) -> None:
        if bundles:
            self.world.cluster.give(bundles)
            self.world.used(held=-sum(bundle.slots for bundle in bundles))
