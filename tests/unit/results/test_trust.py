"""Reading a sweep that somebody else recorded runs none of their code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests import flavours
from tests.unit.results.test_results import Writer
from tunelight.errors import CheckpointError, ImportPathError, SettingsError

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
    written = Writer(tmp_path, model="tunelight.digits:DigitsClassifier")
    written.checkpoint(written.trial(0.5), 1, 0.5)
    with pytest.raises(CheckpointError):
        written.load().best.load_model()


def test_reading_in_python_runs_none_of_it(theirs, marker, tmp_path, monkeypatch):
    from tunelight.reporting.page import page
    from tunelight.results.figures import FIGURES

    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    found = tl.SweepResults.load(theirs.folder)
    found.dataframe()
    found.summary()
    page(found)
    for draw in FIGURES.values():
        draw(found)
    for name in ("a.yaml", "b.json", "c.py"):
        found.export_best(tmp_path / name)
    for kind in ("lightning-cli", "hydra"):
        found.export_best(tmp_path / f"{kind}.yaml", kind)
    assert not marker.exists()
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    "words",
    [
        ("show", "digits"),
        ("best", "digits", "--export", "best.yaml"),
        ("best", "digits", "0", "--export", "best.py", "--format", "python"),
        ("ls", "."),
        ("report", "digits"),
    ],
)
def test_commands_that_read_run_none_of_it_also_inside_of_its_folder(theirs, marker, words):
    start = "import sys; from tunelight.cli import main; sys.argv[0] = 'tunelight'; main()"
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    command = [sys.executable, "-P", "-c", start, *words, *(() if words[0] == "ls" else ("--storage", "."))]
    done = subprocess.run(
        command, cwd=theirs.folder.parent, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not marker.exists(), done.stderr


@pytest.mark.parametrize("path", ["os:system\nimport evil", "a b:Net", "os:path;import_evil"])
def test_an_export_as_a_program_takes_import_paths_only(tmp_path, path):
    written = Writer(tmp_path, model=path)
    written.trial(0.5, config={"model.lr": 0.1})
    with pytest.raises(SettingsError, match="is no import path"):
        written.load().export_best(tmp_path / "best.py")


@pytest.mark.parametrize(
    ("recorded", "package"),
    [({}, "pytorch_lightning"), *(({"lightning": name}, name) for name in ("pytorch_lightning", "lightning.pytorch"))],
)
def test_what_a_record_holds_is_text_in_an_exported_program(tmp_path, recorded, package):
    told = {"model": "tunelight.digits:DigitsClassifier", "metric": '"""\nimport os\n"""', **recorded}
    written = Writer(tmp_path, **told)
    written.trial(0.5, config={"model.lr": 0.1})
    path = written.load().trials[0].export(tmp_path / "a.py")
    body = ast.parse(path.read_text()).body
    imported = [one.names[0].name for one in body if isinstance(one, ast.Import)]
    assert imported == [package, "tunelight"]


@pytest.mark.parametrize(("name", "form"), [("best.py", "python"), ("best.yaml", "hydra")])
def test_a_package_that_is_not_lightning_is_refused_in_an_export(tmp_path, name, form):
    written = Writer(tmp_path, model="tunelight.digits:DigitsClassifier", lightning="os\nimport evil")
    written.trial(0.5, config={"model.lr": 0.1})
    with pytest.raises(SettingsError, match=r"package 'os\\nimport evil' as its Lightning; there are: pytorch_"):
        written.load().export_best(tmp_path / name, form)


def test_a_key_that_is_no_argument_is_refused_in_an_exported_program(tmp_path):
    written = Writer(tmp_path, model="tunelight.digits:DigitsClassifier")
    written.trial(0.5, config={"model.lr": 0.1, "trainer.x=1)\nimport os\ny(z": 1})
    with pytest.raises(SettingsError, match="no argument of a Trainer"):
        written.load().export_best(tmp_path / "a.py")
