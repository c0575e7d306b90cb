"""Commands to a sweep that runs: a file that any process appends to, and its driver reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.recording import Sweep
from tunelight.errors import StorageError
from tunelight.record import CommandReader, Owner, read_record, send
from tunelight.record.names import COMMANDS_FILE


def test_a_driver_reads_what_is_for_it_once_and_in_order_whatever_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, me = Owner(1, "old", 7), Owner(2, "node-1", 8)
    send(tmp_path, "stop", driver=before)
    reader = CommandReader(tmp_path, me)
    assert reader.news() == []
    with monkeypatch.context() as patch:
        patch.setattr("tunelight.record.commands.time.time", lambda: -600.0)  # the sender's clock is behind
        first, second = send(tmp_path, "stop", "00003", driver=me), send(tmp_path, "set", driver=me, max_concurrent=2)
    found = reader.news()
    assert [(one.id, one.do, one.trial, one.arguments) for one in found] == [
        (first, "stop", "00003", {}),
        (second, "set", None, {"max_concurrent": 2}),
    ]
    assert reader.news() == []


def test_a_line_that_is_being_written_is_read_when_it_is_whole_and_what_is_no_command_is_left_out(
    tmp_path: Path,
) -> None:
    reader = CommandReader(tmp_path)
    line = json.dumps({"id": "a", "do": "pause", "trial": None, "arguments": {}})
    path = tmp_path / COMMANDS_FILE
    path.write_text(f'not json\n[1]\n{{"do": 3}}\n{line[:9]}')
    assert reader.news() == []
    path.write_text(f'not json\n[1]\n{{"do": 3}}\n{line}\n')
    assert [one.id for one in reader.news()] == ["a"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / COMMANDS_FILE).mkdir()
    with pytest.raises(StorageError, match="The sweep was told nothing"):
        send(tmp_path, "stop")


def test_answers_are_in_the_record_and_a_paused_sweep_is_until_it_goes_on(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, num_samples=4)
    reader = CommandReader(tmp_path)
    pause, more, refused, on = (
        send(tmp_path, "pause"), send(tmp_path, "set", num_samples=9), send(tmp_path, "stop", "7"),
        send(tmp_path, "resume"),
    )  # fmt: skip
    states = []
    for command in reader.news():
        ok, total = command.id != refused, 9 if command.id == more else None
        sweep.callback.answer(command, f"{command.do}: at s3://me:secret@b", ok=ok, num_samples=total)
        states.append((sweep.state.paused, sweep.state.sweep["num_samples"]))
    assert states == [(True, 4), (True, 9), (True, 9), (False, 9)]
    read = read_record(tmp_path)
    assert read.answers == sweep.state.answers
    assert read.answers[refused][0] is False
    assert "secret" not in read.answers[pause][1]
    assert [text.partition(":")[0] for _, text in read.notes] == ["pause", "set", "resume"]
    assert set(read.answers) == {pause, more, refused, on}
    sweep.callback.close()


WRITE = """
import sys
from tunelight.record import send
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    send(sys.argv[1], "stop", f"{sys.argv[2]}{number} {'x' * 500}")
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WRITE, str(tmp_path)]
    pipe = subprocess.PIPE
    writers = [subprocess.Popen([*words, name], text=True, stdin=pipe, stdout=pipe) for name in "ab"]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    found = [str(command.trial).split()[0] for command in CommandReader(tmp_path).news()]
    assert sorted(found) == sorted(f"{name}{number}" for name in "ab" for number in range(50))
