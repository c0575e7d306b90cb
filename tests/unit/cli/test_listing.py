"""ls and rm: which sweeps are listed, and which deleted, asked for and refused."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.recording import ERROR, Writer
from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT, INTERRUPTED, OK
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
def runs(here):
    """Work in an empty folder, whose tunelight_runs holds the SWEEPS; return that."""
    storage = here / "tunelight_runs"
    for number, (name, losses, ended, mode) in enumerate(SWEEPS, start=1):
        written = Writer(storage, **({"metric": "acc", "mode": "max"} if mode == "max" else {}))
        for loss in losses:
            written.trial(loss)
        if ended is not None:
            written.record.append("end", reason=ended)
        folder = written.load().folder.rename(storage / name)
        os.utime(folder / "record.jsonl", (number, number))
    return storage


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", "cut accuracy other digits-a digits-b"),
        ("--state finished", "digits-b"),
        ("--state interrupted", "digits-a"),
        ("--state gave-up", "other"),
        ("--state time-budget", "accuracy"),
        ("--state cut-off", "cut"),
        ("--state running", ""),
        ("--state unreadable", "broken"),
        ("digits-*", "digits-a digits-b"),
        ("{runs}/d*-a", "digits-a"),
        ("tunelight_runs/digits-?", "digits-a digits-b"),
        ("other", "other"),
        ("*u* --storage tunelight_runs", "cut accuracy"),
        ("tunelight_runs --state finished", "digits-b"),
    ],
)
def test_sweeps_are_sorted_and_chosen_by_state_folder_or_a_pattern_of_names(runs, words, names):
    if "unreadable" in words:
        (runs / "broken").mkdir()
        (runs / "broken" / "record.jsonl").write_bytes(b"junk\nmore\n")
    listed = json.loads(call("ls", *words.format(runs=runs).split(), "--json").stdout)
    assert [row["sweep"] for row in listed] == names.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
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


def six_trials(storage: Path, name: str, **told: object) -> Path:
    """Record a sweep of six trials with a checkpoint each: the second is best, two are cut off, one failed."""
    written = Writer(storage, **told)
    for loss, state in (
        (0.5, "FINISHED"), (0.2, "STOPPED"), (0.1, "ERROR"), (0.9, "INTERRUPTED"), (0.8, "RUNNING"), (0.7, "STOPPED"),
    ):  # fmt: skip
        trial = written.trial(loss, state=state, error=ERROR if state == "ERROR" else None)
        written.checkpoint(trial, 1, loss).write_bytes(b"x" * 1000)
    folder = written.load().folder
    return folder.rename(folder.with_name(name))


@pytest.fixture
def two_sweeps(here):
    """Work in an empty folder, whose tunelight_runs holds the sweeps a and b, b the later; return that."""
    storage = here / "tunelight_runs"
    for number, name in enumerate("ab", start=1):
        os.utime(six_trials(storage, name) / "record.jsonl", (number, number))
    return storage


def in_terminal(*words: str, answer: str) -> tuple[int, str]:
    """Run the command line in a terminal whose user types ``answer``; return its exit code and what it showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tunelight", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]: " not in shown and (chunk := os.read(ours, 4096)):
            shown += chunk
        os.write(ours, answer.encode())
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # the other side was closed
            pass
        code = process.wait(60)
    os.close(ours)
    return code, shown.decode()


@pytest.mark.parametrize(
    ("answer", "code", "said", "left"),
    [
        ("y\n", OK, "Deleted sweep b", ["a"]), ("\n", OK, "Kept sweep b.", ["a", "b"]),
        ("\x04", INTERRUPTED, "interrupted", ["a", "b"]),
    ],
)  # fmt: skip
def test_rm_asks_and_deletes_what_one_agrees_to(two_sweeps, answer, code, said, left):
    ended, shown = in_terminal("rm", "last", answer=answer)
    assert ended == code
    assert "Delete sweep b (6 trials, " in shown
    assert " kB)? [y/N]: " in shown
    assert said in shown
    assert sorted(path.name for path in two_sweeps.iterdir()) == left


def test_rm_takes_several_and_deletes_none_if_one_cannot_be(two_sweeps):
    assert "There is no sweep 'c'" in call("rm", "a", "c", "--yes", code=BAD_INPUT).stderr
    with leased(two_sweeps / "b"):
        done = call("rm", "a", "b", "--yes", code=BAD_INPUT)
    assert f"b is running: process {os.getpid()} on " in done.stderr
    assert "When that has ended, the sweep can be deleted." in done.stderr
    assert sorted(path.name for path in two_sweeps.iterdir()) == ["a", "b"]
    done = json.loads(call("rm", "a", "b", "tunelight_runs/a", "--yes", "--json").stdout)
    assert [(one["sweep"], one["deleted"]) for one in done] == [("a", True), ("b", True)]
    assert all(one["bytes"] > 6000 for one in done)
    assert list(two_sweeps.iterdir()) == []


def test_a_sweep_that_is_named_through_a_folder_in_it_is_deleted_whole(two_sweeps):
    assert "Give --yes" in call("rm", "a", code=BAD_INPUT).stderr  # where no terminal could ask
    call("rm", "tunelight_runs/a/trial_00000/..", "a", "--yes")
    assert [path.name for path in two_sweeps.iterdir()] == ["b"]
