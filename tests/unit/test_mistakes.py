"""Mistakes that people make, in Python, in YAML and on the command line, and the error for each.

None starts Ray, and none is answered by a traceback of tunelight's insides or a bare TypeError.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tunelight as tl
from tests.unit.cli.test_command_runs import swept
from tunelight.cli import app
from tunelight.cli.app import BAD_INPUT
from tunelight.errors import TunelightError
from tunelight.extras.digits import DigitsClassifier, DigitsData

SPACE: dict[str, Any] = {"model.lr": tl.loguniform(1e-4, 1e-1)}
GOOD: dict[str, Any] = {"model": DigitsClassifier, "data": DigitsData, "metric": "val_acc", "mode": "max"}
LINES = "space: {model.lr: 0.1}\nmodel: tunelight.extras.digits:DigitsClassifier\nmetric: val_acc\nmode: max\n"


def train(config: dict[str, Any]) -> None: ...


def run(space: Any = SPACE, **settings: Any) -> Callable[[], Any]:
    return lambda: tl.run(space, **{**GOOD, **settings})


IN_PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
    "Ray Tune's word": (run(resources_per_trial={"cpus": 2}), "'cpus'. Did you mean 'cpu'?"),
    "a mode that is not one": (run(mode="maximum"), "mode must be 'min' (less is better) or 'max'"),
    "no metric": (lambda: tl.run(SPACE, model=DigitsClassifier), "No metric is given"),
    "an empty space": (run({}), "The search space is empty. Give it one domain or more"),
    "a list for a space": (run([1, 2]), "a dict of domains, the path of a YAML file"),
    "a log domain from zero": (lambda: tl.loguniform(0, 1), "more than 0, not 0. Give the values, not"),
    "a key that the model does not take": (run({"model.lrr": 0.1}), "'lrr'. Did you mean 'lr'?"),
    "a key by its long name": (run({"model.learning_rate": 0.1}), "'learning_rate'. Did you mean 'lr'?"),
    "a key without an owner": (run({"modle.lr": 0.1}), "Did you mean 'model'?"),
    "a scheduler that is not one": (run(scheduler="ahsa"), "There is no scheduler 'ahsa'. Did you mean 'asha'?"),
    "a searcher that is not one": (run(searcher="optunaa"), "There is no searcher 'optunaa'"),
    "a model that is an object": (run(model=DigitsClassifier()), "functools.partial(DigitsClassifier, ...)"),
    "a train function and a model": (run(train=train), "train and model= are given"),
    "a train function without an argument": (run(model=None, data=None, train=lambda: None), "train(config)"),
    "a time that is not one": (run(time_budget="2 hrs"), "such as '90s', '30m', '2h'"),
    "a strategy for the Trainer": (run(trainer_args={"strategy": "ddp"}), "Leave it out, and say backend='ddp'"),
    "results of no sweep": (lambda: tl.SweepResults.load("nowhere"), "Give the folder of one sweep"),
    "a sweep to resume that is not there": (lambda: tl.resume("nowhere"), "is no sweep: it holds no record.jsonl"),
}  # fmt: skip

IN_YAML: dict[str, tuple[str, str]] = {
    "a value of the wrong type": (LINES + "num_samples: many\n", "space.yaml:5:1: num_samples must be a whole number"),
    "a tab": ("space:\n\tmodel.lr: 0.1\n", "space.yaml:2:1: this is not valid YAML"),
    "a domain with too few numbers": (
        LINES.replace("0.1", "{uniform: [0.1]}"),
        "takes 2 arguments (lower, upper), not 1",
    ),
    "no space": (
        "model: tunelight.extras.digits:DigitsClassifier\nmetric: val_acc\nmode: max\n",
        "The file has no `space:`",
    ),
    "an empty file": ("", "A search space file holds `space:` and settings; this one holds nothing."),
}

ON_THE_COMMAND_LINE: dict[str, tuple[str, str]] = {
    "a command that is not one": ("rnu space.yaml", "No such command 'rnu'. Did you mean 'run'?"),
    "an option that is not one": ("run space.yaml --num-sample 3", "--num-samples"),
    "a setting as an option": ("run space.yaml --max-concurrent 3", "--set max_concurrent="),
    "a file that is not there": ("run spaec.yaml", "Did you mean 'space.yaml'?"),
    "a --set without a value": ("run space.yaml --set model.lr", "NAME=VALUE"),
    "a --set of what is no key": ("run space.yaml --set model.lrr=0.1", "Did you mean 'lr'?"),
    "workers as text": ("run space.yaml --workers two", "--workers takes a whole number"),
    "a number of trials below one": ("run space.yaml -n 0", "--num-samples must be a whole number of 1 or more, not 0"),
    "a sweep that is not there": ("show nothing", "There are: digits; or say 'last'"),
    "a trial that is not there": ("show last 99", "has no trial '99'. It has: 00000"),
    "--resume without a name": ("run space.yaml --resume", "--resume is given without --name"),
    "a format that is not one": (
        "best last --export best.txt",
        ".yaml, .yml, .json, .sh, or say --format",
    ),
}


def said_by(line: str) -> str:
    """Return what the command line says, which ends with the code for bad input."""
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == BAD_INPUT, (done.exit_code, done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    return done.stderr


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_in_python(mistake: str) -> None:
    with pytest.raises((TunelightError, ValueError)) as caught:
        IN_PYTHON[mistake][0]()
    assert IN_PYTHON[mistake][1] in str(caught.value)


@pytest.mark.parametrize("mistake", IN_YAML)
def test_in_yaml(mistake: str) -> None:
    Path("space.yaml").write_text(IN_YAML[mistake][0])
    said = said_by("check space.yaml")
    assert "Traceback" not in said
    assert IN_YAML[mistake][1] in said


@pytest.mark.parametrize("mistake", ON_THE_COMMAND_LINE)
def test_on_the_command_line(mistake: str) -> None:
    swept(Path("tunelight_runs"), 0.5)
    Path("space.yaml").write_text(LINES)
    said = said_by(ON_THE_COMMAND_LINE[mistake][0])
    assert "Traceback" not in said
    assert ON_THE_COMMAND_LINE[mistake][1] in said
