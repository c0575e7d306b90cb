"""The command line: what it imports, how it fails, and what it prints of recorded sweeps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.results.test_results import ERROR, Writer
from tunelight.cli import app
from tunelight.cli.app import BAD_INPUT, FAILED, INTERRUPTED, OK
from tunelight.errors import GangError, StorageError
from tunelight.record import Record

COMMANDS = [
    "init", "check", "run", "resume", "ls", "show", "note", "rm", "best", "reproduce", "report", "serve", "plan",
    "doctor", "stop", "pause", "enqueue", "set", "up", "down",
]  # fmt: skip
SPACE = """\
space:
  model.lr: {loguniform: [1e-4, 1e-1]}
  model.hidden: {choice: [32, 64]}
model: tunelight.digits:DigitsClassifier
data: tunelight.digits:DigitsData
metric: val_loss
num_samples: 3
max_epochs: 2
"""


def call(*words: object, code: int = OK) -> Any:
    """Run the command line, want its exit code, and return what it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.exit_code, done.output, done.exception)
    return done


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Work in an empty folder, in whose tunelight_runs a sweep of three trials is recorded; return that."""
    monkeypatch.chdir(tmp_path)
    Path("tunelight_runs").mkdir()
    written = Writer(tmp_path / "tunelight_runs", seed=7)
    written.trial(0.9, 0.2, 0.6)
    written.trial(0.5, 0.4, state="STOPPED", why="place 2 of 2 at rung 2; the best goes on")
    written.trial(0.8, state="ERROR", error=ERROR)
    written.record.append("end", reason="finished")
    return written.load().folder


# The frame


def test_help_lists_the_commands_in_the_order_in_which_they_are_needed():
    text = call("--help").output
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_s_help_ends_with_an_example(name):
    assert f"Example: tunelight {name}" in " ".join(call(name, "--help").output.split())


def test_importing_the_command_line_imports_nothing_heavy():
    look = (
        "import sys, tunelight.cli\n"
        "heavy = 'ray torch pytorch_lightning numpy pandas yaml rich plotly optuna cloudpickle tensorboard pydantic'\n"
        "print(*sorted(set(heavy.split()) & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_the_module_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tunelight", "ls", "--json"],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60,
        env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def failing(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("no such sweep"), BAD_INPUT),
        (GangError("no worker came"), FAILED),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(monkeypatch, error, code):
    monkeypatch.setattr("tunelight.record.list_sweeps", failing(error))
    done = call("ls", code=code)
    assert (str(error) or "interrupted") in done.stderr
    assert "Traceback" not in done.output


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch):
    error = StorageError("no such sweep")
    monkeypatch.setattr("tunelight.record.list_sweeps", failing(error))
    for words in (["--debug", "ls"], ["ls", "--debug"]):
        done = call(*words, code=BAD_INPUT)
        assert "Traceback" in done.stderr
        assert done.stderr.endswith("Error: no such sweep\n")


def test_a_program_gets_its_error_as_json(runs):
    done = call("show", "digitz", "--json", code=BAD_INPUT)
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "StorageError"
    assert "Did you mean 'digits'?" in error["message"]


@pytest.mark.parametrize("words", [["rum"], ["show"], ["ls", "--jason"], ["plan", "space.yaml"]])
def test_what_is_no_command_line_exits_with_2(words):
    assert "Traceback" not in call(*words, code=BAD_INPUT).output


# Sweeps that there are


def test_ls_lists_sweeps_and_one_that_cannot_be_read(runs):
    broken = runs.parent / "broken"
    broken.mkdir()
    (broken / "record.jsonl").write_bytes(b"junk\nmore\n")
    found = {row["sweep"]: row for row in json.loads(call("ls", "--json").stdout)}
    assert found["digits"]["states"] == {"FINISHED": 1, "STOPPED": 1, "ERROR": 1}
    assert found["digits"]["best"]["value"] == 0.2
    assert "corrupt" in found["broken"]["error"]
    text = call("ls").output
    assert "unreadable" in text
    assert "finished" in text


def test_what_is_no_terminal_gets_whole_lines(runs, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a-name-for-which-eighty-columns-would-not-do-beside-all-that-else-is-said-of-it"
    runs.rename(runs.with_name(name))
    assert any(name in line and "finished" in line for line in call("ls").output.splitlines())


def test_ls_of_nothing_says_what_to_give(tmp_path):
    assert "No sweeps in" in call("ls", tmp_path).output
    assert "There is no folder" in call("ls", tmp_path / "gone", code=BAD_INPUT).stderr


@pytest.mark.parametrize("name", ["digits", "last", "tunelight_runs/digits"])
def test_a_sweep_is_found_by_name_by_path_and_as_the_last(runs, name):
    assert json.loads(call("show", name, "--json").stdout)["folder"] == str(runs)


def test_the_last_sweep_is_none_that_only_reproduces_a_trial_of_it(runs):
    again = runs.with_name("digits-trial-00000-20300101-000000")
    shutil.copytree(runs, again)
    (again / "sweep.yaml").write_text("reproduces: {sweep: digits, trial: '00000'}\n")
    os.utime(again / "record.jsonl", (4e9, 4e9))
    assert json.loads(call("show", "last", "--json").stdout)["folder"] == str(runs)
    assert json.loads(call("show", again.name, "--json").stdout)["folder"] == str(again)


def test_an_unknown_sweep_is_an_error_that_lists_those_that_there_are(runs):
    assert "There are: digits; or say 'last'" in call("show", "nothing", code=BAD_INPUT).stderr
    assert "holds some: digits" in call("show", "tunelight_runs", code=BAD_INPUT).stderr
    assert "none at all in" in call("show", "x", "--storage", "elsewhere", code=BAD_INPUT).stderr


def test_show_prints_all_trials_or_the_best(runs):
    text = call("show", "digits").output
    assert all(trial in text for trial in ("00000", "00001", "00002"))
    shown = json.loads(call("show", "digits", "--top", "2", "--json").stdout)["trials"]
    assert [trial["trial"] for trial in shown] == ["00000", "00001"]


@pytest.mark.parametrize("name", ["00002", "2", "trial_00002"])
def test_show_prints_one_trial_with_its_error(runs, name):
    text = call("show", "digits", name).output
    assert "rank 1 on a: ValueError: no such lr" in text
    about = json.loads(call("show", "digits", name, "--json").stdout)
    assert (about["state"], about["seed"], len(about["history"])) == ("ERROR", 2, 1)


def test_show_says_why_a_trial_was_stopped(runs):
    why = "place 2 of 2 at rung 2; the best goes on"
    assert f"state       STOPPED\nreason      {why}\n" in call("show", "digits", "1").output
    trials = json.loads(call("show", "digits", "--json").stdout)["trials"]
    assert [trial["stop_reason"] for trial in trials] == [None, why, None]
    assert "reason  " not in call("show", "digits", "0").output


def test_show_says_what_the_workers_of_a_trial_used(runs):
    assert "used" not in call("show", "digits", "0").output
    record = Record.open(runs)
    record.append("usage", trial="00000", peak=True, cpu=[1.84, 0.5], memory=[612, 1240])
    record.close()
    assert "used        peak memory of a worker 1.2 GB, CPUs used 1.8\n" in call("show", "digits", "0").output
    about = json.loads(call("show", "digits", "0", "--json").stdout)
    assert about["peak"] == {"cpu": 1.84, "memory": 1240}


def test_an_unknown_trial_is_an_error_that_lists_those_that_there_are(runs):
    assert "has no trial '9'" in call("show", "digits", "9", code=BAD_INPUT).stderr


def test_json_holds_no_nan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = Writer(tmp_path)
    written.trial(float("nan"), 0.5)
    written.record.close()
    about = json.loads(call("show", "digits", "0", "--json").stdout, parse_constant=pytest.fail)
    assert about["history"][0]["loss"] is None


def test_best_prints_and_exports(runs):
    text = call("best", "digits", "--export", "out/best.json").output
    assert "Trial 00000: loss=0.2" in text
    assert json.loads(Path("out/best.json").read_text())["config"] == {"lr": 1.0}


def test_best_of_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Writer(tmp_path).record.close()
    assert "No trial of" in call("best", "digits", code=BAD_INPUT).stderr


def test_export_takes_any_trial_and_format(runs):
    assert call("best", "digits", "1", "--export", "one.yaml").output.startswith("Trial 00001: loss=")
    assert yaml.safe_load(Path("one.yaml").read_text())["trial"] == "00001"
    done = call("best", "digits", "--export", "a.yaml", "--format", "hidra", code=BAD_INPUT)
    assert "Did you mean 'hydra'?" in done.stderr


def test_how_to_train_the_winner_names_a_program_only_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tunelight_runs").mkdir()
    written = Writer(tmp_path / "tunelight_runs", model="tunelight.digits:DigitsClassifier")
    written.trial(0.9, config={"model.lr": 0.1})
    said = call("best", "digits", "--export", "best.yaml").output
    assert said.endswith("Train it with a program that calls LightningCLI(Model, Data): ... fit --config best.yaml\n")
    Path("train.py").write_text("print('another program')")
    assert "python train.py" not in call("best", "digits", "--export", "best.yaml").output
    Path("train.py").write_text("LightningCLI(DigitsClassifier, DigitsData)")
    said = call("best", "digits", "--export", "best.yaml").output
    assert said.endswith("Wrote best.yaml (lightning-cli)\nTrain it: python train.py fit --config best.yaml\n")


# Files


@pytest.fixture
def space(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    Path("space.yaml").write_text(SPACE)
    return "space.yaml"


def test_check_shows_space_samples_and_gang(space):
    text = call("check", space).output
    assert "loguniform" in text
    assert "3 trials, judged by val_loss (min), each on 1 worker x 1 CPU, coordinator 0 CPU" in text
    found = json.loads(call("check", space, "--json").stdout)
    assert len(found["samples"]) == 5
    assert all(sample["model.hidden"] in (32, 64) for sample in found["samples"])


def test_a_sweep_of_a_trainer_without_an_end_is_warned_about(space, caplog):
    call("check", space)
    call("check", space, "--set", "max_epochs=null", "--set", "trainer.max_steps=5")
    assert not caplog.text
    call("check", space, "--set", "max_epochs=null")
    assert "max_epochs is not set: a trial that is not stopped trains 1,000 epochs" in caplog.text


def test_check_says_what_is_trained_again(space):
    assert (
        "Then the best 4 configurations are trained again, 3 times in all"
        in call("check", space, "--set", "repeats={top: 4, repeats: 3}").output
    )
    assert "configurations are trained again, on 5 folds" in call("check", space, "--set", "repeats={folds: 5}").output
    assert "trained again" not in call("check", space).output
    assert "must be a whole number of 2 or more" in call("check", space, "--set", "repeats=1", code=BAD_INPUT).stderr


def test_check_counts_the_cpus_that_ray_would(space, monkeypatch):
    monkeypatch.setattr("ray._private.utils.get_num_cpus", lambda **_: 1)  # as in a container with a quota
    assert "2 CPU (there are 1)" in call("check", space, "--workers", "2", code=BAD_INPUT).stderr


def test_check_refuses_a_gang_that_never_fits(space):
    assert "can never hold it" in call("check", space, "--workers", "4096", code=BAD_INPUT).stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model.lr", "--set takes NAME=VALUE"),
        ("model.lr=[1", "not valid YAML"),
        ("metrik=val_acc", "Did you mean 'metric'?"),
        ("workers=0", "workers must be a whole number"),
        ("model.depth=3", "takes no argument 'depth'"),
        ("optimizer.lr=3", "The search space has no key 'optimizer.lr'"),
        ("model.lr={loguniform: [1e-3, 1]}", "fixes a key to one value"),
    ],
)
def test_a_wrong_set_is_told(space, line, message):
    assert message in call("check", space, "--set", line, code=BAD_INPUT).stderr


def test_set_fixes_keys_changes_settings_and_adds_arguments_of_the_trainer(space):
    words = [
        "model.lr=1e-3", "trainer.gradient_clip_val=0.5", "mode=max", "metric=val_acc",
    ]  # fmt: skip
    found = json.loads(call("check", space, "--json", *(part for word in words for part in ("--set", word))).stdout)
    assert (found["metric"], found["mode"]) == ("val_acc", "max")
    for sample in found["samples"]:
        assert sample["model.lr"] == 0.001
        assert sample["model.hidden"] in (32, 64)
        assert sample["trainer.gradient_clip_val"] == 0.5


def test_a_setting_that_is_given_twice_is_an_error(space):
    done = call("run", space, "--num-samples", "2", "--set", "num_samples=3", code=BAD_INPUT)
    assert "--set and by --num-samples" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing.yaml"], "nothing.yaml"),
        (["run", "space.yaml", "--workers", "two"], "--workers takes a whole number"),
        (["run", "space.yaml", "--num-samples", "0"], "--num-samples must be a whole number"),
        (["run", "space.yaml", "--resume"], "without --name"),
        (["resume", "nothing"], "There is no sweep"),
        (["extend", "nothing"], "No such command 'extend'. Use: tunelight resume SWEEP --num-samples N"),
        (["reproduce", "nothing", "3"], "There is no sweep"),
        (
            ["plan", "space.yaml", "--cluster", "1x8", "--seconds-per-epoch", "9", "--curves", "nothing"],
            "Recorded tasks are: ",
        ),
        (["plan", "space.yaml", "--cluster", "4", "--seconds-per-epoch", "9"], "cluster"),
        (
            ["plan", "space.yaml", "--cluster", "1x8", "--seconds-per-epoch", "9", "--set", "metric=a"],
            "A plan does not",
        ),
        (["show", "nothing", "--follow"], "There is no sweep"),
        (["show", "nothing", "3", "--follow"], "--follow shows a live table"),
        (["show", "nothing", "--columns", "lr"], "Give --follow, too"),
        (["report", "nothing", "--format", "png"], "Give --figures all"),
    ],
)
def test_bad_input_is_told_before_anything_starts(space, words, message):
    done = call(*words, code=BAD_INPUT)
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_plan_prints_what_a_sweep_would_take(space):
    words = ["plan", space, "--cluster", "1x8", "--seconds-per-epoch", "10", "-n", "8"]
    found = json.loads(call(*words, "--json").stdout)
    assert found["num_samples"] == 8
    assert found["verdict"] in " ".join(call(*words).output.split())
    call(*words, "--deadline", "1s", code=FAILED)


def test_plan_takes_the_curves_of_a_recorded_task_or_a_sweep(space, runs):
    from tunelight.simulation import tasks

    words = ["plan", space, "--cluster", "1x8", "--seconds-per-epoch", "10", "-n", "8", "--json"]
    found = [json.loads(call(*words, "--curves", curves).stdout) for curves in (tasks()[0], "digits")]
    assert [one["num_samples"] for one in found] == [8, 8]


# What other rooms draw


def test_show_follows_a_sweep_in_its_folder(runs, monkeypatch):
    from tunelight import reporting

    seen: list[Any] = []
    monkeypatch.setattr(reporting, "watch", lambda folder, columns: seen.append((folder, columns)), raising=False)
    call("show", "last", "--follow")
    call("show", "last", "--follow", "--columns", "lr, val_acc")
    assert seen == [(runs, None), (runs, ["lr", "val_acc"])]


def test_report_goes_into_the_sweep_s_folder_unless_told(runs, monkeypatch):
    from tunelight import reporting

    def draw(results: Any, path: Path) -> Path:
        path.write_text(results.name)
        return path

    monkeypatch.setattr(reporting, "report", draw, raising=False)
    call("report", "last")
    assert (runs / "report.html").read_text() == "digits"
    assert json.loads(call("report", "last", "-o", "here.html", "--json").stdout) == {"report": "here.html"}


def test_report_writes_figures_instead(runs):
    assert call("report", "last", "--figures", "history, importances").output == (
        "Wrote plots/history.html\nWrote plots/importances.html\n"
    )
    found = json.loads(call("report", "last", "--figures", "all", "-o", "x", "--format", "json", "--json").stdout)
    assert all(Path(path).exists() for path in found["figures"])
    assert "There is no figure 'histor'" in call("report", "last", "--figures", "histor", code=BAD_INPUT).stderr
    assert (
        "There is no format 'gif'"
        in call("report", "last", "--figures", "all", "--format", "gif", code=BAD_INPUT).stderr
    )
    assert not (runs / "report.html").exists()


def test_report_writes_a_study_instead(runs, tmp_path):
    import optuna

    address = f"sqlite:///{tmp_path}/studies.db"
    assert call("report", "last", "--study", address).output == f"Wrote 1 study to {address}\n"
    written = optuna.load_study(study_name="digits", storage=address)
    assert [trial.user_attrs["trial"] for trial in written.trials] == [
        f"{number:05d}" for number in range(len(written.trials))
    ]
    assert written.trials
    assert not (runs / "report.html").exists()
    found = json.loads(call("report", "last", "--study", str(tmp_path / "s.journal"), "--json").stdout)
    assert found == {"study": str(tmp_path / "s.journal"), "sweeps": ["digits"]}
    assert (tmp_path / "s.journal").exists()


def test_report_of_several_sweeps_goes_into_the_working_directory(runs, monkeypatch, tmp_path):
    from tests.unit.sweeps import record

    other = record(runs.parent / "other").folder
    monkeypatch.chdir(tmp_path)
    found = call("report", str(runs), str(other), "--json")
    assert json.loads(found.stdout) == {"report": str(tmp_path / "report.html")}
    assert "2 sweeps compared" in (tmp_path / "report.html").read_text()


def test_report_of_sweeps_with_other_metrics_is_refused_before_it_is_written(runs, monkeypatch, tmp_path):
    from tests.unit.recording import Sweep

    other = tmp_path / "other"
    other.mkdir()
    Sweep(other, metric="acc", mode="max").end()
    monkeypatch.chdir(tmp_path)
    found = call("report", str(runs), str(other), code=2)
    assert "other by 'acc' (max)" in found.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("name", "listed"), [("run", True), ("check", True), ("resume", False), ("show", False)])
def test_the_help_of_set_lists_every_setting(name, listed):
    from tunelight.settings import NAMES

    text = call(name, "--help").output
    assert [f"\n  {setting} " in text for setting in NAMES] == [listed] * len(NAMES)
