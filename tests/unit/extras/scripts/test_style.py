"""How a configuration is written on a script's command line, and how that is found."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import pytest

from tunelight.extras.scripts.script import Script
from tunelight.extras.scripts.style import Option, find_style, spell


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
    ],
)
def test_imports_tell_the_style(tmp_path: Path, source: str, style: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert find_style(str(tmp_path / "train.py"))[0] == style


def test_the_modules_beside_a_script_tell_it_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from src.main import main\nmain()")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("import hydra\n")
    assert find_style(str(tmp_path / "train.py")) == ("hydra", "main.py imports hydra")


def parsed(words: list[str], *options: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    for names, more in options:
        parser.add_argument(*names, **more)
    return vars(parser.parse_args(words))


def test_argparse_reads_what_is_written_for_it() -> None:
    values = {
        "lr": -0.5,
        "name": "--odd one",
        "layers": [3, 5],
        "fast": True,
        "slow": False,
        "warm": False,
        "nothing": None,
    }
    options = (
        Option(("--fast",), "fast", "flag"),
        Option(("--slow",), "slow", "flag"),
        Option(("--warm", "--no-warm"), "warm", "both"),
    )
    words = spell("argparse", values, options)
    assert parsed(
        words,
        (("--lr",), {"type": float}),
        (("--name",), {}),
        (("--layers",), {"type": int, "nargs": "+"}),
        (("--fast",), {"action": "store_true"}),
        (("--slow",), {"action": "store_true"}),
        (("--warm",), {"action": argparse.BooleanOptionalAction, "default": True}),
        (("--nothing",), {"default": "kept"}),
    ) == {
        "lr": -0.5,
        "name": "--odd one",
        "layers": [3, 5],
        "fast": True,
        "slow": False,
        "warm": False,
        "nothing": "kept",
    }


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("shuffle", False, ["--no-shuffle"]),
        ("shuffle", True, []),
        ("no_shuffle", True, ["--no-shuffle"]),
        ("no_shuffle", False, []),
    ],
)
def test_an_option_that_switches_off_is_known_by_its_value_and_by_its_name(
    key: str, value: bool, words: list[str]
) -> None:
    assert spell("argparse", {key: value}, (Option(("--no-shuffle",), "shuffle", "off"),)) == words


@pytest.mark.parametrize("default", [True, False])
def test_of_two_switches_for_a_value_the_one_that_sets_it_is_written(default: bool) -> None:
    on = Option(("--augment",), "augment", "flag", default=default)
    off = Option(("--no-augment",), "augment", "off", default=default)
    for options in ((on, off), (off, on)):
        for value, word in ((True, "--augment"), (False, "--no-augment")):
            assert spell("argparse", {"augment": value}, options) in ([word], [] if value is default else [word])


def test_an_option_with_hyphens_is_known_by_its_identifier() -> None:
    option = Option(("-l", "--learning-rate"), "learning_rate")
    assert spell("argparse", {"learning_rate": 0.1}, (option,)) == ["--learning-rate=0.1"]
    again = Option(("--gpu",), "gpu", "again")
    assert spell("argparse", {"gpu": [1, 2]}, (again,)) == ["--gpu=1", "--gpu=2"]


def test_lightning_s_are_yaml() -> None:
    values = {"model.lr": 1e-05, "model.act": "relu", "data.sizes": [1, 2], "trainer.fast": True, "model.x": None}
    assert spell("lightning", values) == [
        "--model.lr=1e-05", "--model.act=relu", "--data.sizes=[1, 2]", "--trainer.fast=true", "--model.x=null",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (True, "true"),
        (None, "null"),
        ("adam", "adam"),
        ("a b, it's", "'a b, it\\'s'"),
        ("1e-3", "'1e-3'"),
        ([1, "x", None], "[1,x,null]"),
        ({"a": 1, "b": [True]}, "{a:1,b:[true]}"),
    ],
)
def test_hydra_s_follow_its_grammar(value: Any, text: str) -> None:
    assert spell("hydra", {"model.lr": value}) == [f"model.lr={text}"]


@pytest.mark.parametrize("value", [0.1, True, None, [1, "a"], "adam", "1e-3", "None"])
def test_fire_reads_back_the_value(value: Any) -> None:
    (word,) = spell("fire", {"x": value})
    text = word.removeprefix("--x=")
    try:
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        read = text
    assert read == value


def test_fixed_arguments_come_first_and_macros_take_a_value() -> None:
    script = Script("train.py", args=("fit", "--out=run-${lr}"))
    assert script.command({"lr": 0.5, "model": {"size": 3}}) == ["fit", "--out=run-0.5", "--model.size=3"]
    around = Script("train.py", args=("a", "${args}", "b", "${other}"))
    assert around.command({"lr": 0.5}) == ["a", "--lr=0.5", "b"]
