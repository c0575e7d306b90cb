"""Branches on the driver: which are refused, with what they begin, and what the sweep makes of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.kit.recording import queued, read_lines, replay_scheduler, replay_searcher
from tests.kit.recording import written_checkpoint as written
from tests.unit.sweep.test_replay import Noting
from tests.unit.sweep.test_steering import Driver
from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import passed_to_head, stub_trial
from tunelight.record import Branch, read_record
from tunelight.schedulers import ASHA
from tunelight.searchers import RandomSearcher
from tunelight.sweep.queue import ResumeState


def _made(trial_id: str, config: dict[str, Any]) -> Any:
    """Return a trial as the search makes it, with a storage, from which its heads read."""
    trial = stub_trial(trial_id, config)
    trial.storage = SimpleNamespace()
    return trial


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    """Return a driver with the trials that Tune's controller was given."""
    driver: Any = Driver(tmp_path)
    driver.sweep.report(driver.first, 1, 0.5)
    driver.search._created, driver.search._make = 2, _made
    driver.added = []
    driver.scheduler.controller.add_trial = driver.added.append
    return driver


def test_a_branch_begins_with_a_copy_of_its_parents_newest_checkpoint(driver: Any, tmp_path: Path) -> None:
    written(tmp_path / "trial_00000", 1)
    written(tmp_path / "trial_00000", 2)  # of a report that the driver never heard of
    assert driver.told("branch", "00000", config={"model.lr": 0.5}) == (
        True,
        "trial 00002 begins with the state of trial 00000 after report 1, with model.lr=0.5, not 0.1",
    )
    (copy,) = checkpoints.find(tmp_path / "trial_00002")
    assert (copy.number, copy.value, Path(copy.path).read_text()) == (1, None, "weights of 1, 0")
    (trial,) = driver.added
    assert trial.trial_id == "00002"
    assert trial.config == {"model": {"lr": 0.5}}
    state = read_record(tmp_path).trials["00002"]
    assert (state.branch, state.number) == (Branch("00000", "00000", 1), 1)
    assert passed_to_head(trial.storage)["heard"] == 1
    assert (passed_to_head(trial.storage)["root"], state.seed) == ("00000", 7)  # the seed is its parent's
    assert driver.sweep.state.sweep["num_samples"] == 5  # it is one more
    driver.told("set", num_samples=9)
    assert driver.file["num_samples"] == 9  # and not of the search


def test_a_torn_checkpoint_is_passed_over_and_without_one_a_trial_cannot_be_branched(driver, tmp_path) -> None:
    driver.sweep.report(driver.first, 2, 0.4)
    written(tmp_path / "trial_00000", 1)
    Path(written(tmp_path / "trial_00000", 2).path).write_text("torn")
    driver.sweep.fail(driver.first)
    assert "after report 1, with nothing changed" in driver.told("branch", "00000", config={})[1]
    driver.sweep.fail(driver.second)
    said = driver.told("branch", "00001", config={})[1]
    assert said.startswith(
        "Trial 00001 has no checkpoint to begin with (ERROR). Enqueue its configuration, with what is"
    )


def test_a_storage_that_does_not_answer_refuses_a_branch_and_ends_nothing(driver, tmp_path, monkeypatch) -> None:
    written(tmp_path / "trial_00000", 1)
    monkeypatch.setattr(checkpoints, "commit", mock.Mock(side_effect=OSError(28, "No space left on device")))
    said = "Trial 00000 cannot be branched now: OSError: [Errno 28] No space left on device"
    assert driver.told("branch", "00000", config={}) == (False, said)
    assert driver.added == []


def test_the_searcher_does_not_learn_of_a_branch_which_is_none_of_num_samples_and_keeps_its_seed_in_its_name(tmp_path):
    searcher = Noting()
    search = queued(searcher, 1, longest=9)
    search.next_trial()
    assert search.all_made
    branch: Any = search.branch({"lr": 0.2}, Branch("00000", "00000", 3))
    assert branch.trial_id == "00001"
    assert (search.ends_at("00000"), search.ends_at("00001")) == (None, 9)
    search.on_trial_result("00001", {"training_iteration": 4})
    search.on_trial_complete("00001", {"training_iteration": 4})
    assert searcher.taken == searcher.ends == []
    assert search.total_samples == 2


@pytest.fixture
def lineage(driver: Driver) -> Any:
    """Return a branch of trial 00000 at its first report, which has begun."""
    return driver.sweep.run(kind={"branch": Branch("00000", "00000", 1)}, model={"lr": 0.3})


def test_the_record_has_its_lineage_and_counts_its_reports_on_and_a_resumed_sweep_has_it_beside_its_search(
    driver: Driver, lineage: Any, tmp_path: Path
) -> None:
    driver.sweep.report(lineage, 2, 0.4)
    state = read_record(tmp_path).trials["00002"]
    assert (state.branch, state.number) == (Branch("00000", "00000", 1), 2)
    assert [report["training_iteration"] for report in state.history] == [2]
    (change,) = state.changes
    assert (change["training_iteration"], change["parent"], change["parent_iteration"]) == (1, "00000", 1)
    assert (state.config_at(1), state.config_at(2)) == ({"model": {"lr": 0.1}}, {"model": {"lr": 0.3}})
    asha, searcher = ASHA(metric="loss", mode="min", max_t=9, reduction_factor=2), RandomSearcher(driver.space, seed=1)
    replay_scheduler(read_lines(tmp_path), asha)
    assert [set(rung.filed) for rung in asha._brackets[0]][:2] == [{"00000"}, set()]
    start = replay_searcher(read_lines(tmp_path), searcher, driver.space, foreign=False, again=["00002"])
    assert start.created == 3
    search = queued(searcher, 4, book=driver.sweep.callback, start=ResumeState(created=3, again={"00002": False}))
    resumed: Any = search.next_trial()
    assert (resumed.config, resumed.last_result["training_iteration"]) == ({"model": {"lr": 0.3}}, 2)
    assert search.total_samples == 5
    assert search.book.state.suggested == 2
    assert search.ends_at("00002") is not None


def test_a_branch_that_has_nothing_left_to_train_is_an_error(driver: Driver, lineage: Any) -> None:
    driver.sweep.complete(lineage)
    state = driver.sweep.state.trials["00002"]
    assert state.state == "ERROR"
    assert "its training ends (max_epochs, max_steps) with report 1, at which it began" in str(state.error)
