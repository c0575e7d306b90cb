"""The command line: what it imports, how it fails, and what it prints of recorded sweeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from typer.testing import CliRunner

from tests.kit.recording import ERROR, Writer
from tunelight.cli import app
from tunelight.cli.app import AGAIN, BAD_INPUT, FAILED, INTERRUPTED, OK
from tunelight.errors import GangError, HeadLostError, StorageError, TrialError
from tunelight.messages import WorkerError
from tunelight.record import leased

COMMANDS = [
    "init", "check", "run", "resume", "ls", "rm", "show", "best", "reproduce", "report", "serve", "plan",
    "tune-up", "stop", "enqueue", "branch", "set", "mcp",
]  # fmt: skip


PLAN = ["plan", "space.yaml", "--seconds-per-epoch", "10", "--cluster"]


def call(*words: object, code: int = OK) -> Any:
    """Run the command line, want its exit code, and return what it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.exit_code, done.output, done.exception)
    return done


def test_help_lists_the_commands_in_the_order_in_which_they_are_needed_and_each_has_an_example():
    text = call("--help").output
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    for name in COMMANDS:
        assert f"Example: tunelight {name}" in " ".join(call(name, "--help").output.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("no such sweep"), BAD_INPUT),
        (GangError("no worker came"), FAILED),
        (TrialError(WorkerError(1, "node", "ValueError", "no such lr", "line 7")), FAILED),
        (HeadLostError("the head was lost"), AGAIN),
        (KeyboardInterrupt(), INTERRUPTED),
        (PermissionError(13, "Permission denied", "runs"), BAD_INPUT),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(monkeypatch, error, code):
    monkeypatch.setattr("tunelight.record.list_sweeps", mock.Mock(side_effect=error))
    done = call("ls", code=code)
    said = str(error).removeprefix("[Errno 13] ") or "interrupted"
    assert said in done.stderr
    assert "Traceback" not in done.output
    if code == BAD_INPUT:
        assert said in json.loads(call("ls", "--json", code=code).stdout)["error"]["message"]


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch):
    monkeypatch.setattr("tunelight.record.list_sweeps", mock.Mock(side_effect=StorageError("no such sweep")))
    for words in (["--debug", "ls"], ["ls", "--debug"]):
        done = call(*words, code=BAD_INPUT)
        assert "Traceback" in done.stderr
        assert done.stderr.endswith("Error: no such sweep\n")


def test_what_follows_two_dashes_is_the_script_s_own(here):
    (here / "train.py").write_text("print('val_loss: 1')")
    words = ["check", "train.py", "--set", "metric=val_loss", "lr=0.1,0.2", "--", "--json", "--debug", "--debug"]
    assert "train.py --json --debug --debug --lr=0.1" in call(*words).stdout
    done = call("check", "missing.py", "--set", "metric=val_loss", "lr=0.1,0.2", "--", "--debug", code=BAD_INPUT)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "words",
    [
        ["rum"], ["show"], ["ls", "--jason"], ["plan", "space.yaml"], ["show", "last", "--top", "two"],
        ["show", "digitz"], ["show", "~nobody-is-called-so/runs"], ["show", "a" * 300], ["ls", "a" * 300],
    ],
)  # fmt: skip
def test_bad_input_is_told_to_people_and_to_programs(runs, words):
    done = call(*words, "--json", code=BAD_INPUT)
    assert json.loads(done.stdout)["error"]["message"] in " ".join(done.stderr.split())
    assert "Traceback" not in call(*words, code=BAD_INPUT).output


def test_an_output_that_is_full_is_told():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tunelight", "ls", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == BAD_INPUT
    assert done.stderr.startswith("Error: [Errno 28] No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_table_is_as_wide_as_its_reader(runs, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = call("show", "digits").output.splitlines()
    assert any("00000" in row and "FINISHED" in row and "lr=" in row for row in rows)
    monkeypatch.setenv("COLUMNS", "30")
    assert "trial: 00000\nstate: FINISHED\n" in call("show", "digits").output


def test_a_sweep_is_found_by_name_by_path_and_as_the_last_that_reproduces_no_trial(runs):
    again = runs.with_name("digits-trial-00000-20300101-000000")
    shutil.copytree(runs, again)
    (again / "sweep.yaml").write_text("reproduces: {sweep: digits, trial: '00000'}\n")
    os.utime(again / "record.jsonl", (4e9, 4e9))
    for name, folder in (("digits", runs), ("last", runs), ("tunelight_runs/digits", runs), (again.name, again)):
        assert json.loads(call("show", name, "--json").stdout)["folder"] == str(folder)


def test_an_unknown_sweep_is_an_error_that_lists_those_that_there_are(runs):
    assert "holds some: digits" in call("show", "tunelight_runs", code=BAD_INPUT).stderr
    assert "none at all in" in call("show", "x", "--storage", "elsewhere", code=BAD_INPUT).stderr
    assert "There are: digits; or say 'last'" in call("show", "nothing", code=BAD_INPUT).stderr
    assert "has no trial '99'. It has: 00000" in call("show", "last", 99, code=BAD_INPUT).stderr


def test_show_and_ls_tell_a_sweep_that_runs_from_one_that_was_cut_off(here):
    written = Writer(here)
    written.trial(float("nan"), 0.5, state="RUNNING")
    assert "cut off" in call("ls", ".").output
    assert f"tunelight resume {written.folder.name}" in call("show", "digits").output
    about = json.loads(call("show", "digits", "--json").stdout)
    assert (about["running"], about["states"]) == (False, {"INTERRUPTED": 1})
    assert about["trials"][0]["state"] == "INTERRUPTED"
    trial = json.loads(call("show", "digits", "0", "--json").stdout, parse_constant=pytest.fail)
    assert trial["history"][0]["loss"] is None  # JSON has no NaN
    with leased(written.folder):
        assert json.loads(call("show", "digits", "--json").stdout)["states"] == {"RUNNING": 1}
        assert json.loads(call("ls", ".", "--json").stdout)[0]["running"] is True
        assert "cut off" not in call("show", "digits").output


def test_a_sweep_file_that_was_changed_is_told_and_hides_no_other_sweep(runs):
    told = runs / "sweep.yaml"
    told.write_text(told.read_text().replace("metric: loss", "metric: 3"))
    assert "has been changed: metric must be text" in call("show", "digits", code=BAD_INPUT).stderr
    assert "unreadable" in call("ls").output


def test_show_prints_the_best_twenty_and_what_runs_and_all_others_when_asked(here):
    written = Writer(here)
    for loss in range(22):
        written.trial(0.1 * (22 - loss))
    written.trial(state="ERROR", error=ERROR)
    written.trial(9.0, state="RUNNING")

    def shown(*words: Any) -> list[str]:
        return re.findall(r"^. (\d{5}) ", call("show", "digits", *words).output, re.MULTILINE)

    best_first = [f"{number:05d}" for number in range(21, -1, -1)]
    with leased(written.folder):
        assert shown() == [*best_first[:20], "00023"]
        assert "\n21 of 24 trials; --all shows the others, too.\n" in call("show", "digits").output
        assert shown("--all") == [*best_first, "00023", "00022"]
        assert "--all shows" not in call("show", "digits", "--all").output
        assert shown("--top", 3) == best_first[:3]
        assert len(json.loads(call("show", "digits", "--json").stdout)["trials"]) == 24
    for words in (["--top", 3], ["0"], ["--follow"]):
        assert "leave out the trial, --top and" in call("show", "digits", *words, "--all", code=BAD_INPUT).stderr


def test_show_says_why_a_trial_was_stopped_and_what_its_workers_used(runs):
    why = "place 2 of 2 at rung 2; the best goes on"
    assert f"state       STOPPED\nreason      {why}\n" in call("show", "digits", "1").output
    trials = json.loads(call("show", "digits", "--json").stdout)["trials"]
    assert [trial["stop_reason"] for trial in trials] == [None, why, None]
    assert "reason  " not in call("show", "digits", "0").output


def test_export_takes_any_trial_and_format(runs):
    assert call("best", "digits", "1", "--export", "one.yaml").output.startswith("Trial 00001: loss=")
    assert yaml.safe_load(Path("one.yaml").read_text())["trial"] == "00001"
    said = call("best", "digits", "--export", "a", "--format", "jsn", code=BAD_INPUT).stderr
    assert "Did you mean 'json'?" in said
    assert ".sh, or say --format" in call("best", "digits", "--export", "best.txt", code=BAD_INPUT).stderr
    for words in (["--format", "json"], ["--checkpoint"]):
        assert "Give --export FILE" in call("best", "digits", *words, code=BAD_INPUT).stderr


def test_how_to_train_the_winner_names_a_program_only_where_there_is_one(here):
    written = Writer(here, model="tunelight.extras.digits:DigitsClassifier")
    written.trial(0.9, config={"model.lr": 0.1})
    said = call("best", "digits", "--export", "best.yaml").output
    assert said.endswith("Train it with a program that calls LightningCLI(Model, Data): ... fit --config best.yaml\n")
    Path("train.py").write_text("print('another program')")
    assert "python train.py" not in call("best", "digits", "--export", "best.yaml").output
    Path("train.py").write_text("LightningCLI(DigitsClassifier, DigitsData)")
    said = call("best", "digits", "--export", "best.yaml").output
    assert said.endswith("Wrote best.yaml (lightning-cli)\nTrain it: python train.py fit --config best.yaml\n")


def test_a_sweep_of_a_trainer_without_an_end_is_warned_about(space, caplog):
    call("check", space)
    call("check", space, "--set", "max_epochs=null", "--set", "trainer.max_steps=5")
    assert not caplog.text
    call("check", space, "--set", "max_epochs=null")
    assert "max_epochs is not set: a trial that is not stopped trains 1,000 epochs" in caplog.text


@pytest.mark.parametrize(
    ("repeats", "said"),
    [
        ("{top: 4, repeats: 3}", "Then the best 4 configurations are trained again, 3 times in all"),
        ("{folds: 5}", "configurations are trained again, on 5 folds"),
    ],
)
def test_check_says_what_is_trained_again(space, repeats, said):
    assert said in call("check", space, "--set", f"repeats={repeats}").output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scheduler: {name: asha, grace_period: a}", "ASHA's grace_period must be"),
        ("runtime_env: {env_var: {A: b}}", "no 'env_var'. Did you mean 'env_vars'?"),
        ("datasets: {train: {parquet: nowhere}}", "'train' is to be read from"),
    ],
)
def test_what_only_a_sweep_s_parts_can_judge_is_told_with_its_place(space, line, message):
    lines = f"space: {{model.lr: 0.1}}\nmodel: tunelight.extras.digits:DigitsClassifier\nmetric: a\n{line}\n"
    Path(space).write_text(lines)
    told = call("check", space, code=BAD_INPUT).stderr
    last = told.splitlines()[-1]  # a slow machine says before it what it is doing
    assert last.startswith("Error: space.yaml:4:1: ")
    assert message in last


def test_check_counts_the_cpus_that_ray_would(space, monkeypatch):
    monkeypatch.setattr("ray._private.utils.get_num_cpus", lambda **_: 1)  # as in a container with a quota
    said = call("check", space, "--workers", "2", code=BAD_INPUT).stderr
    assert "2 CPU (there are 1)" in said
    assert "can never hold it" in said


def test_set_fixes_keys_changes_settings_and_adds_arguments_of_the_trainer(space):
    words = ["model.lr=1e-3", "trainer.gradient_clip_val=0.5", "mode=max", "metric=val_acc"]
    found = json.loads(call("check", space, "--json", *(part for word in words for part in ("--set", word))).stdout)
    assert (found["metric"], found["mode"]) == ("val_acc", "max")
    for sample in found["samples"]:
        assert sample["model.lr"] == 0.001
        assert sample["model.hidden"] in (32, 64)
        assert sample["trainer.gradient_clip_val"] == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "space.yaml", "--set", "model.lr=[1"], "not valid YAML"),
        (["check", "space.yaml", "--set", "model.depth=3"], "takes no argument 'depth'"),
        (["check", "space.yaml", "--set", "optimizer.lr=3"], "The search space has no key 'optimizer.lr'"),
        (["check", "space.yaml", "--set", "model.lr={loguniform: [1e-3, 1]}"], "fixes a key to one value"),
        (["run", "space.yaml", "--num-samples", "2", "--set", "num_samples=3"], "--set and by --num-samples"),
        (["rnu", "space.yaml"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "space.yaml", "--num-sample", "3"], "--num-samples"),
        (["run", "space.yaml", "--max-concurrent", "3"], "--set max_concurrent="),
        (["run", "spaec.yaml"], "Did you mean 'space.yaml'?"),
        (["run", "space.yaml", "--set", "model.lr"], "NAME=VALUE"),
        (["run", "space.yaml", "--workers", "two"], "--workers takes a whole number"),
        (["run", "space.yaml", "-n", "0"], "--num-samples must be a whole number of 1 or more, not 0"),
        (["run", "space.yaml", "--resume"], "--resume is given without --name"),
        (["resume", "nothing"], "There is no sweep"),
        (["report", "one", "another"], "A report is of one sweep"),
        (["extend", "nothing"], "No such command 'extend'. Use: tunelight resume SWEEP --num-samples N"),
        ([*PLAN, "4"], "cluster"),
        ([*PLAN, "1x8", "--set", "metric=a"], "A plan does not"),
        (["tune-up", "digits_mlp", "--try-workers", "1;2"], "--try-workers must be a whole number of 1 or more"),
        (["tune-up", "digits_mlp", "--write"], "--write needs a file of your own"),
        (["show", "nothing", "3", "--follow"], "--follow shows the sweep as it goes on"),
        (["show", "nothing", "--columns", "lr"], "Give --follow, too"),
        (["report", "nothing", "--format", "png"], "Give --figures all"),
    ],
)
def test_bad_input_is_told_before_anything_starts(space, words, message):
    done = call(*words, code=BAD_INPUT)
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_plan_takes_a_script_with_what_is_searched_and_its_arguments(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import argparse")
    words = ["plan", str(script), "lr=loguniform(1e-4, 0.1)", *PLAN[2:], "1x8", "-n", "8", "--max-epochs", "4"]
    found = json.loads(call(*words, "--json", "--", "--epochs", "4").stdout)
    assert found["num_samples"] == 8
    assert found["verdict"] in " ".join(call(*words).output.split())
    call(*words, "--deadline", "1s", code=FAILED)
    assert "nothing to search" in call("plan", str(script), *PLAN[2:], "1x8", code=BAD_INPUT).stderr


def test_show_follows_a_sweep_in_its_folder(runs, monkeypatch):
    from tunelight import reporting

    seen: list[Any] = []
    monkeypatch.setattr(reporting, "watch", lambda folder, columns: seen.append((folder, columns)), raising=False)
    call("show", "last", "--follow")
    call("show", "last", "--follow", "--columns", "lr, val_acc")
    assert seen == [(runs, None), (runs, ["lr", "val_acc"])]


def test_report_writes_figures_instead(runs):
    assert call("report", "last", "--figures", "history, importances").output == (
        "Wrote plots/history.html\nWrote plots/importances.html\n"
    )
    found = json.loads(call("report", "last", "--figures", "all", "-o", "x", "--format", "json", "--json").stdout)
    assert all(Path(path).exists() for path in found["figures"])
    for words, message in (
        (["histor"], "There is no figure 'histor'"), (["all", "--format", "gif"], "There is no format 'gif'"),
    ):  # fmt: skip
        assert message in call("report", "last", "--figures", *words, code=BAD_INPUT).stderr
    assert not (runs / "report.html").exists()
