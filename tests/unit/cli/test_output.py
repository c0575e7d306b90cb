"""What commands print with --json is what docs/output.schema.json says."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # its stubs are a package of their own
import pytest
import typer

from tests import docs
from tests.kit import sweeps
from tests.unit.cli.test_command import call
from tunelight.cli import app
from tunelight.cli.inspect import events
from tunelight.cli.printing import print_answer
from tunelight.record import Record

SCHEMA = json.loads(docs.read("docs/output.schema.json"))


@cache
def validator(name: str) -> Any:
    schema = {**SCHEMA["properties"][name], "$defs": SCHEMA["$defs"]}
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def check(name: str, printed: Any) -> None:
    validator(name).validate(printed)


def printed(*words: str, code: int = 0) -> Any:
    return json.loads(call(*words, "--json", code=code).stdout)


def test_every_command_that_takes_json_is_in_the_schema():
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    taking = {name for name, each in group.commands.items() if any("--json" in param.opts for param in each.params)}
    assert taking == {name.partition(" ")[0] for name in SCHEMA["properties"]} - {"error"}
    assert group.commands.keys() - taking == {"mcp"}, "it prints the protocol"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", ["ls"]), ("show", ["show", "last"]), ("show", ["show", "last", "--top", "2"]),
        ("show", ["show", "last", "0"]),
        ("show", ["show", "last", "2"]), ("best", ["best", "last"]),
        ("best", ["best", "last", "--export", "best.yaml"]),
        ("report", ["report", "last", "--out", "report.html"]), ("report", ["report", "last", "--study", "study.log"]),
        ("report", ["report", "last", "--figures", "history", "--format", "json"]),
        ("rm", ["rm", "last", "--yes"]), ("init", ["init", "new"]), ("down", ["down"]),
    ],
)  # fmt: skip
def test_commands_on_a_recorded_sweep(runs, name, words):
    check(name, printed(*words))


def test_a_sweep_of_every_way_to_end_followed_to_its_end_and_one_that_cannot_be_read(here):
    sweeps.record(here / "tunelight_runs" / "s")
    Path("tunelight_runs/broken").mkdir()
    Path("tunelight_runs/broken/record.jsonl").write_text("nothing\nnothing\n")
    listed = printed("ls")
    check("ls", listed)
    assert {row["state"] for row in listed} == {"finished", "unreadable"}
    shown = printed("show", "s")
    check("show", shown)
    for trial in shown["trials"]:
        check("show", printed("show", "s", trial["trial"]))
    lines = [json.loads(line) for line in call("show", "s", "--follow", "--json").stdout.splitlines()]
    for line in lines:
        check("show --follow", line)
    assert {"sweep", "trial", "state", "report", "note", "end"} <= {line["type"] for line in lines}
    assert [line["type"] for line in lines].index("end") == len(lines) - 1
    assert lines[-1]["reason"] == "finished"


def test_check_and_plan(space):
    check("check", printed("check", space))
    check("plan", printed("plan", space, "--cluster", "2x4", "--seconds-per-epoch", "10", "--deadline", "8h"))


def test_an_error_and_an_answer(runs, capsys):
    check("error", printed("show", "nothing", code=2))
    check("error", printed("stop", "last", code=2))
    print_answer("stopped", "s", as_json=True)
    check("stop", json.loads(capsys.readouterr().out))


def test_what_is_written_while_a_sweep_is_followed_comes_at_once(sweep, tmp_path):
    trial = sweep.add(lr=0.1)
    sweep.step()

    def write(_: float) -> None:
        sweep.start(trial)
        sweep.report(trial, 1, float("nan"))
        sweep.end()

    seen = list(events(tmp_path, sleep=write))
    assert [event["type"] for event in seen] == ["sweep", "trial", "state", "report", "state", "end"]
    assert seen[3]["value"] is None


def test_a_resumed_sweep_has_one_end(tmp_path):
    sweeps.record(tmp_path / "s")
    record = Record.open(tmp_path / "s")
    record.append("sweep", sweep={"metric": "loss", "mode": "min"})
    record.append("end", reason="stopped")
    record.close()
    assert [event["reason"] for event in events(tmp_path / "s") if event["type"] == "end"] == ["stopped"]


def test_a_reader_that_leaves_ends_it_without_a_word(tmp_path):
    sweeps.record(tmp_path / "tunelight_runs" / "s", trials=300)
    words = [sys.executable, "-m", "tunelight", "show", "s", "--follow", "--json"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["type"] == "sweep"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
