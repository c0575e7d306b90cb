"""Reading a sweep that somebody else recorded runs none of their code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import docs, flavours
from tests.kit.programs import run
from tests.kit.recording import Writer
from tunelight.errors import CheckpointError, ImportPathError

MODULE = "somebody_s_model"
CODE = """\
import pathlib
import pytorch_lightning as pl

pathlib.Path({marker!r}).touch()


class Net(pl.LightningModule):
    pass
"""
TRAP = "import pathlib\npathlib.Path({marker!r}).touch()\nraise ImportError('this is not the real one')\n"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return the file that somebody's code would write."""
    return tmp_path / "their-code-ran"


@pytest.fixture
def theirs(tmp_path: Path, marker: Path) -> Any:
    """Return somebody's sweep: beside its space's file lies the model's module, and traps with names of libraries."""
    home = tmp_path / "theirs"
    home.mkdir()
    (home / f"{MODULE}.py").write_text(flavours.written(CODE.format(marker=str(marker))))
    for name in ("pandas", "plotly", "rich", "tensorboard", "yaml", "torch"):
        (home / f"{name}.py").write_text(TRAP.format(marker=str(marker)))
    written = Writer(
        home,
        model=f"{MODULE}:Net",
        train=None,
        space={"lr": {"sample_from": f"{MODULE}:Net"}},
        run={"file": str(home / "space.yaml"), "command": ["python", "train.py"]},
    )
    written.checkpoint(written.trial(0.5, config={"model.lr": 0.1}), 1, 0.5)
    written.record.append("end", reason="finished")
    yield written.load()
    sys.modules.pop(MODULE, None)
    while str(home) in sys.path:
        sys.path.remove(str(home))


def test_the_recorded_class_is_not_imported_from_the_sweep_s_own_folder(theirs, marker):
    before = list(sys.path)
    with pytest.raises(ImportPathError) as refused:
        theirs.best.load_model()
    assert not marker.exists()
    assert sys.path == before
    said = str(refused.value)
    assert f"'{MODULE}:Net'" in said
    assert "load_model(Net)" in said
    assert "load_model(trust=True)" in said
    assert str(theirs.folder.parent) in said


def test_whoever_trusts_it_says_so(theirs, marker):
    with pytest.raises(CheckpointError):  # the checkpoint is an empty file: the class was there
        theirs.best.load_model(trust=True)
    assert marker.exists()


def test_a_class_that_this_process_can_import_anyway_needs_no_trust(tmp_path):
    written = Writer(tmp_path, model="tunelight.extras.digits:DigitsClassifier")
    written.checkpoint(written.trial(0.5), 1, 0.5)
    with pytest.raises(CheckpointError):
        written.load().best.load_model()


@pytest.mark.parametrize(
    "words",
    [
        ("show", "digits"),
        ("best", "digits", "--export", "best.yaml"),
        ("best", "digits", "0", "--export", "best.yaml", "--format", "lightning-cli"),
        ("ls", "."),
        ("report", "digits"),
    ],
)
def test_commands_that_read_run_none_of_it_also_inside_of_its_folder(theirs, marker, words):
    start = "import sys; from tunelight.cli import main; sys.argv[0] = 'tunelight'; main()"
    command = [sys.executable, "-P", "-c", start, *words, *(() if words[0] == "ls" else ("--storage", "."))]
    run(*command, cwd=theirs.folder.parent, limit_s=100, env=os.environ, PYTHONPATH=str(docs.ROOT))
    assert not marker.exists()
