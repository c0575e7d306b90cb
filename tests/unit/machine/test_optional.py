"""The core without its optional rooms: in a copy of the package from which they have been removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors import PACKAGE, look_ups, modules, optional_room, without
from tests.removing import copy_without
from tests.unit.results.test_results import Writer
from tunelight.machine.optional import OPTIONAL

RESULTS = "tl.SweepResults.load('digits')"
RUN = "tl.run({'lr': tl.uniform(0, 1)}, print, metric='loss', "


def test_the_core_looks_up_each_optional_room_at_one_place() -> None:
    assert sorted(look_ups()) == sorted(name for name, room in OPTIONAL.items() if room.entry)


def test_every_part_of_an_optional_room_exists() -> None:
    parts = [part for room in OPTIONAL.values() for part in room.parts]
    assert set(parts) <= modules().keys() | {part for part in parts if (PACKAGE / part.replace(".", "/")).is_dir()}


IMPORTS = """
import importlib, json, os, sys, traceback
copies = json.loads(sys.argv[1])
for names in copies.values():
    for name in names:
        importlib.import_module(name)  # what they import of others is there for all copies, each in a fork
for folder, names in copies.items():
    if not (child := os.fork()):
        sys.path.insert(0, folder)
        for name in [*sys.modules]:
            if name.partition(".")[0] == "tunelight":
                del sys.modules[name]
        try:
            for name in names:
                assert importlib.import_module(name).__file__.startswith(folder)
        except BaseException:
            with open(os.path.join(folder, "error"), "w") as file:
                traceback.print_exc(file=file)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of the package without each optional room, in which the rest was imported; `error` says what failed."""
    folders, imported = {}, {}
    for name in OPTIONAL:
        folders[name] = tmp_path_factory.mktemp(name)
        gone = without(name)
        copy_without(gone, folders[name])
        core = [f"tunelight.{module}" for module in modules() if module and optional_room(module) not in gone]
        light = {"sweep", "cli", "cluster", "space", "results"}  # without torch
        imported[str(folders[name])] = [module for module in core if module.split(".")[1] in light]
    subprocess.run([sys.executable, "-c", IMPORTS, json.dumps(imported)], check=True, cwd=PACKAGE.parent)
    return folders


@pytest.mark.parametrize("name", OPTIONAL)
def test_the_core_and_its_commands_are_imported_without_an_optional_room(name: str, copies: dict[str, Path]) -> None:
    error = copies[name] / "error"
    assert not error.exists(), error.read_text()


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "web",
            "from tunelight.sweep.live_page import check_web; check_web()",
            "This tunelight is without the live page",
        ),
        ("formats", "tl.SearchSpace.from_format({}, 'wandb')", "without search spaces of other programs"),
        ("plan", "tl.plan", "No module named 'tunelight.extras'"),
        ("commands", "import tunelight.cli", "No module named 'tunelight.cli'"),
        ("auto", f"{RUN} searcher='auto')", "is without searcher='auto'"),
        ("figures", f"{RESULTS}.plot()", "This tunelight is without figures of a sweep"),
        ("report", "from tunelight import reporting; reporting.report", "No module named 'tunelight.reporting.page'"),
        ("export", f"{RESULTS}.trial('best').export('best.yaml')", "This tunelight is without exports of a trial"),
        ("study", f"{RESULTS}.to_study()", "This tunelight is without Optuna studies of a sweep"),
        (
            "remote",
            "import pytorch_lightning as pl; pl.Trainer(strategy=tl.RayStrategy(), logger=False)",
            "This tunelight is without fits outside of a sweep",
        ),
        (
            "data",
            f"{RUN} datasets={{'train': {{'parquet': 'rows'}}}})",
            "This tunelight is without datasets and caches",
        ),
        ("data", "tl.RayDataModule", "No module named 'tunelight.data'"),
        ("plain", "tl.gang_trainable", "No module named 'tunelight.trial.plain_tune'"),
        ("reproduce", "tl.reproduce", "No module named 'tunelight.sweep.reproduce'"),
    ],
)
def test_what_is_missing_is_said_where_it_is_asked_for(name: str, asked: str, said: str, tmp_path: Path) -> None:
    copy_without(without(name), tmp_path)
    written = Writer(tmp_path)
    written.trial(0.5)
    written.record.close()
    done = subprocess.run(
        [sys.executable, "-c", f"import tunelight as tl; {asked}"],
        capture_output=True, text=True, cwd=tmp_path, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
