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


def kinds(read: Read) -> dict[str, str]:
    return {name: option.kind for name, option in by_dest(read).items()}


def made(file: Path, space: dict[str, Any], *args: str, **settings: Any) -> Script:
    return script_of(tl.SearchSpace(space), Settings(script=str(file), args=args, metric="loss", **settings))


def test_argparse_s_options_are_read(write: Write) -> None:
    read = read_options(write(ARGPARSE), None, ["folder"])
    assert kinds(read) == {
        "learning_rate": "value", "opt": "value", "fast": "flag", "shuffle": "off", "warm": "both", "layers": "many",
        "gpu": "again", "out": "value",
    }  # fmt: skip
    options = by_dest(read)
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
    with pytest.raises(SettingsError, match=r"does not take 'gelu' for --model.act.* It takes: relu, tanh"):
        made(file, {**space, "model.act": tl.choice(["relu", "gelu"])}, "fit")
    with pytest.raises(SettingsError, match=r"requires --model.hidden"):
        made(file, {"model.lr": 1}, "fit")
    made(file, {"model.lr": 1}, "fit", "--config=some.yaml")


def test_the_subcommand_among_args_tells_which_options_there_are(write: Write) -> None:
    assert set(by_dest(read_options(write(SUBCOMMANDS), None, ["train"]))) == {"root", "lr"}


def test_a_module_is_read_too(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_arguments_of_the_script_s_own_making_are_not_its_command_line(write: Write) -> None:
    file = write(
        "import argparse\nq = argparse.ArgumentParser()\nq.add_argument('--x')\nassert q.parse_args(['--x=1']).x\n"
        "p = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()"
    )
    assert set(by_dest(read_options(file, None, ["--lr=1"]))) == {"lr"}


def test_a_key_that_is_no_option_is_refused_with_the_nearest(write: Write) -> None:
    with pytest.raises(SettingsError) as error:
        made(write(ARGPARSE), {"learning_rat3": 1}, "folder")
    assert str(error.value) == (
        "train.py has no option for the key 'learning_rat3' of the search space. Did you mean 'learning_rate'? It has: "
        "learning_rate, opt, fast, no_shuffle, warm, layers, gpu, out."
    )


@pytest.mark.parametrize("key", ["learning_rate", "learning-rate", "learn", "shuffle", "no_shuffle"])
def test_a_key_may_be_an_option_s_name_its_value_s_or_its_beginning(write: Write, key: str) -> None:
    assert made(write(ARGPARSE), {key: True}, "folder").options


def test_a_key_that_args_names_is_the_script_s_own_affair(write: Write) -> None:
    made(write(ARGPARSE), {"anything": tl.choice(["a"])}, "${anything}")


def test_a_parser_that_takes_unknown_options_refuses_no_key(write: Write) -> None:
    made(write(ARGPARSE.replace("p.parse_args()", "p.parse_known_args()")), {"anything": 1}, "folder")


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


def test_a_configuration_given_in_the_script_refuses_nothing(write: Write) -> None:
    source = (
        "import jsonargparse\np = jsonargparse.ArgumentParser()\np.add_argument('--lr', type=float, required=True)\n"
        "p.parse_object({'lr': 1})"
    )
    assert made(write(source), {"other": 1}).options[0].dest == "lr"


def test_what_a_default_configuration_file_may_hold_is_not_required(write: Write) -> None:
    source = (
        "import jsonargparse\np = jsonargparse.ArgumentParser(default_config_files=['some.yaml'])\n"
        "p.add_argument('--lr', type=float, required=True)\np.add_argument('--wd', type=float)\np.parse_args()"
    )
    file = write(source)
    made(file, {"wd": 1})
    with pytest.raises(SettingsError, match="requires --lr"):
        made(write(source.replace("default_config_files=['some.yaml']", "")), {"wd": 1})


@pytest.mark.parametrize("domain", [tl.choice(["adam", "lion"]), {"grid": ["adam", "lion"]}, "lion"])
def test_a_value_that_is_no_choice_is_refused(write: Write, domain: Any) -> None:
    with pytest.raises(SettingsError, match=r"train.py does not take 'lion' for --opt.* It takes: adam, sgd"):
        made(write(ARGPARSE), {"opt": domain}, "folder")


def test_numbers_are_choices_by_their_value(write: Write) -> None:
    file = write(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', type=float, choices=[1.0, 2.5])\n"
        "p.add_argument('--n', type=int, choices=range(3))\np.parse_args()"
    )
    made(file, {"x": tl.choice([1, 2.5]), "n": tl.choice([0, 2])})
    with pytest.raises(SettingsError, match="does not take 3 for --n"):
        made(file, {"n": tl.choice([0, 3])})


def test_a_required_option_must_be_given_by_the_space_or_by_args(write: Write) -> None:
    file = write(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--learning-rate')\n"
        "p.add_argument('--n', type=int, required=True)\np.parse_args()"
    )
    made(file, {"n": 1})
    made(file, {"learning_rate": 1}, "--n=1")
    made(file, {"learning_rate": 1}, "--n", "1")
    with pytest.raises(SettingsError, match=r"requires --n, .*Add the key 'n' to the search space, or args="):
        made(file, {"learning_rate": 1})


def test_other_styles_are_not_read(write: Write) -> None:
    assert made(write(ARGPARSE), {"x.y": 1}, style="hydra").options == ()


# --- what else a parser says before a sweep starts --------------------------------------------------------

SIMPLE = """\
import argparse, dataclasses
from simple_parsing import ArgumentParser
@dataclasses.dataclass
class Options:
    data: str
    lr: float = 1e-3
    amp: bool = False
p = ArgumentParser()
p.add_argument("--epochs", type=int, default=1)
p.add_arguments(Options, dest="options")
p.parse_args()
"""


def test_simple_parsing_is_read_too(write: Write) -> None:
    file = write(SIMPLE)
    assert [one.required for one in read_options(file, None, []).options or () if one.key == "data"] == [True]
    made(file, {"lr": tl.uniform(0, 1), "data": "here"})
    with pytest.raises(SettingsError, match=r"no option for the key 'lrr'.* Did you mean 'lr'"):
        made(file, {"lrr": 0.1, "data": "here"})
    with pytest.raises(SettingsError, match=r"requires --data, which neither"):
        made(file, {"lr": 0.1})
    made(file, {"lr": 0.1}, "--data=here")


@pytest.mark.parametrize(
    ("source", "args", "said"),
    [
        (ARGPARSE, (), r"train.py refuses its arguments \(none\): the following arguments are required: data"),
        (ARGPARSE, ("folder", "--learning-rate=fast"), "argument -l/--learning-rate: invalid float value: 'fast'"),
        (ARGPARSE, ("folder", "--rate=1"), "unrecognized arguments: --rate=1"),
        (SUBCOMMANDS.replace("add_subparsers()", "add_subparsers(required=True, dest='what')"), (), "required: what"),
    ],
)
def test_what_a_parser_refuses_of_args_is_said_before(
    write: Write, source: str, args: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        made(write(source), {"anything": 1}, *args)


def test_values_that_an_option_cannot_have_are_refused_before(write: Write) -> None:
    file = write(
        "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=3)\n"
        "p.add_argument('--tag', default='x')\np.add_argument('--rows', type=json.loads)\n"
        "p.add_argument('--on', type=bool)\n"
        "p.add_argument('--pair', nargs=2)\np.parse_args()"
    )
    made(file, {"n": tl.choice([1, 2.0]), "rows": tl.choice([[1], [2, 3]]), "on": tl.choice([True, False])})
    for domain, said in (
        ({"n": tl.uniform(0, 9)}, "--n does not take .*: its type is int"),
        ({"n": tl.choice([1, None])}, "--n does not take None, .*: it has a default, 3, and no word for None"),
        ({"tag": tl.choice([True, False])}, "--tag does not take True, .*: it reads text, and 'True' counts as true"),
        ({"tag": tl.choice([["a"], ["b"]])}, "it takes one value"),
        ({"pair": tl.choice([[1, 2, 3]])}, "it takes 2 values"),
    ):
        with pytest.raises(SettingsError, match=said):
            made(file, domain)


def test_options_of_the_program_precede_its_subcommand(write: Write) -> None:
    file = write(SUBCOMMANDS)
    script = made(file, {"lr": 1, "root": "x"}, "train", "--lr=3")
    assert script.command({"lr": 1, "root": "x"}) == ["--root=x", "train", "--lr=3", "--lr=1"]
    assert Script.of(script.recorded(["lr", "root"])).command({"lr": 1, "root": "x"})[0] == "--root=x"


def test_a_key_whose_words_are_no_options_is_not_checked(write: Write) -> None:
    file = write(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--cfg-options', nargs='+')\np.parse_args()"
    )
    script = made(file, {"optimizer.lr": 0.5}, "--cfg-options", "${args_no_hyphens}")
    assert script.command({"optimizer.lr": 0.5}) == ["--cfg-options", "optimizer.lr=0.5"]


def test_a_type_that_is_tried_leaves_no_files(write: Write, tmp_path: Path) -> None:
    file = write(
        "import argparse, os\np = argparse.ArgumentParser()\n"
        "p.add_argument('--out', type=lambda one: os.makedirs(one))\n"
        "p.add_argument('--log', type=argparse.FileType('w'))\n"
    )
    two = "_, rest = p.parse_known_args()\nargparse.ArgumentParser().parse_args(rest)"
    for name, end in (("one.py", "p.parse_args()"), ("two.py", two)):
        made(write(file.read_text() + end, name), {"log": "x"})
    assert {one.name for one in tmp_path.iterdir()} == {"train.py", "one.py", "two.py"}


EMPTIES = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--log", type=argparse.FileType("w"))
p.add_argument("--lr")
p.parse_args()
"""


def test_a_file_that_args_name_is_not_emptied(write: Write, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    made(write(EMPTIES), {"lr": "x"}, "--log", "kept.txt")
    assert (tmp_path / "kept.txt").read_text() == "kept"


def test_the_target_of_a_link_is_no_option(write: Write) -> None:
    file = write(
        "import jsonargparse\np = jsonargparse.ArgumentParser()\np.add_argument('--a', type=int)\n"
        "p.add_argument('--b', type=int)\np.link_arguments('a', 'b')\np.parse_args()"
    )
    made(file, {"a": 1})
    with pytest.raises(SettingsError, match="no option for the key 'b'"):
        made(file, {"b": 1})
