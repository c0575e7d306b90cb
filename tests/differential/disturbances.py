"""What is done to a trial that must leave its outcome equal: pauses, stops, kills, sizes, adoptions, resumed sweeps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import ray.tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

import tunelight as tl
from tests.differential.grammar import MOMENTS
from tunelight.compat.lightning import Callback
from tunelight.gang.orders import Orders
from tunelight.messages import RESULT_KEY, Adopt, Resize, Stop
from tunelight.schedulers.base import GangScheduler, call_actor, tell
from tunelight.session.session import get_session
from tunelight.sweep import run


def moment(program: Path) -> tuple[str, int, int]:
    """Return the hook, the rank and the number of the call, or of the report, at which a program is disturbed."""
    hook, rank, count = json.loads((program / "program.json").read_text())["kill"]
    return hook, rank, count


class Kill(Callback):
    """Ends this process once, at the moment that the program names."""

    def __init__(self, program: Path) -> None:
        self.moment, self.rank, self.count = moment(program)
        self.flag = program / "killed-at"

    def reach(self, moment: str) -> None:
        me = tl.get_context()
        if moment != self.moment or me.rank != self.rank % me.world_size or self.flag.exists():
            return
        self.count -= 1
        if self.count == 0:
            self.flag.write_text(f"{self.moment} on rank {self.rank}")
            self.strike()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _reaching(moment: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.reach(moment)


for _moment in MOMENTS:
    setattr(Kill, _moment, _reaching(_moment))


class Leave(Kill):
    """Waits once, at the moment that the program names, until its gang is told to leave: it does at its next step."""

    def __init__(self, program: Path) -> None:
        super().__init__(program)
        self.flag = program / "leaves-at"
        if self.count % 2:  # epochs are of few batches: so there is one to leave at
            self.moment, self.count = "on_train_epoch_start", (self.count + 1) // 2

    def strike(self) -> None:
        mailbox, end = get_session().boundary._mailbox, time.monotonic() + 20
        while not mailbox.hurried and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.1)  # rank 0 is told last


class OrderToLeave(ray.tune.Callback):  # type: ignore[misc,unused-ignore]
    """Tells each trial once to leave, when it waits for that."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self._made = mock.patch.object(run, "Orders", side_effect=self._make)
        self._made.start()

    def _make(self, sweep: str, _make: Any = Orders) -> Any:
        self.orders = _make(sweep)
        self._made.stop()
        return self.orders

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        for trial in trials:
            waits = trial.status == "RUNNING" and (Path(trial.config["program"]) / "leaves-at").exists()
            if waits and trial.trial_id not in self.told:
                self.told.add(trial.trial_id)
                self.orders.stop(trial.trial_id, Stop("told to leave", save=True))

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        del self.orders._stops[trial.trial_id]  # else it would leave again


class Cut(ray.tune.Callback):  # type: ignore[misc,unused-ignore]
    """Ends the driver's sweep once in each trial, at the report that its program names."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        program = Path(trial.config["program"])
        flag = program / "cut"
        if result["training_iteration"] == moment(program)[2] and not flag.exists():
            flag.touch()
            signal.raise_signal(signal.SIGTERM)


class _AtOneReport(GangScheduler):
    """Does something to each trial once, at the report that its program names."""

    def __init__(self) -> None:
        super().__init__()
        self.done: set[str] = set()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] == self.when(trial) and trial.trial_id not in self.done:
            self.done.add(trial.trial_id)
            return str(self.disturb(trial, result["training_iteration"]))
        return str(TrialScheduler.CONTINUE)

    def when(self, trial: Trial) -> int:
        return moment(Path(trial.config["program"]))[2]

    def disturb(self, trial: Trial, number: int) -> str:
        raise NotImplementedError


class Pause(_AtOneReport):
    """Pauses each trial; it goes on when all others have been paused or ended, on a gang that they have used."""

    def disturb(self, trial: Trial, number: int) -> str:
        return str(TrialScheduler.PAUSE)


class StopFirst(_AtOneReport):
    """Stops each trial whose configuration says so: the next one runs on its gang."""

    def disturb(self, trial: Trial, number: int) -> str:
        return str(TrialScheduler.STOP if trial.config["stopped"] else TrialScheduler.CONTINUE)

    def when(self, trial: Trial) -> int:
        return 1


class AdoptOwn(_AtOneReport):
    """Lets each trial take over the weights and states that it has itself."""

    def disturb(self, trial: Trial, number: int) -> str:
        offer = call_actor(trial, "offer")
        tell(trial, Adopt(offer, dict(trial.config), trial.trial_id, None, number, None))
        return str(TrialScheduler.CONTINUE)


class ShrinkAndGrow(_AtOneReport):
    """Takes one of two workers away from each trial, and gives it back a report later."""

    resizes = True

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if trial.trial_id in self.done and result[f"{RESULT_KEY}/workers"] == 1:
            tell(trial, Resize(2))
        return super().on_trial_result(tune_controller, trial, result)

    def disturb(self, trial: Trial, number: int) -> str:
        tell(trial, Resize(1))
        return str(TrialScheduler.CONTINUE)
