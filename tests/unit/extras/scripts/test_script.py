"""The command lines of a script: macros, the command that trains a configuration by itself, and what is recorded."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.extras.scripts.script import Script, _set_variables, script_of
from tunelight.extras.scripts.style import Option, find_style, spell
from tunelight.settings import Settings


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
    config = {"lr": 0.1, "nested": {"on": True, "name": "a b"}}
    assert Script("train.py", args=tuple(args)).command(config, "runs/3") == words


def test_a_value_may_name_the_trial_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"out": "${trial_dir}/a", "lr": 1, "more": {"l": ["${trial_dir}"]}}
    words = ["--out=runs/3/a", "--lr=1", "--more.l", "runs/3"]
    assert Script("train.py").command(config, "runs/3") == words
    agents = Script("train.py", args=("--log=${trial_dir}/log",), style="wandb").command(config, "runs/3")
    assert agents == ["--log=runs/3/log", "--out=runs/3/a", "--lr=1", "--more={'l': ['runs/3']}"]
    monkeypatch.setattr(os, "environ", {})
    session: Any = SimpleNamespace(context=SimpleNamespace(trial_dir=str(tmp_path), rank=0))
    _set_variables(session, {"wandb"}, config)
    text = Path(os.environ["WANDB_SWEEP_PARAM_PATH"]).read_text()
    assert text.count(f'"{tmp_path}') == 2
    assert "${trial_dir}" not in text
    space = tl.SearchSpace({"lr": tl.uniform(0, 1)}, script=__file__, args=["--out", "${trial_dir}"])
    assert script_of(space, Settings(**space.settings)).command({"lr": 1}) == ["--out", ".", "--lr=1"]


def read_script(folder: Path, source: str, space: dict[str, Any], **settings: Any) -> Script:
    (folder / "train.py").write_text(source)
    given = Settings(script=str(folder / "train.py"), metric="loss", **settings)
    return script_of(tl.SearchSpace(space), given)


def test_keys_within_a_value_are_options(tmp_path: Path) -> None:
    source = (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--model.lr')\np.add_argument('--model.n', type=int)\np.parse_args()"
    )
    space: dict[str, Any] = {"model": {"fixed": {"lr": 0.1, "n": 2.0}}}
    script = read_script(tmp_path, source, space)
    config = tl.SearchSpace(space).sample(None)  # type: ignore[arg-type]  # nothing is drawn
    for one in (script, Script.of(script.recorded(["model"]))):
        assert one.command(config) == ["--model.lr=0.1", "--model.n=2"]
    with pytest.raises(SettingsError, match=r"no option for the key 'model\.r'"):
        read_script(tmp_path, source, {"model": {"choice": [{"lr": 0.1}, {"r": 0.1}]}})


@pytest.mark.parametrize(
    ("args", "config", "words"),
    [
        (("--sizes", "${sizes}"), {"sizes": ["1", "2"]}, ["--sizes", "1", "2"]),
        (("--sizes=${sizes}",), {"sizes": ["1", "2"]}, ["--sizes", "1", "2"]),
        (("--others", "${sizes}"), {"sizes": ["1", "2"]}, ["--others", "1", "2"]),
        (("-n", "${n}"), {"n": "a=b"}, ["-na=b"]),
        (("${n}",), {"n": "a=b"}, ["a=b"]),
        (("--name=${n}",), {"n": "a=b"}, ["--name=a=b"]),
        (("-o", "${n}"), {"n": "a=b"}, ["-o", "a=b"]),
        (("-o", "${n}"), {"n": None}, []),
        (("-n", "${n}"), {"n": None}, []),
        (("--fast", "${fast}"), {"fast": True}, ["--fast"]),
    ],
)
def test_a_macro_behind_an_option_is_what_the_option_reads(args: Any, config: Any, words: list[str]) -> None:
    options = (Option(("--sizes",), "sizes", "many"), Option(("-n",), "n"), Option(("--fast",), "fast", "flag"))
    assert Script("train.py", args=args, options=options).command(config) == words


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
        ("[python, train.py, '--out=${trial_dir}']", ("--out=${trial_dir}", "${no_args}")),
    ],
)  # fmt: skip
def test_its_command_says_the_arguments(command, args, tmp_path, monkeypatch):
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
    space = loaded(tmp_path, text.replace("{min: 0.0, max: 1.0}\n", "{values: [a]}\n"))
    (tmp_path / "train.py").write_text(PARSER)
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


@pytest.mark.parametrize(
    ("source", "style"),
    [
        ("import argparse\nargparse.ArgumentParser()", "argparse"),
        ("import typer", "argparse"),
        ("from transformers import HfArgumentParser", "argparse"),
        ("from pytorch_lightning.cli import LightningCLI\nLightningCLI()", "lightning"),
        ("import pytorch_lightning.cli as cli\ncli.LightningCLI()", "lightning"),
        ("import jsonargparse", "lightning"),
        ("import hydra\nimport argparse", "hydra"),
        ("def main():\n    import fire\n    fire.Fire(main)", "fire"),
        ("print(1)", "argparse"),
        ("from src.main import main\nmain()", "hydra"),
    ],
)
def test_imports_tell_the_style_also_those_of_modules_beside_a_script(tmp_path: Path, source: str, style: str) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import hydra\n")
    assert find_style(str(tmp_path / "train.py"))[0] == style


@pytest.mark.parametrize("default", [True, False])
def test_of_two_switches_for_a_value_the_one_that_sets_it_is_written(default: bool) -> None:
    on = Option(("--augment",), "augment", "flag", default=default)
    off = Option(("--no-augment",), "augment", "off", default=default)
    for options in ((on, off), (off, on)):
        for value, word in ((True, "--augment"), (False, "--no-augment")):
            assert spell("argparse", {"augment": value}, options) in ([word], [] if value is default else [word])
    alone = (Option(("--no-shuffle",), "shuffle", "off"),)  # known by its value and by its name
    written = [spell("argparse", {key: value}, alone) for key in ("shuffle", "no_shuffle") for value in (True, False)]
    assert written == [[], ["--no-shuffle"], ["--no-shuffle"], []]
