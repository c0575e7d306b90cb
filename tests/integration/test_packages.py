"""Packages of others, each in an environment of its own requirements: examples/packages/, and experiment trackers."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tunelight as tl
from tests import flavours
from tests.kit import programs
from tests.kit.programs import ROOT

BUILT = ROOT / "build" / "packages"
INSTALL_LIMIT_S, RUN_LIMIT_S = 1200, 900
install = runpy.run_path(str(ROOT / "scripts" / "install.py"))["install"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + RUN_LIMIT_S + 60)]


def run(*command: str | Path, limit_s: float, **environment: str) -> str:
    """Return what a command printed, in a user's environment without PYTHONPATH."""
    inherited = {key: value for key, value in flavours.as_a_user().items() if key != "PYTHONPATH"}
    BUILT.mkdir(parents=True, exist_ok=True)
    done = programs.run(*command, cwd=BUILT, limit_s=limit_s, env=inherited, **environment)
    return done.stdout + done.stderr


def environment(name: str, *requirements: str) -> Path:
    """Return the Python of an environment with tunelight and what pip is asked for, which is made once."""
    python = BUILT / name / "bin" / "python"
    if not python.is_file():
        run(sys.executable, "-m", "venv", "--without-pip", python.parents[1], limit_s=120)
    # Of the pinned versions only torch, for the package may ask for others; a CPU build where pip is offered one.
    torch = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch is not None
    assert install(python, ["--quiet", torch[0], "--editable", str(ROOT), *requirements]) == 0
    return python


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., str]:
    """Return a function that installs an example's requirements, runs it, and returns its output."""

    def printed(path: str) -> str:
        script = ROOT / "examples" / "packages" / path
        python = environment(script.parent.name, "-r", str(script.parent / "requirements.txt"))
        return run(python, script, "--storage", tmp_path, limit_s=RUN_LIMIT_S)

    return printed


def check_sweep(output: str) -> None:
    """Raise an AssertionError unless a sweep of eight trials ended without a failed one."""
    ended = re.search(
        r"^Sweep \S+ ended after .*: 8 trials \((\d) finished, (\d) stopped early\)", output, re.MULTILINE
    )
    assert ended is not None, output
    assert int(ended[1]) + int(ended[2]) == 8


def numbers(pattern: str, output: str) -> list[float]:
    """Return the numbers of the only line that a pattern finds."""
    (found,) = re.findall(pattern, output, re.MULTILINE)
    return [float(number) for number in (found if isinstance(found, tuple) else (found,))]


def test_darts(example: Callable[[str], str]) -> None:
    output = example("darts/forecast.py")
    check_sweep(output)
    (winner,) = numbers(r"The winner's forecast is off by ([\d.]+)", output)
    (longer,) = numbers(r"Trained twice as long: ([\d.]+)", output)
    (naive,) = numbers(r"The same hours of the day before: ([\d.]+)", output)
    assert winner < naive
    assert longer < naive


def test_transformers(example: Callable[[str], str]) -> None:
    output = example("transformers/reviews.py")
    check_sweep(output)
    assert "'the film was not boring' is praise" in output
    assert "'i saw it twice and the music was awful' is blame" in output
    tested, predicted = numbers(r"Accuracy on 256 test reviews: ([\d.]+) by test, ([\d.]+) by predict", output)
    assert tested == predicted > 0.85  # about 0.7 for a model that does not see "not"


def test_chemprop(example: Callable[[str], str]) -> None:
    output = example("chemprop/molecules.py")
    check_sweep(output)
    (winner,) = numbers(r"The winner's error on 100 test molecules: ([\d.]+)", output)
    (longer,) = numbers(r"Trained for longer: ([\d.]+)", output)
    (mean,) = numbers(r"The mean of all: ([\d.]+)", output)
    assert winner < mean / 1.5
    assert longer < mean / 1.5


def test_a_script_is_judged_by_what_it_logs_with_a_tracker(tmp_path: Path) -> None:
    python = environment("trackers", "wandb", "mlflow-skinny", "sqlalchemy", "alembic", "accelerate")
    script = Path(__file__).with_name("logging_script.py")
    words = ["--metric", "val_loss", "--workers", "2", "-n", "1", "--scheduler", "fifo", "--name", "s", "--quiet"]
    domains = ["lr=0.05", "way=grid(wandb, mlflow, accelerate, config)"]
    run(
        python, "-m", "tunelight", "run", script, *domains, *words, "--storage", tmp_path, "--",
        "--store", f"sqlite:///{tmp_path}/runs.db", limit_s=RUN_LIMIT_S, WANDB_MODE="offline", WANDB_SILENT="true",
    )  # fmt: skip
    trials = tl.SweepResults.load(tmp_path / "s").trials
    assert [trial.error for trial in trials] == [None] * 4
    curves = [[(report["val_loss"], report["lr"]) for report in trial.history] for trial in trials]
    assert curves == curves[:1] * 4
    assert len(curves[0]) == 4
    for trial in trials:
        assert len(list(trial.path.rglob("*.wandb"))) == (0 if trial.config["way"] == "mlflow" else 1)
