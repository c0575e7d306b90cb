"""init: what it writes is a sweep, and nothing is overwritten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT
from tunelight.cli.overrides import is_script, read_domain, space_of_script, spell_after_dashes
from tunelight.cli.starter import FILES, write_starter
from tunelight.errors import SpaceError, StorageError
from tunelight.space import SearchSpace


@pytest.fixture
def starter(here, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield here / "new"
    sys.modules.pop("train", None)


def test_what_it_writes_is_a_sweep_that_checks(starter, monkeypatch):
    assert "Next: cd new && tunelight check space.yaml" in call("init", "new").output
    assert sorted(path.name for path in starter.iterdir()) == sorted(FILES)
    monkeypatch.chdir(starter)
    assert "12 trials, judged by val_loss" in call("check", "space.yaml", "--workers", "1").output


def test_nothing_is_overwritten(starter):
    starter.mkdir()
    (starter / "train.py").write_text("mine")
    with pytest.raises(StorageError, match=r"holds train.py already"):
        write_starter(starter)
    assert [path.name for path in starter.iterdir()] == ["train.py"]
    assert (starter / "train.py").read_text() == "mine"
    assert "nothing is overwritten" in call("init", "new", code=BAD_INPUT).stderr
    with pytest.raises(StorageError, match="cannot be written"):
        write_starter(starter / "train.py" / "new")


SCRIPT = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--learning-rate", type=float, default=0.1, help="of the optimizer: {odd} # and\\nmore")
p.add_argument("--weight_decay", type=float, default=0.0)
p.add_argument("--hidden", type=int, default=48)
p.add_argument("--heads", type=int, default=8)
p.add_argument("--dropout", type=float, default=0.1)
p.add_argument("--act", choices=["relu", "no", "1e-3"], default="relu")
p.add_argument("--n", choices=[1, 2], type=int, default=1)
p.add_argument("--nesterov", action="store_true")
p.add_argument("--epochs", type=int, default=8)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--data", default="data", help="where the data lie, 100%% of it")
p.add_argument("--name", required=True)
args = p.parse_args()
class Model:
    def validation_step(self, batch):
        self.log("train_loss", 1)
        self.log("val_acc", 1)
"""


def test_a_script_gets_a_space_with_domains_around_its_defaults(here):
    Path("train.py").write_text(SCRIPT)
    assert "wrote space.yaml" in call("init", "--script", "train.py").output
    text = Path("space.yaml").read_text()
    space = SearchSpace.load("space.yaml")
    assert space.describe() == {
        "learning_rate": {"loguniform": [0.01, 1.0]},
        "weight_decay": {"loguniform": [1e-6, 1e-2]},
        "hidden": {"choice": [24, 48, 96]},
        "heads": {"choice": [4, 8, 16]},
        "dropout": {"uniform": [0.0, 0.5]},
        "act": {"choice": ["relu", "no", "1e-3"]},
        "n": {"choice": [1, 2]},
        "nesterov": {"choice": [True, False]},
    }
    assert "  # epochs: int, default 8\n" in text
    assert '  # data: default "data"; where the data lie, 100% of it\n' in text
    assert "args: []    # the script requires --name\n" in text
    assert {name: space.settings[name] for name in ("metric", "mode", "workers")} == {
        "metric": "val_acc", "mode": "max", "workers": 1,
    }  # fmt: skip
    assert space.settings["script"].endswith("train.py")
    assert "nothing is overwritten" in call("init", "--script", "train.py", code=BAD_INPUT).stderr
    assert Path("space.yaml").read_text() == text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "There is no script train.py"),
        ("print(1)", "imports no library that reads a command line, so that its options are not known"),
        ("import argparse\n1 / 0", "ZeroDivisionError: division by zero, so that"),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--x')\np.parse_args()", "It has: x."),
    ],
)
def test_a_script_without_options_to_search_gets_no_space(here, source, said):
    if source is not None:
        Path("train.py").write_text(source)
    assert said in " ".join(call("init", "--script", "train.py", code=BAD_INPUT).stderr.split())
    assert not Path("space.yaml").exists()


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("loguniform(1e-4, 1e-1)", {"loguniform": [1e-4, 0.1]}),
        ("choice(adam, sgd)", {"choice": ["adam", "sgd"]}),
        ("choice([a, 'b c'])", {"choice": ["a", "b c"]}),
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
        (["lr=choice([1)"], "not valid YAML: while parsing a flow sequence"),
        (["lr=loguniform(1e-4 1e-1)"], "commas stand between arguments: loguniform(1e-4, 1e-1)"),
        (["lr=range(1, 3)"], "there is no domain 'range'"),
    ],
)
def test_a_word_that_is_no_domain_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SpaceError) as error:
        space_of_script("train.py", words, ())
    assert said in str(error.value)


def test_what_only_a_script_takes_is_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text("script: train.py\nspace:\n  dropout: {uniform: [0, 1]}\nmetric: val_loss\n")
    metric = ("--set", "metric=val_loss")
    call("check", tmp_path / "space.yaml", *metric)
    said = call("check", tmp_path / "space.yaml", "lr=0.1", *metric, code=BAD_INPUT).output
    assert "Fix a key by --set lr=0.1" in said
    assert "There is nothing to search" in call("check", tmp_path / "train.py", *metric, code=BAD_INPUT).output


def test_a_module_is_run_as_python_runs_it(here):
    Path("whole").mkdir()
    after = ["lr=1", "--", "-m", "x"]
    for given, script in (("pkg.train", "pkg.train"), ("train", "train.py"), ("whole", "whole.__main__")):
        assert spell_after_dashes(["-m", given, *after]) == [script, "lr=1", "--after=-m", "--after=x"]
    assert spell_after_dashes(["--name", "x", "-m", "pkg.train"]) == ["--name", "x", "pkg.train"]
    assert all(map(is_script, ("train.py", "pkg.train")))
    assert not any(map(is_script, ("space.yaml", "digits", "a/b.train")))
