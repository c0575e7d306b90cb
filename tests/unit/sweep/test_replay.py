"""replay: schedulers and searchers told again what a record says."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

import tunelight as tl
from tests.kit.recording import (
    Sweep,
    Tune,
    queued,
    read_lines,
    replay_scheduler,
    replay_searcher,
    written_checkpoint,
)
from tunelight.compat.ray import stub_trial
from tunelight.errors import SettingsError
from tunelight.messages import RESULT_KEY
from tunelight.record import RecordCallback, read_record, repair
from tunelight.record.record import replayed
from tunelight.schedulers import ASHA
from tunelight.schedulers.base import GangScheduler, adapted
from tunelight.searchers import RandomSearcher, TrackingSearcher
from tunelight.space import SearchSpace
from tunelight.sweep.queue import ResumeState, created_at_least
from tunelight.sweep.replay import SchedulerReplay, replay

LR = SearchSpace({"lr": tl.uniform(0, 1)})


def recorded(folder: Path) -> Any:
    """Record two trials that have ended, and return the record's lines."""
    sweep = Sweep(folder)
    for loss in (0.1, 0.2):
        sweep.end_by_itself(sweep.run(loss, loss, loss, lr=loss))
    sweep.end()
    return read_lines(folder)


def test_a_grown_asha_files_earlier_ends_at_its_new_rungs(tmp_path):
    grown = ASHA(metric="loss", mode="min", max_t=9, reduction_factor=3)
    replay_scheduler(recorded(tmp_path), grown)
    assert [list(rung.filed) for rung in grown._brackets[0]] == [["00000", "00001"]] * 2


@pytest.mark.parametrize("epochs", ["all", "none", "late"])
def test_a_replay_without_the_reports_that_asha_can_spare_leaves_it_as_it_is_after_all_of_them(tmp_path, epochs):
    sweep, rng = Sweep(tmp_path), np.random.default_rng(1)
    for count in rng.integers(1, 15, 30):
        trial = sweep.add()
        sweep.start(trial)
        for number in range(1, count + 1):
            if rng.random() < 0.1:  # its head is lost
                sweep.call("on_trial_recover", trial=trial)
                sweep.start(trial)
            epoch = {"all": number - 1, "none": None, "late": number - 2 if 1 < number < count else None}[epochs]
            loss, diverged = None if rng.random() < 0.1 else rng.random(), rng.random() < 0.05
            sweep.report(trial, number, math.nan if diverged else loss, epoch=epoch, done=diverged)
            if diverged:
                break
        if count % 4:
            sweep.end_by_itself(trial)
    one, two = (ASHA(metric="loss", mode="min", max_t=12, reduction_factor=2, brackets=2) for _ in range(2))
    final, kinds = read_record(tmp_path), Counter[str]()
    replay(replayed(tmp_path), SchedulerReplay(one, final))
    lines = replayed(tmp_path, two.can_spare)
    replay((kinds.update([line["kind"]]) or (line, state) for line, state in lines), SchedulerReplay(two, final))
    assert {**vars(two), "_end": vars(two._end)} == {**vars(one), "_end": vars(one._end)}
    assert kinds["report"] < 0.75 * sum(len(trial.history) for trial in final.trials.values())


@pytest.mark.parametrize("kind", [AsyncHyperBandScheduler, MedianStoppingRule])
def test_rays_stopping_schedulers_take_a_replay(tmp_path, kind):
    replay_scheduler(recorded(tmp_path), adapted(kind(metric="loss", mode="min")))


@pytest.mark.parametrize("lost", [False, True])  # whether the driver died before it recorded that trials were stopped
def test_what_a_scheduler_raises_names_it(tmp_path, lost):
    class Broken(GangScheduler):
        def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
            raise KeyError("loss")

    lines = recorded(tmp_path)
    if lost:
        lines = [{**line, "decision": "STOP"} for line in lines if line.get("state") != "FINISHED"]
    with pytest.raises(SettingsError, match=r"scheduler Broken cannot be rebuilt.* it raised KeyError: 'loss'"):
        replay_scheduler(lines, Broken())


class Pausing(GangScheduler):
    """Pauses each trial at its first report, and notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self.heard.append(("add", trial.trial_id))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
        self.heard.append((trial.trial_id, result["training_iteration"], result[f"{RESULT_KEY}/workers"]))
        return str(TrialScheduler.PAUSE if result["training_iteration"] == 1 else TrialScheduler.CONTINUE)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self.heard.append(("remove", trial.trial_id))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        self.heard.append(("complete", trial.trial_id))


def test_an_end_that_a_report_brought_and_no_driver_recorded_is_an_end_for_the_scheduler(tmp_path):
    *lines, end = [line for line in recorded(tmp_path) if line["kind"] != "end"]
    assert (end["trial"], end["state"]) == ("00001", "FINISHED")
    replay_scheduler(lines, again := Pausing())
    assert again.heard[-1] == ("00001", 3, 2)
    lines[-1] = {**lines[-1], "decision": "STOP", "error": {"state": "DIVERGED"}}
    replay_scheduler(lines, again := Pausing())
    assert again.heard[-1] == ("complete", "00001")


def test_trials_that_were_paused_are_told_from_those_that_went_on(tmp_path):
    sweep = Sweep(tmp_path)
    for number in range(3):
        sweep.pause(sweep.run(1.0, lr=float(number)))
    sweep.start(sweep.trials[0])  # it goes on
    sweep.report(sweep.trials[0], 2, 0.5)
    sweep.callback.stop("00001")  # it is ended as it waits
    again = Pausing()
    assert replay_scheduler(read_lines(tmp_path), again) == {"00002"}
    assert again.heard == [
        *[("add", "00000"), ("00000", 1, 2)],
        *[("add", "00001"), ("00001", 1, 2)],
        *[("add", "00002"), ("00002", 1, 2)],
        ("00000", 2, 2),
        ("remove", "00001"),
    ]


def searched(folder: Path, searcher: Searcher, count: int, space: SearchSpace = LR, **start: Any) -> list[Any]:
    """Record a sweep of what ``searcher`` suggests; every trial but the last has ended."""
    sweep = Sweep(folder)
    for number in range(count):
        suggested: Any = searcher.suggest(f"{number:05d}")
        trial = sweep.run(suggested["lr"], **suggested)
        if number < count - 1:
            searcher.on_trial_complete(trial.trial_id, trial.last_result)
            sweep.end_by_itself(trial)
    return [trial.config for trial in sweep.trials]


def test_random_search_goes_on_with_the_next_draw_and_a_trial_whose_line_was_lost_took_its_own_along(tmp_path):
    one, two = RandomSearcher(LR, 5), RandomSearcher(LR, 5)
    searched(tmp_path, one, 4)
    lines = [line for line in read_lines(tmp_path) if line.get("trial") != "00001"]
    start = replay_searcher(lines, two, LR, foreign=False)
    assert start.created == 4
    assert one.suggest("x") == two.suggest("x")


def test_numbers_of_trials_whose_lines_were_lost_are_not_given_again(tmp_path):
    sweep = Sweep(tmp_path)
    for _ in range(3):
        sweep.add(lr=0.5)
    sweep.step()
    sweep.callback.close()
    path = tmp_path / "record.jsonl"
    path.write_bytes(re.sub(rb'"index":[12]', b'"index":8', path.read_bytes()))
    assert "are damaged" in str(repair(tmp_path))
    (tmp_path / "trial_00001").mkdir()
    written_checkpoint(tmp_path / "trial_00002", 1)  # from which another trial of its number would go on
    assert created_at_least(1, tmp_path) == 3
    recorder = RecordCallback(tmp_path, metric="loss", mode="min")
    recorder.add(stub_trial("00003", {"lr": 0.5}))
    recorder.close()
    assert [trial.index for trial in read_record(tmp_path).trials.values()] == [0, 3]


class Blind(Searcher):
    """Suggests other values each time, and notes what it hears."""

    def __init__(self) -> None:
        super().__init__(metric="loss", mode="min")
        self.heard: list[Any] = []
        self.next = 0.25

    def suggest(self, trial_id: str) -> dict[str, Any]:
        suggested, self.next = self.next, float(np.random.default_rng().random())
        return {"lr": suggested}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.heard.append((trial_id, None if result is None else result["loss"], error))


def test_a_searcher_hears_only_of_trials_that_it_suggests_again(tmp_path):
    searched(tmp_path, Blind(), 2)
    again = Blind()
    start = replay_searcher(read_lines(tmp_path), again, LR, foreign=True)
    assert sorted(again.heard) == [("00000", 0.25, False), ("00001", None, True)]
    assert start.created == 2


def optuna(seed: int = 3) -> Any:
    searcher = OptunaSearch(seed=seed)
    searcher.set_search_properties("loss", "min", dict(LR.domains))
    return searcher


def test_a_seeded_optuna_goes_on_as_if_nothing_had_happened(tmp_path):
    live, again = optuna(), optuna()
    searched(tmp_path, live, 14)
    replay_searcher(read_lines(tmp_path), again, LR, foreign=True, again=["00013"])
    for study in (live, again):
        study.on_trial_complete("00013", {"loss": 0.5})
    assert [t.values for t in again._ot_study.trials] == [t.values for t in live._ot_study.trials]
    assert again.suggest("00014") == live.suggest("00014")


def test_another_optuna_is_told_whole_trials_now_and_those_that_go_on_when_they_end(tmp_path):
    configs = searched(tmp_path, optuna(), 4)
    again = optuna(seed=4)
    start = replay_searcher(read_lines(tmp_path), again, LR, foreign=True, again=["00003"])
    assert [trial.params for trial in again._ot_study.trials if trial.values] == configs[:3]
    book = RecordCallback(tmp_path, again={"00003": False}, metric="loss", mode="min")
    tune = Tune(queued(again, 5, book=book, written=LR.written, start=replace(start, again={"00003": False})))
    tune.report(tune.begin(), 1, 0.5)
    tune.end("00003")
    assert [trial.value for trial in again._ot_study.trials][-1] == 0.5


def cut_off(folder: Path, *paused: str) -> RecordCallback:
    """Record a sweep of two trials that was cut off, and take it up."""
    sweep = Sweep(folder)
    for lr in (0.5, 0.25):
        sweep.run(lr + 0.2, lr=lr)
    sweep.end()
    return RecordCallback(folder, again={one: one in paused for one in ("00000", "00001")}, metric="loss", mode="min")


def test_trials_that_go_on_come_first_paused_as_they_were_and_new_ones_after(tmp_path):
    start = ResumeState(created=2, again={"00000": True, "00001": False})
    search = queued(RandomSearcher(LR, 1), 3, book=cut_off(tmp_path, "00000"), start=start)
    assert not search.is_finished()
    found: list[Any] = [search.next_trial() for _ in range(4)]
    assert [(trial.trial_id, trial.status) for trial in found[:3]] == [
        ("00000", "PAUSED"), ("00001", "PENDING"), ("00002", "PENDING"),
    ]  # fmt: skip
    assert [trial.config for trial in found[:2]] == [{"lr": 0.5}, {"lr": 0.25}]
    assert found[3] is None
    assert not search.is_finished()


def test_a_search_that_is_held_is_over_with_its_last_trial_so_that_tune_waits_for_no_other(tmp_path):
    search = queued(RandomSearcher(LR, 1), 3)
    first: Any = search.next_trial()
    search.held = True
    assert not search.is_finished()
    search.on_trial_complete(first.trial_id, {}, error=False)
    assert search.next_trial() is None
    assert search.is_finished()
    assert not search.complete


def test_paused_trials_leave_room_for_others_and_a_search_says_when_none_is_to_come(tmp_path):
    search = queued(RandomSearcher(LR, 1), 2, max_concurrent=1)
    first: Any = search.next_trial()
    assert search.next_trial() is None
    first.status = Trial.PAUSED
    assert search.next_trial() is not None
    assert search.next_trial() is None
    assert not search.is_finished()
    admitted = [True]
    start = ResumeState(created=2, again={"00000": False})
    search = queued(RandomSearcher(LR, 1), 3, book=cut_off(tmp_path), start=start, admit=lambda: admitted[0])
    said = []
    for _ in range(3):
        said.append(search.all_made)
        search.next_trial()
    assert said == [False, False, True], "also while some live"
    assert not search.is_finished()
    search.enqueue({"lr": 0.5})
    assert not search.all_made
    admitted[0] = False
    assert search.all_made


class Noting(TrackingSearcher):
    """Notes which trials it takes, and how they ended."""

    def __init__(self) -> None:
        super().__init__(metric="loss", mode="min")
        self.taken: list[str] = []
        self.ends: list[Any] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"lr": 0.1}

    def take(self, trial_id: str, config: Any, *, asked: bool = False) -> None:
        self.taken.append(trial_id)

    def on_trial_result(self, trial_id: str, result: Any) -> None: ...

    def end(self, trial_id: str, state: str, result: Any = None) -> None:
        self.ends.append((trial_id, state, None if result is None else result["loss"]))


def test_resumed_trials_with_nothing_left_or_that_end_while_they_are_paused_end_with_their_last_report(tmp_path):
    sweep, searcher, ids = Sweep(tmp_path), Noting(), ("00000", "00001")
    for loss in (0.5, 0.7):
        sweep.report(sweep.run(lr=loss), 3, loss)
    sweep.pause(sweep.trials[1])
    sweep.callback.record.close()
    start = replay_searcher(read_lines(tmp_path), searcher, LR, foreign=False, again=ids)
    again = {"00000": False, "00001": True}
    book = RecordCallback(tmp_path, again=again, metric="loss", mode="min")
    tune = Tune(queued(searcher, 2, book=book, start=replace(start, again=again)))
    tune.begin()
    paused = tune.search.next_trial()
    tune.trials["00001"] = paused
    tune.end("00000")  # as Tune does where the head has no further report
    tune.end("00001")  # Tune has no result for it
    assert searcher.ends == [("00000", "FINISHED", 0.5), ("00001", "STOPPED", 0.7)]
    assert [trial.state for trial in book.state.trials.values()] == ["FINISHED", "STOPPED"]
