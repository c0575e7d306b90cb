"""How a sweep ends that got SIGTERM: all trials leave with a checkpoint, and the driver waits for a time."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.sweep.test_steering import Driver
from tunelight.errors import SettingsError
from tunelight.gang.orders import OrderBook
from tunelight.machine.signals import GRACE_VARIABLE, grace_s


class Controller(SimpleNamespace):
    """Tune's controller, as far as trials are put aside."""

    def _set_trial_status(self, trial: Any, status: str) -> None:
        trial.status = status

    def request_stop_experiment(self) -> None:
        self.ended = True


class Leaving(Driver):
    """A driver with three trials that train, and hear when they are to leave."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.left: list[str] = []
        self.answers = True
        monkeypatch.setattr(OrderBook, "leave", lambda _, name, why: self.hear(name, why))
        self.sweep.start(self.sweep.add(model={"lr": 0.3}))
        self.trials = self.sweep.trials
        for trial in self.trials:
            trial.trainable_name = "gang"
        self.controller = self.scheduler.controller = Controller(
            ended=False, get_trials=lambda: self.trials, _trials=self.trials, _trial_to_actor={}, _staged_trials=set(),
            _resetting_trials=set(),
        )  # fmt: skip

    def hear(self, name: str, why: Any) -> None:
        if not self.answers:
            raise ConnectionError
        assert why.ends
        self.left.append(name.rpartition("/")[2])

    def step(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.steering.on_step_end(1, self.trials)

    def leaves(self, trial: Any) -> None:
        """Let a trial leave, as Tune queues it again."""
        trial.status = "PENDING"
        self.scheduler.on_trial_add(self.controller, trial)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaving:
    return Leaving(tmp_path, monkeypatch)


def test_after_sigterm_all_trials_leave_and_then_the_sweep_ends(driver: Leaving) -> None:
    driver.step()
    assert driver.left == []
    driver.control.signals.received = signal.SIGTERM
    driver.trials[2].status = "PENDING"
    driver.answers = False  # Ray is busy
    driver.step()
    driver.answers = True
    driver.step()
    driver.step()
    assert driver.left == ["00000", "00001"]  # each once
    assert driver.trials[2].status == "PAUSED"
    assert driver.search.next_trial() is None
    assert driver.scheduler.choose_trial_to_run(driver.controller) is None
    driver.leaves(driver.trials[0])
    driver.step()
    assert not driver.controller.ended
    driver.leaves(driver.trials[1])
    assert driver.trials[1].status == "PAUSED"
    driver.step()
    assert driver.controller.ended


def test_a_trial_that_is_being_given_an_idle_head_leaves_once_it_has_it_or_when_the_time_is_over(
    driver: Leaving,
) -> None:
    driver.control.signals.received = signal.SIGTERM
    driver.trials[0].status = "PENDING"
    driver.controller._resetting_trials.add(driver.trials[0])
    driver.step()
    assert driver.left == ["00000", "00001", "00002"]
    assert driver.trials[0].status == "PENDING"
    driver.step(24.0)
    assert not driver.controller.ended
    driver.step(1.0)
    assert driver.controller.ended


def test_the_time_to_leave_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(GRACE_VARIABLE, "9.5")
    assert grace_s() == 9.5
    monkeypatch.setenv(GRACE_VARIABLE, "0")
    assert not Leaving(tmp_path, monkeypatch).control.signals.graceful  # as Ctrl-C
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv(GRACE_VARIABLE, wrong)
        with pytest.raises(SettingsError, match="TUNELIGHT_GRACE_S must be a number of seconds"):
            grace_s()
