"""The driver's side of commands, without Tune: which are refused, and what the others change."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ray.tune.schedulers import FIFOScheduler

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.errors import CommandError
from tunelight.extras.attach import send
from tunelight.gang.orders import Orders
from tunelight.record import leased, read_sweep_file
from tunelight.record.lease import COMMANDS_FILE
from tunelight.schedulers import GangScheduler
from tunelight.schedulers.base import adapted
from tunelight.searchers import RandomSearcher
from tunelight.settings import Settings
from tunelight.sweep.past import SavedSweep
from tunelight.sweep.queue import SweepSearch
from tunelight.sweep.steering import Steering, SweepControl


class Driver:
    """A driver with two running trials, to which commands are sent."""

    def __init__(self, folder: Path, scheduler: Any = None, **more: Any) -> None:
        self.control = SweepControl()
        self.sweep = Sweep(folder, num_samples=4, ended_by=lambda: self.control.ends)
        self.space = tl.SearchSpace(more.pop("space", {"model": {"lr": tl.uniform(0, 1), "width": 64}}))
        self.search = SweepSearch(self.sweep.callback, RandomSearcher(self.space, seed=1), 4)
        self.shown, self.now = mock.Mock(), 100.0
        self.steering = Steering(
            self.sweep.callback, self.search, adapted(scheduler or FIFOScheduler()), self.space, self.control,
            orders=Orders("gang", lambda _: {}, dict, lambda: self.now), sweep_file={"num_samples": 4, **more},
            shown=self.shown, clock=lambda: self.now,
        )  # fmt: skip
        self.control.begin(self.sweep.callback, self.search, None)
        self.scheduler = self.steering.scheduler
        self.ended: list[Any] = []
        self.scheduler.controller = SimpleNamespace(
            stop_trial=self.ended.append,
            request_stop_experiment=lambda: self.ended.append(None),
            get_trials=lambda: self.sweep.trials,
        )
        self.first, self.second = (self.sweep.run(model={"lr": number}) for number in (0.1, 0.2))

    def told(self, do: str, trial: str | None = None, **arguments: Any) -> tuple[bool, str]:
        """Send a command, and return the answer that the record has."""
        command = send(self.sweep.folder, do, trial, **arguments)
        self.now += 1
        self.steering.on_step_end(1, self.sweep.trials)
        return self.sweep.state.answers[command]

    @property
    def file(self) -> dict[str, Any]:
        return read_sweep_file(self.sweep.folder)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_a_stopped_trial_is_recorded_as_stopped_and_cannot_be_stopped_again(driver: Driver) -> None:
    assert driver.told("stop", "00001") == (True, "stopped by command")
    assert driver.ended == [driver.second]
    assert driver.sweep.state.trials["00001"].state == "STOPPED"
    assert driver.told("stop", "00001") == (False, "Trial 00001 has ended already (STOPPED).")
    assert driver.told("stop", "00007")[1].startswith("There is no trial '00007'.")
    assert driver.told("stop")[0]
    assert driver.ended == [driver.second, None]
    driver.sweep.callback.close()
    assert driver.sweep.state.ended == "stopped"  # on purpose, and so no interruption


def test_what_an_enqueued_configuration_leaves_out_is_as_in_the_best_trial(tmp_path: Path) -> None:
    momentum = {"uniform": [0, 1], "when": {"model.opt": "sgd"}}
    model = {"lr": tl.uniform(0, 1), "width": 64, "opt": tl.choice(["sgd", "adam"]), "momentum": momentum}
    driver = Driver(tmp_path, space={"model": model})
    given = {"model.lr": 0.5}
    assert "says nothing of model.opt" in driver.told("enqueue", config=given)[1]  # nothing was reported yet
    best = driver.sweep.run(0.1, model={"lr": 0.3, "width": 64, "opt": "sgd", "momentum": 0.9})
    carried_out, said = driver.told("enqueue", config=given)
    assert carried_out
    assert said.endswith(f"(model.momentum, model.opt as in trial {best.trial_id}, the best)")
    assert driver.file["baselines"] == [{"model": {"lr": 0.5, "width": 64, "opt": "sgd", "momentum": 0.9}}]
    assert "(model.lr as in" in driver.told("enqueue", config={"model": {"opt": "adam"}})[1]  # no momentum there
    assert driver.file["baselines"][-1] == {"model": {"lr": 0.3, "width": 64, "opt": "adam"}}


@pytest.mark.parametrize(
    ("do", "arguments", "why"),
    [
        ("enqueue", {"config": {"model.lrr": 0.5}}, "The configuration holds 'model.lrr', which is not in the search"),
        ("enqueue", {"config": 3}, "A configuration is a dict of keys and values, not 3."),
        ("set", {"num_samples": "many"}, "num_samples must be a whole number"),
        ("set", {"max_concurrent": 0}, "max_concurrent must be a whole number of 1 or more, not 0."),
        ("set", {"metric": "a"}, "A sweep that runs cannot be given 'metric'. There are: max_concurrent, num_samples."),
        ("jump", {}, "There is no command 'jump'. There are: stop, enqueue, set, branch."),
        ("branch", {"trial": "00007"}, "There is no trial '00007'. Did you mean '00001'? There are: 00000, 00001."),
        ("branch", {"config": {"model.lrr": 1}}, "00000 has no 'model.lrr'. Did you mean 'model.lr'? It has: model.lr"),
        ("branch", {"config": {"model.lr": "x"}}, "The configuration holds model.lr='x', which must be a number."),
        ("branch", {"config": 3}, "Changes are a dict of keys and values, not 3."),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(driver, do, arguments, why) -> None:
    carried_out, said = driver.told(do, **{"trial": "00000", **arguments})
    assert not carried_out
    assert why in said
    assert driver.search.total_samples == 4


def test_a_grid_takes_no_other_configuration_and_a_trial_that_never_reported_is_removed_from_its_scheduler(tmp_path):
    seen: list[str] = []
    scheduler = GangScheduler()
    scheduler.on_trial_complete = lambda *_: seen.append("ended")  # type: ignore[method-assign]
    scheduler.on_trial_remove = lambda *_: seen.append("removed")  # type: ignore[method-assign]
    driver = Driver(tmp_path, scheduler, space={"lr": tl.grid([0.1, 0.2])})
    assert driver.told("enqueue", config={"lr": 0.3}) == (False, "A grid has no place for another configuration.")
    driver.scheduler.on_trial_complete(None, driver.first, {})  # as where it was stopped before its first report
    driver.scheduler.on_trial_complete(None, driver.first, {"training_iteration": 1})
    assert seen == ["removed", "ended"]


def test_limits_change_at_once_and_are_kept_for_a_resume(driver: Driver) -> None:
    live = driver.search._live
    live.update({"00000": driver.first, "00001": driver.second})
    assert driver.search.has_room()
    assert driver.told("set", max_concurrent=2, num_samples=7) == (
        True, "set by command: max_concurrent=2, num_samples=7",
    )  # fmt: skip
    assert not driver.search.has_room()
    assert driver.search.total_samples == 7
    driver.shown.expect.assert_called_once_with(7)
    assert (driver.file["max_concurrent"], driver.file["num_samples"]) == (2, 7)
    assert driver.told("set", max_concurrent=None)[0]
    assert driver.search.has_room()


def test_what_was_set_holds_for_a_script_that_starts_its_sweep_again_until_it_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("tunelight"), "propagate", True)
    driver = Driver(tmp_path, max_concurrent=None, baselines=[{"model": {"lr": 0.1}}])
    changes: list[Any] = [{"num_samples": 6}, {"max_concurrent": 2}, {"num_samples": 7, "max_concurrent": 3}]
    for arguments in changes:
        assert driver.told("set", **arguments)[0]
    assert driver.told("enqueue", config={"model.lr": 0.5})[0]
    past = SavedSweep(tmp_path, driver.file, driver.sweep.state)
    script = Settings(train=print, metric="loss", num_samples=4, baselines=({"model": {"lr": 0.1}},))
    found = past.steered(script)
    assert (found.num_samples, found.max_concurrent) == (8, 3)
    assert found.baselines == ({"model": {"lr": 0.1}}, {"model": {"lr": 0.5}})
    assert "num_samples=8, max_concurrent=3: set by command while the sweep ran, and still so." in caplog.text
    assert past.steered(found) == found  # as tl.resume has it, from the sweep's file
    again = replace(script, baselines=({"model": {"lr": 0.5}}, {"model": {"lr": 0.1}}))
    assert len(past.steered(again).baselines) == 2
    assert past.still_steered(found) == driver.file["steered"]
    other = past.steered(replace(script, num_samples=20))
    assert (other.num_samples, other.max_concurrent) == (20, 3)
    assert past.still_steered(other).keys() == {"max_concurrent", "enqueued"}
    assert driver.told("enqueue", config={"model.lr": 0.1})[0]  # as a baseline, which is tried twice then
    past = SavedSweep(tmp_path, driver.file, driver.sweep.state)
    assert past.steered(script).baselines.count({"model": {"lr": 0.1}}) == 2


def test_a_change_that_cannot_be_kept_for_a_resume_holds_and_the_answer_says_so(driver: Driver) -> None:
    (driver.sweep.folder / "sweep.yaml").mkdir()  # as on a full disk
    carried_out, said = driver.told("set", num_samples=9)
    assert carried_out
    assert said.startswith("set by command: num_samples=9 (but a resumed sweep will not know of it: ")
    assert driver.search.total_samples == driver.sweep.state.sweep["num_samples"] == 9
    assert driver.told("enqueue", config={"model.lr": 0.5})[0]
    assert driver.search.total_samples == 10


def test_who_sends_a_command_learns_that_the_driver_ended_before_it_answered(tmp_path: Path) -> None:
    sweep, commands = Sweep(tmp_path / "s"), tmp_path / "s" / COMMANDS_FILE
    with ThreadPoolExecutor(1) as threads:
        with leased(tmp_path / "s"):  # as its driver does
            told = threads.submit(tl.attach("s", tmp_path).stop)
            while not commands.exists():
                assert not told.done(), told.exception()
                time.sleep(0.01)
            sweep.callback.close()
        with pytest.raises(CommandError, match="The sweep s ended before it was told to stop"):
            told.result(10)
