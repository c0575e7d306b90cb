"""Scripts as they are: those of examples/scripts and a few with habits of their own, tuned without a changed line."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

import tunelight as tl
from tests.kit import sweeps
from tests.kit.programs import ROOT, run
from tests.kit.waiting import until
from tunelight.cli import app
from tunelight.results import SweepResults, TrialResult

EXAMPLES = ROOT / "examples" / "scripts"
SCRIPTS = {
    "argparse_trainer": ("lr", ["--epochs", "4"]),
    "lightning_cli": ("model.lr", ["fit", "--trainer.max_epochs", "4"]),
    "hydra_app": ("model.lr", ["trainer.max_epochs=4"]),
    "torchrun_loop": ("lr", ["--epochs", "4"]),
    "accelerate_loop": ("lr", ["--epochs", "4"]),
}
pytestmark = pytest.mark.usefixtures("ray4")


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., SweepResults]:
    """Tune a script, given by its path or its text, on gangs of two."""

    def tuned(
        script: str | Path, args: Sequence[str] = (), key: str = "lr", domain: Any = None, **settings: Any
    ) -> SweepResults:
        if isinstance(script, str):
            (tmp_path / "train.py").write_text(script)
            script = tmp_path / "train.py"
        given: dict[str, Any] = {"num_samples": 3, "scheduler": "asha", "max_concurrent": 1, "seed": 3}
        given |= {"script": script, "args": args, "metric": "val_loss", **settings}
        return sweeps.run({key: domain or tl.loguniform(1e-4, 0.2)}, None, tmp_path, [{key: 0.1}], **given)

    return tuned


def losses(trial: TrialResult) -> list[float]:
    return [float(report["val_loss"]) for report in trial.history]


def tunelight(*words: str) -> Result:
    """Run a command in this process, on the Ray of these tests."""
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_tuned_as_it_is(name: str, sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    key, args = SCRIPTS[name]
    results = sweep(EXAMPLES / f"{name}.py", args, key, num_samples=2, scheduler="fifo")
    assert [(trial.state, trial.error) for trial in results.trials] == [("FINISHED", None)] * 2
    first, second = map(losses, results.trials)
    assert len(first) == len(second) == 4
    assert first[-1] < first[0]
    assert first != second  # each with its own rate
    assert not [*(tmp_path / "here").iterdir()]  # all of it is in the trial's folder
    if name in ("argparse_trainer", "lightning_cli", "hydra_app"):
        assert results.trials[0].checkpoint is not None


@pytest.mark.timeout(300)  # a sweep, torchrun, and the sweep again
@pytest.mark.apart
@pytest.mark.parametrize(
    "name",
    [
        "argparse_trainer",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS if name != "argparse_trainer"),
    ],
)
def test_the_commands_of_the_winner_train_as_its_trial_did(name, sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key, args = SCRIPTS[name]
    script = EXAMPLES / f"{name}.py"
    trial = sweep(script, args, key, num_samples=1, scheduler="fifo", name="first").best
    found = losses(trial)
    assert len(found) == 4
    text = trial.export(tmp_path / "best.sh").read_text()
    plain = trial.plain_command
    assert shlex.join(plain) in text
    assert shlex.join(trial.command) in text
    # torchrun's ranks are looked at from within.
    at = plain.index(str(script))
    watched = [*plain[:at], "-m", "tests.integration.recorded", str(tmp_path / "losses.json"), *plain[at:]]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(*watched, cwd=tmp_path, limit_s=200, **{**os.environ, "PYTHONPATH": str(ROOT), "PATH": path})
    if name.endswith("loop"):
        wanted = [float(text) for text in re.findall(r"val_loss ([\d.]+)", done.stdout)]
    else:
        wanted = json.loads((tmp_path / "losses.json").read_text())
    assert found == pytest.approx(wanted, abs=1e-6)
    assert trial.command[0] == "tunelight"
    again = tunelight(*trial.command[1:])  # what best.sh does, on the Ray of these tests
    assert again.exit_code == 0, again.output
    folder = next(path for path in (tmp_path / "tunelight_runs").iterdir())
    assert losses(SweepResults.load(folder).trials[0]) == found


HABITS = """
import argparse, atexit, multiprocessing, os, subprocess, sys
argparse.ArgumentParser().parse_known_args()
import torch
from lightning_utilities.core.rank_zero import rank_zero_only
import state
import tunelight as tl

multiprocessing.set_start_method("spawn")
torch.set_num_interop_threads(1)
torch.library.Library("tunelight_tests", "DEF").define("twice(Tensor x) -> Tensor")
assert rank_zero_only.rank == int(os.environ["RANK"]), rank_zero_only.rank
rank_zero_only.rank = 0
state.runs += 1
changed = torch.nn.functional.relu.__name__ != "relu"
torch.nn.functional.relu = print
left = subprocess.Popen(["sleep", "600"]).pid
atexit.register(os.write, 1, b"at exit\\n")
group = os.getpgid(0) == os.getpid()
tl.report({"val_loss": state.runs + changed, "pid": os.getpid(), "left": left, "group": float(group)})
"""


@pytest.mark.parametrize("reuse", [None, True])
def test_each_trial_of_a_script_has_a_process_of_its_own_unless_the_user_wants_less(sweep, tmp_path, reuse):
    (tmp_path / "state.py").write_text("runs = 0\n")
    text = "import argparse, os, tunelight as tl\ntl.report({'val_loss': 1.0, 'pid': os.getpid()})" if reuse else HABITS
    results = sweep(text, num_samples=2, scheduler="fifo", reuse_gangs=reuse, style="argparse")
    assert [(trial.value, str(trial.error)) for trial in results.trials] == [(1.0, "None")] * 2
    reports = [trial.history[0] for trial in results.trials]
    assert len({report["pid"] for report in reports}) == (1 if reuse else 2)
    if not reuse:
        assert {report["group"] for report in reports} == {1.0}
        until(lambda: not any(psutil.pid_exists(int(report["left"])) for report in reports), 10)


LOGGING = Path(__file__).with_name("logging_script.py")
TENSORBOARD = ("--way", "tensorboard")


def test_what_rank_0_logs_is_reported_by_all_ranks(sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    results = sweep(LOGGING, TENSORBOARD, num_samples=4, baselines=[{"lr": lr} for lr in (0.1, 0.08, 0.0001, 0.0002)])
    assert [trial.error for trial in results.trials] == [None] * 4
    first, _, third, _ = results.trials
    log = (first.path / "log.txt").read_text()
    printed = [float(text) for text in re.findall(r"val_loss ([\d.]+)", log)]
    assert losses(first) == pytest.approx(printed)
    assert [report["train"] for report in first.history] == [0, 1, 2, 3]
    assert log.count("reached the end") == 2
    # Stopped in the middle, on both ranks, at their next step.
    assert third.state == "STOPPED"
    assert "reached the end" not in (third.path / "log.txt").read_text()
    assert not [*(tmp_path / "here").iterdir()]  # the writer's files are in the trial's folder, too


MISTAKES = {
    "no report": ("print('nothing')", "without a report"),
    "module": ("import module_that_is_missing", "No module named 'module_that_is_missing'"),
    "stdin": ("input()", "EOF"),
    "fsdp": ("import pytorch_lightning as pl\npl.Trainer(strategy='fsdp')", "Give the sweep backend='sharded'"),
    "nccl": ("import torch\ntorch.distributed.init_process_group('nccl')", "connected by gloo already"),
}


def test_a_mistake_is_told_in_the_script_s_words(sweep: Any) -> None:
    text = (
        "import argparse, sys\nimport tunelight\n"
        f"exec({ {kind: text for kind, (text, _) in MISTAKES.items()}!r}[sys.argv[1].removeprefix('--kind=')])\n"
    )
    results = sweep(
        text, key="kind", domain=tl.grid_search(list(MISTAKES)), num_samples=1, scheduler="fifo", baselines=[],
        failures={"give_up_after": 0},
    )  # fmt: skip
    errors = {trial.config["kind"]: str(trial.error) for trial in results.trials}
    assert {kind: errors[kind] for kind, (_, said) in MISTAKES.items() if said not in errors[kind]} == {}


def test_what_was_logged_is_named_where_the_metric_is_not_among_it(sweep: Any) -> None:
    results = sweep(LOGGING, TENSORBOARD, num_samples=1, metric="valid")
    assert "ended without a report of 'valid'. It logged train, val_loss." in str(results.trials[0].error)


def test_a_script_is_run_once_and_survives_a_lost_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "import argparse, os, pathlib, sys\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float, default=0.05)\n"
        "args = parser.parse_args()\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import pytorch_lightning as pl\n"
        "from model import Data, Model\n"
        "pl.seed_everything(1)\n"
        "once = pathlib.Path('died')\n"
        "class Dies(pl.Callback):\n"
        "    def on_train_epoch_start(self, trainer, _):\n"
        "        print('begins', trainer.current_epoch)\n"
        "        if trainer.current_epoch == 2 and trainer.global_rank == 1 and not once.exists():\n"
        "            once.touch()\n"
        "            os.kill(os.getpid(), 9)\n"
        "trainer = pl.Trainer(max_epochs=4, callbacks=[Dies()], devices=8, num_nodes=2)\n"
        "trainer.fit(Model(args.lr), datamodule=Data())\n"
        "print('reached the end')\n"
    )
    (tmp_path / "train.py").write_text(text)
    done = tunelight("train", "train.py", "--workers", "2", "--", "--lr", "0.1")
    assert done.exit_code == 0, done.output
    begun = re.findall(r"\[1\] begins (\d)", done.stdout)
    assert (begun[0], begun[-1], begun.count("1")) == ("0", "3", 1)  # it went on from its last checkpoint
    assert done.stdout.count("reached the end") == 2
    (folder,) = (tmp_path / "tunelight_runs").iterdir()
    notes = [note for _, note in SweepResults.load(folder).record.notes]
    assert any("devices=8, num_nodes=2" in note for note in notes)  # which the gang's take the place of
    assert tunelight("resume", "last").exit_code == 0  # nothing is left to do
    (tmp_path / "bad.py").write_text("exit(3)")
    bad = tunelight("train", "bad.py")
    assert bad.exit_code == 1
    assert "bad.py exited with 3" in bad.stdout
