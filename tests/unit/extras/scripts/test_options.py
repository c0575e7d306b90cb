"""The options of a script's parser: read from a process that runs it, and what a search space is held against them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError
from tunelight.extras.scripts.draft import Read, read_options
from tunelight.extras.scripts.script import Script, script_of
from tunelight.extras.scripts.style import Option
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
