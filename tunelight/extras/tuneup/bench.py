"""Bench: measures settings on gangs of the cluster that this process is connected to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ray import cloudpickle

from tunelight.cluster.local import env_of_workers
from tunelight.compat.lightning import VARIABLE
from tunelight.errors import GangError, TrialError
from tunelight.extras.tuneup.search import Figures, Setting, UnmeasuredError
from tunelight.extras.tuneup.worker import Measure
from tunelight.gang.pool import Held, pool
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec
from tunelight.messages import Terminal
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation
from tunelight.session.task import Home, Start, Task
from tunelight.settings import Settings

_LONGEST_S = 600.0
"""How long one measurement may take, whatever it was to take: compiling, and data that is prepared."""


@dataclass
class Bench:
    """Measures one setting after the other. Its gang stays warm while the settings ask for the same workers.

    ``cold_s``: how long gangs have taken to start. Runs on: driver, connected to Ray. Close it.
    """

    settings: Settings
    measures: Measure
    folder: str

    def __post_init__(self) -> None:
        self.cold_s: list[float] = []
        self._held: list[Held] = []
        self._gang: tuple[int, float] | None = None
        self._serial = 0
        self._task = Task(
            train=cloudpickle.dumps(self.measures),
            home=Home.here(),
            terminal=Terminal(False, 80),  # what the ranks print comes as events, which nobody shows
            job=True,
            evaluation=self.settings.evaluation or "ddp",
        )

    def reservation(self, setting: Setting) -> Reservation:
        """Return what a gang for the setting reserves."""
        return Reservation(setting.workers, setting.cpus, self.settings.gpus_per_worker)

    def measure(self, setting: Setting, seconds: float, gangs: int = 1, *, validate: bool = False) -> Figures:
        """Measure a setting on ``gangs`` gangs at the same time; return the median gang's figures, of two the slower's.

        Raises: UnmeasuredError where training under it fails; GangError, ResourceError.
        """
        runs = []
        config = {"setting": setting, "seconds": seconds, "validate": validate}
        try:
            for held in self._take(setting, gangs):
                self._serial += 1
                start = Start(f"tune-up-{self._serial}", self.folder, dict(config), seed=self.settings.seed, until=None)
                run = ResilientRun(self._task, start, FailurePolicy(max_failures=0), say=lambda _: None)
                run.start(held.gang)
                runs.append(run)
            figures = [_followed(run, seconds) for run in runs]
        except TrialError as error:
            self.close()
            cause = getattr(error, "error", None)
            why = error if cause is None else f"{cause.type_name}: {cause.message}"
            raise UnmeasuredError(str(why).strip().partition("\n")[0]) from error
        except BaseException:
            self.close()
            raise
        return sorted(figures, key=lambda one: one.step_s)[len(figures) // 2]

    def _take(self, setting: Setting, gangs: int) -> list[Held]:
        """Return gangs for a setting, those of before where they fit."""
        if self._gang != setting.gang or any(held.closed or held.gang.unfit for held in self._held):
            self.close()
        self._gang = setting.gang
        while len(self._held) < gangs:
            began = time.monotonic()
            held = pool.take(self._spec(setting), self.reservation(setting))
            self._held.append(held)
            held.gang.heal()
            self.cold_s.append(time.monotonic() - began)
        return self._held[:gangs]

    def _spec(self, setting: Setting) -> GangSpec:
        reservation = self.reservation(setting)
        return GangSpec(
            reservation,
            FailurePolicy(max_failures=0),
            runtime_env=env_of_workers(self.settings, reservation),
            backend=self.settings.backend,
            environ={VARIABLE: self.settings.lightning, **_passed_on()},
            home=Home.here(),
        )

    def close(self) -> None:
        """End the gangs."""
        held, self._held = self._held, []
        for gang in held:
            pool.close(gang)


def _passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "TORCH_NCCL_", "HOROVOD_"))}


def _followed(run: ResilientRun, seconds: float) -> Figures:
    """Follow a run to its end; return what rank 0 has handed in. Raises: TrialError, GangError."""
    limit_s = _LONGEST_S + 10 * seconds
    end = time.monotonic() + limit_s
    while run.running:
        run.next_event(1.0)
        if time.monotonic() > end:
            raise GangError(f"A measurement of {seconds:.1f} s has not ended after {limit_s:.0f} s.")
    figures: Figures = run.handed_in[0]
    return figures
