"""record: notes and tags of people, in a file that any process may append to."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from tunelight.errors import SettingsError, StorageError
from tunelight.record import NOTES_FILE, Note, Notes, leased, mirrored
from tunelight.record.remote import StoreMirror
from tunelight.stores import store_of

WRITE = """
import sys
from tunelight.record import Notes
notes = Notes(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    notes.add(f"{sys.argv[2]} {number} " + "x" * 5000)
"""


@pytest.fixture
def notes(tmp_path):
    seconds = count(100)
    return Notes(tmp_path, clock=lambda: float(next(seconds)))


def test_notes_are_read_back_in_order_with_their_time_and_trial(notes, tmp_path):
    notes.add("diverges above 0.1")
    notes.add("  look at this one\n", trial="00003")
    for read in (notes, Notes(tmp_path)):
        assert read.all == [Note(100.0, "diverges above 0.1"), Note(101.0, "look at this one", "00003")]
        assert read.of("00003") == [Note(101.0, "look at this one", "00003")]
        assert [note.text for note in read.of(None)] == ["diverges above 0.1"]


def test_tags_are_added_once_and_removed(notes, tmp_path):
    notes.tag(["good", "baseline", "good"])
    notes.tag(["good"])
    notes.tag(["keep"], trial="00001")
    notes.untag(["good"])
    read = Notes(tmp_path)
    assert (read.tags(None), read.tags("00001"), read.tags("00002")) == (["baseline"], ["keep"], [])
    assert read.tagged == ["00001"]
    notes.untag(["keep"], trial="00001")
    assert Notes(tmp_path).tagged == []


def test_adding_tags_that_are_there_writes_nothing(notes):
    notes.tag(["good"])
    before = notes.path.read_bytes()
    notes.tag(["good"])
    assert notes.path.read_bytes() == before


def test_removing_a_tag_that_is_not_there_is_an_error_that_guesses(notes):
    notes.tag(["baseline"])
    with pytest.raises(SettingsError, match=r"The sweep has no tag 'baselin'. Did you mean 'baseline'\?"):
        notes.untag(["baselin"])


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "-x", "x" * 65, None])
def test_what_is_no_tag_is_refused(notes, tag):
    with pytest.raises(SettingsError, match="A tag must be one word"):
        notes.tag([tag])
    assert not notes.path.exists()


@pytest.mark.parametrize("text", ["", " \n", None])
def test_an_empty_note_is_refused(notes, text):
    with pytest.raises(SettingsError, match="A note must be text"):
        notes.add(text)


def test_passwords_in_addresses_are_masked(notes):
    notes.add("study at postgresql://me:hunter2@host/db")
    assert "hunter2" not in notes.path.read_text()


def test_a_torn_last_line_is_left_out_and_does_not_swallow_the_next_one(notes, tmp_path):
    notes.add("first")
    with notes.path.open("ab") as file:
        file.write(b'{"kind": "note", "time": 1.0, "tri')  # its writer was killed
    assert [note.text for note in Notes(tmp_path).all] == ["first"]
    notes.add("second")
    assert [note.text for note in Notes(tmp_path).all] == ["first", "second"]


@pytest.mark.parametrize(
    "line",
    [
        b"[]", b"3", b"\xff\xfe", b'{"kind": "note"}', b'{"kind": "note", "text": 3, "time": 1}',
        b'{"kind": "tag", "add": "ab"}', b'{"kind": "tag", "add": [3]}', b'{"kind": "tag", "trial": []}',
        b'{"kind": "later"}',
    ],
)  # fmt: skip
def test_a_line_that_is_not_understood_is_left_out(notes, tmp_path, line):
    notes.path.write_bytes(line + b"\n")
    notes.add("after")
    read = Notes(tmp_path)
    assert [note.text for note in read.all] == ["after"]
    assert read.tags(None) == []


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    lines = [json.loads(line)["text"].split()[:2] for line in (tmp_path / NOTES_FILE).read_text().splitlines()]
    assert sorted(lines) == sorted([name, str(number)] for name in "ab" for number in range(50))


def test_a_sweep_that_runs_can_be_written_on(notes, tmp_path):
    with leased(tmp_path):
        notes.add("while it runs")
    assert [note.text for note in Notes(tmp_path).all] == ["while it runs"]


def test_a_file_that_cannot_be_written_or_read_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"notes.jsonl cannot be written: No such file.* Nothing was noted"):
        Notes(tmp_path / "gone").add("x")
    (tmp_path / NOTES_FILE).mkdir()
    with pytest.raises(StorageError, match=r"notes.jsonl cannot be read: Is a directory"):
        _ = Notes(tmp_path).all


def test_what_people_on_two_machines_write_on_a_sweep_in_a_store_is_read_on_both(storage, machine):
    def folder() -> Path:
        return Path(storage(), "s")

    folder().mkdir(parents=True)
    (folder() / "sweep.yaml").write_text("metric: loss\n")
    with leased(folder()) as lease, mirrored(folder(), lease):
        first = folder()
        Notes(first).add("of the driver's machine")
        machine("second")
        Notes(folder()).add("of another")
        machine("first")
        store = store_of(first)
        assert store is not None
        StoreMirror(store, first, lease).upload()  # all that the driver has, as a resumed one does
        Notes(first).tag(["good"])
        for name in ("first", "second"):
            machine(name)
            read = Notes(folder())
            assert [note.text for note in read.all] == ["of the driver's machine", "of another"]
            assert read.tags(None) == ["good"]
        machine("first")
