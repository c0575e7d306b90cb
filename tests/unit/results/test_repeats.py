"""Results of a sweep whose best configurations were trained again: the winner, the table, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit.recording import ERROR, Writer
from tests.unit.reporting.test_report import inlined
from tunelight.cli import app
from tunelight.extras.figures.data import values_of
from tunelight.extras.report.page import page
from tunelight.record import read_record
from tunelight.reporting.words import best_line, counts, end_line, summary
from tunelight.results import SweepResults
from tunelight.searchers.earlier import read_earlier

TWICE = {"repeats": 2, "top": 2}


def written(folder: Path, *, ended: str | None = "finished", **told: Any) -> Writer:
    """Write a sweep whose lucky first trial loses by the mean of two trainings."""
    sweep = Writer(folder, **{"repeats": TWICE, "num_samples": 3, **told})
    sweep.trial(0.9, 0.10)
    sweep.trial(0.8, 0.12)
    sweep.trial(0.9, 0.70)
    sweep.trial(0.9, 0.50, repeats="00000", repetition=1, config={"lr": 1.0})
    if ended is not None:
        sweep.trial(0.9, 0.11, repeats="00001", repetition=1, config={"lr": 0.1})
        sweep.record.append("end", reason=ended)
    return sweep


@pytest.fixture
def twice(tmp_path: Path) -> SweepResults:
    return written(tmp_path).load()


def test_the_winner_has_the_best_mean_and_the_checkpoint_of_its_best_training(tmp_path: Path) -> None:
    sweep = written(tmp_path)
    sweep.checkpoint("00000", 2, 0.10)
    sweep.checkpoint("00001", 2, 0.12)
    there = sweep.checkpoint("00004", 2, 0.11)
    results = sweep.load()
    assert (results.best.id, results.best.value) == ("00004", 0.11)
    assert results.best_config == {"lr": 0.1}
    assert (results.best.repeats, results.best.repetition) == ("00001", 1)
    assert results.best.checkpoint == there


def test_the_table_has_mean_spread_and_count(twice: SweepResults) -> None:
    best, _ = twice.repeated()
    assert (best.trial, best.trials, best.values, best.n) == ("00001", ("00001", "00004"), (0.12, 0.11), 2)
    assert best.mean == pytest.approx(0.115)
    assert best.spread == pytest.approx(0.01 / 2**0.5)


def test_repetitions_are_marked_in_the_table_of_trials_and_left_out_where_there_are_none(tmp_path: Path) -> None:
    table = written(tmp_path).load().dataframe()
    assert list(table["repetition"]) == [0, 0, 0, 1, 1]
    assert list(table["repeats"].dropna()) == ["00000", "00001"]
    (tmp_path / "plain").mkdir()
    plain = Writer(tmp_path / "plain")
    plain.trial(0.1)
    results = plain.load()
    assert "repeats" not in results.dataframe()
    assert results.repeated() == []


def test_the_summary_says_it_in_words(twice: SweepResults) -> None:
    said = twice.summary().splitlines()
    assert said[0].startswith("Sweep digits: 3 trials and 2 repetitions (5 finished)")
    assert "Trained again with other seeds: 2 configurations, by the mean of loss" in said
    assert "  trial 00001: 0.115 +- 0.0071 of 2 trainings" in said


def test_the_last_line_of_a_sweep_and_the_page_go_by_the_mean(twice: SweepResults) -> None:
    state = read_record(twice.folder)
    assert "3 trials and 2 repetitions" in summary(state, 100.0)
    assert "Its configuration, that of trial 00001: 0.115 +- 0.0071 of 2 trainings" in summary(state, 100.0)
    assert best_line(state).startswith("best loss=0.11 by trial 00004")
    assert counts(state, 3).startswith("3/3 done, 2/2 repetitions")
    assert end_line(state, state.trials["00003"], 3).startswith("trial 00003 (repeats 00000) finished")
    shown = inlined(page(twice))
    assert shown["state"]["head"]["best"]["among"] == "lowest of the configuration with the best mean"
    assert "trial 00001: 0.115 +- 0.0071 of 2 trainings" in str(shown["part-about"])


def test_show_prints_it_and_gives_it_as_json(twice: SweepResults) -> None:
    shown = CliRunner().invoke(app, ["show", str(twice.folder)])
    assert "trial 00001: 0.115 +- 0.0071 of 2 trainings" in shown.output
    about = json.loads(CliRunner().invoke(app, ["show", str(twice.folder), "--json"]).output)
    assert [one["trial"] for one in about["repeated"]] == ["00001", "00000"]
    assert about["best"]["trial"] == "00004"
    assert about["trials"][3]["repeats"] == "00000"


def test_repetitions_that_were_not_made_are_said_and_the_winner_is_of_those_that_were(tmp_path: Path) -> None:
    sweep = written(tmp_path, ended=None)
    sweep.record.append("end", reason="time budget")
    results = sweep.load()
    assert "The repetitions are not complete (1 repetition not begun" in results.summary()
    assert [one.trial for one in results.repeated()] == ["00000"]


def test_where_all_repetitions_failed_that_is_said(tmp_path: Path) -> None:
    sweep = Writer(tmp_path, repeats={"repeats": 2, "top": 1})
    sweep.trial(0.9, 0.10)
    sweep.trial(0.9, repeats="00000", repetition=1, state="ERROR", error=ERROR)
    sweep.record.append("end", reason="finished")
    results = sweep.load()
    assert results.best.id == "00000"
    assert "0.1 of 1 training, a single result, for its repetitions failed" in results.summary()
    assert "not complete" not in results.summary()


def test_a_repetition_that_diverged_cannot_win(tmp_path: Path) -> None:
    sweep = Writer(tmp_path, repeats=TWICE)
    sweep.trial(0.9, 0.10)
    sweep.trial(0.9, 0.20)
    sweep.trial(0.05, repeats="00000", repetition=1, state="DIVERGED", error=ERROR)
    sweep.trial(0.30, repeats="00001", repetition=1)
    results = sweep.load()
    assert (results.best.id, [one.mean for one in results.repeated()]) == ("00001", [0.25, float("inf")])
    assert "inf of 2 trainings, training diverged" in results.summary()


def test_repetitions_are_no_trials_of_the_search(twice: SweepResults) -> None:
    assert [trial.id for trial in twice] == ["00000", "00001", "00002"]
    assert [trial.id for trial in twice.repetitions] == ["00003", "00004"]
    assert [trial.id for trial in twice.every_trial] == [f"{number:05d}" for number in range(5)]
    assert twice.trial("4").repeats == "00001"
    assert [trial.id for trial in twice.pareto()] == ["00000"]
    assert len(values_of(twice)) == len(twice) == 3
    assert [trial.id for trial in twice.record.searched] == ["00000", "00001", "00002"]
    assert twice.record.best is not None
    assert twice.record.best.trial == "00000"


def test_the_top_are_configurations_by_their_means_each_by_its_best_training(twice: SweepResults) -> None:
    assert [trial.id for trial in twice.top(5)] == ["00004", "00000", "00002"]
    assert twice.top(1)[0].id == twice.best.id


def test_a_warm_start_knows_each_configuration_once(twice: SweepResults) -> None:
    earlier, _ = read_earlier([twice.folder], [("loss", "min")])
    assert [Path(one.name).name for one in earlier] == ["00000", "00001", "00002"]


def test_the_best_curve_of_a_figure_is_that_of_the_configuration_that_won(twice: SweepResults) -> None:
    names = [trace.name for trace in twice.plot("learning_curves").data]
    assert "best: trial 1" in names
