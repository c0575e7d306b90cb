"""A script on the command line: KEY=DOMAIN words, and the script's own arguments after --."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tunelight.cli import app
from tunelight.cli.words import is_script, space_of_script, spell_after_dashes
from tunelight.errors import SpaceError
from tunelight.space.text import read_domain

SCRIPT = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.add_argument('--epochs')\n"
    "p.parse_args()\n"
)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("loguniform(1e-4, 1e-1)", {"loguniform": [1e-4, 0.1]}),
        ("choice(32, 64)", {"choice": [32, 64]}),
        ("choice(adam, sgd)", {"choice": ["adam", "sgd"]}),
        ("choice([a, 'b c'])", {"choice": ["a", "b c"]}),
        ("interval(0, 1)", {"uniform": [0, 1]}),
        ("range(1, 7, 2)", {"choice": [1, 3, 5]}),
        ("range(3)", {"choice": [0, 1, 2]}),
        ("range(0, 1, 0.25)", {"choice": [0, 0.25, 0.5, 0.75]}),
        ("a,b", {"choice": ["a", "b"]}),
        ("0.1", 0.1),
        ("adam", "adam"),
        ("[1, 2]", [1, 2]),
        ("fixed(3)", {"fixed": 3}),
    ],
)
def test_a_domain_is_read_from_text(text: str, domain: Any) -> None:
    assert read_domain(text) == domain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr"], "is given as KEY=DOMAIN"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=logunifrom(1, 2)"], "there is no domain 'logunifrom'. Did you mean 'loguniform'?"),
        (["lr=sample_from(print)"], "there is no domain 'sample_from'"),
        (["lr=choice([1)"], "not valid YAML: this [ is not closed"),
        (["lr=loguniform(1e-4 1e-1)"], "commas stand between arguments: loguniform(1e-4, 1e-1)"),
        (["lr=range(a, b)"], "a range is range(stop)"),
        (["lr=range(3, 1)"], "a range has one value or more"),
    ],
)
def test_a_word_that_is_no_domain_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SpaceError) as error:
        space_of_script("train.py", words, ())
    assert said in str(error.value)


def check(*words: str) -> Any:
    return CliRunner().invoke(app, ["check", *words, "--set", "metric=val_loss"])


def test_check_reads_a_script_with_its_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = CliRunner().invoke(
        app,
        ["check", str(script), "lr=loguniform(1e-4, 1)", "--set", "metric=val_loss", "--json", "--", "--epochs", "3"],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["space"] == {"lr": {"loguniform": [1e-4, 1.0]}}
    assert found["commands"] == [["--epochs", "3", f"--lr={sample['lr']}"] for sample in found["samples"]]


def test_what_only_a_script_takes_is_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text("script: train.py\nspace:\n  lr: {uniform: [0, 1]}\nmetric: val_loss\n")
    assert check(str(tmp_path / "space.yaml")).exit_code == 0
    said = check(str(tmp_path / "space.yaml"), "lr=0.1")
    assert said.exit_code == 2
    assert "Fix a key by --set lr=0.1" in said.output
    said = check(str(tmp_path / "train.py"))
    assert said.exit_code == 2
    assert "There is nothing to search" in said.output


def test_a_module_is_run_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path)
    after = ["lr=1", "--", "-m", "x"]
    for given, script in (("pkg.train", "pkg.train"), ("train", "train.py"), ("whole", "whole.__main__")):
        assert spell_after_dashes(["-m", given, *after]) == [script, "lr=1", "--after=-m", "--after=x"]
    assert spell_after_dashes(["--name", "x", "-m", "pkg.train"]) == ["--name", "x", "pkg.train"]
    assert [is_script(file) for file in ("train.py", "pkg.train", "space.yaml", "digits", "a/b.train")] == [
        *(True, True, False, False, False)
    ]
