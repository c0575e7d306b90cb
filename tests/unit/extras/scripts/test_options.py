"""The options of a script's parser, and its command lines: macros, a configuration by itself, and what is recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.extras.scripts.draft import Read, read_options
from tunelight.extras.scripts.script import Script, _set_variables, script_of
from tunelight.extras.scripts.style import Option, find_style, spell
from tunelight.settings import Settings

ARGPARSE = """\
import argparse, pathlib, sys
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("-l", "--learning-rate", type=float, default=0.1, help="step, %(default)s at first")
p.add_argument("--opt", choices=["adam", "sgd"], default="adam")
p.add_argument("--fast", action="store_true")
p.add_argument("--no-shuffle", action="store_false", dest="shuffle")
p.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True)
p.add_argument("--layers", type=int, nargs="+")
p.add_argument("--gpu", action="append")
p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
if __name__ == "__main__":
    assert sys.stdin.read() == ""
    p.parse_args()
    raise SystemExit("never comes so far")
"""
SUBCOMMANDS = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--root")
s = p.add_subparsers()
s.add_parser("train").add_argument("--lr")
s.add_parser("eval").add_argument("--split")
p.parse_args()
"""
CLI = """\
import torch, pytorch_lightning as pl
from typing import Literal
from pytorch_lightning.cli import LightningCLI
class Model(pl.LightningModule):
    def __init__(self, hidden: int, lr: float = 1e-3, act: Literal["relu", "tanh"] = "relu"):
        super().__init__()
class Data(pl.LightningDataModule):
    def __init__(self, size: int = 32):
        super().__init__()
if __name__ == "__main__":
    LightningCLI(Model, Data)
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def script(source: str, name: str = "train.py") -> Path:
        (tmp_path / name).write_text(source)
        return tmp_path / name

    return script


def by_dest(read: Read) -> dict[str, Option]:
    assert read.options is not None, read.why
    return {option.dest: option for option in read.options}


def made(file: Path, space: dict[str, Any], *args: str, **settings: Any) -> Script:
    return script_of(tl.SearchSpace(space), Settings(script=str(file), args=args, metric="loss", **settings))


def test_argparse_s_options_are_read(write: Write) -> None:
    read = read_options(write(ARGPARSE), None, ["folder"])
    options = by_dest(read)
    assert {name: option.kind for name, option in options.items()} == {
        "learning_rate": "value", "opt": "value", "fast": "flag", "shuffle": "off", "warm": "both", "layers": "many",
        "gpu": "again", "out": "value",
    }  # fmt: skip
    rate = options["learning_rate"]
    assert (rate.names, rate.type, rate.default, rate.help) == (
        ("-l", "--learning-rate"), "float", 0.1, "step, 0.1 at first"
    )  # fmt: skip
    assert options["opt"].choices == ("adam", "sgd")
    assert (options["out"].type, options["out"].default) == ("Path", "out")
    assert (read.strict, read.abbreviates) == (True, True)


def test_lightning_cli_s_options_are_those_of_its_subcommand(write: Write) -> None:
    file = write(CLI)
    read = read_options(file, None, ["fit"])
    options = by_dest(read)
    assert (options["model.hidden"].type, options["model.hidden"].required) == ("int", True)
    assert options["model.act"].choices == ("relu", "tanh")
    assert (options["model.lr"].nested, options["optimizer"].nested) == (False, True)
    space = {"model.hidden": tl.randint(1, 9), "data.size": 3, "optimizer.lr": 0.1, "trainer.logger.init_args.x": 1}
    made(file, space, "fit")
    with pytest.raises(SettingsError, match=r"no option for the key 'model.lrr'.* Did you mean 'model.lr'\? It has:"):
        made(file, {**space, "model.lrr": 1}, "fit")


def test_a_module_is_read_too(write: Write, tmp_path: Path) -> None:
    (tmp_path / "tunelight_trains").mkdir()
    file = write(ARGPARSE, "tunelight_trains/__main__.py")
    assert "opt" in by_dest(read_options(file, "tunelight_trains", []))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import argparse\nraise ValueError('no data here')",
            "exit code 1 before it parsed its command line: ValueErr",
        ),
        ("import argparse\nimport sys\nsys.exit(3)", "ended with exit code 3 before"),
        ("import torch\ntorch.ones(1, requires_grad=True).sum().backward()", "trains without having parsed"),
        ("import time\ntime.sleep(60)", "did not parse its command line within 1 s"),
        ("1 +", "does not compile"),
    ],
)
def test_why_options_are_not_known(write: Write, source: str, why: str) -> None:
    began = time.monotonic()
    read = read_options(write(source), None, [], 1 if "sleep" in source else 30)
    assert read.options is None
    assert why in read.why
    assert time.monotonic() - began < 30


def test_what_cannot_be_read_stops_no_sweep_and_is_noted_at_its_start(write: Write, tmp_path: Path) -> None:
    script = made(write("import argparse\n1 / 0"), {"lr": 1, "amp": tl.choice([True, None]), "n": 2}, "${n}")
    assert script.options == ()
    notes: list[str] = []
    script.watched(tmp_path, notes.append)
    assert notes[0].startswith("The options of train.py are not known, which ended with exit code 1 before")
    assert notes[0].endswith(" It gets lr as --lr=1, amp as --amp=True.")


@pytest.mark.parametrize("library", ["os", "click", "typer", "tyro", "fire"])
def test_a_script_that_reads_no_options_is_not_run_to_look(write: Write, tmp_path: Path, library: str) -> None:
    made(write(f"import {library}\nopen('ran', 'w')"), {"lr": 1})
    assert not (tmp_path / "ran").exists()


def test_a_script_is_run_once_until_it_changes(write: Write) -> None:
    counting = "open('runs', 'a').write('x')\nimport argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"
    file = write(counting + "p.parse_args()")
    for _ in range(2):
        made(file, {"lr": 1})
    assert Path("runs").read_text() == "x"
    made(write(counting + "p.add_argument('--wd')\np.parse_args()"), {"wd": 1})
    assert Path("runs").read_text() == "xx"


FIRST = (
    "import argparse\nfirst = argparse.ArgumentParser(add_help=False)\nfirst.add_argument('--config')\n"
    "given, rest = first.parse_known_args()\n"
)


@pytest.mark.parametrize("parents", ["", "parents=[first]"])
def test_a_second_parser_that_reads_what_the_first_has_left_is_read_too(write: Write, parents: str) -> None:
    file = write(f"{FIRST}p = argparse.ArgumentParser({parents})\np.add_argument('--lr')\np.parse_args(rest)")
    read = read_options(file, None, [])
    assert [one.dest for one in read.options or ()] == ["config", "lr"]
    assert read.strict
    with pytest.raises(SettingsError, match=r"no option for the key 'rl'.*It has: config, lr"):
        made(file, {"rl": 1})
    made(file, {"config": "some.yaml", "lr": 0.1})


@pytest.mark.parametrize(
    "end", ["raise SystemExit(0)", "", "import torch\n(torch.ones(1, requires_grad=True) * 2).backward()"]
)
def test_a_second_parser_that_never_comes_refuses_nothing(write: Write, end: str) -> None:
    file = write(f"{FIRST}{end}\nif False:\n    first.parse_args()")
    read = read_options(file, None, [])
    assert [one.dest for one in read.options or ()] == ["config"]
    assert not read.strict


@pytest.mark.parametrize(("given", "strict"), [("", True), ("return_remaining_strings=True", False)])
def test_hf_argument_parser_refuses_the_rest_unless_it_returns_it(write: Write, given: str, strict: bool) -> None:
    source = (
        "import argparse\nclass HfArgumentParser(argparse.ArgumentParser):\n"
        "    def parse_args_into_dataclasses(self, args=None, return_remaining_strings=False):\n"
        "        return self.parse_known_args(args=args)\n"
        f"p = HfArgumentParser()\np.add_argument('--lr')\np.parse_args_into_dataclasses({given})"
    )
    assert read_options(write(source), None, []).strict is strict


HEAD = "import argparse\np = argparse.ArgumentParser()\n"
OWN = "q = argparse.ArgumentParser()\nq.add_argument('--x')\nassert q.parse_args(['--x=1']).x\n"
JSON = (
    "import jsonargparse\np = jsonargparse.ArgumentParser()\np.add_argument('--a', type=int, required=True)\n"
    "p.add_argument('--b', type=int)\n"
)
LINKED = f"{JSON}p.link_arguments('a', 'b')\n"
SIMPLE = """\
import dataclasses
from simple_parsing import ArgumentParser
@dataclasses.dataclass
class Options:
    data: str
    lr: float = 1e-3
p = ArgumentParser()
p.add_arguments(Options, dest="options")
"""
PARSE = "p.parse_args()"


@pytest.mark.parametrize(
    ("source", "space", "args"),
    [
        *((ARGPARSE, {key: True}, ("folder",)) for key in ("learning_rate", "learning-rate", "learn")),
        *((ARGPARSE, {key: True}, ("folder",)) for key in ("shuffle", "no_shuffle")),
        (ARGPARSE, {"anything": tl.choice(["a"])}, ("${anything}",)),
        (ARGPARSE.replace("parse_args()", "parse_known_args()"), {"anything": 1}, ("folder",)),
        (HEAD + OWN + "p.add_argument('--lr')\np.parse_args()", {"lr": 1}, ()),
        (JSON + "p.parse_object({'a': 1})", {"other": 1}, ()),
        (LINKED + PARSE, {"a": 1}, ()),
        (SIMPLE + PARSE, {"lr": tl.uniform(0, 1), "data": "here"}, ()),
        (SUBCOMMANDS, {"lr": 1}, ("--root=x", "train")),
    ],
)
def test_a_space_fits_a_parser_by_names_beginnings_args_and_values(write, source, space, args):
    assert made(write(source), space, *args).options


@pytest.mark.parametrize(
    ("source", "space", "args", "said"),
    [
        (
            ARGPARSE,
            {"learning_rat3": 1},
            ("folder",),
            r"has no option for the key 'learning_rat3' of.* Did you mean 'learning_rate'\? It has: learning_rate",
        ),
        (LINKED + PARSE, {"a": 1, "b": 1}, (), "no option for the key 'b'"),
        (SIMPLE + PARSE, {"lrr": 0.1, "data": "here"}, (), "no option for the key 'lrr'.* Did you mean 'lr'"),
        (SUBCOMMANDS, {"split": 1}, ("train",), "no option for the key 'split'"),
    ],
)
def test_keys_that_are_no_options_are_refused_before(write, source, space, args, said):
    with pytest.raises(SettingsError, match=said):
        made(write(source), space, *args)


def test_values_that_an_option_cannot_have_are_refused_before(write: Write) -> None:
    file = write(
        "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=3)\n"
        "p.add_argument('--tag', default='x')\np.add_argument('--rows', type=json.loads)\n"
        "p.add_argument('--on', type=bool)\n"
        "p.add_argument('--tags', action='append', default=['x'])\np.parse_args()"
    )
    made(file, {"n": tl.choice([1, 2.0]), "rows": tl.choice([[1], [2, 3]])})
    for domain, said in (
        ({"n": tl.choice([1, None])}, "--n does not take None, .*: it has a default, 3, and no word for None"),
        ({"tag": tl.choice([True, False])}, "--tag does not take True, .*: it reads text, and 'True' counts as true"),
        ({"tag": tl.choice([["a"], ["b"]])}, "it takes one value"),
        ({"on": tl.choice([True, False])}, "its type is bool"),
        ({"tags": tl.choice([["a"]])}, "is added to its default"),
    ):
        with pytest.raises(SettingsError, match=said):
            made(file, domain)


def test_a_list_for_a_flag_of_absl_is_refused_before_since_it_reads_the_first_word_alone(write: Write) -> None:
    file = write("from absl import app, flags\nflags.DEFINE_list('layers', ['8'], '')\napp.run(print)")
    assert made(file, {"layers": tl.choice(["64,32", "8"])}).command({"layers": "64,32"}) == ["--layers=64,32"]
    with pytest.raises(SettingsError, match=r"--layers does not take \[64, 32\]: absl .* Search texts .*'64,32'"):
        made(file, {"layers": tl.choice([[64, 32], [8]])})


def test_words_that_args_gather_are_no_keys_and_other_styles_are_not_read(write: Write) -> None:
    file = write(f"{HEAD}p.add_argument('--cfg-options', nargs='+')\n{PARSE}")
    script = made(file, {"optimizer.lr": 0.5}, "--cfg-options", "${args_no_hyphens}")
    assert script.command({"optimizer.lr": 0.5}) == ["--cfg-options", "optimizer.lr=0.5"]
    assert made(file, {"x.y": 1}, style="hydra").options == ()


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


def test_keys_within_a_value_are_options(write: Write) -> None:
    file = write(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--model.lr')\np.add_argument('--model.n', type=int)\np.parse_args()"
    )
    space: dict[str, Any] = {"model": {"fixed": {"lr": 0.1, "n": 2.0}}}
    script = made(file, space)
    config = tl.SearchSpace(space).sample(None)  # type: ignore[arg-type]  # nothing is drawn
    for one in (script, Script.of(script.recorded(["model"]))):
        assert one.command(config) == ["--model.lr=0.1", "--model.n=2"]
    with pytest.raises(SettingsError, match=r"no option for the key 'model\.r'"):
        made(file, {"model": {"choice": [{"lr": 0.1}, {"r": 0.1}]}})


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
