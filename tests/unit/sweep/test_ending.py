"""How a sweep ends that got SIGTERM: all trials leave with a checkpoint, and the driver waits for a time."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.sweep.test_steering import Driver
from tunelight.errors import SettingsError
from tunelight.machine.signals import GRACE_VARIABLE, grace_s
from tunelight.messages import Stop


class Leaving(Driver):
    """A driver with three trials that train, and hear when they are to leave."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.left: list[str] = []
        self.over = False
        monkeypatch.setattr(self.steering._orders, "stop", self.hear)
        self.sweep.run(model={"lr": 0.3})
        self.trials = self.sweep.trials
        self.scheduler.controller = SimpleNamespace(
            get_trials=lambda: self.trials, _trials=self.trials, _trial_to_actor={}, _staged_trials=set(),
            _resetting_trials=set(), _set_trial_status=lambda trial, status: setattr(trial, "status", status),
            request_stop_experiment=lambda: setattr(self, "over", True),
        )  # fmt: skip

    def hear(self, trial: str, why: Stop) -> None:
        assert why.save
        assert why.ends
        self.left.append(trial)

    def steps(self, after_s: float = 1.0) -> bool:
        """Tell whether the sweep has ended after another step."""
        self.now += after_s
        self.steering.on_step_end(1, self.trials)
        return self.over


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaving:
    return Leaving(tmp_path, monkeypatch)


def test_after_sigterm_all_trials_leave_and_then_the_sweep_ends(driver: Leaving) -> None:
    driver.steps()
    assert driver.left == []
    driver.control.signals.received = signal.SIGTERM
    driver.trials[2].status = "PENDING"
    assert [driver.steps(), driver.steps()] == [False, False]
    assert driver.left == ["00000", "00001"]  # each once
    assert driver.trials[2].status == "PAUSED"
    assert driver.search.next_trial() is None
    assert driver.scheduler.choose_trial_to_run(driver.scheduler.controller) is None
    for trial, ends in ((driver.trials[0], False), (driver.trials[1], True)):
        trial.status = "PENDING"  # as Tune queues again what has left
        driver.scheduler.on_trial_add(driver.scheduler.controller, trial)
        assert (driver.steps(), trial.status) == (ends, "PAUSED")


def test_a_trial_that_is_being_given_an_idle_head_leaves_once_it_has_it_or_when_the_time_is_over(driver) -> None:
    driver.control.signals.received = signal.SIGTERM
    driver.trials[0].status = "PENDING"
    driver.scheduler.controller._resetting_trials.add(driver.trials[0])
    assert not driver.steps()
    assert driver.left == ["00000", "00001", "00002"]
    assert driver.trials[0].status == "PENDING"
    assert [driver.steps(24.0), driver.steps(1.0)] == [False, True]


def test_the_time_to_leave_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(GRACE_VARIABLE, "9.5")
    assert grace_s() == 9.5
    monkeypatch.setenv(GRACE_VARIABLE, "0")
    assert not Leaving(tmp_path, monkeypatch).control.signals.graceful  # as Ctrl-C
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv(GRACE_VARIABLE, wrong)
        with pytest.raises(SettingsError, match="TUNELIGHT_GRACE_S must be a number of seconds"):
            grace_s()
