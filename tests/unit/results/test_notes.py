"""Notes and tags of people, on results: written and read in Python, and in the table."""

from __future__ import annotations

import pickle

import pytest

from tests.unit.results.test_results import Writer
from tunelight.errors import SettingsError
from tunelight.record import leased
from tunelight.results import SweepResults


@pytest.fixture
def results(tmp_path):
    written = Writer(tmp_path)
    for loss in (0.5, 0.2):
        written.trial(loss)
    return written.load()


def test_notes_of_the_sweep_and_of_a_trial(results):
    results.note("the second run of this")
    results.best.note("stable")
    for read in (results, SweepResults.load(results.folder)):
        assert [(note.text, note.trial) for note in read.notes] == [
            ("the second run of this", None),
            ("stable", "00001"),
        ]
        assert [note.text for note in read.trial(1).notes] == ["stable"]
        assert read.trial(0).notes == []
    assert results.notes[0].time <= results.notes[1].time


def test_tags_of_the_sweep_and_of_a_trial(results):
    results.tag("good", "digits")
    results.trial(0).tag("keep", "rerun")
    results.untag("digits")
    results.trial(0).untag("rerun")
    for read in (results, SweepResults.load(results.folder)):
        assert read.tags == ["good"]
        assert [trial.tags for trial in read] == [["keep"], []]


def test_what_the_trial_has_not_cannot_be_removed(results):
    results.tag("good")
    with pytest.raises(SettingsError, match=r"Trial 00000 has no tag 'good'\."):
        results.trial(0).untag("good")


def test_the_table_has_a_column_of_tags_only_if_a_trial_has_any(results):
    results.tag("good")
    assert "tags" not in results.dataframe().columns
    results.trial(1).tag("keep", "rerun")
    assert list(results.dataframe()["tags"]) == ["", "keep, rerun"]
    results.trial(1).untag("keep", "rerun")
    assert "tags" not in results.dataframe().columns


def test_they_can_be_written_while_the_sweep_runs_and_are_no_notes_of_the_record(results):
    with leased(results.folder):
        results.note("look")
        results.best.tag("keep")
    read = SweepResults.load(results.folder)
    assert read.record.notes == []
    assert read.record.trials["00001"].notes == []


def test_results_with_notes_are_pickled(results):
    results.note("look")
    again = pickle.loads(pickle.dumps(results))
    again.note("twice")
    assert [note.text for note in again.notes] == ["look", "twice"]
