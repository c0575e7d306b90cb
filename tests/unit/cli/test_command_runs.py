"""What commands that run something hand on, and what they make of what came of it; Ray does not start here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.recording import ERROR, Writer
from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT, FAILED, INTERRUPTED, OK, SOME_FAILED
from tunelight.errors import SettingsError
from tunelight.extras.reproduce import compare
from tunelight.results import SweepResults

FILE = "space.yaml"


def swept(folder: Path, *losses: float, reason: str = "finished", failed: str = "", **told: Any) -> SweepResults:
    """Return the results of a sweep of one trial, failed where it reports nothing, that ended so.

    ``failed``: the states of further trials, with a space between.
    """
    written = Writer(folder, **told)
    written.trial(*losses, state="FINISHED" if losses else "ERROR", error=None if losses else ERROR)
    for state in failed.split():
        written.trial(state=state, error=ERROR)
    written.record.append("end", reason=reason)
    return written.load()


pytestmark = pytest.mark.usefixtures("space")


def taking(monkeypatch: pytest.MonkeyPatch, where: str, answer: Any) -> list[Any]:
    """Put a function that notes its arguments and returns ``answer`` where a command calls one that starts Ray."""
    take = mock.Mock(return_value=answer)
    monkeypatch.setattr(where, take)
    return take.call_args_list


@pytest.mark.parametrize(
    ("losses", "reason", "code"),
    [
        ((0.5,), "finished", OK),
        ((0.5,), "time budget", OK),
        ((), "finished", FAILED),
        ((0.5,), "interrupted", INTERRUPTED),
        ((0.5,), "stopped", OK),
    ],
)
def test_run_s_exit_code_says_how_the_sweep_went(tmp_path, monkeypatch, losses, reason, code):
    taking(monkeypatch, "tunelight.sweep.run.run", swept(tmp_path / "runs", *losses, reason=reason))
    said = call("run", FILE, "-q", code=code).output
    assert "Sweep digits: 1 trial " in said
    next_step = "To go on: tunelight resume" if reason in ("interrupted", "stopped") else "Next: tunelight show"
    assert f"\nIn runs/digits. {next_step} runs/digits\n" in said
    assert call("run", FILE, code=code).output.startswith("In runs/digits. ")  # its progress has said the rest
    about = json.loads(call("run", FILE, "--json", code=code).stdout)
    assert (about["ended"], about["best"] is not None) == (reason, bool(losses))


@pytest.mark.parametrize(
    ("failed", "told", "code"),
    [
        ("ERROR ERROR OOM", {}, SOME_FAILED),
        ("ERROR", {"failures": {"give_up_after": 3}, "reason": "stopped"}, SOME_FAILED),
        ("ERROR", {"metric": None}, SOME_FAILED),
        ("ERROR", {"failures": {"give_up_after": 0}}, OK),  # it was asked to tolerate them
        ("ERROR", {"reason": "interrupted"}, INTERRUPTED),
        ("OOM DIVERGED", {}, OK),  # that says something of the configurations
    ],
)
def test_failed_trials_are_in_the_exit_code_and_counted_in_the_last_line(tmp_path, monkeypatch, failed, told, code):
    results = swept(tmp_path / "runs", 0.5, failed=failed, **told)
    taking(monkeypatch, "tunelight.sweep.run.run", results)
    last = call("run", FILE, "-q", code=code).output.splitlines()[-1]
    if count := failed.split().count("ERROR"):
        assert last == f"{count} of {len(results)} trials failed; the first: tunelight show runs/digits 1"
    else:
        assert last.startswith("In runs/digits.")


def test_run_hands_on_what_was_given_and_nothing_else(tmp_path, monkeypatch):
    seen = taking(monkeypatch, "tunelight.sweep.run.run", swept(tmp_path / "runs", 0.5))
    call("run", FILE, "-n", 5, "--workers", "1,4", "--set", "metric=val_acc", "--set", "model.lr=0.5", "-q")
    call("run", FILE)
    call("run", FILE, "--scheduler", "{name: asha, grace_period: 2}", "--searcher", "tpe", "--metric", "acc")
    call("run", FILE, "--gpus", "0.5", "--storage", "s3://bucket/runs", "--mode", "max")
    call("run", FILE, "--gpus", "1")
    assert seen[0][0][0].describe()["model.lr"] == 0.5
    assert [given for _, given in seen] == [
        {"num_samples": 5, "workers": (1, 4), "metric": "val_acc", "progress": False},
        {},
        {"scheduler": {"name": "asha", "grace_period": 2}, "searcher": "tpe", "metric": "acc"},
        {"gpus_per_worker": 0.5, "storage": "s3://bucket/runs", "mode": "max"},
        {"gpus_per_worker": 1},
    ]
    assert isinstance(seen[4][1]["gpus_per_worker"], int)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("go on with resume=True (name='my sweep').", "go on with --resume (--name 'my sweep')."),
        ("Choose another (name='digits-2', say), leave name= out", "another (--name digits-2, say), leave --name out"),
        ("Give max_epochs= or num_samples=20.", "Give --max-epochs or --num-samples 20."),
        ("gpus_per_worker=1 is too many", "--gpus 1 is too many"),
        ("with failures=tl.FailurePolicy(give_up_after=0)", "with failures=tl.FailurePolicy(give_up_after=0)"),
        ("tl.run(workers=(1, 4)), x.name=3, a seed=='b'", "tl.run(workers=(1, 4)), x.name=3, a seed=='b'"),
    ],
)
def test_errors_speak_of_options(tmp_path, monkeypatch, error, said):
    monkeypatch.setattr("tunelight.sweep.run.run", mock.Mock(side_effect=SettingsError(error)))
    assert said in call("run", FILE, code=BAD_INPUT).stderr


def test_resume_goes_on_with_the_sweep_that_is_named(tmp_path, monkeypatch):
    results = swept(tmp_path / "tunelight_runs", 0.5)
    seen = taking(monkeypatch, "tunelight.sweep.resume.resume", results)
    call("resume", "digits", "--address", "auto")
    call("resume", "last", "-n", 9, "--set", "workers=2", "-q")
    assert seen == [
        ((results.folder,), {"address": "auto", "progress": True}),
        ((results.folder,), {"workers": 2, "num_samples": 9, "progress": False}),
    ]


@pytest.mark.parametrize(
    ("again", "code", "said"),
    [(0.5, OK, "bit by bit"), (0.25, FAILED, "loss was 0.5 and is 0.25"), (0.5, INTERRUPTED, "")],
)
def test_reproduce_says_whether_metrics_match(tmp_path, monkeypatch, again, code, said):
    cut_off = code == INTERRUPTED
    first = swept(tmp_path / "tunelight_runs", *([0.5, 0.4] if cut_off else [0.5]))
    second = swept(tmp_path / "again", again, reason="interrupted" if cut_off else "finished")
    seen = taking(monkeypatch, "tunelight.extras.reproduce.reproduce", compare(first, first.trials[0], second))
    assert said in call("reproduce", "digits", "0", "--ignore", "time", code=code).output
    assert json.loads(call("reproduce", "digits", "0", "--json", code=code).stdout)["same"] is (code == OK)
    assert seen[0] == ((first.folder, "0"), {"ignore": ["time"], "progress": False})


@pytest.mark.parametrize(("error", "code"), [(None, OK), ("rank 0: ValueError: shapes differ", FAILED)])
def test_check_tells_of_its_batch(monkeypatch, error, code):
    from tunelight.extras.check import DryRun

    taking(monkeypatch, "tunelight.extras.check.dry_run", DryRun({"model.lr": 0.1}, {"val_loss": 2.3}, error))
    done = call("check", FILE, "--batch", code=code)
    assert ("shapes differ" if error else "One batch trained; reported: val_loss=2.3") in done.output
    assert json.loads(call("check", FILE, "--batch", "--json", code=code).stdout)["batch"]["error"] == error
