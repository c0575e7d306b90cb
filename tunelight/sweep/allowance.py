"""Allowance: how many workers the sweep may have now, and which of its trials leave theirs for that.

A trial that has to leave writes a checkpoint at the end of its next training step, and is put aside until there is
room for it again. So workers are given back to other users of the cluster, to a sweep that comes first, or before the
driver itself has to end.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tunelight.compat.controller import put_aside, take_back
from tunelight.compat.ray import cluster_size, end_cached_actors
from tunelight.gang.orders import OrderBook, Reason, name_in_orders
from tunelight.machine.signals import grace_s
from tunelight.messages import LEAVES
from tunelight.record import PAUSED, PENDING, RUNNING, SweepState, TrialState
from tunelight.resources import Reservation
from tunelight.results.words import counted
from tunelight.schedulers.common import began_at
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.searchers import SweepSearch
from tunelight.sweep.control import SweepControl
from tunelight.sweep.neighbours import Neighbours

_ENDS: Final = Reason(f"{LEAVES}: the sweep was told to end (SIGTERM)", ends=True)
_YIELDS: Final = Reason(f"{LEAVES} to others, and goes on when there is room")
_TO_BRANCH: Final = Reason(f"{LEAVES} to a branch, and goes on when there is room", gang_stays=True)


class Allowance:
    """Runs on: driver, between two steps of Tune's loop.

    Args:
        scheduler, search, control: those of the sweep.
        state: what is known of its trials.
        reservation: what a trial reserves at first.
        neighbours: the other sweeps of the cluster.
        max_workers: how many workers all trials may have together (None: as many as fit).
        order: tells the head of a trial, by its name, to leave, or not any more.
        clock: seconds.
    """

    def __init__(
        self,
        scheduler: SweepScheduler,
        search: SweepSearch,
        state: SweepState,
        reservation: Reservation,
        control: SweepControl,
        *,
        neighbours: Neighbours | None = None,
        max_workers: int | None = None,
        order: Callable[[str, Reason | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_workers = max_workers
        self._scheduler, self._search, self._state, self._control = scheduler, search, state, control
        self._reservation, self._neighbours = reservation, neighbours
        self._order, self._clock = order or OrderBook().leave, clock
        self._grace_s = grace_s()
        self._ends_at: float | None = None
        """When the sweep ends, once it was told to."""
        control.signals.graceful = self._grace_s > 0

    @property
    def remark(self) -> str | None:
        """What to tell the person who runs the sweep, if no trial may have workers."""
        if self.max_workers is None or self.max_workers >= self._reservation.workers:
            return None
        return (
            f"max_workers={self.max_workers}, and a trial has {counted(self._reservation.workers, 'worker')}: all "
            "trials wait until there are more (tunelight set SWEEP --max-workers N)"
        )

    def look(self, trials: Sequence[Any]) -> None:
        """Let trials leave their workers, or have them again."""
        controller = self._scheduler.controller
        if controller is None:
            return
        if self._control.signals.received is signal.SIGTERM and self._grace_s:
            self._end(controller, trials)
            return
        most = self._most(controller)
        self._search.allowed = None if most is None else most - len(self._scheduler.aside)
        self._scheduler.within(None if most is None else most * self._reservation.workers)
        self._keep(controller, trials, math.inf if most is None else most)

    # -- the end of the sweep

    def _end(self, controller: Any, trials: Sequence[Any]) -> None:
        """Let all trials leave; end the sweep once they have, or at the end of the time for it."""
        if self._ends_at is None:
            self._ends_at = self._clock() + self._grace_s
            self._search.allowed = 0
            self._scheduler.leaving.clear()  # who was told to yield hears that all ends
        for trial in trials:
            if trial.status in (PENDING, RUNNING):
                self._leave(controller, trial, _ENDS)
        if self._clock() >= self._ends_at or not any(trial.status == RUNNING for trial in trials):
            controller.request_stop_experiment()

    # -- others that need the workers

    def _most(self, controller: Any) -> int | None:
        """Return how many trials may have workers (None: as many as fit)."""
        most = None if self.max_workers is None else self.max_workers // self._reservation.workers
        if self._neighbours is None:
            return most
        each = self._reservation.totals
        size = dict(zip(("CPU", "GPU"), cluster_size(controller) or (), strict=False))
        left = self._neighbours.look(each, self._wanted(most), size)
        return left if most is None else most if left is None else min(left, most)

    def _room(self, controller: Any, alive: Sequence[Any]) -> float:
        """Return how many trials may have workers beside branches, so that those which wait have some at once."""
        room = math.inf
        if any(began_at(trial) is not None for trial in alive) and self._search.most_at_once is not None:
            room = self._search.most_at_once
        if self._scheduler.waiting_branches:
            size = zip(("CPU", "GPU"), cluster_size(controller) or (), strict=False)
            each = self._reservation.totals
            room = min([room, *((have + 1e-6) // each[name] for name, have in size if each.get(name))])
        return max(1.0, room)

    def _wanted(self, most: int | None) -> int:
        """Return how many trials this sweep would train at once if there was room: all that are left, at most."""
        if self._scheduler.paused:
            return self._state.counts[RUNNING]
        left = len(self._state.live) + self._state.counts[PENDING] + self._search.to_make
        return min(one for one in (left, most, self._search.most_at_once) if one is not None)

    def _keep(self, controller: Any, trials: Sequence[Any], most: float) -> None:
        """Let ``most`` trials have workers: the least promising ones leave theirs, and have them again later."""
        leaving, aside = self._scheduler.leaving, self._scheduler.aside
        if not leaving and most == math.inf and not self._search.has_branches:
            return
        alive = {trial.trial_id: trial for trial in trials if trial.status in (PENDING, RUNNING, PAUSED)}
        leaving.intersection_update(alive)
        for gone in aside.keys() - alive.keys():
            del aside[gone]
        having = [trial for trial in alive.values() if trial.status != PAUSED]
        staying = [trial for trial in having if trial.trial_id not in leaving]
        limit, most = most, min(most, self._room(controller, having))
        if len(staying) > most:
            why = _YIELDS if len(staying) > limit or self._scheduler.pauses else _TO_BRANCH
            others = [trial for trial in staying if not self._begins(trial)]
            for trial in _least_promising(others, self._state)[: len(staying) - int(most)]:
                self._leave(controller, trial, why)
        elif not self._scheduler.paused:
            told = [trial for trial in having if trial.trial_id in leaving]
            stay = told[: int(min(most - len(staying), len(told)))]
            back = list(aside.values())[: int(max(0, min(most - len(having), len(aside))))]
            for trial in (*stay, *back):
                if self._tell(trial, None):
                    leaving.discard(trial.trial_id)
            for trial in back:
                if trial.trial_id not in leaving:
                    del aside[trial.trial_id]
                    take_back(controller, trial)
        if len(having) >= limit and all(trial.status == RUNNING for trial in having):
            with contextlib.suppress(Exception):  # not public in Tune, which would keep one gang for a next trial
                end_cached_actors(controller)

    def _begins(self, trial: Any) -> bool:
        """Tell whether a trial is a branch that has made no report, with which it could be compared with others."""
        known = self._state.trials.get(trial.trial_id)
        return began_at(trial) is not None and (known is None or not known.history)

    def _leave(self, controller: Any, trial: Any, why: Reason) -> None:
        if trial.status == PENDING and put_aside(controller, trial):
            self._scheduler.aside[trial.trial_id] = trial
        elif trial.trial_id in self._scheduler.leaving or not self._tell(trial, why):
            return
        self._scheduler.leaving.add(trial.trial_id)

    def _tell(self, trial: Any, why: Reason | None) -> bool:
        """Tell a trial's head to leave, or not any more; False where Ray does not answer now: it is tried again."""
        with contextlib.suppress(Exception):  # Ray is busy or gone, which is noticed elsewhere
            self._order(name_in_orders(trial), why)
            return True
        return False


def _least_promising(trials: Sequence[Any], state: SweepState) -> list[Any]:
    """Sort trials: those that wait for workers first, then by their metric at the last report of all, worst first.

    Those that have yet to report come before those that have.
    """
    known = {trial.trial_id: state.trials.get(trial.trial_id) for trial in trials}
    common = min((one.number for one in known.values() if one is not None and one.history), default=0)
    metric = str(state.sweep.get("metric"))
    sign = -1.0 if state.mode == "max" else 1.0

    def promise(trial: Any) -> tuple[bool, bool, float, str]:
        found: TrialState | None = known[trial.trial_id]
        reported = found is not None and bool(found.history)
        reports = found.history if found is not None else []
        report = next((one for one in reports if one["training_iteration"] >= common), {})
        value = report.get(metric)
        loss = sign * value if isinstance(value, int | float) and math.isfinite(value) else math.inf
        return trial.status != PENDING, reported, -loss, trial.trial_id

    return sorted(trials, key=promise)
