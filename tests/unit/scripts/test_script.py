"""The command lines of a script: macros, the command that trains a configuration by itself, and what is recorded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.scripts.script import Script, script_of
from tunelight.scripts.style import Option
from tunelight.settings import Settings

CONFIG = {"lr": 0.1, "nested": {"on": True, "name": "a b"}}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["fit", "--seed", "3"], ["fit", "--seed", "3", "--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["--rate=${lr}"], ["--rate=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["${args}", "end"], ["--lr=0.1", "--nested.on=True", "--nested.name=a b", "end"]),
        (["${args_no_hyphens}"], ["lr=0.1", "nested.on=True", "nested.name=a b"]),
        (["${args_no_boolean_flags}"], ["--lr=0.1", "--nested.on", "--nested.name=a b"]),
        (["${args_json}"], ['{"lr": 0.1, "nested.on": true, "nested.name": "a b"}']),
        (["--out=${trial_dir}/a"], ["--out=runs/3/a", "--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["--m=${absent}", "end"], ["end", "--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["--m", "${absent}", "end"], ["end", "--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
        (["M.X", "${M.X}", "${lr}"], ["M.X", "0.1", "--nested.on=True", "--nested.name=a b"][1:]),
        (["--x=${lr},${absent}"], ["--lr=0.1", "--nested.on=True", "--nested.name=a b"]),
    ],
)
def test_macros_stand_for_hyperparameters(args: list[str], words: list[str]) -> None:
    assert Script("train.py", args=tuple(args)).command(CONFIG, "runs/3") == words


def test_a_value_may_name_the_trial_s_folder() -> None:
    assert Script("train.py").command({"out": "${trial_dir}/a", "lr": 1}, "runs/3") == ["--out=runs/3/a", "--lr=1"]
    space = tl.SearchSpace({"lr": tl.uniform(0, 1)}, script=__file__, args=["--out", "${trial_dir}"])
    assert script_of(space, Settings(**space.settings)).command({"lr": 1}) == ["--out", ".", "--lr=1"]


def test_what_is_recorded_spells_the_same_commands() -> None:
    options = (
        Option(("--lr", "-l"), "lr"),
        Option(("--amp", "--no-amp"), "amp", "both", negatives=("--no-amp",), default=True, help="much text"),
        Option(("--other",), "other"),
        Option(("--devices",), "devices"),
    )
    script = Script("train.py", args=("fit",), options=options, imported=("torch", "lightning"), devices="devices")
    recorded = json.loads(json.dumps(script.recorded(["lr", "amp"])))
    assert [one["names"] for one in recorded["options"]] == [["--lr", "-l"], ["--amp", "--no-amp"], ["--devices"]]
    assert (recorded["imported"], recorded["devices"]) == (["lightning"], "devices")
    for config in ({"lr": 0.1, "amp": False}, {"lr": 1, "amp": True}):
        assert Script.of(recorded).command(config) == script.command(config)


# --- W&B's files ------------------------------------------------------------------------------------------

WANDB = """\
program: train.py
method: random
metric: {name: loss, goal: minimize}
parameters:
  lr: {min: 0.0, max: 1.0}
"""


def loaded(folder: Path, text: str) -> tl.SearchSpace:
    (folder / "train.py").write_text("import wandb\n")
    (folder / "sweep.yaml").write_text(text)
    return tl.SearchSpace.load(folder / "sweep.yaml")


def test_a_sweep_file_of_wandb_is_read_with_its_program(tmp_path: Path) -> None:
    space = loaded(tmp_path, WANDB)
    assert space.describe() == {"lr": {"uniform": [0.0, 1.0]}}
    assert space.settings == {
        "metric": "loss",
        "mode": "min",
        "scheduler": "fifo",
        "script": str(tmp_path / "train.py"),
        "args": ("${args}",),
        "style": "wandb",
    }


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("[\"${env}\", python3, \"${program}\", \"${args}\"]", ("${args}",)),
        (
            "[\"${env}\", \"${interpreter}\", -u, \"${program}\", --epochs, 3, \"${args_no_hyphens}\"]",
            ("--epochs", "3", "${args_no_hyphens}"),
        ),
        ("[torchrun, --nproc_per_node=2, \"${program}\", \"${args}\"]", ("${args}",)),
        ("[accelerate, launch, --num_processes, 2, \"${program}\", \"${args}\"]", ("${args}",)),
        ("python ${program} --data ${envvar:WHERE}", ("--data", "here", "${no_args}")),
        ("[python, train.py]", ("${no_args}",)),
    ],
)  # fmt: skip
def test_its_command_says_the_arguments(
    command: str, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "here")
    space = loaded(tmp_path, f"{WANDB}command: {command}\n")
    assert space.settings["args"] == args
    script: Any = script_of(space, Settings(**space.settings))
    assert ("0.5" in " ".join(script.command({"lr": 0.5}))) is ("${no_args}" not in args)


PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", required=True)
parser.add_argument("--kind", choices=["a", "b"])
parser.parse_args()
"""


def test_its_nested_parameters_are_one_argument_and_its_others_are_looked_up(tmp_path: Path) -> None:
    text = WANDB.replace("lr:", "optimizer: {parameters: {lr: {min: 0.0, max: 1.0}}}\n  kind:")
    for kind, said in (("{values: [a]}", ""), ("{values: [c]}", "does not take 'c' for --kind")):
        space = loaded(tmp_path, text.replace("{min: 0.0, max: 1.0}\n", f"{kind}\n"))
        (tmp_path / "train.py").write_text(PARSER)
        with pytest.raises(SettingsError, match=said) if said else contextlib.nullcontext():
            script: Any = script_of(space, Settings(**space.settings))
            assert script.command({"optimizer": {"lr": 0.5}, "kind": "a"}) == ["--optimizer={'lr': 0.5}", "--kind=a"]
            assert Script.of(script.recorded(list(space.domains))).command({"kind": "a"}) == ["--kind=a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WANDB + "command: [sbatch, '${program}']\n", ":6:1: command: tunelight runs train.py .* knows no 'sbatch'"),
        (WANDB + "command: ['${args_json_file}']\n", r":6:1: .*W&B's \${args_json_file}"),
        (WANDB + "command: [bash, run.sh]\n", ":6:1: command: none of its words is a Python script"),
        (WANDB + "command: ['${program}', '${envvar:NOT_SET}']\n", ":6:1: .*Set NOT_SET"),
        (WANDB.replace("random", "grid"), ":5:3: lr: .*grid over uniform"),
        (WANDB.replace("random", "best"), ":2:1: method: .*'best'"),
        (WANDB.replace("max: 1.0", "max: -1.0"), ":5:3: "),
        (WANDB.replace("train.py", "missing.py"), "There is no script missing.py"),
    ],
)
def test_what_of_it_cannot_be_done_is_named_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((SpaceError, SettingsError), match=said):
        loaded(tmp_path, text)
