"""storage: the record as a file, and its reader."""

from __future__ import annotations

import enum
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Clock, Sweep, lines
from tunelight import record as storage
from tunelight.errors import StorageError
from tunelight.record import Record, read_record

# The record as a file


def test_line_is_json_that_ends_with_the_checksum_of_the_rest(tmp_path):
    record = Record.open(tmp_path, Clock())
    record.append("note", text="hello")
    record.close()
    crc = zlib.crc32(b'{"kind":"note","time":1000.0,"text":"hello"}')
    assert lines(tmp_path) == [b'{"kind":"note","time":1000.0,"text":"hello","crc":"%08x"}' % crc]


def test_nan_and_infinities_survive_the_round_trip(sweep):
    trial = sweep.add(lr=math.inf)
    sweep.start(trial)
    sweep.report(trial, 1, math.nan, acc=-math.inf)
    read = read_record(sweep.folder).trials["00000"]
    assert math.isnan(read.history[0]["loss"])
    assert (read.history[0]["acc"], read.config["lr"]) == (-math.inf, math.inf)


def test_values_that_json_has_no_word_for_are_recorded(tmp_path):
    class Color(enum.Enum):
        RED = "red"

    class Odd:
        def __repr__(self):
            return "<odd>"

        def tolist(self):
            raise RuntimeError

    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    assert storage.to_json_types(
        {
            "f32": np.float32(0.5),
            "i64": np.int64(3),
            "array": np.arange(3),
            "path": Path("a/b"),
            "enum": Color.RED,
            "class": dict,
            "set": {2, 1},
            "tuple": (1, 2),
        }
    ) == {
        "f32": 0.5,
        "i64": 3,
        "array": [0, 1, 2],
        "path": "a/b",
        "enum": "red",
        "class": "builtins:dict",
        "set": [1, 2],
        "tuple": [1, 2],
    }
    assert storage.to_json_types({np.int64(1): np.int8(2), (1, 2): "pair"}) == {"1": 2, "(1, 2)": "pair"}
    assert storage.to_json_types([Odd(), "x"]) == ["<odd>", "x"]
    assert storage.to_json_types(cycle)["self"]


def test_torn_last_line_is_dropped(sweep):
    sweep.start(sweep.add())
    path = sweep.folder / "record.jsonl"
    whole = path.read_bytes()
    for cut in (1, 10, 40):
        path.write_bytes(whole[:-cut])
        assert read_record(sweep.folder).trials["00000"].state == "PENDING"


def test_corrupt_last_line_is_dropped_as_torn(sweep):
    sweep.start(sweep.add())
    path = sweep.folder / "record.jsonl"
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 19 + b"\n")
    assert read_record(sweep.folder).trials["00000"].state == "PENDING"


def test_corrupt_line_in_the_middle_is_named(sweep):
    sweep.start(sweep.add())
    path = sweep.folder / "record.jsonl"
    path.write_bytes(path.read_bytes().replace(b"PENDING", b"XENDING").replace(b'"index":0', b'"index":9'))
    with pytest.raises(StorageError, match=r"record\.jsonl, line 2: corrupt"):
        read_record(sweep.folder)


def test_line_that_does_not_fit_is_named(tmp_path):
    record = Record.open(tmp_path)
    record.append("state", trial="nobody", state="RUNNING")
    record.close()
    with pytest.raises(StorageError, match=r"line 1: it does not fit"):
        read_record(tmp_path)


def test_unknown_kind_of_a_later_version_changes_nothing(tmp_path):
    record = Record.open(tmp_path)
    record.append("resize", trial="00000", workers=3)
    record.close()
    assert read_record(tmp_path).trials == {}


def test_opening_a_torn_record_cuts_it_and_goes_on(sweep):
    sweep.start(sweep.add(lr=1))
    path = sweep.folder / "record.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"no')
    again = Sweep(sweep.folder)
    assert again.states() == ["INTERRUPTED"]  # its driver is dead
    again.callback.close()
    assert read_record(sweep.folder) == again.state


def test_folder_without_record_names_the_sweeps_inside(sweep):
    with pytest.raises(StorageError, match=rf"Sweeps in it: .*{sweep.folder.name}"):
        read_record(sweep.folder.parent)


def test_record_of_a_later_format_is_refused(tmp_path):
    record = Record.open(tmp_path)
    record.append("sweep", sweep={"format": 2})
    record.close()
    with pytest.raises(StorageError, match=r"has the format 2, and this tunelight reads format 1.*Upgrade"):
        read_record(tmp_path)


def test_repair_keeps_whole_lines_and_the_damaged_file(sweep):
    for trial in (sweep.add(), sweep.add()):
        sweep.start(trial)
        sweep.report(trial, 1, 1.0)
    sweep.callback.close()
    path = sweep.folder / "record.jsonl"
    damaged = path.read_bytes().replace(b'"index":1', b'"index":8')  # all lines of trial 1 hang on this one
    path.write_bytes(damaged)
    assert "of record.jsonl are damaged and left out" in str(storage.repair(sweep.folder))
    assert list(read_record(sweep.folder).trials) == ["00000"]
    assert (sweep.folder / "record.jsonl.bad-1").read_bytes() == damaged
    assert storage.repair(sweep.folder) is None
