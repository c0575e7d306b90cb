"""The result of a simulation, and the callback that collects it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ray.tune import Callback

from tests.world.world import Happened, Use, World
from tunelight.compat.ray import TRAINING_ITERATION
from tunelight.messages import RESULT_KEY
from tunelight.record import FAILED, Standing


@dataclass(frozen=True)
class SimTrial:
    """One simulated trial; times in virtual seconds, None if they were never reached.

    ``state``: FINISHED (it came to its own end), STOPPED, DIVERGED or ERROR.
    """

    id: str
    config: Mapping[str, Any]
    state: str
    reports: int
    best: float | None
    started_s: float | None
    ended_s: float | None


@dataclass(frozen=True)
class Simulation:
    """The cost and the findings of a simulated sweep, in virtual time.

    Args:
        makespan_s: from the start to the end of the last trial.
        worker_seconds: slots times the seconds that gangs held them, including idle gangs.
        slots: of the whole cluster.
        trials: in order of birth.
        usage: slots held and in use, from each ``time`` on.
        best: the best reported value.
        oracle: the best value that any trial would have reported if all had been trained to their end.
        events: the log, if ``events=True``.
        repeated: as ``SweepResults.repeated()`` returns it.
    """

    metric: str
    mode: Literal["min", "max"]
    makespan_s: float
    worker_seconds: float
    slots: int
    trials: Sequence[SimTrial]
    usage: Sequence[Use]
    best: float | None
    oracle: float | None
    events: Sequence[Happened] = field(default=(), repr=False)
    repeated: Sequence[Standing] = ()

    @property
    def chosen(self) -> SimTrial | None:
        """The trial of the search whose configuration a sweep would choose: by its mean, where some were repeated."""
        if self.repeated and self.repeated[0].again and math.isfinite(self.repeated[0].mean):
            return next(trial for trial in self.trials if trial.id == self.repeated[0].trial)
        sign = -1.0 if self.mode == "max" else 1.0
        judged = [trial for trial in self.trials if trial.best is not None and trial.state not in FAILED]
        return min(judged, key=lambda trial: sign * float(trial.best or 0), default=None)

    @property
    def tail_idle_share(self) -> float:
        """The share of all slots' time after the last new trial's start in which no running trial used them."""
        start_s = max((trial.started_s for trial in self.trials if trial.started_s is not None), default=0.0)
        span = self.makespan_s - start_s
        return 1 - _integral(self.usage, start_s, self.makespan_s)[1] / (self.slots * span) if span > 0 else 0.0

    def regret(self) -> float:
        """Return the distance of the best value from the oracle's; infinite without one."""
        return math.inf if self.best is None or self.oracle is None else abs(self.best - self.oracle)


def _integral(usage: Sequence[Use], start_s: float, end_s: float) -> tuple[float, float]:
    """Return the slot-seconds that were held, and in use, between two moments."""
    held = busy = 0.0
    for use, following in zip(usage, [*usage[1:], Use(end_s, 0, 0)], strict=True):
        span = min(following.time, end_s) - max(use.time, start_s)
        if span > 0:
            held += use.held * span
            busy += use.busy * span
    return held, busy


class SimulationLog(Callback):
    """Collects the result of a simulation through Tune's callbacks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._best: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._states: dict[str, str] = {}

    def _better(self, one: float, other: float) -> bool:
        return one < other if self.world.mode == "min" else one > other

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note a start."""
        self._started.setdefault(trial.trial_id, self.world.clock.now)
        self.world.log("start", trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Log a report, and note a value that is its trial's best so far."""
        value = result.get(self.world.metric or "")
        self.world.log("report", trial, (result.get(TRAINING_ITERATION), value))
        if value is None or not math.isfinite(value):
            return
        own = self._best.get(trial.trial_id)
        if own is None or self._better(value, own):
            self._best[trial.trial_id] = value

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note an end."""
        self.world.log("complete", trial)
        error = trial.last_result.get(f"{RESULT_KEY}/error/state")
        whole = trial.reported >= self.world.epochs_of(trial.curve)
        self._states[trial.trial_id] = error or ("FINISHED" if whole else "STOPPED")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note a failure for good."""
        self._states[trial.trial_id] = "ERROR"

    def simulation(self, controller: Any, repeated: Sequence[Standing]) -> Simulation:
        """Return the result."""
        world, trials = self.world, sorted(controller.get_trials(), key=lambda trial: trial.order_of_birth)
        end = max((trial.ended_s for trial in trials if trial.ended_s is not None), default=world.clock.now)
        return Simulation(
            metric=str(world.metric),
            mode=world.mode,
            makespan_s=end,
            worker_seconds=_integral(world.usage, 0.0, end)[0],
            slots=world.cluster.size,
            trials=[self._of(trial) for trial in trials],
            usage=world.usage,
            best=self._choose(self._best.values()),
            oracle=self._oracle(trials),
            events=world.happened,
            repeated=repeated,
        )

    def _of(self, trial: Any) -> SimTrial:
        return SimTrial(
            id=trial.trial_id,
            config=trial.config,
            state=self._states.get(trial.trial_id, "STOPPED"),
            reports=trial.reported,
            best=self._best.get(trial.trial_id),
            started_s=self._started.get(trial.trial_id),
            ended_s=trial.ended_s,
        )

    def _oracle(self, trials: Sequence[Any]) -> float | None:
        """Return the best value of all trials' complete curves."""
        curves = {id(trial.curve): trial.curve for trial in trials}.values()
        reported = (curve.metrics[self.world.metric][: self.world.epochs_of(curve)] for curve in curves)
        return self._choose(float(value) for values in reported for value in values if math.isfinite(value))

    def _choose(self, values: Iterable[float]) -> float | None:
        """Return the best of values, None of none."""
        choose: Callable[..., float | None] = min if self.world.mode == "min" else max
        return choose(values, default=None)
