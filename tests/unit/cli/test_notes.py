"""note and tag: on a sweep or a trial, however it is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT
from tunelight.record import Notes


@pytest.mark.parametrize(
    ("given", "trial"),
    [
        ("digits", None), ("last", None), ("tunelight_runs/digits", None), ("tunelight_runs/digits/", None),
        ("last/best", "00000"), ("digits/1", "00001"), ("tunelight_runs/digits/trial_00001", "00001"),
        ("{runs}/0", "00000"),
    ],
)  # fmt: skip
def test_a_note_and_a_tag_go_to_what_is_named(runs, given, trial):
    call("note", given.format(runs=runs), "worth a look", "--tag", "good")
    notes = Notes(runs)
    assert [(note.text, note.trial) for note in notes.all] == [("worth a look", trial)]
    assert notes.tags(trial) == ["good"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("digitz", "Did you mean 'digits'?"),
        ("digitz/3", "Did you mean 'digits'?"),
        ("digits/9", "has no trial '9'"),
        ("tunelight_runs/digitz", "There is no sweep 'tunelight_runs/digitz'"),
        ("tunelight_runs", "is no sweep, but holds some"),
    ],
)
def test_what_is_not_there_is_told(runs, given, message):
    assert message in call("note", given, "x", code=BAD_INPUT).stderr
    assert not (runs / "notes.jsonl").exists()


def test_without_a_text_the_notes_are_printed(runs):
    assert call("note", "last").output == "sweep digits: no tags\nNo notes on sweep digits.\n"
    assert call("note", "last", "two", "words").output == "Added a note to sweep digits.\n"
    assert call("note", "last/1", "a trial").output == "Added a note to trial 00001 of sweep digits.\n"
    _, first, second = call("note", "last").output.splitlines()
    assert first.endswith("  two words")
    assert second.endswith("  trial 00001: a trial")
    assert call("note", "last/1").output.endswith("  a trial\n")
    found = json.loads(call("note", "last", "--json").stdout)["notes"]
    assert [(note["text"], note["trial"]) for note in found] == [("two words", None), ("a trial", "00001")]


def test_tags_are_added_printed_and_removed(runs):
    assert call("note", "last", "--tag", "good", "--tag", "big").output == "sweep digits: good, big\n"
    assert call("note", "last/best", "--tag", "keep").output == "trial 00000 of sweep digits: keep\n"
    said = "sweep digits: good, big\ntrial 00000 of sweep digits: keep\nNo notes on sweep digits.\n"
    assert call("note", "last").output == said
    assert json.loads(call("note", "last", "--json").stdout) == {
        "sweep": "digits", "trial": None, "notes": [], "tags": ["good", "big"], "trials": {"00000": ["keep"]},
    }  # fmt: skip
    assert call("note", "last", "--untag", "big", "--tag", "old").output == "sweep digits: good, old\n"


def test_show_and_show_of_a_trial_print_notes_and_tags(runs):
    plain = call("show", "last").output
    assert "tags" not in plain.lower()
    call("note", "last", "sweep's own")
    call("note", "last/1", "trial's own")
    call("note", "last", "--tag", "good")
    call("note", "last/1", "--tag", "keep")
    text = call("show", "last").output
    assert "\nTags: good\n" in text
    assert "): sweep's own\n" in text
    assert "\nNote on trial 00001 (" in text
    assert any("00001" in line and "keep" in line for line in text.splitlines())
    one = call("show", "last", "1").output
    assert "\ntags        keep\n" in one
    assert "\nnote        trial's own (" in one
    about = json.loads(call("show", "last", "--json").stdout)
    assert about["tags"] == ["good"]
    assert [note["text"] for note in about["notes"]] == ["sweep's own", "trial's own"]
    assert [trial["tags"] for trial in about["trials"]] == [[], ["keep"], []]
    assert about["trials"][1]["notes"][0]["text"] == "trial's own"


def test_notes_are_printed_in_the_time_of_this_place(runs):
    Notes(runs, clock=lambda: 1795427455.0).add("now")
    done = subprocess.run(
        [sys.executable, "-m", "tunelight", "note", "last"],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "TZ": "UTC"},
    )  # fmt: skip
    assert done.stdout == "sweep digits: no tags\n2026-11-23 09:50  now\n"
