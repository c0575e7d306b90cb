"""A sweep that the newest released version has recorded (tests/formats/record.py), and its search space, are read."""

from __future__ import annotations

import gzip
import re
import sys

import pytest
import yaml

import tunelight as tl
from tests import docs
from tests.formats import FORMATS, VERSION, unpacked
from tunelight.extras.earlier import read_earlier
from tunelight.record import read_sweep_file
from tunelight.reporting import report
from tunelight.settings import Settings


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the sweep, with what it trained on the import path."""
    monkeypatch.syspath_prepend(str(FORMATS))
    yield unpacked(tmp_path / "runs")
    sys.modules.pop("recorded_model", None)


def test_the_newest_released_version_has_a_sweep():
    newest = re.findall(r"^## \[(\d+\.\d+)\.0\]", docs.read("CHANGELOG.md"), re.MULTILINE)[0]
    assert newest == VERSION, f"record a sweep with it: python tests/formats/record.py {newest}"


def test_no_sweep_names_the_machine_that_recorded_it():
    for path in (path for path in FORMATS.glob("*/sweep/**/*") if path.is_file()):
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode("latin-1")
        paths = re.findall(r"/(?:home|root|work|Users|tmp|opt)\b[\w/.-]*", text)
        assert all(found == "/tmp/sweep" or found.startswith("/tmp/sweep/") for found in paths), path
        assert path.stat().st_size < 50_000, path


def test_its_trials_are_read(folder):
    results = tl.SweepResults.load(folder)
    assert read_sweep_file(folder)["versions"]["tunelight"].startswith(f"{VERSION}.")
    assert [trial.state for trial in results.trials] == ["FINISHED", "ERROR", "STOPPED", "INTERRUPTED"]
    assert [len(trial.history) for trial in results.trials] == [6, 0, 2, 1]
    assert results.ended == "interrupted"
    best = results.best
    assert best.config == {
        "model.lr": 0.05, "model.hidden": 4, "model.kind": "leaky", "model.slope": 0.2, "data.batch_size": 8,
    }  # fmt: skip
    assert best.value == best.metrics["val_loss"] == best.history[5]["val_loss"] < best.history[4]["val_loss"]
    assert best.seconds > 1
    (failed,) = results.errors
    assert "8 is too wide" in str(failed.error)
    assert len(results.dataframe()) == len(results.to_study().trials) == 4


def test_it_is_reported_on_and_exported_and_the_model_of_its_best_checkpoint_loaded(folder, tmp_path):
    from recorded_model import Line  # type: ignore[import-not-found]

    results = tl.SweepResults.load(folder)
    best = results.best
    assert best.checkpoint is not None
    assert best.checkpoint.name == "report-000006.ckpt"
    model = best.load_model(Line)
    assert isinstance(model, Line)
    assert model.hparams["hidden"] == 4
    assert "model.hidden" in report(results, tmp_path / "report.html").read_text()
    results.export_best(tmp_path / "best.yaml", checkpoint=True)
    exported = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert exported["model"] == {"lr": 0.05, "hidden": 4, "kind": "leaky", "slope": 0.2}
    assert (tmp_path / "best.ckpt").is_file()
    trials, sweeps_of_them = read_earlier([folder], (("val_loss", "min"),))
    assert sweeps_of_them == [folder]
    assert [trial.config["model.hidden"] for trial in trials] == [4, 4, 4]


def test_its_space_file_means_the_same(folder):
    space = tl.SearchSpace.of(FORMATS / VERSION / "space.yaml")
    recorded = read_sweep_file(folder)
    assert space.describe() == recorded["space"]
    assert list(space.require) == recorded["require"]
    space.check_baselines([trial.config for trial in tl.SweepResults.load(folder).trials])
    settings = Settings(**space.settings)
    assert (settings.workers, settings.max_epochs, settings.seed) == (2, recorded["max_epochs"], recorded["seed"])
    assert settings.scheduler == recorded["scheduler"]
