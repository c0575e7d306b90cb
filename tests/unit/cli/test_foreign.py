"""A sweep folder that somebody else wrote to do harm: none of their code runs, and nothing outside of it is touched."""

from __future__ import annotations

import io
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests import docs, flavours
from tests.kit.programs import run
from tests.kit.recording import Writer
from tests.unit.cli.test_command import call
from tunelight.cli.app import BAD_INPUT
from tunelight.errors import CheckpointError, ImportPathError, StorageError
from tunelight.record import Record, read_sweep_file
from tunelight.reporting import watch
from tunelight.results import SweepResults

ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\x1b[31m\x9b5m\rhidden"
BOMB = "x0: &a0 [1,2,3,4,5,6,7,8,9,0]\n" + "".join(
    f"x{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 7)
)


def foreign(folder: Path, *, trial: str = "trial_00000", checkpoint: str | None = None, text: str = "") -> Path:
    """Write the record of a sweep of two trials, one of which failed, with paths and texts as given."""
    folder.mkdir(parents=True)
    record = Record(folder)
    record.append("sweep", sweep={"name": "evil", "format": 1, "metric": "loss", "mode": "min"})
    for number, state in enumerate(("FINISHED", "ERROR")):
        known, where = f"0000{number}", trial if number == 0 else "trial_00001"
        record.append("trial", trial=known, index=number, config={f"act{text}": f"relu{text}"}, seed=1, folder=where)
        record.append("state", trial=known, state="RUNNING")
        record.append(
            "report", trial=known, training_iteration=1, epoch=0, timestamp=1.0, metrics={"loss": 1.0, f"m{text}": 1},
            decision="CONTINUE", why=text or None,
        )  # fmt: skip
        if checkpoint is not None:
            record.append("checkpoint", trial=known, training_iteration=1, epoch=0, path=checkpoint, value=1.0)
        error = {"type_name": f"E{text}", "message": f"m{text}", "traceback": f"t{text}", "rank": 0, "node": "n"}
        record.append("state", trial=known, state=state, **({"error": error} if state == "ERROR" else {}))
    record.append("note", trial=None, text=f"note{text}")
    record.append("end", reason="finished")
    record.close()
    return folder


@pytest.mark.parametrize("folder", ["..", "/tmp", "trial_00000/../../other", "../other"])
def test_rm_deletes_nothing_outside_of_the_sweep(tmp_path, folder):
    evil = foreign(tmp_path / "runs" / "evil", trial=folder)
    precious = tmp_path / "runs" / "checkpoints"
    precious.mkdir()
    (precious / "x.ckpt").write_text("x")
    assert "Deleted sweep evil (its record cannot be read, " in call("rm", evil, "--yes").output
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["checkpoints", "x.ckpt"]


@pytest.mark.parametrize("named", ["/secret.txt", "../secret.txt", "trial_00000/checkpoints/../../../secret.txt"])
def test_export_copies_no_file_outside_of_the_sweep(tmp_path, named):
    secret = tmp_path / "runs" / "secret.txt"
    evil = foreign(secret.parent / "evil", checkpoint=str(secret) if named.startswith("/") else named)
    secret.write_text("secret")
    done = call("best", evil, "--export", tmp_path / "best.yaml", "--checkpoint", code=BAD_INPUT)
    assert "is not inside the sweep's folder" in done.stderr
    assert not (tmp_path / "best.ckpt").exists()


def test_no_control_character_of_a_record_reaches_the_terminal(tmp_path):
    evil = foreign(tmp_path / "evil", text=ESCAPES)
    stream = io.StringIO()
    watch(evil, console=Console(file=stream, width=300))
    shown = [call(*words).output for words in (("show", evil), ("show", evil, "1"), ("best", evil), ("ls", tmp_path))]
    for text in (stream.getvalue(), *shown):
        assert not [char for char in text if (char < " " and char not in "\n\t") or "\x7f" <= char <= "\x9f"], text
    assert r"\x1b]0;PWNED\x07" in shown[1]
    results = SweepResults.load(evil)
    assert results.best_config.popitem()[1] == f"relu{ESCAPES}"  # what was trained, to the last character


@pytest.mark.parametrize(
    ("text", "says"),
    [(BOMB, "aliases stand for more than"), ("x: &a [*a]\n", "contains itself"), ("[" * 9999, "cannot")],
)
def test_a_sweep_file_that_would_take_all_memory_is_refused_at_once(tmp_path, text, says):
    evil = foreign(tmp_path / "evil")
    (evil / "sweep.yaml").write_text(text)
    with pytest.raises(StorageError, match=says):
        read_sweep_file(evil)
    assert "unreadable" in call("ls", tmp_path).output


def test_a_space_and_a_value_that_would_take_all_memory_are_refused_at_once(tmp_path, write):
    space = write(f"space:\n  lr: {{uniform: [0, 1]}}\n{BOMB}")
    assert "aliases stand for more than 10,000 values" in call("check", space, code=BAD_INPUT).stderr
    value: Any = "x={" + ", ".join(BOMB.splitlines()) + "}"
    assert "aliases stand for more than" in call("enqueue", foreign(tmp_path / "s"), value, code=BAD_INPUT).stderr


def test_a_line_that_is_no_json_is_a_corrupt_one(tmp_path):
    evil = foreign(tmp_path / "evil")
    record = Record(evil)
    lines = record.path.read_bytes()
    for body in (b"[" * 100_000, b'{"kind":"note","text":"\x1b"'):
        record.path.write_bytes(lines + body + b',"crc":"%08x"}\n' % zlib.crc32(body + b"}") + lines)
        assert "corrupt" in call("show", evil, code=BAD_INPUT).stderr


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
