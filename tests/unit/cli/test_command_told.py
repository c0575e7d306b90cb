"""The command line says what is wrong, to people and to programs, and prints what its reader's terminal holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_command import call, failing
from tests.unit.results.test_results import Writer
from tunelight.cli.app import BAD_INPUT
from tunelight.record import locked


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Work in an empty folder, in whose tunelight_runs a sweep of one trial is recorded; return that."""
    monkeypatch.chdir(tmp_path)
    Path("tunelight_runs").mkdir()
    written = Writer(tmp_path / "tunelight_runs")
    written.trial(0.9, 0.2, 0.6)
    written.record.append("end", reason="finished")
    return written.load().folder


@pytest.mark.parametrize("words", [["show"], ["ls", "--jason"], ["shwo", "last"], ["show", "last", "--top", "two"]])
def test_a_program_gets_a_wrong_command_line_as_json_too(words):
    done = call(*words, "--json", code=BAD_INPUT)
    assert json.loads(done.stdout)["error"]["message"] in " ".join(done.stderr.split())


def test_what_the_system_refuses_is_told(monkeypatch):
    monkeypatch.setattr("tunelight.record.list_sweeps", failing(PermissionError(13, "Permission denied", "runs")))
    done = call("ls", "--json", code=BAD_INPUT)
    assert "Permission denied: 'runs'" in done.stderr
    assert "Permission denied: 'runs'" in json.loads(done.stdout)["error"]["message"]


def test_an_output_that_is_full_is_told():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tunelight", "ls", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == BAD_INPUT
    assert done.stderr.startswith("Error: [Errno 28] No space left on device")
    assert done.stderr.count("\n") == 1


def test_ls_and_show_tell_a_sweep_that_runs_from_one_that_was_cut_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = Writer(tmp_path)
    written.trial(0.5, state="RUNNING")
    assert "cut off" in call("ls", ".").output
    assert f"tunelight resume {written.folder.name}" in call("show", "digits").output
    assert json.loads(call("show", "digits", "--json").stdout)["running"] is False
    with locked(written.folder):
        assert json.loads(call("ls", ".", "--json").stdout)[0]["running"] is True
        assert "running" in call("ls", ".").output
        assert "cut off" not in call("show", "digits").output


@pytest.mark.parametrize("name", ["~nobody-is-called-so/runs", "a" * 300])
def test_a_sweep_that_no_path_can_name_is_an_unknown_one(runs, name):
    assert "There is no sweep" in call("show", name, code=BAD_INPUT).stderr
    assert "Traceback" not in call("ls", name, code=BAD_INPUT).output


def test_a_sweep_file_that_was_changed_is_told_and_hides_no_other_sweep(runs):
    told = runs / "sweep.yaml"
    told.write_text(told.read_text().replace("metric: loss", "metric: 3"))
    assert "has been changed: metric must be text" in call("show", "digits", code=BAD_INPUT).stderr
    assert "unreadable" in call("ls").output


@pytest.mark.parametrize("words", [["--format", "json"], ["--checkpoint"]])
def test_how_to_export_without_where_to_is_an_error(runs, words):
    assert "Give --export FILE" in call("best", "digits", *words, code=BAD_INPUT).stderr


def test_a_table_is_as_wide_as_its_reader(runs, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = call("show", "digits").output.splitlines()
    assert any("00000" in row and "FINISHED" in row and "lr=" in row for row in rows)
    monkeypatch.setenv("COLUMNS", "30")
    assert "trial: 00000\nstate: FINISHED\n" in call("show", "digits").output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scheduler: ahsa", "There is no scheduler 'ahsa'. Did you mean 'asha'?"),
        ("scheduler: {name: asha, grace_period: a}", "ASHA's grace_period must be"),
        ("searcher: tep", "There is no searcher 'tep'. Did you mean 'tpe'?"),
        ("runtime_env: {env_var: {A: b}}", "no 'env_var'. Did you mean 'env_vars'?"),
        ("runtime_env: {env_vars: 3}", "Ray does not take this runtime_env"),
        ("resources_per_trial: {cpus: 1}", "has no key 'cpus'. Did you mean 'cpu'?"),
        ("datasets: {train: {parquet: nowhere}}", "'train' is to be read from"),
    ],
)
def test_what_only_a_sweep_s_parts_can_judge_is_told_with_its_place(runs, line, message):
    rest = "model: tunelight.digits:DigitsClassifier\nmetric: a"
    Path("space.yaml").write_text(f"space: {{model.lr: 0.1}}\n{rest}\n{line}\n")
    told = call("check", "space.yaml", code=BAD_INPUT).stderr
    last = told.splitlines()[-1]  # a slow machine says before it what it is doing
    assert last.startswith("Error: space.yaml:4:1: ")
    assert message in last
