"""ls: which sweeps it lists, and in what order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kit.recording import Writer
from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT
from tunelight.record import leased

# name, trials' losses, how it ended, metric's mode; the last is the newest
SWEEPS: tuple[tuple[str, list[float], str | None, str], ...] = (
    ("digits-b", [0.5, 0.4], "finished", "min"),
    ("digits-a", [0.1], "interrupted", "min"),
    ("other", [], "gave up", "min"),
    ("accuracy", [0.7, 0.8, 0.6], "time budget", "max"),
    ("cut", [0.3], None, "min"),
)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Work in an empty folder, whose tunelight_runs holds the SWEEPS; return that."""
    monkeypatch.chdir(tmp_path)
    storage = tmp_path / "tunelight_runs"
    storage.mkdir()
    for number, (name, losses, ended, mode) in enumerate(SWEEPS, start=1):
        written = Writer(storage, **({"metric": "acc", "mode": "max"} if mode == "max" else {}))
        for loss in losses:
            written.trial(loss)
        if ended is not None:
            written.record.append("end", reason=ended)
        folder = written.load().folder.rename(storage / name)
        os.utime(folder / "record.jsonl", (number, number))
    return storage


def listed(*words: str) -> list[str]:
    return [row["sweep"] for row in json.loads(call("ls", *words, "--json").stdout)]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("time", ["cut", "accuracy", "other", "digits-a", "digits-b"]),
        ("name", ["accuracy", "cut", "digits-a", "digits-b", "other"]),
        ("best", ["accuracy", "digits-a", "cut", "digits-b", "other"]),
        ("trials", ["accuracy", "digits-b", "cut", "digits-a", "other"]),
    ],
)
def test_sort(runs, order, names):
    assert listed("--sort", order) == names
    assert set(listed("--sort", order, "--reverse")) == set(names)
    if order == "best":  # what has no best value comes last either way
        assert listed("--sort", order, "--reverse") == ["digits-b", "cut", "digits-a", "accuracy", "other"]
    if order in ("time", "name"):
        assert listed("--sort", order, "--reverse") == names[::-1]


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("finished", ["digits-b"]),
        ("interrupted", ["digits-a"]),
        ("gave-up", ["other"]),
        ("time-budget", ["accuracy"]),
        ("cut-off", ["cut"]),
        ("running", []),
        ("unreadable", ["broken"]),
    ],
)
def test_state(runs, state, names):
    (runs / "broken").mkdir()
    (runs / "broken" / "record.jsonl").write_bytes(b"junk\nmore\n")
    assert listed("--state", state) == names


def test_a_running_sweep_is_listed_as_such(runs):
    with leased(runs / "cut"):
        assert listed("--state", "running") == ["cut"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["digits-*"], ["digits-a", "digits-b"]),
        (["{runs}/d*-a"], ["digits-a"]),
        (["tunelight_runs/digits-?"], ["digits-a", "digits-b"]),
        (["other"], ["other"]),
        (["*u*", "--storage", "tunelight_runs", "--sort", "name"], ["accuracy", "cut"]),
        (["tunelight_runs", "--state", "finished"], ["digits-b"]),
    ],
)
def test_an_argument_is_a_folder_or_a_pattern_of_names(runs, words, names):
    assert listed(*(word.format(runs=runs) for word in words)) == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sort", "nam"], "There is no order 'nam'. Did you mean 'name'?"),
        (["--state", "finnished"], "Did you mean 'finished'?"),
        (["nothing-*"], "No sweep in tunelight_runs has a name like 'nothing-*'. There are: cut,"),
        (["nothing"], "no sweep in tunelight_runs has such a name"),
        (["gone/x"], "There is no folder gone/x"),
        (["gone/x*"], "There is no folder gone."),
        (["--storage", "gone"], "There is no folder gone."),
    ],
)
def test_what_cannot_be_listed_is_told(runs, words, message):
    assert message in call("ls", *words, code=BAD_INPUT).stderr


def test_a_choice_that_fits_no_sweep_is_no_error(runs):
    assert "None of 5 sweeps in tunelight_runs is such a one" in call("ls", "--state", "running").output
    Path("empty").mkdir()
    assert "No sweeps in empty" in call("ls", "empty").output
