"""The result of a simulation, and the callback that collects it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ray.tune import Callback

from tunelight.compat.ray import TRAINING_ITERATION
from tunelight.messages import RESULT_KEY
from tunelight.record import FAILED, Standing
from tunelight.simulation.world import Happened, Use, World


@dataclass(frozen=True)
class SimTrial:
    """One simulated trial; times in virtual seconds, None if they were never reached.

    ``state`` is FINISHED (it came to its own end), STOPPED, DIVERGED or ERROR. ``extrapolated``: it trained past
    the end of its curve. ``repeats``: the trial whose configuration it trains again, as its training ``repetition``.
    """

    id: str
    config: Mapping[str, Any]
    state: str
    reports: int
    best: float | None
    last: float | None
    started_s: float | None
    ended_s: float | None
    extrapolated: bool = False
    repeats: str | None = None
    repetition: int = 0


@dataclass(frozen=True)
class Simulation:
    """The cost and the findings of a simulated sweep, in virtual time.

    Args:
        makespan_s: from the start to the end of the last trial.
        worker_seconds: slots times the seconds that gangs held them, including idle gangs.
        slots: of the whole cluster.
        trials: in order of birth.
        usage: slots held and in use, from each ``time`` on.
        found: (seconds, value) each time that a trial reported the best value so far.
        oracle: the best value that any trial would have reported if all had been trained to their end.
        scheduler_cpu_s: CPU time of the calls to the scheduler; ``calls``: their number.
        wall_s: real time of the simulation.
        events: the log, if ``events=True``.
        notes: what must be said beside its figures.
        repeated: the configurations that were trained again, the best mean first, as ``SweepResults.repeated()``
            returns them.
    """

    metric: str
    mode: Literal["min", "max"]
    makespan_s: float
    worker_seconds: float
    slots: int
    trials: Sequence[SimTrial]
    usage: Sequence[Use]
    found: Sequence[tuple[float, float]]
    oracle: float | None
    scheduler_cpu_s: float
    calls: int
    wall_s: float
    notes: Sequence[str] = ()
    events: Sequence[Happened] = field(default=(), repr=False)
    repeated: Sequence[Standing] = ()

    @property
    def best(self) -> float | None:
        """The best reported value."""
        return self.found[-1][1] if self.found else None

    @property
    def chosen(self) -> SimTrial | None:
        """The trial of the search whose configuration a sweep would choose: by its mean, where some were repeated."""
        if self.repeated and self.repeated[0].again and math.isfinite(self.repeated[0].mean):
            return next(trial for trial in self.trials if trial.id == self.repeated[0].trial)
        sign = -1.0 if self.mode == "max" else 1.0
        judged = [trial for trial in self.trials if trial.best is not None and trial.state not in FAILED]
        return min(judged, key=lambda trial: sign * float(trial.best or 0), default=None)

    @property
    def idle_share(self) -> float:
        """The share of all slots' time in which no running trial used them."""
        return self.idle_between(0.0, self.makespan_s)

    @property
    def tail_start_s(self) -> float:
        """When the last new trial started."""
        return max((trial.started_s for trial in self.trials if trial.started_s is not None), default=0.0)

    @property
    def tail_idle_share(self) -> float:
        """The same from when the last new trial started."""
        return self.idle_between(self.tail_start_s, self.makespan_s)

    def idle_between(self, start_s: float, end_s: float) -> float:
        """Return the share of all slots' time between two moments in which no running trial used them."""
        span = end_s - start_s
        return 1 - _integral(self.usage, start_s, end_s)[1] / (self.slots * span) if span > 0 else 0.0

    def best_at(self, time_s: float) -> float | None:
        """Return the best value that had been reported at a moment."""
        index = bisect.bisect_right(self.found, time_s, key=lambda one: one[0])
        return self.found[index - 1][1] if index else None

    def regret(self, time_s: float | None = None) -> float:
        """Return the distance of the best value (so far, or in the end) from the oracle's; infinite without one."""
        best = self.best if time_s is None else self.best_at(time_s)
        return math.inf if best is None or self.oracle is None else abs(best - self.oracle)

    def asdict(self) -> dict[str, Any]:
        """Return the figures as plain data, without trials, usage and events."""
        states = [trial.state for trial in self.trials]
        figures = {
            name: getattr(self, name)
            for name in (
                "metric", "mode", "makespan_s", "worker_seconds", "slots", "idle_share", "tail_idle_share",
                "best", "oracle", "scheduler_cpu_s", "calls", "wall_s",
            )
        }  # fmt: skip
        return {
            **figures,
            "regret": self.regret(),
            "reports": sum(trial.reports for trial in self.trials),
            "trials": {state: states.count(state) for state in sorted(set(states))},
            "notes": list(self.notes),
        }

    def trial_rows(self) -> list[dict[str, Any]]:
        """Return the trials as plain data."""
        return [asdict(trial) for trial in self.trials]


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
        self.found: list[tuple[float, float]] = []
        self.trials: dict[str, Any] = {}
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
        """Log a report, and note a value that is the best so far."""
        value = result.get(self.world.metric or "")
        self.world.log("report", trial, (result.get(TRAINING_ITERATION), value))
        if value is None or not math.isfinite(value):
            return
        own = self._best.get(trial.trial_id)
        if own is None or self._better(value, own):
            self._best[trial.trial_id] = value
            if not self.found or self._better(value, self.found[-1][1]):
                self.found.append((self.world.clock.now, value))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note an end."""
        error = trial.last_result.get(f"{RESULT_KEY}/error/state")
        whole = trial.reported >= self.world.epochs_of(trial.curve)
        self._states[trial.trial_id] = error or ("FINISHED" if whole else "STOPPED")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note a failure for good."""
        self._states[trial.trial_id] = "ERROR"

    def simulation(
        self,
        controller: Any,
        wall_s: float,
        notes: Sequence[str],
        repetition_of: Callable[[str], tuple[str, int] | None] = lambda _: None,
        repeated: Sequence[Standing] = (),
    ) -> Simulation:
        """Return the result."""
        world, trials = self.world, controller.get_trials()
        end = max((trial.ended_s for trial in trials if trial.ended_s is not None), default=world.clock.now)
        ordered = sorted(trials, key=lambda trial: trial.order_of_birth)
        return Simulation(
            metric=str(world.metric),
            mode=world.mode,
            makespan_s=end,
            worker_seconds=_integral(world.usage, 0.0, end)[0],
            slots=world.cluster.size,
            trials=[self._of(trial, repetition_of(trial.trial_id) or (None, 0)) for trial in ordered],
            usage=world.usage,
            found=self.found,
            oracle=self._oracle(ordered),
            scheduler_cpu_s=controller.timed.seconds,
            calls=controller.timed.calls,
            wall_s=wall_s,
            notes=notes,
            events=world.happened,
            repeated=repeated,
        )

    def _of(self, trial: Any, again: tuple[str | None, int]) -> SimTrial:
        last = trial.last_result.get(self.world.metric)
        return SimTrial(
            id=trial.trial_id,
            config=trial.config,
            state=self._states.get(trial.trial_id, "STOPPED"),
            reports=trial.reported,
            best=self._best.get(trial.trial_id),
            last=last,
            started_s=self._started.get(trial.trial_id),
            ended_s=trial.ended_s,
            extrapolated=trial.reported > trial.curve.epochs,
            repeats=again[0],
            repetition=again[1],
        )

    def _oracle(self, trials: Sequence[Any]) -> float | None:
        """Return the best value of all trials' complete curves."""
        best: float | None = None
        choose = min if self.world.mode == "min" else max
        for curve in {id(trial.curve): trial.curve for trial in trials}.values():
            values = [float(v) for v in curve.metrics[self.world.metric][: self.world.epochs_of(curve)]]
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                best = choose(finite) if best is None else choose(best, choose(finite))
        return best
