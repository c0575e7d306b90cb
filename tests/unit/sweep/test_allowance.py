"""How many workers a sweep may have: who leaves, who comes back, and what sweeps that share a cluster say."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.machine.signals import GRACE_VARIABLE, grace_s
from tunelight.resources import Reservation
from tunelight.schedulers import ElasticASHA
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.ledger import Ledger, TrialResources
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.searchers import RandomSearcher, SweepSearch
from tunelight.settings import Settings
from tunelight.space import SearchSpace
from tunelight.sweep.control import SweepControl
from tunelight.sweep.steering import Allowance


class Controller:
    """Tune's controller, as far as trials are put aside and taken back."""

    def __init__(self, trials: list[Any]) -> None:
        self._trials, self._trial_to_actor, self._staged_trials = trials, dict[Any, Any](), set[Any]()
        self._resetting_trials = set[Any]()
        self.ended, self.let_go = False, 0
        updater = SimpleNamespace(get_num_cpus=lambda: 8, get_num_gpus=lambda: 0)
        self._resource_updater = updater

    def _set_trial_status(self, trial: Any, status: str) -> None:
        trial.status = status

    def _cleanup_cached_actors(self, force_all: bool = False) -> None:
        self.let_go += 1

    def get_trials(self) -> list[Any]:
        return self._trials

    def request_stop_experiment(self) -> None:
        self.ended = True


class Driver:
    """A driver with three trials of two workers, which have reported twice."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.sweep = Sweep(folder, num_samples=6, mode="min", metric="loss")
        self.search = SweepSearch(RandomSearcher(SearchSpace({"lr": 1.0}), seed=1), 6)
        self.control, self.now = SweepControl(), 0.0
        self.scheduler = SweepScheduler(GangScheduler())
        self.orders: list[tuple[str, str | None]] = []
        self.trials = self.sweep.trials
        for number in (0.1, 0.2, 0.3):
            self.sweep.add(lr=number)
        for trial, loss in zip(self.trials, (0.5, 0.7, 0.6), strict=True):
            trial.trainable_name = "gang"
            self.sweep.start(trial)
            for number in (1, 2):
                self.sweep.report(trial, number, loss=loss / number)
        self.scheduler.controller = self.controller = Controller(self.trials)
        self.allowance = Allowance(
            self.scheduler, self.search, self.sweep.state, Reservation(2), self.control,
            order=lambda name, why: self.orders.append((name, None if why is None else why.text)),
            clock=lambda: self.now, **more,
        )  # fmt: skip

    def look(self, max_workers: int | None) -> None:
        self.allowance.max_workers = max_workers
        self.allowance.look(self.trials)

    def leaves(self, trial: Any) -> None:
        """Let a trial leave, as Tune queues it again."""
        trial.status = "PENDING"
        self.scheduler.on_trial_add(self.controller, trial)

    @property
    def names(self) -> list[str]:
        return [name.rpartition("/")[2] for name, why in self.orders if why is not None]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_the_least_promising_trials_leave_and_come_back_when_there_is_room(driver: Driver) -> None:
    driver.look(None)
    driver.look(6)
    assert driver.orders == []
    driver.look(4)
    assert driver.names == ["00001"]  # it has the worst loss
    driver.look(4)
    assert driver.names == ["00001"]  # told once
    driver.leaves(driver.trials[1])
    assert driver.trials[1].status == "PAUSED"
    driver.look(4)
    assert driver.search.allowed == 1  # two trials beside the one that waits to come back, which is the next
    driver.look(1)
    assert driver.names == ["00001", "00002", "00000"]  # no trial fits in one worker
    driver.leaves(driver.trials[2])
    driver.leaves(driver.trials[0])
    driver.look(3)
    assert [trial.status for trial in driver.trials] == ["PAUSED", "PENDING", "PAUSED"]  # who left first, first
    assert driver.orders[-1] == ("gang/00001", None)
    driver.look(None)
    assert [trial.status for trial in driver.trials] == ["PENDING"] * 3
    assert not driver.scheduler.leaving
    assert not driver.scheduler.aside


def test_a_trial_that_waits_for_workers_is_put_aside_before_one_that_trains_leaves(driver: Driver) -> None:
    driver.trials[0].status = "PENDING"
    driver.look(4)
    assert driver.orders == []
    assert driver.trials[0].status == "PAUSED"


def test_a_trial_that_is_being_given_an_idle_head_leaves_once_it_has_it(driver: Driver) -> None:
    driver.trials[0].status = "PENDING"
    driver.controller._resetting_trials.add(driver.trials[0])
    driver.look(4)
    assert driver.names == ["00000"]
    assert driver.trials[0].status == "PENDING"
    driver.controller._resetting_trials.clear()
    driver.trials[0].status = "RUNNING"
    driver.look(4)
    driver.leaves(driver.trials[0])
    assert driver.trials[0].status == "PAUSED"


def test_a_trial_that_was_told_and_has_not_left_may_stay_when_there_is_room_again(driver: Driver) -> None:
    driver.look(4)
    driver.look(6)
    assert driver.orders[-1] == ("gang/00001", None)
    driver.leaves(driver.trials[1])  # it was on its way
    assert driver.trials[1].status == "PENDING"


@pytest.mark.parametrize("status", ["TERMINATED", "ERROR"])
def test_a_trial_that_ends_after_it_was_told_is_forgotten(driver: Driver, status: str) -> None:
    driver.look(4)
    driver.trials[1].status = status
    driver.look(4)
    assert not driver.scheduler.leaving
    assert driver.names == ["00001"]


def test_no_trial_comes_back_while_a_person_has_paused_the_sweep(driver: Driver) -> None:
    driver.look(4)
    driver.leaves(driver.trials[1])
    driver.scheduler.paused = True
    driver.look(6)
    assert driver.trials[1].status == "PAUSED"
    driver.scheduler.paused = False
    driver.look(6)
    assert driver.trials[1].status == "PENDING"


def test_a_trial_aside_is_chosen_by_no_scheduler(driver: Driver) -> None:
    driver.look(4)
    driver.leaves(driver.trials[1])
    assert driver.scheduler.choose_trial_to_run(SimpleNamespace(get_trials=lambda: driver.trials)) is None


def test_after_sigterm_all_trials_leave_and_then_the_sweep_ends(driver: Driver) -> None:
    driver.control.signals.received = signal.SIGTERM
    driver.trials[2].status = "PENDING"
    driver.allowance.look(driver.trials)
    assert driver.names == ["00000", "00001"]
    assert not driver.controller.ended
    driver.leaves(driver.trials[0])
    driver.allowance.look(driver.trials)
    assert not driver.controller.ended
    driver.leaves(driver.trials[1])
    driver.allowance.look(driver.trials)
    assert driver.controller.ended


def test_after_sigterm_the_sweep_ends_in_time_although_a_trial_cannot_leave(driver: Driver) -> None:
    driver.control.signals.received = signal.SIGTERM
    driver.allowance.look(driver.trials)
    driver.now = 24.0
    driver.allowance.look(driver.trials)
    assert not driver.controller.ended
    driver.now = 25.0
    driver.allowance.look(driver.trials)
    assert driver.controller.ended


def test_the_time_to_leave_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(GRACE_VARIABLE, "9.5")
    assert grace_s() == 9.5
    monkeypatch.setenv(GRACE_VARIABLE, "0")
    assert not Driver(tmp_path).control.signals.graceful  # as Ctrl-C
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv(GRACE_VARIABLE, wrong)
        with pytest.raises(SettingsError, match="TUNELIGHT_GRACE_S must be a number of seconds"):
            grace_s()


def test_the_first_sigterm_lets_tune_run_on_where_trials_are_told(driver: Driver, capfd: Any) -> None:
    with driver.control.signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert driver.control.signals.received is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert "Trials write their checkpoints" in capfd.readouterr().err


def test_no_idle_gang_is_kept_beside_as_many_trials_as_are_allowed(driver: Driver) -> None:
    driver.look(8)
    assert driver.controller.let_go == 0  # the next trial may take it
    driver.look(6)
    assert driver.controller.let_go == 1
    for trial in driver.trials:
        trial.status = "TERMINATED"
    driver.look(0)
    assert driver.controller.let_go == 2


def test_a_trial_is_told_once_more_where_ray_did_not_answer_and_when_all_ends(driver: Driver) -> None:
    heard, driver.allowance._order = driver.allowance._order, lambda *_: 1 / 0  # type: ignore[assignment]
    driver.look(4)
    assert not driver.scheduler.leaving
    driver.allowance._order = heard
    driver.look(4)
    assert driver.names == ["00001"]
    driver.control.signals.received = signal.SIGTERM
    driver.allowance.look(driver.trials)
    assert driver.names == ["00001", "00000", "00001", "00002"]


def test_a_sweep_whose_trials_all_wait_says_so(tmp_path: Path) -> None:
    allowance = Driver(tmp_path, max_workers=2).allowance
    assert allowance.remark is None
    allowance.max_workers = 1
    said = allowance.remark
    assert said is not None
    assert said.startswith("max_workers=1, and a trial has 2 workers: all trials wait")


@pytest.mark.parametrize(
    ("told", "most"),
    [({}, None), ({"max_workers": 8}, 4), ({"max_workers": 8, "max_concurrent": 3}, 3), ({"max_workers": 0}, 1)],
)
def test_a_plan_counts_the_trials_that_the_workers_are_enough_for(told: dict[str, Any], most: int | None) -> None:
    assert Settings(workers=2, **told).most_trials == most


# --- gangs that change their size ------------------------------------------------------------------------


def test_gangs_that_grew_shrink_before_trials_leave() -> None:
    elastic = ElasticASHA("loss", "min", max_workers=8)
    growth = elastic._growth
    for name, loss in (("a", 0.1), ("b", 0.9)):
        member = elastic._members[name]
        member.resources, member.loss = TrialResources(1, (1.0, 0.0), (1.0, 0.0)), loss
        member.trial = SimpleNamespace(temporary_state=SimpleNamespace(ray_actor=None))
        growth.started(member)
        growth._ask(member, 4)
    assert growth.ledger.workers == 8
    elastic.within(6)
    assert [elastic._members[name].target_workers for name in "ab"] == [4, 2]  # the worse one
    elastic.within(2)
    assert [elastic._members[name].target_workers for name in "ab"] == [1, 1]
    assert growth.ledger.most == 2
    elastic.within(None)
    assert growth.ledger.most is None


def test_a_scheduler_that_resizes_gangs_hears_of_a_limit_and_of_its_end(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.scheduler.scheduler = elastic = ElasticASHA("loss", "min", max_workers=8)
    driver.look(5)
    assert elastic._growth.ledger.most == 4  # whole trials of two workers
    driver.look(None)
    assert elastic._growth.ledger.most is None


def test_a_limit_of_workers_leaves_no_room_beyond_it() -> None:
    ledger, each = Ledger(), TrialResources(2, (2.0, 0.0), (1.0, 0.0))
    ledger.capacity = (8.0, 0.0)
    ledger.hold("a", each)
    assert (ledger.free(each), ledger.total(each), ledger.fits(each)) == (6, 8, True)
    ledger.most = 3
    assert (ledger.free(each), ledger.total(each), ledger.fits(each)) == (1, 3, False)
    ledger.release("a")
    assert ledger.fits(each)
