"""What a sweep was run with: command line without secrets, the state of the code, by trial."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kit.recording import Sweep
from tunelight import record as storage
from tunelight.record.provenance import git_state
from tunelight.results import SweepResults
from tunelight.stores.masking import masked_command


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["tunelight", "run", "a.yaml", "--set", "model.lr=1"], ["tunelight", "run", "a.yaml", "--set", "model.lr=1"]),
        (["x", "--set", "data.api_key=abc"], ["x", "--set", "data.api_key=***"]),
        (["x", "--set=data.api_key=a=b"], ["x", "--set=data.api_key=***"]),
        (["x", "--password", "abc", "more"], ["x", "--password", "***", "more"]),
        (["x", "--hf-token=abc"], ["x", "--hf-token=***"]),
        (["x", "postgresql://me:abc@host/db"], ["x", "postgresql://me:***@host/db"]),
        (["x", "--tokens", "5"], ["x", "--tokens", "5"]),
    ],
)
def test_secrets_of_a_command_line_are_masked(command, shown):
    assert masked_command(command) == shown


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


def test_git_s_commit_and_whether_files_differ_from_it(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    clean = git_state(tmp_path)
    assert clean is not None
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {**clean, "dirty": True}


def test_without_git_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None


def test_nothing_of_the_environment_is_kept(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    found = storage.provenance("space.yaml")
    assert "very-secret-value" not in str(found)
    assert set(found) == {"versions", "run"}
    assert found["run"]["file"] == str(Path("space.yaml").absolute())


def test_a_trial_knows_the_runs_that_trained_it(tmp_path):
    first = Sweep(tmp_path, run={"command": ["one"]})
    done, cut = first.add(lr=1), first.add(lr=2)
    for trial in (done, cut):
        first.start(trial)
        first.report(trial, 1, 0.5)
    first.end_by_itself(done)
    first.end()
    second = Sweep(tmp_path, run={"command": ["two"]})
    second.trials = [done, cut]
    second.start(cut)
    second.end()
    trials = SweepResults.load(tmp_path).trials
    assert [[run["command"] for run in trial.runs] for trial in trials] == [[["one"]], [["one"], ["two"]]]
